"""`tidelog up` with several controllers on a real ZooKeeper: the active one is killed under load.

One run of the cluster for most of it: starting it costs more than what is asked of it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.acked_stream import GroupReader, Writer, read_all, settled
from tests.support.cluster import create_replicated, until_in_sync
from tests.support.log_files import batches_by_partition
from tests.support.own_time import Starvation
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import run_tidelog
from tests.support.target import TARGET
from tests.support.up import Up, is_alive
from tests.support.zookeeper import ZooKeeper, needed
from tidelog.metadata.zookeeper import SESSION_TIMEOUT_S

pytestmark = [
    pytest.mark.java,
    pytest.mark.kill,
    pytest.mark.long,
    pytest.mark.skipif(TARGET != "tidelog", reason="tidelog's own command"),
]

TOPIC = "stream"
PARTITIONS = 3
TRIES = 3


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    needed()
    with ZooKeeper(tmp_path) as started:
        yield started


@dataclass
class Load:
    """Two writers and a group at work on `up`'s cluster."""

    bootstrap: str
    writers: list[Writer]
    reader: GroupReader

    @staticmethod
    def begin(bootstrap: str) -> Load:
        create_replicated(bootstrap, TOPIC, PARTITIONS, min_insync_replicas=2)
        writers = [
            Writer(bootstrap, TOPIC, "idempotent", PARTITIONS, idempotent=True, per_s=60),
            Writer(bootstrap, TOPIC, "plain", PARTITIONS, idempotent=False, per_s=60),
        ]
        load = Load(bootstrap, writers, GroupReader(bootstrap, TOPIC, "readers"))
        for part in (*writers, load.reader):
            part.start()
        return load

    def until_more(self, count: int) -> None:
        """Wait until each writer has so many more acknowledgements."""
        wanted = [(writer, len(writer.acked) + count) for writer in self.writers]
        wait_until(
            lambda: all(writer.has_acked(count) for writer, count in wanted),
            DEADLINE_S,
            lambda: "more of " + ", ".join(writer.state() for writer in self.writers),
        )

    def check(self, folder: Path) -> dict[tuple[int, int], str]:
        """Let all come to rest and hold the books against the topic; what is in it.

        ``folder``: the one of `up`.
        """
        batches_of = batches_by_partition(folder.glob("broker-*"), TOPIC)
        return settled(self.bootstrap, TOPIC, PARTITIONS, self.writers, self.reader, batches_of)


def active_controller(zookeeper: ZooKeeper) -> int | None:
    """The id in the `/controller` node, None when there is none."""
    node = zookeeper.content("/t/controller")
    return None if node is None else int(json.loads(node)["brokerid"])


def epoch(zookeeper: ZooKeeper) -> int:
    """The controller epoch: +1 each time that a controller becomes active."""
    return int(zookeeper.content("/t/controller_epoch") or -1)


def signal_to(cluster: dict[str, Any], kind: str, node_id: int | None, number: int) -> None:
    """Send a signal to one of the "controllers" or "brokers"."""
    (pid,) = [each["pid"] for each in cluster[kind] if each["id"] == node_id]
    os.kill(pid, number)


def kill(cluster: dict[str, Any], kind: str, node_id: int | None) -> None:
    """kill -9 of one of them."""
    signal_to(cluster, kind, node_id, signal.SIGKILL)


def pids(cluster: dict[str, Any]) -> set[int]:
    return {each["pid"] for kind in ("brokers", "controllers") for each in cluster[kind]}


