"""The verdict on a cluster's run: each check on a good history and on a bad one."""

from __future__ import annotations

import asyncio
import random
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.cluster.clients import GroupBook
from tests.simulation.cluster.journal import Place
from tests.simulation.cluster.leftovers import Leftovers
from tests.simulation.cluster.node_control import FAULT, Begun, NodeControl
from tests.simulation.cluster.verdict import Verdict
from tests.simulation.history import Final, History, Outcome
from tests.simulation.kernel.inodes import DirectoryNode
from tests.simulation.kernel.loop import Failure, Job, SimulatedLoop
from tidelog.client.errors import ConnectionLost
from tidelog.metadata import layout
from tidelog.model.errors import ErrorCode

P = "plain-0"


class Coordinator:
    """A connection to a coordinator that gives the responses of the test."""

    peer = "b1:9092"

    def __init__(self) -> None:
        self.value = -1
        self.error = ErrorCode.NONE

    async def send(self, request: object, **_: object) -> Any:
        part = SimpleNamespace(error_code=self.error, committed_offset=self.value)
        topic = SimpleNamespace(partitions=[part])
        group = SimpleNamespace(error_code=0, topics=[topic])
        return SimpleNamespace(topics=[topic], groups=[group])


def committed(times: int) -> tuple[GroupBook, Coordinator]:
    """A loner that has committed 0 and so on, all on one connection."""
    book = GroupBook(SimpleNamespace(), "g", "t", random.Random(0))  # type: ignore[arg-type]
    connection = Coordinator()

    async def commit() -> None:
        for _ in range(times):
            await book._commit(connection)  # type: ignore[arg-type]

    asyncio.run(commit())
    return book, connection


def looked(book: GroupBook, connection: Coordinator, value: int, **more: bool) -> list[str]:
    connection.value = value
    asyncio.run(book.look(connection, **more))  # type: ignore[arg-type]
    return book.lost


def test_a_coordinator_that_answered_a_commit_may_not_say_an_earlier_one() -> None:
    book, connection = committed(50)
    assert looked(book, connection, 49) == []
    assert len(looked(book, connection, 3)) == 1
    book, connection = committed(50)
    assert len(looked(book, connection, -1)) == 1


def test_a_deposed_coordinator_may_say_an_earlier_commit() -> None:
    book, _ = committed(50)
    assert looked(book, Coordinator(), 3) == []
    assert len(looked(book, Coordinator(), 60)) == 1, "no member ever committed that"
    book, _ = committed(50)
    assert len(looked(book, Coordinator(), 3, is_last=True)) == 1, "none is deposed at the end"


def test_a_commit_without_an_answer_may_be_there_or_not() -> None:
    book, connection = committed(5)
    connection.error = ErrorCode.NOT_COORDINATOR
    with pytest.raises(ConnectionLost):
        asyncio.run(book._commit(connection))  # type: ignore[arg-type]
    connection.error = ErrorCode.NONE
    assert looked(book, connection, 5) == looked(book, connection, 4) == []


def verdict(history: History | None = None, **more: Any) -> Verdict:
    states = SimpleNamespace(unclean=set(), **more)
    return Verdict(SimpleNamespace(brokers=[]), states, history or History())  # type: ignore[arg-type]


def test_what_a_loner_lost_is_said() -> None:
    for lost in ([], ["b1 says 3, but 49 was committed"]):
        found = verdict()
        found.loner(SimpleNamespace(lost=lost))  # type: ignore[arg-type]
        assert found.found == [f"commits_stay: {line}" for line in lost]
    unclean = verdict()
    unclean.states.unclean.add(Place("id", "__consumer_offsets", 0))
    unclean.loner(SimpleNamespace(lost=["gone with the unclean election"]))  # type: ignore[arg-type]
    assert unclean.found == []


@pytest.mark.parametrize("is_stale", [False, True])
def test_a_broker_that_names_a_former_incarnation_of_a_topic_is_found(is_stale: bool) -> None:
    present, former = uuid.UUID(int=7), uuid.UUID(int=6)
    topic = SimpleNamespace(topic_id=former if is_stale else present)
    cache = SimpleNamespace(topics={"t": topic, "old": SimpleNamespace(topic_id=uuid.UUID(int=0))})
    node = SimpleNamespace(
        host="b1", running=SimpleNamespace(broker=SimpleNamespace(metadata=cache))
    )
    found = verdict(id_of=lambda name: layout.id_text(present))
    found.cluster.brokers = [node, SimpleNamespace(host="b2", running=None)]  # type: ignore[assignment]
    found.metadata()
    assert [line.split(":")[0] for line in found.found] == ["no_stale_metadata"] * is_stale


