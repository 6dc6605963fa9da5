"""Fetch and ListOffsets with a count to a broker at level 1.5: how far they read, the wait."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.produce_fetch import batch, fetch, offsets, run, running
from tests.support.resized import EPOCH, LIFE, OLDER, OWN, count_in, fence, put, show
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import messages
from tidelog.replication.resize_rules import NOT_NAMED, Named
from tidelog.runtime import pace

LONG_MS = 3_600_000
FENCE_AT, END = 2, 4


def resized(lone: LoneBroker, partitions: int = 1, **changes: Any) -> HostedPartition:
    """Lead partitions with ``END`` records, and a fence of EPOCH at ``FENCE_AT`` in the first."""
    hosted = lone.lead("t", partitions, **changes)
    show(lone, EPOCH - 1, partitions=partitions)
    for _ in range(END):
        hosted.append(batch("x", timestamp=1), 1)
    put(hosted)
    fence(hosted, FENCE_AT)
    return hosted


async def read(peer: Peer, offset: int, named: Named, **more: Any) -> tuple[E, list[int]]:
    answer = await peer.ask(count_in(fetch(offset, **more), named), 12)
    (part,) = answer.responses[0].partitions
    return E(part.error_code), offsets(part.records)


def test_each_row_of_the_table(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = resized(lone)
            everything = list(range(END))
            assert await read(peer, 0, OWN) == (E.NONE, everything)
            assert await read(peer, 0, NOT_NAMED) == (E.NONE, everything)
            assert await read(peer, 0, OLDER) == (E.NONE, [0, 1])
            assert await read(peer, FENCE_AT, OLDER) == (E.NONE, [])
            assert await read(peer, FENCE_AT + 1, OLDER) == (E.NONE, []), "no reset: it waits"
            assert await read(peer, END + 1, OLDER) == (E.OFFSET_OUT_OF_RANGE, [])
            assert await read(peer, 0, Named(8, -1, LIFE)) == (E.INVALID_REQUEST, [])
            elsewhere = (E.NOT_LEADER_OR_FOLLOWER, [])
            newer = Named(16, EPOCH + 1, LIFE)
            assert await read(peer, 0, newer) == elsewhere
            assert await read(peer, 0, OWN._replace(partition_epoch=7)) == elsewhere
            put(hosted, sealed=True)
            assert await read(peer, 0, newer) == (E.NONE, everything)
            show(lone, EPOCH)
            assert await read(peer, 0, OLDER) == (E.INVALID_PARTITION_METADATA, [])
            lone.lead("t", configs={"enable.ordered.delivery": "false"}, epoch=1)
            put(hosted)
            assert await read(peer, 0, OLDER) == (E.NONE, everything)

    run(main())


@pytest.mark.parametrize("offset", [FENCE_AT, FENCE_AT + 1], ids=["at it", "beyond it"])
def test_a_fetch_at_the_fence_waits_until_the_epoch_is_shown(tmp_path: Path, offset: int) -> None:
    """Appends beyond the fence do not end its wait: it would ask again and again."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = resized(lone)
            peer.send(count_in(fetch(offset, max_wait_ms=LONG_MS), OLDER), 12)
            await until(lambda: hosted.waiting.fenced)
            for _ in range(3):
                hosted.append(batch("beyond", timestamp=1), 1)
            show(lone, EPOCH - 1)
            assert hosted.waiting.fenced and not hosted.waiting.readers
            show(lone, EPOCH)
            answer = await peer.receive()
            part = answer.responses[0].partitions[0]
            assert part.error_code == E.INVALID_PARTITION_METADATA
            assert not hosted.waiting.fenced

    run(main())


def test_a_fetch_at_the_fence_ends_its_wait_with_its_time_or_with_the_leadership(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = resized(lone)
            began = time.monotonic()
            assert await read(peer, FENCE_AT, OLDER, max_wait_ms=50) == (E.NONE, [])
            assert time.monotonic() - began >= 0.05
            peer.send(count_in(fetch(FENCE_AT, max_wait_ms=LONG_MS), OLDER), 12)
            await until(lambda: hosted.waiting.fenced)
            hosted.stop()
            answer = await peer.receive()
            assert answer.responses[0].partitions[0].error_code == E.NOT_LEADER_OR_FOLLOWER

    run(main())


@pytest.mark.parametrize("small_steps", [False, True])
def test_another_partition_ends_the_wait_of_a_fetch_that_stands_at_a_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_steps: bool
) -> None:
    if small_steps:
        monkeypatch.setattr(pace, "PART", 1)

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = resized(lone, 3)
            other = lone.broker.partitions.get("t", 2)
            assert other is not None
            request = fetch(0, [0, 1, 2], max_wait_ms=LONG_MS)
            request.topics[0].partitions[0].fetch_offset = FENCE_AT
            peer.send(count_in(request, OLDER), 12)
            await until(lambda: hosted.waiting.fenced and other.waiting.readers)
            hosted.append(batch("beyond", timestamp=1), 1)
            other.append(batch("here", timestamp=1), 1)
            found = {
                part.partition_index: part
                for part in (await peer.receive()).responses[0].partitions
            }
            assert [offsets(found[index].records) for index in (0, 1, 2)] == [[], [], [0]]
            await until(lambda: not (hosted.waiting.fenced or other.waiting.readers))

    run(main())