def pause_the_active(up: Up, zookeeper: ZooKeeper) -> None:
    """Pause the active controller for longer than its session: one takes over, and the paused one,
    when it wakes, does not.

    It is done again, and said, when one of the processes was starved meanwhile: then a session may
    have ended without a pause.
    """
    assert zookeeper.program is not None
    everybody = {*pids(up.cluster()), zookeeper.program.pid}
    for number in range(TRIES):
        before, active = epoch(zookeeper), active_controller(zookeeper)
        with Starvation(lambda: everybody, SESSION_TIMEOUT_S) as starvation:
            signal_to(up.cluster(), "controllers", active, signal.SIGSTOP)
            wait_until(
                lambda active=active: active_controller(zookeeper) not in (None, active),  # type: ignore[misc]
                DEADLINE_S,
                "the other one",
            )
            signal_to(up.cluster(), "controllers", active, signal.SIGCONT)
            create_replicated(up.cluster()["bootstrap"], f"woken-{number}", 1)
            taken_over = epoch(zookeeper) - before
        if taken_over == 1:
            return
        starved = f"{starvation.longest_s:.2f} s of {SESSION_TIMEOUT_S} s"
        said = f"{taken_over} took over, {starved} without a processor"
        print(said)
        if starvation.longest_s < SESSION_TIMEOUT_S / 4:
            break
        wait_until(lambda: active_controller(zookeeper) is not None, DEADLINE_S, "one is active")
    raise AssertionError(said)


def test_a_standby_takes_over_and_nothing_is_lost(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    store = f"zookeeper://{zookeeper.address}/t"
    arguments = ("--brokers", "3", "--controllers", "2", "--store", store)
    with Up(folder, *arguments) as up:
        ready = up.until_said("ready")
        cluster = up.cluster()
        assert ready == f"ready bootstrap={cluster['bootstrap']}"
        assert [each["id"] for each in cluster["brokers"]] == [1, 2, 3]
        assert [each["id"] for each in cluster["controllers"]] == [101, 102]
        assert len(pids(cluster)) == 5 and all(is_alive(pid) for pid in pids(cluster))
        load = Load.begin(cluster["bootstrap"])
        load.until_more(60)
        first = active_controller(zookeeper)
        kill(cluster, "controllers", first)
        up.until_said(f"controller {first} (pid ")
        # Leaders serve on while there is no controller: its session lasts 4 s.
        load.until_more(60)
        wait_until(
            lambda: active_controller(zookeeper) not in (None, first), DEADLINE_S, "the standby"
        )
        # What only a controller can do is done by the new one, and it sees brokers die.
        create_replicated(load.bootstrap, "later", 1)
        kill(cluster, "brokers", 1)
        up.until_said("broker 1 (pid ")
        load.until_more(60)
        found = load.check(folder)
        now = up.cluster()
        assert [each["pid"] is None for each in now["brokers"]] == [True, False, False]
        assert [each["pid"] is None for each in now["controllers"]].count(True) == 1
        assert up.program.stop() == 0
        assert not any(is_alive(pid) for pid in pids(cluster))
    with Up(folder, *arguments, "--restart") as up:
        up.until_said("ready")
        assert read_all(up.cluster()["bootstrap"], TOPIC, PARTITIONS) == found
        until_in_sync(up.cluster()["bootstrap"], TOPIC, 3)
        pause_the_active(up, zookeeper)
        before, active = epoch(zookeeper), active_controller(zookeeper)
        kill(up.cluster(), "controllers", active)
        up.until_said(f"controller {active} is back")
        wait_until(lambda: epoch(zookeeper) > before, DEADLINE_S, "one of both is active")
        kill(up.cluster(), "brokers", 3)
        up.until_said("broker 3 is back")
        # All controllers die: what has a leader is served all the same.
        for each in up.cluster()["controllers"]:
            os.kill(each["pid"], signal.SIGKILL)
        server = ("--bootstrap-server", up.cluster()["bootstrap"])
        assert run_tidelog("produce", *server, "--topic", "later", stdin="a\n").returncode == 0
        wait_until(lambda: len(up.lines("is back")) == 4, DEADLINE_S, "both are back")
        create_replicated(up.cluster()["bootstrap"], "latest", 1)
        last = pids(up.cluster())
        assert up.program.stop() == 0
        assert not any(is_alive(pid) for pid in last)


def test_several_controllers_on_sqlite_are_refused(tmp_path: Path) -> None:
    done = run_tidelog("up", "--data", str(tmp_path / "data"), "--controllers", "2")
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: --controllers 2 ") and "zookeeper://" in line
    assert not (tmp_path / "data").exists()


def test_a_store_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    done = run_tidelog(
        "up", "--data", str(tmp_path / "data"), "--port", "0", "--store", "zookeeper:127.0.0.1"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: --store 'zookeeper:127.0.0.1'")
