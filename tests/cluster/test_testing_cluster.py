"""`tidelog.testing`: what tests of other projects run on (examples/shop is one of them)."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node import answers_metadata
from tests.support.processes import CLOCK_TICKS_PER_S, DEADLINE_S, wait_until
from tests.support.target import TARGET
from tests.support.up import is_alive
from tidelog.testing import Cluster, ClusterError

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(TARGET != "tidelog", reason="tidelog's own processes"),
]

YARDSTICK = (
    "import asyncio, argparse, email.message, http.server, logging.handlers, sqlite3, ssl, typing, "
    "unittest.mock, urllib.request, xml.dom.minidom, zipfile"
)
"""Some imports of Python's own, whose CPU time says how fast this machine is at the moment."""

START_YARDS = 8.0
"""What a start may take: one broker is ready in under a second on an idle machine. It waits for
nothing, so the time that it computes is the time that it takes there: 5.3 yardsticks when this was
written, where a yardstick took 0.11 s."""

TRIES = 5

GROWS_AGAIN_S = 60.0
"""Half of the two minutes that a topic stays shrunk with the defaults of a server."""


def port_of(cluster: Cluster, node: int) -> int:
    return int(cluster.bootstrap_servers.split(",")[node - 1].rpartition(":")[2])


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S


def yardstick_s() -> float:
    """The CPU time of the yardstick now, as that of a child process that has ended."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", YARDSTICK], check=True, timeout=DEADLINE_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def grows(cluster: Cluster, topic: str, partitions: int) -> bool:
    try:
        cluster.resize(topic, partitions)
    except ClusterError as refused:
        assert "retired" in str(refused)
        return False
    return True


def kept(parent: Path) -> set[str]:
    """What is left in the folder of the only cluster below this one."""
    (folder,) = parent.iterdir()
    return {path.name for path in folder.iterdir()}


def test_a_start_takes_less_than_a_second_and_its_end_leaves_nothing(tmp_path: Path) -> None:
    found = []
    for _ in range(TRIES):
        yard_s = yardstick_s()
        with Cluster(parent_folder=tmp_path) as cluster:
            (pid,) = cluster.pids().values()
            assert pid is not None
            host = parent_of(pid)
            found.append((cpu_s(pid) + cpu_s(host)) / yard_s)
        assert not is_alive(pid) and not is_alive(host)
        assert list(tmp_path.iterdir()) == []
        if found[-1] < START_YARDS:
            return
    pytest.fail(f"in yardsticks: {found}")


def test_nodes_are_killed_paused_resumed_and_restarted(tmp_path: Path) -> None:
    with Cluster(3, parent_folder=tmp_path) as cluster:
        assert cluster.nodes == [1, 2, 3]
        servers = cluster.bootstrap_servers
        before = cluster.pids()
        cluster.create_topic("t", 2, config={"retention.ms": "1000"})
        cluster.kill(2)
        assert cluster.pids() == {**before, 2: None}
        cluster.restart(2)
        assert answers_metadata(port_of(cluster, 2), DEADLINE_S)
        cluster.pause(3)
        with socket.create_connection(("127.0.0.1", port_of(cluster, 3)), DEADLINE_S) as asked:
            # ApiVersions v0, correlation id 7, no client id.
            asked.sendall(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
            asked.settimeout(0.5)
            with pytest.raises(TimeoutError):
                asked.recv(1)
            cluster.resume(3)
            asked.settimeout(DEADLINE_S)
            assert asked.recv(8)[4:] == bytes.fromhex("00000007")
        cluster.pause(3)
        cluster.kill(3)
        cluster.restart(3)
        cluster.pause(3)
        cluster.restart(3)
        assert answers_metadata(port_of(cluster, 3), DEADLINE_S)
        cluster.resize("t", 4)
        # Forced: a node that has just started has not reported yet which producers write.
        cluster.resize("t", 2, force=True)
        wait_until(lambda: grows(cluster, "t", 3), GROWS_AGAIN_S, "it grows again")
        assert cluster.bootstrap_servers == servers
    assert list(tmp_path.iterdir()) == []


def test_a_call_that_fails_says_why_in_one_line_and_the_next_one_works(tmp_path: Path) -> None:
    with Cluster(parent_folder=tmp_path) as cluster:
        for call, why in (
            (lambda: cluster.kill(2), "there is no node 2: the nodes are [1]"),
            (lambda: cluster.create_topic("no such name"), "INVALID_TOPIC_EXCEPTION"),
            (lambda: cluster.create_topic("t", config={"x.y": "1"}), "INVALID_CONFIG"),
            (lambda: cluster.resize("t", 2), "UNKNOWN_TOPIC_OR_PARTITION"),
        ):
            with pytest.raises(ClusterError) as refused:
                call()
            assert why in str(refused.value) and "\n" not in str(refused.value)
        cluster.kill(1)
        for dead in (cluster.kill, cluster.pause, cluster.resume):
            with pytest.raises(ClusterError, match="broker 1 does not run"):
                dead(1)
        cluster.restart(1)
        cluster.create_topic("t")
        with pytest.raises(ClusterError, match="runs already"):
            cluster.start()
    with pytest.raises(ClusterError, match="does not run"):
        cluster.kill(1)
    cluster.start()
    cluster.stop()


def test_a_start_that_fails_keeps_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ClusterError, match=r"unknown\.setting"):
        Cluster(config={"unknown.setting": "1"}, parent_folder=tmp_path).start()
    assert kept(tmp_path) == {"cluster.log", "node-1.log", "node-1.properties"}
    assert f"the logs of the cluster are in {tmp_path}/tidelog-" in capsys.readouterr().err


def test_logs_are_kept_after_an_exception_and_when_they_are_wanted(tmp_path: Path) -> None:
    logs = {"cluster.log", "node-1.log", "node-1.properties"}
    failed, wanted = tmp_path / "failed", tmp_path / "wanted"
    failed.mkdir()
    wanted.mkdir()
    with pytest.raises(AssertionError), Cluster(parent_folder=failed):
        raise AssertionError
    with Cluster(parent_folder=wanted) as cluster:
        cluster.keep_logs = True
    assert kept(failed) == kept(wanted) == logs


DIES = """
import os, signal, sys, time
from tidelog.testing import Cluster
cluster = Cluster(2, parent_folder=sys.argv[1])
cluster.start()
cluster.pause(2)
child = os.fork()
if child == 0:
    time.sleep(3600)
