"""`tidelog server --workers N FILE`: the brokers of one machine as processes of one supervisor."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import DEADLINE_S, Program, free_pair, free_ports, wait_until
from tests.support.server import run_tidelog, tidelog_command
from tests.support.up import Up, is_alive

pytestmark = pytest.mark.long(150)


TRIES = 3
"""How often a test may find that a worker is there again before it has taken its port."""


class Machine:
    """Two workers of a file with both roles."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.data = folder / "data"
        self.port = free_pair()
        controller, self.metrics = free_ports(2)
        self.log = folder / "log"
        self.file = folder / "server.properties"
        self.file.write_text(
            f"node.id=100\nbroker.rack=a/m\nlog.dirs={self.data}\nmetrics_port={self.metrics}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}\n"
            "offsets.topic.num.partitions=2\noffsets.topic.replication.factor=1\n"
            "group.initial.rebalance.delay.ms=0\n"
        )
        self.starts = 0
        self.program = self.start("--new-cluster")

    def start(self, *arguments: str) -> Program:
        self.starts += 1
        self.log = self.file.with_name(f"log-{self.starts}")
        words = ("server", str(self.file), "--workers", "2", *arguments)
        self.program = Program(tidelog_command(*words), self.log)
        return self.program

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port},127.0.0.1:{self.port + 1}"

    def until_said(self, pattern: str, times: int = 1) -> list[str]:
        wait_until(
            lambda: (
                len(re.findall(pattern, self.program.output())) >= times
                or self.program.exit_status() is not None
            ),
            DEADLINE_S,
            f"{times} x {pattern}",
        )
        found = re.findall(pattern, self.program.output())
        assert len(found) >= times, self.program.output()
        return found

    def page(self, path: str) -> bytes:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.metrics}{path}", timeout=DEADLINE_S
            ) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            return error.read()

    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.page("/health"))
        return found

    def sample(self, name: str) -> float | None:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.page("/metrics").decode(), re.M)
        return None if found is None else float(found[1])

    def kill_and_take_port(self) -> socket.socket:
        """Kill worker 1, and listen on its port before it is started again.

        The pause before that is 2 s, then longer: a busy machine may take as long.
        """
        for tried in range(TRIES):
            pid = self.until_said(r'"broker 101 serves" worker=\d+ pid=(\d+)', tried + 1)[-1]
            os.kill(int(pid), signal.SIGKILL)
            self.until_said(
                rf"broker 101 \(pid {pid}\) was killed by SIGKILL; the next start is in \d+ s"
            )
            try:
                return socket.create_server(("127.0.0.1", self.port + 1))
            except OSError as error:
                assert error.errno == errno.EADDRINUSE, error
        raise AssertionError(
            f"{TRIES} times the worker had its port again: {self.program.output()}"
        )

    def pids(self) -> list[int]:
        """The last process of each worker that served."""
        found = re.findall(r'"broker (\d+) serves" worker=\d+ pid=(\d+)', self.program.output())
        return [*{node: int(pid) for node, pid in found}.values()]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "machine")
    yield machine
    if machine.program.exit_status() is None:
        machine.program.stop()


