"""An aware producer and an aware consumer of one broker, through a growth and a shrink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.controller_commands import OK, A, command, run, running
from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.produce_fetch import batch, fetch, offsets, produce
from tests.support.resize_commands import Side, resizing
from tests.support.resized import count_in
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import messages
from tidelog.records.builder import Producer
from tidelog.replication.resize_rules import NOT_NAMED, Named

LONG_MS = 3_600_000
LIFE = 3
BEFORE, GROWN, SHRUNK = Named(2, 0, LIFE), Named(4, 1, LIFE), Named(2, 2, LIFE)


def publish(lone: LoneBroker, named: Named, partitions: int) -> None:
    """What UpdateMetadata v8 says when a resize is published."""
    update = messages.UpdateMetadataRequest
    states = [
        update.UpdateMetadataPartitionState(
            partition_index=index, leader=1, replicas=[1], partition_epoch=LIFE + index
        )
        for index in range(partitions)
    ]
    topic = update.UpdateMetadataTopicState(
        topic_name="t",
        topic_id=A,
        initial_partition_count=2,
        undeleted_partition_count=named.undeleted_count,
        resize_epoch=named.resize_epoch,
        partition_states=states,
    )
    lone.broker.metadata.apply(update(controller_id=1, topic_states=[topic]), complete=False)


def numbered(sequence: int) -> bytes:
    return batch(f"{sequence}", producer=Producer(7, 0, sequence))


def to(index: int, named: Named) -> Named:
    """The numbers for another partition: each has a partition epoch of its own."""
    return named._replace(partition_epoch=LIFE + index) if named != NOT_NAMED else named


async def send(peer: Peer, sequence: int, named: Named, index: int = 0) -> tuple[E, int]:
    request = count_in(produce(numbered(sequence), partition=index), to(index, named))
    return said(await peer.ask(request, 11))


def said(answer: Any) -> tuple[E, int]:
    part = answer.responses[0].partition_responses[0]
    return E(part.error_code), part.base_offset


def wanted(offset: int, named: Named, wait_ms: int = 0, index: int = 0) -> Any:
    return count_in(fetch(offset, [index], max_wait_ms=wait_ms), to(index, named))


def got(answer: Any) -> tuple[E, list[int]]:
    part = answer.responses[0].partitions[0]
    return E(part.error_code), offsets(part.records)


REFUSED = (E.INVALID_PARTITION_METADATA, -1)


def test_a_growth(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            assert await command(channel, resizing(Side(2, 0, (0, 1))), 6) == [OK, OK]
            publish(lone, BEFORE, 2)
            producer, consumer = [await Peer.connect(lone.port) for _ in range(2)]
            assert await send(producer, 0, BEFORE) == (E.NONE, 0)
            consumer.send(wanted(1, BEFORE, LONG_MS), 12)
            hosted = lone.broker.partitions.get("t", 0)
            assert hosted is not None
            await until(lambda: hosted.waiting.readers)

            grow = resizing(Side(4, 1, (0,), leader_epoch=1), Side(2, 0, (1,), leader_epoch=1))
            assert await command(channel, grow, 6) == [OK, OK]
            assert got(await consumer.receive()) == (E.NONE, []), "the fence is not for it"
            assert await send(producer, 0, BEFORE) == (E.NONE, 0), "the response was lost"
            assert await send(producer, 0, BEFORE, index=1) == (E.NONE, 0), "not resized yet"
            consumer.send(wanted(1, BEFORE, LONG_MS), 12)
            producer.send(count_in(produce(numbered(1)), BEFORE), 11)
            await until(lambda: hosted.waiting.fenced and lone.broker.unseen_epochs.waiting)
            # A producer that another broker has sent the new metadata to is served already.
            early = await Peer.connect(lone.port)
            assert await send(early, 1, GROWN) == (E.NONE, 2)
            assert got(await early.ask(wanted(0, BEFORE), 12)) == (E.NONE, [0])

            publish(lone, GROWN, 2)
            assert got(await consumer.receive()) == (E.INVALID_PARTITION_METADATA, [])
            assert said(await producer.receive()) == REFUSED
            assert got(await consumer.ask(wanted(0, GROWN), 12)) == (E.NONE, [0, 1, 2])
            other = wanted(0, GROWN, index=1)
            assert got(await consumer.ask(other, 12)) == (E.NOT_LEADER_OR_FOLLOWER, [])

    run(work())


def test_a_shrink(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            assert await command(channel, resizing(Side(4, 1, (0, 3))), 6) == [OK, OK]
            publish(lone, GROWN, 4)
            client = await Peer.connect(lone.port)
            for index in (0, 3):
                assert await send(client, 0, GROWN, index) == (E.NONE, 1), "after a fence"
            seal = Side(2, 2, (3,), leader_epoch=1, sealed=True)
            assert await command(channel, resizing(seal), 6) == [OK]
            assert await send(client, 0, GROWN, 3) == (E.NONE, 1), "it is known"
            assert (await send(client, 1, SHRUNK, 3))[0] is E.POLICY_VIOLATION
            assert (await send(client, 1, NOT_NAMED, 3))[0] is E.POLICY_VIOLATION
            survivor = Side(2, 2, (0,), leader_epoch=1)
            assert await command(channel, resizing(survivor), 6) == [OK]
            publish(lone, SHRUNK, 4)
            for index in (0, 3):
                assert await send(client, 1, GROWN, index) == REFUSED
            assert await send(client, 1, SHRUNK) == (E.NONE, 3)
            # Drained up to its seal, in this and in every later resize epoch.
            for later in (SHRUNK, Named(1, 5, LIFE)):
                assert got(await client.ask(wanted(1, later, index=3), 12)) == (E.NONE, [1, 2])

    run(work())