print(child, *cluster.pids().values(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_broker_outlives_a_killed_test_process(tmp_path: Path) -> None:
    """One of the brokers is paused, and a process that the test process forked holds its pipes."""
    with subprocess.Popen(
        [sys.executable, "-c", DIES, tmp_path], stdout=subprocess.PIPE, text=True
    ) as dying:
        assert dying.stdout is not None
        child, *pids = (int(word) for word in dying.stdout.readline().split())
        try:
            wait_until(
                lambda: not any(is_alive(pid) for pid in pids), DEADLINE_S, "all brokers are gone"
            )
            wait_until(
                lambda: kept(tmp_path) == {
                    "cluster.log", "node-1.log", "node-2.log", "node-1.properties",
                    "node-2.properties",
                },
                DEADLINE_S,
                lambda: f"only logs are left, not {kept(tmp_path)}",
            )  # fmt: skip
        finally:
            os.kill(child, signal.SIGKILL)


def test_no_broker_outlives_a_killed_host(tmp_path: Path) -> None:
    cluster = Cluster(parent_folder=tmp_path)
    cluster.start()
    (pid,) = cluster.pids().values()
    assert pid is not None
    host = parent_of(pid)
    os.kill(host, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), DEADLINE_S, "the broker has stopped")
    with pytest.raises(ClusterError, match=r"has ended; see .*cluster\.log"):
        cluster.kill(1)
    cluster.stop()
    assert "node-1.log" in kept(tmp_path)


def run_pytest(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a project of its own, whose folder has a module named as one of Python's."""
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "selectors.py").write_text("raise ImportError('the wrong module')\n")
    (folder / "test_it.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "-rA",
         f"--basetemp={folder / 'temporary'}", "--import-mode=importlib", *options, "test_it.py"],
        cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip


def test_the_plugin_imports_nothing_where_it_is_not_used(tmp_path: Path) -> None:
    text = """
import sys
def test_it():
    found = {name for name in sys.modules if name.split(".")[0] == "tidelog"}
    names = {"tidelog", "tidelog.version", "tidelog.lazy_names"}
    assert found <= {*names, "tidelog.testing", "tidelog.testing.pytest_plugin"}
"""
    done = run_pytest(tmp_path / "project", text)
    assert done.returncode == 0, done.stdout


def test_brokers_and_scope_are_options_and_a_failed_test_shows_the_logs(tmp_path: Path) -> None:
    text = """
import pytest
seen = []
@pytest.mark.tidelog_topic(partitions=3)
def test_one(tidelog_cluster, tidelog_topic):
    assert tidelog_topic.startswith("test-one-")
    assert len(tidelog_cluster.nodes) == 2
    seen.append(tidelog_cluster.bootstrap_servers)
def test_two(tidelog_cluster):
    assert tidelog_cluster.bootstrap_servers not in seen
    assert seen == []
"""
    options = ("--tidelog-brokers", "2", "--tidelog-scope", "function")
    done = run_pytest(tmp_path / "project", text, *options)
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    (line,) = {x for x in done.stdout.splitlines() if x.startswith("logs of the brokers: ")}
    folder = Path(line.removeprefix("logs of the brokers: "))
    assert {path.name for path in folder.iterdir()} >= {"node-1.log", "node-2.log"}
    assert not (folder / "broker-1").exists()
    # And the last lines of each, for what ran somewhere else.
    for node in (1, 2):
        _, _, shown = done.stdout.partition(f"the end of node-{node}.log")
        assert "level=info" in shown.partition("the end of")[0]


@pytest.mark.parametrize("ini", ["tidelog_scope=test", "tidelog_brokers=many"])
def test_a_wrong_setting_is_refused(tmp_path: Path, ini: str) -> None:
    text = "def test_it(tidelog_cluster): ..."
    done = run_pytest(tmp_path / "project", text, "-o", ini)
    assert done.returncode != 0
    assert ini in done.stdout + done.stderr