def test_two_workers_serve_come_back_and_are_restarted_one_after_another(machine: Machine) -> None:
    (ready,) = machine.until_said("ready workers=.*")
    assert ready == (
        f"ready workers=2 nodes=100,101 bootstrap={machine.bootstrap} "
        f"metrics=127.0.0.1:{machine.metrics}"
    )
    server = ("--bootstrap-server", machine.bootstrap)
    create = ("topics", *server, "--create", "--topic", "t", "--partitions", "4")
    assert run_tidelog(*create, "--replication-factor", "1").returncode == 0
    sent = ("produce", *server, "--topic", "t")
    assert run_tidelog(*sent, stdin="".join(f"{x}\n" for x in range(40))).returncode == 0
    brokers = json.loads(run_tidelog("doctor", *server, "--json").stdout)["brokers"]
    assert [(each["broker"], each["rack"]) for each in brokers] == [(100, "a/m"), (101, "a/m")]
    assert (machine.data / "meta.properties").exists()
    assert (machine.data / "worker.1" / "meta.properties").exists()

    # Their sums are on one page.
    # A worker that takes longer for its page on a busy machine is left out of it.
    wait_until(lambda: machine.health()["healthy"], DEADLINE_S, "all workers are healthy")
    assert sorted(machine.health()["workers"]) == ["100", "101"]
    wait_until(
        lambda: machine.sample("kafka_server_replicamanager_partitioncount") == 4,
        DEADLINE_S,
        "the page has the partitions of both",
    )

    # One dies: it is started again on its port; the other one goes on.
    first, second = machine.pids()
    os.kill(second, signal.SIGKILL)
    machine.until_said(rf"broker 101 \(pid {second}\) was killed by SIGKILL; the next start is in")
    machine.until_said('"broker 101 serves"', 2)
    assert machine.pids()[0] == first and machine.pids()[1] != second

    # One is frozen: the page says so, and does not wait for it.
    frozen = machine.pids()[1]
    os.kill(frozen, signal.SIGSTOP)
    try:
        health = machine.health()
        assert health["healthy"] is False and health["live"] is True
        assert health["workers"]["101"] == {
            "healthy": False, "live": False, "ready": False,
            "waits_for": "its response: the process runs, and sent none within 5 s",
        }  # fmt: skip
        wait_until(
            lambda: machine.health()["workers"]["100"]["healthy"], DEADLINE_S, "the other is well"
        )
        assert machine.sample('tidelog_worker_up{node="101"}') == 0
    finally:
        os.kill(frozen, signal.SIGCONT)

    before = machine.pids()
    machine.program.send(signal.SIGHUP)
    machine.until_said("all workers were restarted")
    assert not {*before} & {*machine.pids()}
    said = re.findall(r'"broker (\d+) serves"', machine.program.output())
    assert said == ["100", "101", "101", "100", "101"]
    assert "was killed" not in machine.program.output().rpartition("one after another")[2]

    read = run_tidelog(
        "consume", *server, "--topic", "t", "--from-beginning", "--max-messages", "40",
    )  # fmt: skip
    assert sorted(map(int, read.stdout.split())) == list(range(40)), read
    running = machine.pids()
    assert machine.program.stop() == 0
    assert not any(map(is_alive, running))
    # The data of worker 0 are where a server without workers has them.
    assert (machine.data / ".kafka_cleanshutdown").exists()


def test_workers_end_with_their_supervisor(machine: Machine) -> None:
    machine.until_said("ready workers=")
    running = machine.pids()
    machine.program.kill()
    wait_until(lambda: not any(map(is_alive, running)), DEADLINE_S, "the workers have stopped")
    assert machine.program.output().count("event=stopped") == 2


