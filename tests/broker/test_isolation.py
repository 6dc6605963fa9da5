"""Isolation levels (KIP-98) in all paths by which records are read: from memory, from the file,
from a follower, and by ListOffsets."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.follower_fetches import partition
from tests.support.isolation import (
    COMMITTED,
    UNCOMMITTED,
    Transactions,
    aborted_in,
    committed_in,
    kept_by_client,
)
from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.produce_fetch import fetch, offsets, run, running
from tests.support.storage_logs import NOW_MS
from tidelog.broker.fetching.read_positions import arrived_since, read_position
from tidelog.broker.partitions.waiters import bytes_below_stable
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.protocol import messages
from tidelog.storage.log import aborted_proving, aborted_reading
from tidelog.storage.log.aborted_files import paths_of
from tidelog.storage.log.aborted_recovery import aborted_by_batches
from tidelog.storage.log.region import LEAST_BYTES, find_region
from tidelog.storage.log.stable import last_stable_offset

LONG_MS = 3_600_000
LARGE = LEAST_BYTES
PATHS = ("memory", "file", "follower")

STEPS: list[tuple[str, int | None, int, list[int]]] = [
    ("plain", None, 1, [0]),
    ("data", 7, 1, [0]),
    ("data", 8, 1, [0]),
    ("commit", 7, 2, [0, 1]),
    ("plain", None, 2, [0, 1]),
    ("abort", 8, 6, [0, 1, 4]),
    ("data", 7, 6, [0, 1, 4]),
    ("data", 7, 6, [0, 1, 4]),
    ("abort", 7, 9, [0, 1, 4]),
    ("data", 8, 9, [0, 1, 4]),
    ("plain", None, 9, [0, 1, 4]),
]
"""What is appended at each offset; the last stable offset then, and what is committed below it."""

ABORTED = [(8, 2, 6), (7, 6, 9)]
"""Producer id, first offset, and the offset after the marker."""


def at_level(request: Any, level: int, *, rack: bool = False) -> Any:
    request.isolation_level = level
    request.rack_id = "b" if rack else ""
    return request


@asynccontextmanager
async def serving(folder: Path, path: str) -> AsyncIterator[tuple[Transactions, LoneBroker, Peer]]:
    """A partition that is read by one of ``PATHS``, and a client of its broker."""
    config: dict[str, object] = {}
    if path == "follower":
        config = {
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "broker.rack": "b",
        }
    async with running(folder, config) as (lone, peer):
        hosted = lone.lead("t")
        if path == "follower":
            lone.lead("t", epoch=1, leader=2, isr=(1, 2), replicas=(1, 2))
        size = LARGE if path == "file" else 20
        yield Transactions(hosted, size), lone, peer


class Reader:
    """A client that reads partition 0 from its beginning, in a session or not."""

    def __init__(self, peer: Peer, level: int, *, rack: bool, in_session: bool) -> None:
        self._peer, self._level, self._rack = peer, level, rack
        self._session = (0, 0) if in_session else (0, -1)

    async def read(self) -> list[Any]:
        """The partition's part of each response, until one has no records."""
        parts: list[Any] = []
        offset, more = 0, True
        while more:
            request = at_level(fetch(offset, session=self._session), self._level, rack=self._rack)
            answer = await self._peer.ask(request, 12)
            if self._session != (0, -1):
                self._session = (answer.session_id, self._session[1] + 1)
            found = [part for topic in answer.responses for part in topic.partitions]
            parts += found
            more = bool(found and len(found[0].records))
            if more:
                offset = offsets(found[0].records)[-1] + 1
        return parts


def take(transactions: Transactions, kind: str, producer_id: int | None) -> None:
    given = () if producer_id is None else (producer_id,)
    getattr(transactions, kind)(*given)


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("level", [UNCOMMITTED, COMMITTED])
@pytest.mark.parametrize("path", PATHS)
def test_what_a_fetch_reads_at_once(
    tmp_path: Path, path: str, level: int, in_session: bool
) -> None:
    async def main() -> None:
        async with serving(tmp_path, path) as (transactions, _, peer):
            log = transactions.hosted.log
            reader = Reader(peer, level, rack=path == "follower", in_session=in_session)
            for number, (kind, producer_id, stable, committed) in enumerate(STEPS):
                take(transactions, kind, producer_id)
                end = number + 1
                assert (log.high_watermark, last_stable_offset(log)) == (end, stable)
                assert committed_in(log, stable) == committed
                parts = await reader.read()
                for part in parts:
                    assert (part.error_code, part.high_watermark) == (0, end)
                    assert part.last_stable_offset == stable
                read = [offset for part in parts for offset in offsets(part.records)]
                named = [aborted_in(part) for part in parts]
                if level == UNCOMMITTED:
                    assert read == list(range(end))
                    assert named == [None] * len(parts)
                    continue
                assert read == list(range(stable))
                assert [offset for part in parts for offset in kept_by_client(part)] == committed
                expected = {one[:2] for one in ABORTED if one[2] <= stable}
                assert {one for some in named for one in some or ()} == expected
            if path == "file":
                assert find_region(log, 0, 2**20, last_stable_offset(log)) is not None

    run(main())