def written(history: History, number: int, offset: int) -> None:
    history.end(history.send(P, "p", number, b"v%d" % number), Outcome.ACKED, offset)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_unclean_partition_is_checked_up_to_its_election(when: str) -> None:
    """Two records at one offset: the election explains it only if it came between them."""
    history = History()
    found = verdict(history)
    place = Place("id", "plain", 0)
    written(history, 0, 0)
    history.read(P, 0, b"v0", "r")
    if when == "before":
        found.unclean(place)
    written(history, 1, 0)
    history.read(P, 0, b"v1", "r")
    if when == "after":
        found.unclean(place)
    found.states.unclean.add(place)
    history.finals.append(Final(P, 0, 1, {0: b"v1"}))
    said = {line.split(":")[0] for line in found.of_history()}
    assert ("one_offset_one_record" in said) is (when == "after")
    assert "acked_is_not_lost" not in said, "what an unclean election loses is allowed"


def audit(seen: dict[int, str], *above: str) -> Any:
    return SimpleNamespace(above_watermark=list(above), seen={P: seen})


def test_what_a_follower_served_stays_and_is_committed() -> None:
    history = History()
    history.finals.append(Final(P, 2, 4, {2: b"c", 3: b"d"}))
    for served, lines in ((audit({1: "b2", 3: "b2"}), 0), (audit({3: "b1", 4: "b2"}), 1)):
        found = verdict(history)
        found.followers(served)
        assert len(found.found) == lines
        assert all(line.startswith("read_is_not_unread: b2 served") for line in found.found)
    found = verdict(history)
    found.followers(audit({}, "b2 served 7, its watermark is 7"))
    assert len(found.found) == 1
    unclean = verdict(history)
    unclean.states.unclean.add(Place("id", "plain", 0))
    unclean.followers(audit({4: "b2"}))
    assert unclean.found == []


# --- what is left over ---------------------------------------------------------------------------


def kept_folders(*names: str, hosts: bool) -> Leftovers:
    """A broker 1 in its third life, with directories; whether it hosts plain-0 by the store."""
    folder = DirectoryNode(0, 0)
    folder.entries.update(dict.fromkeys(names, folder))
    disk = SimpleNamespace(lookup=lambda path: folder)
    node = SimpleNamespace(node_id=1, host="b1", starts=3, machine=SimpleNamespace(disk=disk))
    place = Place("id", "plain", 0)
    state = SimpleNamespace(target_replicas=[1] if hosts else None)
    states = SimpleNamespace(
        place=lambda topic, index: place if (topic, index) == ("plain", 0) else None,
        topics={"plain": SimpleNamespace(partitions={0: [2, 3]})},
        places={place: SimpleNamespace(state=state)},
    )
    disks = SimpleNamespace()
    found = Leftovers(SimpleNamespace(brokers=[node]), states, disks)  # type: ignore[arg-type]
    for name in names:
        if name.endswith("-stray"):
            life, _, kind = name.removesuffix("-stray").rpartition(".")[2].partition("_")
            node.starts = int(life)
            disks.when_stray(node, name, kind == "damaged", kind != "nameless")
    node.starts = 3
    return found


@pytest.mark.parametrize(
    ("name", "hosts", "is_left"),
    [
        ("plain-0", True, False),
        ("plain-0", False, True),
        ("gone-0", True, True),
        ("plain-0.1-delete", True, True),
        ("plain-0.3-stray", True, True),
        ("plain-0.3_damaged-stray", True, True),
        ("plain-0.3_damaged-stray", False, False),
        ("plain-0.3_nameless-stray", True, False),
        ("plain-0.2-stray", False, False),
    ],
)
def test_a_directory_that_should_be_gone_is_found(name: str, hosts: bool, is_left: bool) -> None:
    found = kept_folders(name, hosts=hosts)
    assert found.left() == ([f"b1 has {name}"] if is_left else [])
    assert found.kept() == (name.endswith("-stray") and not is_left)


# --- what excuses a sync after a failure ---------------------------------------------------------


def test_only_work_begun_before_a_failure_was_reported_is_in_flight() -> None:
    loop = SimulatedLoop(random.Random(0))
    failing, beside, later = Job(3), Job(2), Job(9)
    failure = Failure(failing, 5)

    def in_flight(job: Job | None) -> bool:
        loop.job = job
        return loop.is_in_flight(failure)

    assert not in_flight(failing), "the trip that failed knows it"
    assert in_flight(beside) and in_flight(later) and in_flight(None), "not reported yet"
    failing.told_at = 8
    assert in_flight(beside) and not in_flight(later) and not in_flight(None)
    on_the_loop = Failure(None, 5)
    loop.job = beside
    assert loop.is_in_flight(on_the_loop)
    loop.job = later
    assert not loop.is_in_flight(on_the_loop)
    loop.close()


# --- strikes -------------------------------------------------------------------------------------


def test_a_fault_counts_as_struck_when_something_was_done_and_once() -> None:
    story: list[str] = []
    control = SimpleNamespace(_log=story.append, struck={})
    say = NodeControl._say
    say(control, "healing")  # type: ignore[arg-type]
    assert control.struck == {}
    for name, lines in (("cut", 2), ("pause", 0), ("cut", 1)):
        token = FAULT.set(Begun(name))
        control._log("looks around")
        for _ in range(lines):
            say(control, f"{name} a")  # type: ignore[arg-type]
        FAULT.reset(token)
    assert control.struck == {"cut": 2}
    assert len(story) == 1 + 3 + 3
