"""The first roll of a log that no sync has reached: a thread does the sync before it (S9)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import GeneratorType, SimpleNamespace
from typing import Any

import pytest

from tests.support.inspected_appends import codes, produce
from tests.support.lone_broker import LoneBroker, Peer
from tests.support.pieces import by_threads
from tests.support.storage_logs import NOW_MS, batch, new_log, records_of, resources
from tests.support.watched_disk import WatchedDisk
from tidelog.broker.following.follower_log import _append as append_fetched
from tidelog.broker.following.follower_log import take_in
from tidelog.model.configs.topic import TopicConfigs
from tidelog.protocol import messages
from tidelog.records.batch import Rejected, walk
from tidelog.runtime.seams import Seams
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended
from tidelog.storage.log.retention import ROLL_WAITS

SEGMENT = {"segment.bytes": "20000"}
NO_LOSSES: Any = None


async def started(folder: Path, disk: WatchedDisk) -> LoneBroker:
    lone = LoneBroker(folder, seams=Seams(disk=disk))
    await lone.start()
    return lone


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("version", [8, 9])
def test_a_produce_whose_segment_is_full_waits_for_a_thread(
    tmp_path: Path, partitions: int, version: int
) -> None:
    """S9: the loop synced the directory, for as long as the disk took. Also on the short way."""

    async def main() -> None:
        disk = WatchedDisk()
        lone = await started(tmp_path, disk)
        peer = await Peer.connect(lone.port)
        try:
            hosted = lone.lead("t", partitions, configs=SEGMENT)
            for count in range(1, 8):
                content = batch(1, size=8_000)
                # Without a wait: what comes to the same log meanwhile keeps its place.
                peer.send(produce(*((at, content) for at in range(partitions))), version)
                if count == 4:
                    disk.calls.clear()
            for _ in range(7):
                assert codes(await peer.receive()) == [0] * partitions
            assert not disk.here("sync", "sync_directory", ending="-0")
            assert hosted.end_offset == 7
            # As exact as anywhere: no segment is larger than it may be.
            assert [segment.size <= 20_000 for segment in hosted.log.segments] == [True] * 4
        finally:
            await lone.stop()

    asyncio.run(main())


def test_a_group_does_not_wait_for_the_disk_before_a_roll(tmp_path: Path) -> None:
    """Its batches are appended as it decides: the segment grows on until the sync has returned."""

    async def main() -> None:
        disk = WatchedDisk()
        lone = await started(tmp_path, disk)
        try:
            log = (hosted := lone.lead("t", configs=SEGMENT)).log
            disk.calls.clear()
            for _ in range(4):
                found = hosted.append(batch(1, size=8_000), NOW_MS, from_client=False)
                assert isinstance(found, Appended)
            assert len(log.segments) == 1 and not disk.here("sync", "sync_directory")
            await lone.broker.commit.settled()
            assert disk.of("sync_directory", ending="t-0")
            hosted.append(batch(1, size=8_000), NOW_MS, from_client=False)
            assert [segment.base_offset for segment in log.segments] == [0, 4]
            assert not disk.here("sync", "sync_directory")
        finally:
            await lone.stop()

    asyncio.run(main())


def fetched(tmp_path: Path) -> bytes:
    """Six batches of a leader."""
    leader = new_log(tmp_path.with_name(f"{tmp_path.name}-leader"))
    for _ in range(6):
        assert isinstance(leader.append_as_leader(batch(1, size=300), 0, NOW_MS), Appended)
    found = leader.read(0, 10_000)
    assert not isinstance(found, Rejected)
    return bytes(found)


def follower(tmp_path: Path, disk: WatchedDisk) -> PartitionLog:
    return new_log(tmp_path, TopicConfigs(segment_bytes=1000), resources(disk))


def test_what_a_follower_fetched_waits_for_a_thread(tmp_path: Path) -> None:
    content = fetched(tmp_path)
    disk = WatchedDisk()
    log = follower(tmp_path, disk)
    disk.calls.clear()
    assert isinstance(by_threads(append_fetched(log, content, NOW_MS)), Appended)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]
    assert len(records_of(log)) == 6
    assert disk.of("sync_directory") and not disk.here("sync", "sync_directory")


def test_an_answer_that_fills_a_segment_is_taken_in_by_pieces(tmp_path: Path) -> None:
    """The others at once: no thread has a part in them."""
    content = fetched(tmp_path)
    log = follower(tmp_path, WatchedDisk())
    told: list[tuple[int, int]] = []
    hosted: Any = SimpleNamespace(
        log=log, replicated=lambda *what: told.append(what), check_disk=lambda: None
    )
    cut = next(at for at, header in walk(content) if header.base_offset == 1)
    first = messages.FetchResponse.PartitionData(0, 0, 1, 1, 0, records=content[:cut])
    assert isinstance(log.append_as_follower(content[:cut], NOW_MS), Appended)
    rest = messages.FetchResponse.PartitionData(0, 0, 6, 6, 0, records=content[cut:])
    pieces = take_in(hosted, rest, NOW_MS, NO_LOSSES)
    assert isinstance(pieces, GeneratorType) and not told and log.end_offset == 2
    assert by_threads(pieces) is None
    assert told == [(len(content) - cut, 6)] and len(records_of(log)) == 6
    again = take_in(hosted, first, NOW_MS, NO_LOSSES)
    assert isinstance(again, str) and "where 6 was expected" in again


def test_what_does_not_wait_is_refused_and_the_rest_comes_later(tmp_path: Path) -> None:
    content = fetched(tmp_path)
    log = follower(tmp_path, WatchedDisk())
    assert log.append_as_follower(content, NOW_MS, waits=True) is ROLL_WAITS
    assert (log.end_offset, len(log.segments)) == (2, 1)


def test_a_sync_that_fails_before_a_roll_is_final(tmp_path: Path) -> None:
    """Promise 25: nothing is appended after it."""
    content = fetched(tmp_path)
    disk = WatchedDisk()
    log = follower(tmp_path, disk)

    def fails(path: str) -> None:
        raise OSError(5, "a fault of the test", path)

    disk.sync_directory = fails  # type: ignore[method-assign]
    found = by_threads(append_fetched(log, content, NOW_MS))
    assert isinstance(found, Rejected) and log.failed is not None
    assert log.end_offset == 2