@pytest.mark.parametrize(
    ("path", "version"),
    # A follower answers those that name their rack, and no version before 11 does.
    [
        (path, version)
        for path in PATHS
        for version in (4, 10, 11)
        if path != "follower" or version >= 11
    ],
)
def test_a_read_has_the_aborted_transactions_of_its_own_records(
    tmp_path: Path, path: str, version: int
) -> None:
    """From any offset, with room for any number of batches: all that are needed, and only these."""

    async def main() -> None:
        async with serving(tmp_path, path) as (transactions, _, peer):
            for kind, producer_id, *_ in STEPS:
                take(transactions, kind, producer_id)
            log = transactions.hosted.log
            committed = committed_in(log, 9)
            for offset in range(len(STEPS)):
                for most in (1, 2 * log.size // len(STEPS), 2**20):
                    request = fetch(offset, partition_max_bytes=most)
                    answer = await peer.ask(
                        at_level(request, COMMITTED, rack=path == "follower"), version
                    )
                    (part,) = answer.responses[0].partitions
                    read = offsets(part.records)
                    assert read == list(range(offset, offset + len(read)))
                    assert bool(read) == (offset < 9)
                    assert kept_by_client(part) == [each for each in committed if each in read]
                    needed = [
                        (producer_id, first)
                        for producer_id, first, end in ABORTED
                        if read and first <= read[-1] and end > offset
                    ]
                    named = aborted_in(part) or []
                    # From a file it may also be one that begins in the batch after the last one.
                    assert named[: len(needed)] == needed
                    assert all(first <= read[-1] + 1 for _, first in named[len(needed) :])

    run(main())


def lose_aborted(log: Any) -> None:
    """The files of aborted transactions of a log's first segment are gone."""
    for file in paths_of(log.path, 0):
        log.resources.files.forget(file)
        Path(file).unlink()


@pytest.mark.parametrize("path", PATHS)
def test_a_thread_walks_the_batches_where_a_file_of_aborted_transactions_is_gone(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment may have a gigabyte of them: the event loop has other work."""
    walked_in: list[int] = []

    def walked(*given: Any) -> Any:
        walked_in.append(threading.get_ident())
        return aborted_by_batches(*given)

    async def main() -> None:
        async with serving(tmp_path, path) as (transactions, _, peer):
            for kind, producer_id, *_ in STEPS[:9]:
                take(transactions, kind, producer_id)
            log = transactions.hosted.log
            assert log.roll(NOW_MS) is None
            log.sync()
            lose_aborted(log)
            request = at_level(fetch(0), COMMITTED, rack=path == "follower")
            (part,) = (await peer.ask(request, 12)).responses[0].partitions
            assert offsets(part.records) == list(range(9))
            assert aborted_in(part) == [(8, 2), (7, 6)]
            assert walked_in and threading.get_ident() not in walked_in

    monkeypatch.setattr(aborted_proving, "aborted_by_batches", walked)
    monkeypatch.setattr(aborted_reading, "aborted_by_batches", walked)
    run(main())


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("path", ["memory", "follower"])
def test_a_waiting_fetch_of_committed_records_wakes_on_the_stable_offset(
    tmp_path: Path, path: str, in_session: bool
) -> None:
    async def main() -> None:
        async with serving(tmp_path, path) as (transactions, lone, peer):
            waiting = transactions.hosted.waiting
            transactions.data(7)
            session = (0, -1)
            if in_session:
                first = at_level(fetch(0, session=(0, 0)), COMMITTED, rack=path == "follower")
                session = ((await peer.ask(first, 12)).session_id, 1)
            request = fetch(0, session=session, max_wait_ms=LONG_MS)
            peer.send(at_level(request, COMMITTED, rack=path == "follower"), 12)
            await until(lambda: waiting.stable.waiting)
            other = await Peer.connect(lone.port)
            eager = at_level(fetch(1, max_wait_ms=LONG_MS), UNCOMMITTED, rack=path == "follower")
            other.send(eager, 12)
            await until(lambda: waiting.readers)
            transactions.plain()
            got = (await other.receive()).responses[0].partitions[0]
            assert offsets(got.records) == [1]
            # That answer came in a later turn than the wake: a wrong one would be there as well.
            assert waiting.stable.waiting and not waiting.readers
            transactions.abort(7)
            (part,) = (await peer.receive()).responses[0].partitions
            assert (part.last_stable_offset, offsets(part.records)) == (3, [0, 1, 2])
            assert kept_by_client(part) == [1]
            assert not waiting.stable.waiting

    run(main())


@pytest.mark.parametrize("in_steps", [False, True])
def test_only_bytes_below_the_stable_offset_count_for_the_least(
    tmp_path: Path, in_steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3000 bytes are wanted: the watermark passes them twice before the stable offset does."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", 3 if in_steps else 1)
            transactions, waiting = Transactions(hosted), hosted.waiting
            transactions.data(7, 1000)
            transactions.data(8, 5000)
            if in_steps:
                monkeypatch.setattr("tidelog.runtime.pace.PART", 2)
            places = (0, 1, 2) if in_steps else (0,)
            request = fetch(0, places, min_bytes=3000, max_wait_ms=LONG_MS)
            peer.send(at_level(request, COMMITTED), 12)
            last = partition(lone, 2) if in_steps else hosted
            await until(lambda: waiting.stable.waiting and last.waiting.stable.waiting)
            transactions.plain(5000)
            transactions.commit(7)
            assert last_stable_offset(hosted.log) == 1
            other = await Peer.connect(lone.port)
            found = (await other.ask(at_level(fetch(0), COMMITTED), 12)).responses[0].partitions[0]
            assert offsets(found.records) == [0]
            assert waiting.stable.waiting, "1000 bytes are less than 3000"
            transactions.commit(8)
            parts = (await peer.receive()).responses[0].partitions
            assert offsets(parts[0].records) == [0, 1, 2, 3, 4]

    run(main())


def test_a_fetch_of_committed_records_returns_empty_when_its_time_is_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            Transactions(hosted).data(7)
            request = at_level(fetch(0, max_wait_ms=30), COMMITTED)
            (part,) = (await peer.ask(request, 12)).responses[0].partitions
            assert (part.error_code, len(part.records)) == (0, 0)
            assert (part.high_watermark, part.last_stable_offset) == (1, 0)
            assert not hosted.waiting.stable.waiting
            for offset, error in ((1, 0), (2, ErrorCode.OFFSET_OUT_OF_RANGE)):
                request = at_level(fetch(offset), COMMITTED)
                (part,) = (await peer.ask(request, 12)).responses[0].partitions
                assert (part.error_code, len(part.records)) == (error, 0)
                assert (part.high_watermark, part.last_stable_offset) == (1, 0)

    run(main())


def test_a_reader_that_waits_for_the_stable_offset_notices_the_end_of_the_leadership(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            Transactions(hosted).data(7)
            peer.send(at_level(fetch(0, max_wait_ms=LONG_MS), COMMITTED), 12)
            await until(lambda: hosted.waiting.stable.waiting)
            lone.lead("t", isr=(2,), replicas=(1, 2), leader=2, epoch=1)
            (part,) = (await peer.receive()).responses[0].partitions
            assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(main())


def test_a_follower_that_replicates_reads_to_the_end_of_the_log(tmp_path: Path) -> None:
    """Whatever isolation level it names, and without aborted transactions, as in Kafka."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            transactions = Transactions(hosted)
            for kind, producer_id, *_ in STEPS:
                take(transactions, kind, producer_id)
            hosted.follower_fetched(2, 6)
            assert (hosted.high_watermark, last_stable_offset(hosted.log)) == (6, 6)
            for level in (UNCOMMITTED, COMMITTED):
                request = at_level(fetch(0, replica_id=2, epoch=0), level)
                (part,) = (await peer.ask(request, 12)).responses[0].partitions
                assert offsets(part.records) == list(range(len(STEPS)))
                assert aborted_in(part) is None

    run(main())


def ends(level: int, *timestamps: int) -> Any:
    request = messages.ListOffsetsRequest
    topics = [
        request.ListOffsetsTopic("t", [request.ListOffsetsPartition(0, -1, timestamp)])
        for timestamp in timestamps
    ]
    return [request(-1, level, [topic]) for topic in topics]


@pytest.mark.parametrize("level", [UNCOMMITTED, COMMITTED])
def test_list_offsets_ends_at_the_stable_offset(tmp_path: Path, level: int) -> None:
    latest, earliest, newest = -1, -2, -3

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            transactions = Transactions(lone.lead("t"))
            for number, (kind, producer_id, stable, _) in enumerate(STEPS):
                take(transactions, kind, producer_id)
                end = stable if level == COMMITTED else number + 1
                times = range(NOW_MS, NOW_MS + number + 2)
                found = []
                for request in ends(level, latest, earliest, newest, *times):
                    part = (await peer.ask(request, 7)).topics[0].partitions[0]
                    assert part.error_code == 0
                    found.append(part.offset)
                by_time = [at if at < end else -1 for at in range(number + 2)]
                assert found == [end, 0, end - 1, *by_time]

    run(main())


@pytest.mark.parametrize("level", [UNCOMMITTED, COMMITTED])
def test_a_new_leader_answers_when_its_watermark_has_caught_up(tmp_path: Path, level: int) -> None:
    """KIP-207: what the former leader said of the stable offset is not taken back."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", epoch=1, leader=2, isr=(1, 2), replicas=(1, 2))
            transactions = Transactions(hosted)
            for kind, producer_id, *_ in STEPS:
                take(transactions, kind, producer_id)
            # The former leader's watermark was 9; this replica knows of 3 when it begins to lead.
            hosted.log.high_watermark = 3
            lone.lead("t", epoch=2, isr=(1, 2), replicas=(1, 2))
            (latest,) = ends(level, -1)
            for version in (2, 4, 5, 7):
                part = (await peer.ask(latest, version)).topics[0].partitions[0]
                old = version < 5
                expected = "LEADER_NOT_AVAILABLE" if old else "OFFSET_NOT_AVAILABLE"
                assert ErrorCode(part.error_code).name == expected
            hosted.follower_fetched(2, len(STEPS))
            part = (await peer.ask(latest, 7)).topics[0].partitions[0]
            assert (part.error_code, part.offset) == (0, 9 if level == COMMITTED else len(STEPS))

    run(main())


def test_a_marker_that_is_not_committed_holds_readers_back(tmp_path: Path) -> None:
    """The watermark passes the records of a transaction before its marker."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            transactions = Transactions(hosted)
            transactions.data(7)
            transactions.commit(7)
            for reached, stable in ((1, 0), (2, 2)):
                hosted.follower_fetched(2, reached)
                (part,) = (
                    (await peer.ask(at_level(fetch(0), COMMITTED), 12)).responses[0].partitions
                )
                assert (part.high_watermark, part.last_stable_offset) == (reached, stable)
                assert offsets(part.records) == list(range(stable))

    run(main())


class Woken:
    """A waiter that notes each wake."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def more(self, size: int) -> None:
        self.sizes.append(size)


def test_a_watermark_that_moves_above_an_open_transaction_is_no_change(tmp_path: Path) -> None:
    """A request for many partitions compares what it read with what is there when it waits."""

    async def main() -> None:
        async with running(tmp_path) as (lone, _):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            transactions, log = Transactions(hosted, 100), hosted.log
            transactions.data(7)
            transactions.plain()
            hosted.follower_fetched(2, 0)
            before = read_position(hosted, committed=True, stable=True)
            for end in (1, 2):
                hosted.follower_fetched(2, end)
                assert (log.high_watermark, last_stable_offset(log)) == (end, 0)
                assert arrived_since(before, hosted, committed=True, stable=True) is None
            transactions.commit(7)
            hosted.follower_fetched(2, 3)
            assert last_stable_offset(log) == 3
            size = arrived_since(before, hosted, committed=True, stable=True)
            assert size == bytes_below_stable(log, 0, 3) > 200
            # For those that read all, each move of the watermark counts.
            transactions.plain()
            plain = read_position(hosted, committed=True)
            hosted.follower_fetched(2, 4)
            assert arrived_since(plain, hosted, committed=True) == hosted.bytes_in - size

    run(main())


def test_a_reader_that_came_after_a_cut_is_woken_below_the_former_stable_offset(
    tmp_path: Path,
) -> None:
    """A reader of a follower that waits since before the cut keeps the place of the others."""

    async def main() -> None:
        async with serving(tmp_path, "follower") as (transactions, _, _):
            hosted = transactions.hosted
            log, stable = hosted.log, hosted.waiting.stable
            for _ in range(10):
                transactions.plain()
            early, late = Woken(), Woken()
            stable.of(log)[early] = None
            assert finish(log.truncation(4, NOW_MS)) is None
            assert last_stable_offset(log) == 4
            stable.of(log)[late] = None
            transactions.plain()
            assert last_stable_offset(log) == 5
            assert len(late.sizes) == 1
            transactions.plain()
            assert len(late.sizes) == 2 and late.sizes[1] > 0

    run(main())