def test_a_machine_on_which_no_worker_starts_ends_with_the_reason(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    machine.program.kill()
    with machine.file.open("a") as file:
        file.write("cluster.secret.file=/nowhere/secret\n")
    program = machine.start()
    # Four starts of each, with 14 s of pauses between them.
    assert program.wait(2 * DEADLINE_S) == 1
    for pause_s in (2, 4, 8):
        assert f"the next start is in {pause_s} s" in program.output()
    assert "error: cluster.secret.file: /nowhere/secret cannot be read" in program.output()
    assert re.fullmatch(
        r"error: broker 10\d could not be started: broker 10\d \(pid \d+\) exited with status 1; "
        r"cluster.secret.file: /nowhere/secret cannot be read: .*; no worker runs",
        program.output().splitlines()[-1],
    )


def test_a_file_that_is_refused_stops_no_worker(machine: Machine) -> None:
    machine.until_said("ready workers=.*")
    pids = machine.pids()
    text = machine.file.read_text()
    own_directory = machine.data.parent / "other"
    for line, said in (
        (
            "log.retention.hours=banana",
            "Invalid value banana for configuration log.retention.hours: .*",
        ),
        ("cluster.secret.file=/nowhere/secret", "cluster.secret.file: /nowhere/secret cannot .*"),
        ("node.id=7", f"{machine.data} belongs to node 100, this server is node 7: .*"),
        (
            f"node.id=7\nlog.dirs={own_directory}",
            "node.id is 7, and the workers run with .* 100: .*",
        ),
    ):
        machine.file.write_text(f"{text}{line}\n")
        checked = run_tidelog("server", "--check", "--workers", "2", str(machine.file))
        if "log.dirs" in line:
            assert (checked.returncode, checked.stdout) == (0, "accepted node=7\n"), checked
        else:
            assert checked.returncode in (1, 2) and re.search(said, checked.stderr), checked
        machine.program.send(signal.SIGHUP)
        file = re.escape(str(machine.file))
        machine.until_said(
            f'event="no worker is restarted, as {file} is refused: {said}; mend it, then send '
            'SIGHUP again"'
        )
    assert machine.pids() == pids and all(map(is_alive, pids))
    assert "stopping: SIGTERM" not in machine.program.output()
    assert not own_directory.exists()
    machine.file.write_text(text)
    machine.program.send(signal.SIGHUP)
    machine.until_said("all workers were restarted")
    assert not set(pids) & set(machine.pids())


def test_a_second_supervisor_and_a_taken_port_are_refused(machine: Machine) -> None:
    machine.until_said("ready workers=.*")
    first, second = machine.pids()
    pid = machine.program.pid
    refused = run_tidelog("server", "--workers", "2", str(machine.file))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        f"error: another `tidelog server --workers` uses {machine.data} (pid {pid}): stop it "
        f"(`kill {pid}`), or choose another directory (log.dirs)\n"
    )
    assert machine.pids() == [first, second] and is_alive(first) and is_alive(second)

    # A worker that ends by itself: the supervisor says why.
    with machine.kill_and_take_port():
        why = (
            f"cannot listen on PLAINTEXT://127.0.0.1:{machine.port + 1}: the port is in use by "
            "another process"
        )
        machine.until_said(
            r'event="broker 101 could not be started: broker 101 \(pid \d+\) exited with status 1; '
            rf'{why}; the next start is in \d+ s"'
        )
        assert machine.health()["workers"]["101"]["healthy"] is False
        machine.program.stop()
        machine.start()
        assert machine.program.wait(DEADLINE_S) == 1
        assert machine.program.output() == (f"error: broker 101: {why} (no process was started)\n")
    machine.start()
    machine.until_said("ready workers=.*")


def test_a_wrong_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"process.roles=controller\nnode.id=1\nlog.dirs={tmp_path / 'data'}\n")
    refused = run_tidelog("server", str(file), "--workers", "2")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"error: {file}: process.roles is controller: --workers starts brokers; leave it out.\n"
    )
    wrong = run_tidelog("server", str(file), "--workers", "2", "--worker", "2")
    assert wrong.returncode == 2 and "--worker 2: say --workers N" in wrong.stderr
    wrong = run_tidelog("server", str(file), "--workers", "0")
    assert wrong.returncode == 2 and "0 is not from 1 to 128" in wrong.stderr
    wrong = run_tidelog("server", str(file), "--workers", "two")
    assert wrong.returncode == 2 and "two is not from 1 to 128" in wrong.stderr
    assert not (tmp_path / "data").exists()


