"""kill -9 in mid-stream, many times: nothing acked is lost, nothing twice of the idempotent one.

`TIDELOG_KILLS` (default 20) and `TIDELOG_SEED` set how often and when; the seed is printed.
`TIDELOG_CHAOS=long` (`make chaos`) kills a hundred times, with each durability.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from signal import SIGTERM

import pytest
from kio.schema.metadata.v8.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v8.response import MetadataResponse

from tests.support import clients
from tests.support.acked_stream import GroupReader, Writer, lost_acks, read_all, violations
from tests.support.node import Node
from tests.support.own_time import until_in_time
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP, wait_until
from tests.support.target import TARGET
from tests.support.wire import Wire

pytestmark = [pytest.mark.kill, pytest.mark.long(90)]

LONG = os.environ.get("TIDELOG_CHAOS") == "long"
KILLS = int(os.environ.get("TIDELOG_KILLS", "100" if LONG else "20"))
SEED = int(os.environ.get("TIDELOG_SEED", str(random.SystemRandom().randrange(2**32))))
PARTITIONS = 3
TOPIC = "stream"
STOPPED_WITHIN_S = 10
# The group may have to wait for its session to end before it reads again.
KILLS_BY_DURABILITY = {"replicated": KILLS, "sync": KILLS if LONG else KILLS // 4}


def begin(node: Node) -> tuple[list[Writer], GroupReader]:
    """An idempotent writer, a plain one, and a group that reads both."""
    clients.create_topic(node.bootstrap, TOPIC, PARTITIONS, segment_bytes=1 << 20)
    writers = [
        Writer(node.bootstrap, TOPIC, "idempotent", PARTITIONS, idempotent=True),
        Writer(node.bootstrap, TOPIC, "plain", PARTITIONS, idempotent=False),
    ]
    reader = GroupReader(node.bootstrap, TOPIC, "readers")
    for part in (*writers, reader):
        part.start()
    return writers, reader


def acked(writers: list[Writer]) -> int:
    return sum(len(writer.acked) for writer in writers)


def check(node: Node, writers: list[Writer], reader: GroupReader) -> None:
    """Let all come to rest, then hold the books against the topic."""
    for writer in writers:
        writer.finish()
    found = read_all(node.bootstrap, TOPIC, PARTITIONS)
    try:
        wait_until(lambda: not reader.missing(found), DEADLINE_S, "the group reads all")
    except AssertionError as late:
        missing = reader.missing(found)
        raise AssertionError(
            f"the group never read {len(missing)} records, seed {SEED}: "
            f"{missing[:3]} to {missing[-1:]}; {reader.state()}; {node.said('serves')}"
        ) from late
    reader.finish()
    for writer in writers:
        assert not writer.failed, f"{writer.name}: {len(writer.failed)} {writer.failed[:3]}"
    wrong = violations(writers, found, reader)
    assert not wrong, f"{len(wrong)} broken promises, seed {SEED}:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize("durability", KILLS_BY_DURABILITY)
def test_killed_in_mid_stream(make_node: Callable[..., Node], durability: str) -> None:
    kills = KILLS_BY_DURABILITY[durability]
    print(f"seed {SEED}, {kills} kills: TIDELOG_SEED={SEED} replays the moments")
    moments = random.Random(SEED)
    config = {} if TARGET == "kafka" else {"log.durability": durability}
    node = make_node(config)
    writers, reader = begin(node)
    slowest_start_s = 0.0
    for _ in range(kills):
        # Both must be at work again, and then some more: the kill falls anywhere in their work.
        enough = [len(writer.acked) + moments.randrange(1, 800) for writer in writers]
        wait_until(
            lambda enough=enough: all(w.has_acked(n) for w, n in zip(writers, enough, strict=True)),
            DEADLINE_S,
            lambda: "both writers go on; " + ", ".join(writer.state() for writer in writers),
            pause_s=0.001,
        )
        node.kill()
        node.start()
        slowest_start_s = max(slowest_start_s, node.started_in_s)
    print(f"{acked(writers)} records acked; slowest start {slowest_start_s:.2f} s")
    check(node, writers, reader)


def test_stopped_cleanly_in_mid_stream(make_node: Callable[..., Node]) -> None:
    node = make_node()
    writers, reader = begin(node)
    for _ in range(3):
        # The reader, too: librdkafka does not repeat an OffsetFetch that a coordinator refuses
        # while it stops, and then reads nothing (docs/operating/clients.md).
        before = (acked(writers) + 500, reader.seen.total())
        wait_until(
            lambda before=before: acked(writers) > before[0] and reader.seen.total() > before[1],
            DEADLINE_S,
            lambda: f"the writers and the reader go on; {reader.state()}",
        )
        program = node.program
        program.send(SIGTERM)
        until_in_time(
            lambda program=program: program.exit_status() is not None,
            STOPPED_WITHIN_S,
            lambda program=program: [program.pid],
            lambda: node.said("stops"),
        )
        assert program.exit_status() == (143 if TARGET == "kafka" else 0), node.said("stops well")
        node.start()
    check(node, writers, reader)


def test_frozen_in_mid_stream(make_node: Callable[..., Node]) -> None:
    """SIGSTOP longer than the group's session, then SIGCONT: slow, but nothing is wrong."""
    node = make_node()
    writers, reader = begin(node)
    wait_until(lambda: acked(writers) > 500, DEADLINE_S, "the writers are at work")
    node.program.send(SIGSTOP)
    frozen_at = time.monotonic()
    wait_until(lambda: time.monotonic() - frozen_at > 7, DEADLINE_S, "longer than a session")
    node.program.send(SIGCONT)
    before = acked(writers)
    wait_until(lambda: acked(writers) > before + 2000, DEADLINE_S, "the writers go on")
    check(node, writers, reader)