@pytest.mark.parametrize("min_bytes", [1, 2], ids=["the fast path", "the handler"])
def test_a_session_goes_by_the_last_count_of_each_partition(tmp_path: Path, min_bytes: int) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            resized(lone)
            first = await peer.ask(count_in(fetch(0, session=(0, 0)), OLDER), 12)
            assert offsets(first.responses[0].partitions[0].records) == [0, 1]
            request = count_in(fetch(FENCE_AT, session=(first.session_id, 1)), OLDER)
            assert (await peer.ask(request, 12)).responses == []
            nothing_new = fetch(partitions=(), session=(first.session_id, 2))
            assert (await peer.ask(nothing_new, 12)).responses == [], "it stays at the fence"
            request = fetch(FENCE_AT, session=(first.session_id, 3), min_bytes=min_bytes)
            count_in(request, OWN)
            second = await peer.ask(request, 12)
            assert offsets(second.responses[0].partitions[0].records) == [2, 3]

    run(main())


def test_a_large_read_from_the_file_ends_at_the_fence(tmp_path: Path) -> None:
    """By sendfile or through memory: whatever the read is, it does not pass the fence."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = resized(lone)
            for _ in range(40):
                hosted.append(batch("y" * 50_000, timestamp=1), 1)
            for at in (10, 25, 39):
                fence(hosted, at)
                found: list[int] = []
                while (after := found[-1] + 1 if found else 0) < at:
                    error, more = await read(peer, after, OLDER)
                    assert error is E.NONE and more
                    found += more
                assert found == list(range(at))

    run(main())


def test_a_follower_that_lags_its_own_log_does_not_pass_the_next_fence(
    tmp_path: Path,
) -> None:
    """It fetched the fence of EPOCH, and its LeaderAndIsr is still to come (KIP-392)."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = resized(lone)
            put(hosted, undeleted_count=4, resize_epoch=EPOCH - 1)
            hosted.state = hosted.state.__class__(
                leader=2,
                leader_epoch=0,
                isr=(1, 2),
                replicas=(1, 2),
                partition_epoch=LIFE,
                undeleted_count=4,
                resize_epoch=EPOCH - 1,
            )
            hosted.is_leader = False
            request = count_in(fetch(0), OLDER)
            request.rack_id = "a"
            answer = await peer.ask(request, 12)
            assert offsets(answer.responses[0].partitions[0].records) == [0, 1]

    run(main())


async def listed(peer: Peer, timestamp: int, named: Named) -> tuple[E, int]:
    kind = messages.ListOffsetsRequest
    part = kind.ListOffsetsPartition(0, -1, timestamp)
    request = kind(replica_id=-1, topics=[kind.ListOffsetsTopic("t", [part])])
    answer = await peer.ask(count_in(request, named), 9)
    found = answer.topics[0].partitions[0]
    return E(found.error_code), found.offset


def test_list_offsets_goes_by_the_same_table(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = resized(lone)
            hosted.append(batch("later", timestamp=5), 5)
            latest, earliest, newest, by_time = -1, -2, -3, 5
            assert await listed(peer, latest, OWN) == (E.NONE, END + 1)
            assert await listed(peer, latest, NOT_NAMED) == (E.NONE, END + 1)
            assert await listed(peer, latest, OLDER) == (E.NONE, FENCE_AT)
            assert await listed(peer, earliest, OLDER) == (E.NONE, 0)
            assert await listed(peer, by_time, OWN) == (E.NONE, END)
            assert await listed(peer, by_time, OLDER) == (E.NONE, -1)
            assert await listed(peer, newest, OWN) == (E.NONE, END)
            assert (await listed(peer, newest, OLDER))[1] < FENCE_AT
            partial, newer = Named(8, EPOCH, -1), Named(16, EPOCH + 1, LIFE)
            for timestamp in (latest, earliest, by_time):
                assert (await listed(peer, timestamp, partial))[0] is E.INVALID_REQUEST
                assert (await listed(peer, timestamp, newer))[0] is E.NOT_LEADER_OR_FOLLOWER
            show(lone, EPOCH)
            assert (await listed(peer, latest, OLDER))[0] is E.INVALID_PARTITION_METADATA

    run(main())