def test_a_machine_of_two_is_killed_and_the_other_one_has_every_partition(tmp_path: Path) -> None:
    machines = ("--brokers", "2", "--workers", "2", "--config", "min.insync.replicas=1")
    with Up(tmp_path / "cluster", *machines) as up:
        up.until_said("ready")
        # Broker 1 is the controller; the machines have the brokers 1 and 3, 2 and 4.
        server = ("--bootstrap-server", up.cluster()["bootstrap"])
        brokers = json.loads(run_tidelog("doctor", *server, "--json").stdout)["brokers"]
        assert [(each["broker"], each["rack"]) for each in brokers] == [
            (1, "machine-1"), (2, "machine-2"), (3, "machine-1"), (4, "machine-2"),
        ]  # fmt: skip
        create = ("topics", *server, "--create", "--topic", "t", "--partitions", "12")
        assert run_tidelog(*create).returncode == 0
        described = run_tidelog("topics", *server, "--describe", "--topic", "t", "--json")
        (topic,) = json.loads(described.stdout)
        replicas = [each["replicas"] for each in topic["partitions"]]
        assert len(replicas) == 12
        assert all({broker % 2 for broker in each} == {0, 1} for each in replicas), replicas
        for broker in up.cluster()["brokers"]:
            if broker["id"] % 2 == 0:
                os.kill(broker["pid"], signal.SIGKILL)
        sent = run_tidelog("produce", *server, "--topic", "t", stdin="a\nb\nc\n")
        assert sent.returncode == 0, sent.stderr
        read = run_tidelog(
            "consume", *server, "--topic", "t", "--from-beginning", "--max-messages", "3",
        )  # fmt: skip
        assert sorted(read.stdout.split()) == ["a", "b", "c"], read


def test_a_machine_of_two_freezes_and_its_brokers_are_suspected_together(tmp_path: Path) -> None:
    # Death comes too late for this test: only the suspicion moves leaderships.
    configs = ("min.insync.replicas=1", "broker.session.timeout.ms=300000")
    words = [word for each in configs for word in ("--config", each)]
    # Machine 1 has the controller: only heartbeats of machine 3 prove that its network is well.
    arguments = ("--brokers", "3", "--workers", "2", "--config", "broker.silence.suspect.ms=2000")
    with Up(tmp_path / "cluster", *arguments, *words) as up:
        up.until_said("ready")
        server = ("--bootstrap-server", up.cluster()["bootstrap"])
        create = ("topics", *server, "--create", "--topic", "t", "--partitions", "12")
        assert run_tidelog(*create).returncode == 0
        frozen = [each["pid"] for each in up.cluster()["brokers"] if each["id"] in (2, 5)]
        assert len(frozen) == 2
        log = tmp_path / "cluster" / "node-1.log"
        # A busy machine may have silenced brokers for 2 s before, and the others now.
        before = len(log.read_text())

        def suspected() -> set[str]:
            said = re.findall(
                r"broker (\d) is suspected: it was silent for 2000 ms", log.read_text()[before:]
            )
            return {*said} & {"2", "5"}

        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(
                lambda: suspected() == {"2", "5"},
                DEADLINE_S,
                lambda: f"both brokers of the machine are suspected, not only {suspected()}",
            )
            alone = ("--bootstrap-server", f"127.0.0.1:{up.cluster()['brokers'][0]['port']}")
            sent = run_tidelog("produce", *alone, "--topic", "t", stdin="a\nb\nc\n")
            assert sent.returncode == 0, sent.stderr

            def leaders() -> set[int]:
                described = run_tidelog("topics", *alone, "--describe", "--topic", "t", "--json")
                (topic,) = json.loads(described.stdout)
                return {each["leader"] for each in topic["partitions"]}

            wait_until(
                lambda: leaders() <= {1, 3, 4, 6},
                DEADLINE_S,
                lambda: f"the other machines lead all partitions, not {leaders()}",
            )
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        read = run_tidelog(
            "consume", *server, "--topic", "t", "--from-beginning", "--max-messages", "3",
        )  # fmt: skip
        assert sorted(read.stdout.split()) == ["a", "b", "c"], read