@pytest.mark.skipif(TARGET == "kafka", reason="log.durability is tidelog's own")
def test_what_a_killed_node_had_not_synced_is_readable_again(
    make_node: Callable[..., Node],
) -> None:
    """Without another write: the tail is synced at the start, and committed offsets are loaded."""
    node = make_node({"log.durability": "sync"})
    writers, reader = begin(node)
    wait_until(lambda: acked(writers) > 2000, DEADLINE_S, "the writers are at work")
    wait_until(
        lambda: all(reader.commits.values()) and reader.commits, DEADLINE_S, "the group commits"
    )
    node.kill()
    for part in (*writers, reader):
        part.abandon()
    node.start()
    lost: list[str] = []

    def is_readable() -> bool:
        found = read_all(node.bootstrap, TOPIC, PARTITIONS)
        lost[:] = [line for writer in writers for line in lost_acks(writer, found)]
        return not lost

    # The sync runs beside the first answers: at most a moment later all is readable.
    wait_until(is_readable, DEADLINE_S, lambda: f"all that was acked is readable: {lost[:5]}")
    admin = clients.admin(node.bootstrap)

    def listed() -> list[str]:
        return [group.group_id for group in admin.list_consumer_groups().result(DEADLINE_S).valid]

    wait_until(lambda: listed() == ["readers"], DEADLINE_S, "the group is loaded")


def test_the_first_answer_of_a_new_life_knows_the_topic(make_node: Callable[..., Node]) -> None:
    """A node that answers "no brokers, no such topic" while it starts takes its clients down."""
    node = make_node()
    clients.create_topic(node.bootstrap, TOPIC, PARTITIONS)
    for _ in range(3):
        node.kill()
        starting = threading.Thread(target=node.start)
        starting.start()
        answer = first_metadata(node.port, deadline_s=node.start_deadline_s)
        starting.join(DEADLINE_S)
        assert [broker.node_id for broker in answer.brokers] == [1]
        assert [(int(t.error_code), len(t.partitions)) for t in answer.topics] == [(0, PARTITIONS)]


def first_metadata(port: int, deadline_s: float) -> MetadataResponse:
    """Ask for the topic from the moment the port takes connections; the first answer."""
    asked = MetadataRequest(
        topics=(MetadataRequestTopic(name=TOPIC),),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    found: list[MetadataResponse] = []

    def answered() -> bool:
        try:
            with Wire(port, timeout_s=deadline_s) as wire:
                found.append(wire.call(asked))
        except OSError:
            return False
        return True

    wait_until(answered, deadline_s, "an answer", pause_s=0.001)
    return found[0]
