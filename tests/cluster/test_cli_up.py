"""`tidelog up` and `tidelog server` as processes: ready, stopped, killed, refused."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import answers_metadata
from tests.support.processes import DEADLINE_S, Program, free_ports, wait_until
from tests.support.server import TidelogNode, run_tidelog, tidelog_command
from tests.support.up import Up, is_alive
from tidelog import __version__
from tidelog.model.levels import LATEST

pytestmark = pytest.mark.long(65)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cluster"


def test_it_says_where_it_is_serves_and_keeps_its_data(folder: Path) -> None:
    with Up(folder, "--config", "num.partitions=3") as up:
        ready = up.until_said("ready")
        cluster = up.cluster()
        assert ready == f"ready bootstrap={cluster['bootstrap']}"
        (broker,) = cluster["brokers"]
        (controller,) = cluster["controllers"]
        assert cluster["bootstrap"] == f"{broker['host']}:{broker['port']}"
        assert answers_metadata(broker["port"], DEADLINE_S)
        assert controller["port"] > 0
        assert is_alive(broker["pid"]) and controller["pid"] == broker["pid"]
        url = f"http://127.0.0.1:{broker['metrics_port']}/health"
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
            assert json.load(answer)["healthy"] is True
        server = ("--bootstrap-server", cluster["bootstrap"])
        sent = ("produce", *server, "--topic", "t", "--create-topic")
        assert run_tidelog(*sent, stdin="a\nb\n").returncode == 0
        assert up.program.stop() == 0
        # U7: it went on naming processes that were gone.
        stopped = up.cluster()
    assert not is_alive(broker["pid"])
    assert [each["pid"] for each in (*stopped["brokers"], *stopped["controllers"])] == [None, None]
    assert stopped["brokers"][0]["metrics_port"] is None
    former = (folder / "node-1.log").read_text()
    assert ' event="topic t created: 3 partitions, 1 replicas each" topic=t ' in former
    with Up(folder, "--config", "logging.format=json") as up:
        up.until_said("ready")
        read = run_tidelog(
            "consume", "--bootstrap-server", up.cluster()["bootstrap"], "--topic", "t",
            "--from-beginning", "--max-messages", "2", "--group", "g",
        )  # fmt: skip
        assert sorted(read.stdout.split()) == ["a", "b"], read
        up.program.send(signal.SIGHUP)
        assert up.program.wait(DEADLINE_S) == 0
    # U11: fifty lines came with the first group, fields were Python objects within the sentence.
    lines = [json.loads(x) for x in (folder / "node-1.log").read_text()[len(former) :].splitlines()]
    (loaded,) = (line for line in lines if line["event"].startswith("loaded "))
    assert (loaded["groups"], loaded["partitions"]) == (0, list(range(50)))
    said = [line for line in lines if line.get("group") == "g"]
    assert "group g: the generation is stable" in {line["event"] for line in said}
    assert all(isinstance(line["generation"], int) for line in said)
    assert len(lines) < 40, [line["event"] for line in lines]


def test_a_child_that_dies_is_reported(folder: Path) -> None:
    with Up(folder) as up:
        up.until_said("ready")
        pid = up.cluster()["brokers"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        assert up.program.wait(DEADLINE_S) == 1
        assert up.lines("error: ") == [
            f"error: broker 1 (pid {pid}) was killed by SIGKILL; see {folder / 'node-1.log'}"
        ]


def test_a_child_that_dies_is_started_again_also_when_it_dies_while_it_starts(folder: Path) -> None:
    with Up(folder, "--restart") as up:
        up.until_said("ready")
        before = up.cluster()
        pid = before["brokers"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: started(up) - {pid}, DEADLINE_S, "it is started again")
        for again in started(up) - {pid}:
            os.kill(again, signal.SIGKILL)
        up.until_said("could not be started")
        up.until_said("is back")
        after = up.cluster()
        assert after["bootstrap"] == before["bootstrap"]
        assert after["brokers"][0]["pid"] != pid
        assert answers_metadata(after["brokers"][0]["port"], DEADLINE_S)


def started(up: Up) -> set[int]:
    """The processes that it has started, ready or not."""
    pid = up.program.pid
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_a_slow_stop_names_the_process_that_it_waits_for(folder: Path) -> None:
    """Ctrl-C was followed by seconds without a word."""
    with Up(folder) as up:
        up.until_said("ready")
        pid = up.cluster()["brokers"][0]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            up.program.send(signal.SIGINT)
            said = up.until_said("waiting until ")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert said == f"waiting until broker 1 (pid {pid}) has stopped"
        assert up.program.wait(DEADLINE_S) == 0


def test_children_end_when_it_is_killed(folder: Path) -> None:
    with Up(folder) as up:
        up.until_said("ready")
        pid = up.cluster()["brokers"][0]["pid"]
        up.program.kill()
        wait_until(lambda: not is_alive(pid), DEADLINE_S, "the child has stopped")
    # At any place: what a thread logs while the process ends may follow it.
    assert "event=stopped" in (folder / "node-1.log").read_text()


def test_a_port_in_use_is_said(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Up(folder, port=port) as up:
            assert up.program.wait(DEADLINE_S) == 1
            (line,) = up.lines("error: ")
            assert str(port) in line


def test_it_names_the_process_it_waits_for_and_says_that_it_never_served(folder: Path) -> None:
    """U3: it was silent for ten minutes, and ended with status 0 when it was stopped."""
    (unused,) = free_ports(1)
    with Up(folder, "--store", f"zookeeper://127.0.0.1:{unused}/t") as up:
        said = up.until_said("waiting for ")
        # The controller itself may not have given its first try up by now.
        assert said.startswith(("waiting for controller 101, ", "waiting for broker 1; controller"))
        assert f"127.0.0.1:{unused}/t" in said
        up.program.send(signal.SIGTERM)
        assert up.program.wait(DEADLINE_S) == 1
        (line,) = up.lines("error: ")
        assert line.startswith("error: stopped before the cluster was ready")


def test_a_second_one_on_the_same_folder_is_refused(folder: Path) -> None:
    with Up(folder) as first:
        first.until_said("ready")
        second = Up(folder)
        assert second.program.wait(DEADLINE_S) == 1
        (line,) = second.lines("error: another `tidelog up` uses")
        assert f"(pid {first.program.pid})" in line
        assert answers_metadata(first.cluster()["brokers"][0]["port"], DEADLINE_S)


# tidelog server


def refused(file: Path, *words: str, status: int = 2) -> None:
    done = run_tidelog("server", str(file))
    assert done.returncode == status, done
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines and all(line.startswith("error: ") for line in lines)
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("num.partitons", "3", ["num.partitons"]),
        ("num.partitions", "many", ["num.partitions"]),
        ("listeners", "PLAINTEXT:9092", ["listeners"]),
        ("process.roles", "zookeeper", ["process.roles"]),
        ("metadata.store", "postgres:x", ["metadata.store", "sqlite:PATH"]),
    ],
)
def test_a_wrong_file_is_refused_with_the_name(
    tmp_path: Path, name: str, value: str | None, words: list[str]
) -> None:
    refused(TidelogNode(tmp_path, {name: value}).file, *words)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    refused(tmp_path / "nothing.properties", "nothing.properties", "No such file", status=1)


def test_wrong_words_are_wrong_usage() -> None:
    done = run_tidelog("server")
    assert done.returncode == 2
    assert "FILE" in done.stderr


def test_an_override_goes_before_the_file(tmp_path: Path) -> None:
    node = TidelogNode(tmp_path)
    done = run_tidelog("server", str(node.file), "--override", "num.partitions=many")
    assert done.returncode == 2
    assert "num.partitions" in done.stderr


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:0"
        node = TidelogNode(
            tmp_path,
            {
                "listeners": listeners,
                "advertised.listeners": None,
                "controller.quorum.bootstrap.servers": None,
            },
        )
        done = run_tidelog("server", str(node.file))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: cannot listen on PLAINTEXT://") and str(port) in line
    assert not (tmp_path / "metadata.db").exists(), "no controller was active, and no epoch raised"


def test_its_own_controller_may_listen_on_one_address(tmp_path: Path) -> None:
    """A broker connected to 127.0.0.1 whatever the address of its controller, and waited for it."""
    node = TidelogNode(tmp_path)
    configs = ("advertised.listeners", "controller.quorum.bootstrap.servers")
    listeners = f"PLAINTEXT://127.0.0.1:{node.port},CONTROLLER://127.0.0.2:0"
    node.configure({"listeners": listeners, **dict.fromkeys(configs)})
    with node:
        assert answers_metadata(node.port, DEADLINE_S)
        said = re.compile(
            rf"^ready node=1 roles=broker,controller PLAINTEXT=127.0.0.1:{node.port} "
            r"CONTROLLER=127.0.0.2:\d+ ",
            re.MULTILINE,
        )
        # The line comes after the first answers of its listener.
        wait_until(lambda: said.search(node.log.read_text()), DEADLINE_S, node.log.read_text)


def test_it_is_ready_once_and_stops_cleanly(tmp_path: Path) -> None:
    node = TidelogNode(tmp_path, {"num.io.threads": 16})
    node.run_with("tests.support.noting_server", {})
    with subprocess.Popen(
        node.command(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **node.environment()},
    ) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith("ready node=1 roles=broker,controller ")
            assert f" PLAINTEXT=127.0.0.1:{node.port} " in ready
            assert ready.rstrip().endswith(f" metrics=127.0.0.1:{node.metrics_port}")
            assert answers_metadata(node.port, DEADLINE_S)
            process.terminate()
            out, err = process.communicate(timeout=DEADLINE_S)
        finally:
            if process.poll() is None:
                process.kill()
    assert process.returncode == 0, err
    assert out == ""
    said = f'event="tidelog {__version__} starts: node 1, broker,controller, level {LATEST.name}"'
    assert said in err and f" log_dirs={node.data} " in err
    assert err.count("num.io.threads") == 1, "its names were in the sentence and in a field"
    where = f"PLAINTEXT://127.0.0.1:{node.port}"
    assert f" listener={where} advertised={where}" in err
    imported = [line for line in err.splitlines() if line.startswith("imported ")]
    assert imported == [], "a start's imports are no stall of a loop that serves"


def broker_alone(folder: Path, controller_port: int) -> TidelogNode:
    """A broker that will seek its controller at a port."""
    return TidelogNode(
        folder,
        {
            "process.roles": "broker",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "advertised.listeners": None,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "metrics_port": None,
        },
    )


def test_it_stops_while_it_starts(tmp_path: Path) -> None:
    # A broker alone waits for its controller: there is none.
    (nobody,) = free_ports(1)
    with Program(broker_alone(tmp_path, nobody).command(), tmp_path / "log") as program:
        wait_until(lambda: program.resident_bytes() > 25_000_000, DEADLINE_S, "it has begun")
        program.send(signal.SIGTERM)
        assert program.wait(DEADLINE_S) in (0, -signal.SIGTERM), program.output()
    assert "Traceback" not in program.output()


def test_it_stops_while_it_seeks_its_controller(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        node = broker_alone(tmp_path, silent.getsockname()[1])
        silent.settimeout(DEADLINE_S)
        with Program(node.command(), tmp_path / "log") as program:
            seeking, _ = silent.accept()
            with seeking:
                program.send(signal.SIGTERM)
                assert program.wait(DEADLINE_S) == 0, program.output()
    assert "Traceback" not in program.output()


def test_it_names_the_controller_it_waits_for(tmp_path: Path) -> None:
    (unused,) = free_ports(1)
    with Program(broker_alone(tmp_path, unused).command(), tmp_path / "log") as program:
        wait_until(
            lambda: f"no active controller answers at 127.0.0.1:{unused}" in program.output(),
            DEADLINE_S,
            "it says so",
        )
        # U13: the end of a terminal was no clean stop.
        program.send(signal.SIGHUP)
        assert program.wait(DEADLINE_S) == 0, program.output()
        assert 'event="stopping: SIGHUP" signal=SIGHUP' in program.output()


def test_a_second_server_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with TidelogNode(tmp_path) as first:
        other = TidelogNode(tmp_path, {"metadata.store": f"sqlite:{tmp_path / 'other.db'}"})
        done = run_tidelog("server", str(other.file))
        assert done.returncode == 1, done
        (line,) = done.stderr.splitlines()
        assert f"{first.data} is in use by another server (pid {first.program.pid})" in line
        assert answers_metadata(first.port, DEADLINE_S)


def test_the_store_is_copied_while_it_is_used(tmp_path: Path) -> None:
    with TidelogNode(tmp_path / "node") as node:
        store = node.config["metadata.store"]
        copy = tmp_path / "copy.db"
        usual = os.umask(0o022)
        try:
            done = run_tidelog("doctor", "backup", str(copy), "--store", str(store))
        finally:
            os.umask(usual)
        assert (done.returncode, done.stderr) == (0, "")
        assert copy.stat().st_size > 0
        assert copy.stat().st_mode & 0o007 == 0, "as the store itself"
        again = run_tidelog("doctor", "backup", str(copy), "--store", str(store))
        assert again.returncode == 1
        assert again.stderr.startswith("error: ")


def test_a_server_needs_neither_click_nor_rich() -> None:
    script = (
        "import sys\n"
        "import tidelog.cli.main, tidelog.cli.server\n"
        "import tidelog.controller.process, tidelog.broker.process, tidelog.broker.metrics\n"
        "print([m for m in ('click', 'rich', 'aiokafka', 'numpy', 'kazoo') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_three_brokers_serve_and_go_on_when_one_dies(folder: Path) -> None:
    with Up(folder, "--brokers", "3") as up:
        ready = up.until_said("ready")
        cluster = up.cluster()
        assert ready == f"ready bootstrap={cluster['bootstrap']}"
        assert [broker["id"] for broker in cluster["brokers"]] == [1, 2, 3]
        assert [each["id"] for each in cluster["controllers"]] == [1]
        assert all(answers_metadata(broker["port"], DEADLINE_S) for broker in cluster["brokers"])
        server = ("--bootstrap-server", cluster["bootstrap"])
        assert run_tidelog("topics", *server, "--create", "--topic", "t").returncode == 0
        described = run_tidelog("topics", *server, "--describe", "--topic", "t", "--json")
        assert '"replicas": [' in described.stdout, described
        assert run_tidelog("produce", *server, "--topic", "t", stdin="a\nb\n").returncode == 0
        os.kill(cluster["brokers"][2]["pid"], signal.SIGKILL)
        said = up.until_said("the other processes keep running; to restart it: tidelog server ")
        assert up.cluster()["brokers"][2]["pid"] is None
        command = tidelog_command("server", said.rpartition("tidelog server ")[2])
        with Program(command, folder / "by-hand") as by_hand:
            wait_until(
                lambda: up.cluster()["brokers"][2]["pid"] == by_hand.pid, DEADLINE_S, "it is seen"
            )
            wait_until(lambda: "ready" in by_hand.output(), DEADLINE_S, "it serves")
            assert answers_metadata(cluster["brokers"][2]["port"], DEADLINE_S), "where it was"
            assert by_hand.stop() == 0
        wait_until(lambda: up.cluster()["brokers"][2]["pid"] is None, DEADLINE_S, "its end is seen")
        read = run_tidelog(
            "consume", *server, "--topic", "t", "--from-beginning", "--max-messages", "2"
        )
        assert sorted(read.stdout.split()) == ["a", "b"], read
        assert up.program.stop() == 0
    assert not any(is_alive(broker["pid"]) for broker in cluster["brokers"])


def test_a_broker_of_three_comes_back_where_it_was(folder: Path) -> None:
    with Up(folder, "--brokers", "3", "--restart") as up:
        up.until_said("ready")
        before = up.cluster()
        os.kill(before["brokers"][0]["pid"], signal.SIGKILL)
        up.until_said("is back")
        after = up.cluster()
        assert after["bootstrap"] == before["bootstrap"]
        assert after["controllers"][0]["port"] == before["controllers"][0]["port"]
        assert after["brokers"][0]["pid"] != before["brokers"][0]["pid"]
