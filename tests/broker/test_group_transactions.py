"""Offsets of transactions at one broker with real logs: batches, markers, fetches, loads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from tests.support.group_broker import GroupBroker
from tests.support.lone_broker import until
from tests.support.resized_topics import tell_resized
from tidelog.broker.coordinator import committed_fast_path
from tidelog.broker.coordinator.group_partition import GroupPartition
from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.broker.handlers import offset_commit, offset_fetch
from tidelog.groups.events import CommitInTransaction, EndTransaction, MarkerResult, OffsetsResult
from tidelog.groups.offset_columns import OffsetColumns
from tidelog.groups.pending_removal import PART
from tidelog.groups.records import CommittedOffset, OffsetRecord, encode
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import OFFSETS_TOPIC
from tidelog.protocol import codec, messages
from tidelog.records.batch import Rejected, walk
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.control_records import EndMarker, marker_in

CLIENT: Any = SimpleNamespace(client_host="127.0.0.1")
Asked = messages.OffsetFetchRequest
COUNT = 3_000


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]


async def started(folder: Path, count: int = 4) -> GroupBroker:
    broker = GroupBroker(folder)
    await broker.start()
    broker.lead("t", count)
    await broker.coordinator.reloaded(broker.lead_offsets())
    return broker


async def commit(
    broker: GroupBroker, offsets: dict[int, int], producer: tuple[int, int] = (7, 0)
) -> set[E]:
    """Send a TxnOffsetCommit for topic t; return the errors of its partitions."""
    pending = PendingResponse()
    epochs = [3] * len(offsets)
    topic_id = broker.broker.metadata.id_of("t")
    columns = OffsetColumns("t", topic_id, list(offsets), list(offsets.values()), epochs)
    event = CommitInTransaction(pending, *producer, "", None, -1, (columns,))
    broker.coordinator.decide("g", event)
    result = pending.answer(lambda result: result)
    result = await result if asyncio.isfuture(result) else result
    assert isinstance(result, OffsetsResult)
    return {error for _, error in result.partitions}


async def end(
    broker: GroupBroker,
    producer: tuple[int, int] = (7, 0),
    *,
    committed: bool = True,
    partition: int = 0,
) -> E:
    """Send a marker; return its error."""
    pending = PendingResponse()
    event = EndTransaction(pending, *producer, committed, 2)
    broker.broker.groups.end_transaction(partition, event)
    result = pending.answer(lambda result: result)
    result = await result if asyncio.isfuture(result) else result
    assert isinstance(result, MarkerResult)
    return result.error


async def commit_plain(broker: GroupBroker, partition: int, offset: int) -> None:
    request = messages.OffsetCommitRequest
    asked = [request.OffsetCommitRequestPartition(partition, offset)]
    topics = [request.OffsetCommitRequestTopic("t", partitions=asked)]
    answer = await broker.ask(offset_commit, request(group_id="g", topics=topics), 8)
    assert answer.topics[0].partitions[0].error_code == E.NONE


async def fetch(
    broker: GroupBroker, *partitions: int, stable: bool = True, version: int = 8
) -> dict[int, tuple[int, int]]:
    """Fetch offsets of topic t as a client does; return offset and error of each partition."""
    topic_id = broker.broker.metadata.id_of("t")
    if version < 8:
        named = [Asked.OffsetFetchRequestTopic("t", list(partitions))]
        request = Asked(group_id="g", topics=named, require_stable=stable)
    else:
        topics: Any = [Asked.OffsetFetchRequestTopics("t", topic_id, list(partitions))]
        one = Asked.OffsetFetchRequestGroup("g", topics=topics if partitions else None)
        request = Asked(groups=[one], require_stable=stable)
    whole = b"".join(codec.encode_request(ApiKey.OFFSET_FETCH, version, 5, "", request))
    frame = memoryview(whole)[4 + 10 + 1 :]
    fast = committed_fast_path.answer(broker.broker, frame, 0, version, 9, CLIENT)
    answer = await broker.ask(offset_fetch, request, version)
    slow = b"".join(codec.encode_response(ApiKey.OFFSET_FETCH, version, 9, answer))
    if fast is not None:
        assert fast == slow
    found = answer.topics if version < 8 else answer.groups[0].topics
    return {
        part.partition_index: (part.committed_offset, part.error_code)
        for topic in found
        for part in topic.partitions
    }


UNSTABLE = (-1, E.UNSTABLE_OFFSET_COMMIT)


@pytest.mark.parametrize("version", range(7, 11))
def test_a_stable_fetch_waits_for_the_marker(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        broker = await started(tmp_path)
        await commit_plain(broker, 0, 5)
        await commit_plain(broker, 1, 6)
        assert await commit(broker, {0: 9, 2: 3}) == {E.NONE}
        before = {0: (5, 0), 1: (6, 0), 2: (-1, 0)}
        assert await fetch(broker, 0, 1, 2, stable=False, version=version) == before
        seen = await fetch(broker, 0, 1, 2, version=version)
        assert seen == {0: UNSTABLE, 1: (6, 0), 2: UNSTABLE}
        if version >= 8:
            # All offsets of the group: a partition that has none is not among them.
            assert await fetch(broker, version=version) == {0: UNSTABLE, 1: (6, 0)}
        assert await end(broker) is E.NONE
        after = {0: (9, 0), 1: (6, 0), 2: (3, 0)}
        assert await fetch(broker, 0, 1, 2, version=version) == after
        await broker.stop()

    run(main)


def test_only_a_stable_fetch_of_such_a_group_leaves_the_fast_path(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await started(tmp_path)
        topics = [Asked.OffsetFetchRequestTopic("t", [0])]

        def fast(stable: bool) -> bool:
            request = Asked(group_id="g", topics=topics, require_stable=stable)
            whole = b"".join(codec.encode_request(ApiKey.OFFSET_FETCH, 7, 5, "", request))
            frame = memoryview(whole)[15:]
            answer = committed_fast_path.answer(broker.broker, frame, 0, 7, 9, CLIENT)
            return answer is not None

        assert fast(True)
        await commit(broker, {0: 9})
        assert (fast(True), fast(False)) == (False, True)
        await end(broker, committed=False)
        assert fast(True)
        await broker.stop()

    run(main)


def test_a_partition_that_was_born_later_is_unstable_too(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await started(tmp_path)
        tell_resized(broker, "t", {0: (0, 0), 1: (0, 0)}, resize_epoch=0)
        await commit(broker, {0: 7})
        await end(broker)
        tell_resized(broker, "t", {0: (0, 0), 1: (0, 0), 2: (1, 5)}, resize_epoch=1)
        assert await fetch(broker, 0, 2) == {0: (7, 0), 2: (5, 0)}
        await commit(broker, {2: 6})
        assert await fetch(broker, 0, 2) == {0: (7, 0), 2: UNSTABLE}
        assert await fetch(broker, 0, 2, stable=False) == {0: (7, 0), 2: (5, 0)}
        await end(broker)
        assert await fetch(broker, 0, 2) == {0: (7, 0), 2: (6, 0)}
        await broker.stop()

    run(main)


def test_the_log_has_the_batches_of_a_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await started(tmp_path)
        hosted = broker.broker.partitions.get(OFFSETS_TOPIC, 0)
        assert hosted is not None
        await commit_plain(broker, 1, 6)
        begin = hosted.end_offset
        await commit(broker, {0: 9, 2: 3}, (7, 4))
        await end(broker, (7, 5), committed=False)
        # Repeated, it is written again.
        await end(broker, (7, 5), committed=False)
        data: Any = hosted.read(begin, 100_000, committed=True)
        batches = [(header, data[at : at + header.size]) for at, header in walk(data)]
        shown = [
            (header.transactional, header.control, header.producer_id, header.producer_epoch)
            for header, _ in batches
        ]
        assert shown == [(True, False, 7, 4), (True, True, 7, 5), (True, True, 7, 5)]
        assert [header.record_count for header, _ in batches] == [2, 1, 1]
        assert batches[0][0].base_sequence == 0
        assert marker_in(*batches[1]) == EndMarker(committed=False, coordinator_epoch=2)
        await broker.stop()

    run(main)


@pytest.mark.parametrize("committed", [True, False, None])
def test_a_coordinator_that_loads_has_what_is_open(tmp_path: Path, committed: bool | None) -> None:
    async def main() -> None:
        broker = await started(tmp_path)
        await commit_plain(broker, 0, 5)
        await commit(broker, {0: 9, 2: 3}, (7, 4))
        await commit_plain(broker, 2, 1)
        if committed is not None:
            await end(broker, (7, 4), committed=committed)
        assert await broker.coordinator.reloaded(broker.lead_again()) is None
        (table,) = broker.coordinator.tables()
        assert table.unknown_records == 0
        if committed is None:
            assert await fetch(broker, 0, 2) == {0: UNSTABLE, 2: (1, 0)}
        else:
            assert await fetch(broker, 0, 2) == {0: (9 if committed else 5, 0), 2: (1, 0)}
        assert await commit(broker, {0: 1}, (7, 3)) == {E.INVALID_PRODUCER_EPOCH}
        assert await end(broker, (7, 4), committed=bool(committed)) is E.NONE
        assert await fetch(broker, 0, 2) == {0: (9 if committed else 5, 0), 2: (1, 0)}
        await broker.stop()

    run(main)


def test_very_many_pending_offsets_are_loaded(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await started(tmp_path, COUNT)
        for begin in range(0, COUNT, 500):
            assert await commit(broker, {at: at for at in range(begin, begin + 500)}) == {E.NONE}
        assert await broker.coordinator.reloaded(broker.lead_again()) is None
        assert set((await fetch(broker, *range(COUNT))).values()) == {UNSTABLE}
        await end(broker)
        assert await broker.coordinator.reloaded(broker.lead_again(3)) is None
        assert await fetch(broker, *range(COUNT)) == {at: (at, 0) for at in range(COUNT)}
        await broker.stop()

    run(main)


def test_a_marker_for_a_partition_that_is_not_led_here_finds_no_leader(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await started(tmp_path)
        assert await end(broker, partition=3) is E.NOT_LEADER_OR_FOLLOWER
        waiting = PendingResponse()
        broker.broker.groups.end_transaction(0, EndTransaction(waiting, 7, 0, True, 2))
        broker.lead_offsets(epoch=1, leader=2)
        assert await end(broker) is E.NOT_LEADER_OR_FOLLOWER
        await broker.stop()

    run(main)


def test_a_marker_that_waits_when_leadership_ends_is_sent_to_the_next_leader(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        broker = GroupBroker(tmp_path)
        broker.offsets_isr = broker.offsets_replicas = (1, 2)
        await broker.start()
        broker.lead("t", 4)
        await broker.coordinator.reloaded(broker.lead_offsets())
        waiting = asyncio.ensure_future(end(broker))
        await asyncio.sleep(0)
        assert not waiting.done()
        broker.lead_offsets(epoch=1, leader=2)
        assert await waiting is E.NOT_LEADER_OR_FOLLOWER
        await broker.stop()

    run(main)


# A deleted topic whose offsets have no topic id ------------------------------------------------


def write_as_before_level_1_4(broker: GroupBroker, count: int) -> None:
    """Put positions of group g in topic t into the log, without a first sight."""
    hosted: Any = broker.broker.partitions.get(OFFSETS_TOPIC, 0)
    for partition in range(count):
        record = OffsetRecord("g", "t", partition, CommittedOffset(100))
        key, value = encode(record)
        made = build_batch([NewRecord(1, key, value)])
        assert not isinstance(hosted.append(made, 1, from_client=False), Rejected)


@pytest.mark.parametrize("count", [1, PART + 1])
@pytest.mark.parametrize("committed", [False, True])
def test_a_pending_offset_of_the_next_topic_leaves_none_of_the_former_one_without_a_topic_id(
    tmp_path: Path, committed: bool, count: int
) -> None:
    """The commit comes before the turn of its group to forget the deleted topic."""

    async def main() -> None:
        broker = await started(tmp_path, count)
        write_as_before_level_1_4(broker, count)
        await broker.coordinator.reloaded(broker.lead_again())
        assert await fetch(broker, 0) == {0: (100, 0)}
        tell_resized(broker, "t", {0: (0, 0)}, resize_epoch=0, topic_id=UUID(int=77))
        assert await commit(broker, {0: 3}) == {E.NONE}
        assert await fetch(broker, 0) == {0: UNSTABLE}
        other = asyncio.ensure_future(commit(broker, {0: 4}, (8, 0)))
        assert await other == {E.NONE}
        for producer in ((7, 0), (8, 0)):
            assert await end(broker, producer, committed=committed) is E.NONE
        present = 4 if committed else -1
        assert await fetch(broker, 0) == {0: (present, 0)}
        await broker.coordinator.reloaded(broker.lead_again(epoch=3))
        assert await fetch(broker, 0) == {0: (present, 0)}
        await broker.stop()

    run(main)


def test_once_all_groups_have_forgotten_a_topic_no_commit_is_held_up(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await started(tmp_path)
        await commit_plain(broker, 0, 5)
        tell_resized(broker, "t", {0: (0, 0)}, resize_epoch=0, topic_id=UUID(int=77))
        (led,) = broker.coordinator.led()
        own = cast("GroupPartition", led.own_part)
        assert own.forgets == {"t"}
        await until(lambda: not own.forgets)
        await commit_plain(broker, 0, 6)
        assert await fetch(broker, 0) == {0: (6, 0)}
        await broker.stop()

    run(main)
