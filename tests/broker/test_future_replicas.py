"""Moves between the log directories of one broker: requests, what is seen of them, their ends."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.isolation import Transactions
from tests.support.lone_broker import Peer, until
from tests.support.storage_logs import NOW_MS, removed_now
from tests.support.two_directories import Broker, HeldDisk, alter, started
from tidelog.broker.metadata.configurations import EntityType
from tidelog.broker.partitions import future_replicas
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work, finish
from tidelog.protocol import messages
from tidelog.records.batch import Rejected, walk
from tidelog.records.builder import NewRecord, build_batch
from tidelog.runtime.loop import run
from tidelog.storage.log.aborted_reading import aborted_between
from tidelog.storage.log.stable import last_stable_offset

OK = ErrorCode.NONE


async def described(peer: Peer) -> dict[str, list[tuple[int, int, bool]]]:
    """Size, lag and whether it is a copy, of each replica in each directory."""
    answer = await peer.ask(messages.DescribeLogDirsRequest(topics=None), 4)
    return {
        result.log_dir: [
            (each.partition_size, each.offset_lag, each.is_future_key)
            for topic in result.topics
            for each in topic.partitions
        ]
        for result in answer.results
    }


def fill(hosted: HostedPartition, records: int, size: int = 1_000, first: int = 0) -> None:
    for number in range(first, first + records):
        batch = build_batch([NewRecord(NOW_MS, b"%d" % number, bytes(size))])
        assert not isinstance(hosted.append(batch, NOW_MS), Rejected)


def offsets(hosted: HostedPartition) -> int:
    found = hosted.log.start_offset
    while found < hosted.log.end_offset:
        data = hosted.log.read(found, 1 << 20)
        assert not isinstance(data, Rejected), data
        for _, header in walk(data):
            assert header.base_offset == found
            found = header.next_offset
    return found


def names(path: str) -> list[str]:
    return sorted(each.name for each in Path(path).iterdir() if each.is_dir())


def test_a_replica_moves_and_is_served_throughout(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path)
        async with started(broker) as peer:
            hosted = broker.lead("t", configs={"segment.bytes": "20000"})
            fill(hosted, 100)
            for round_ in range(4):
                origin, target = broker.place(hosted), broker.other(hosted)
                assert await alter(peer, target) is OK
                await until(lambda: not len(broker.broker.future_replicas))
                assert broker.place(hosted) == target
                fill(hosted, 10, first=100 + 10 * round_)
                assert offsets(hosted) == 110 + 10 * round_
                assert hosted.log.high_watermark == hosted.log.end_offset
                await until(lambda: names(origin) and names(origin)[0].endswith("-delete"))  # noqa: B023
                assert names(target)[0] == "t-0"
                await broker.broker.log_work.settled()
                removed_now(broker.broker.directories[0])
            assert [d.failed for d in broker.broker.directories] == [None, None]

    run(main())


def test_what_is_open_moves_along(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path)
        async with started(broker) as peer:
            hosted = broker.lead("t", configs={"segment.bytes": "20000"})
            log = Transactions(hosted, 1_000)
            log.plain()
            begun = log.data(7)
            log.data(8)
            log.abort(8)
            for round_ in range(2):
                # It began some segments ago, and what was aborted ended there.
                for _ in range(40):
                    log.plain()
                target = broker.other(hosted)
                assert await alter(peer, target) is OK
                await until(lambda: not len(broker.broker.future_replicas))
                assert broker.place(hosted) == target
                assert last_stable_offset(hosted.log) == begun
                ended = aborted_between(hosted.log, 0, hosted.log.end_offset).transactions
                assert [(one.producer_id, one.first_offset) for one in ended] == [(8, 2)]
                log.data(7)
                assert hosted.log.producers.entries[7].last_sequence == round_ + 1
            log.commit(7)
            assert last_stable_offset(hosted.log) == hosted.log.end_offset

    run(main())


def test_a_copy_is_described_replaced_ended_and_answered_by_the_table(tmp_path: Path) -> None:
    async def main() -> None:
        disk = HeldDisk()
        broker = Broker(tmp_path, disk)
        async with started(broker) as peer:
            hosted = broker.lead("t")
            fill(hosted, 20)
            here, there = broker.place(hosted), broker.other(hosted)
            assert await alter(peer, "/nowhere") is ErrorCode.LOG_DIR_NOT_FOUND
            assert await alter(peer, here, "x" * 240) is ErrorCode.INVALID_TOPIC_EXCEPTION
            assert await alter(peer, here, "t", -1) is ErrorCode.INVALID_TOPIC_EXCEPTION
            assert await alter(peer, there, "unknown") is ErrorCode.REPLICA_NOT_AVAILABLE
            assert await alter(peer, here) is OK and not len(broker.broker.future_replicas)
            assert await alter(peer, there) is OK
            await until(disk.held.is_set)
            assert await alter(peer, there) is OK
            found = await described(peer)
            assert found[here] == [(hosted.log.size, 0, False)]
            assert found[there] == [(0, 20, True)]
            assert len(names(there)) == 1 and names(there)[0].endswith("-future")
            fill(hosted, 5)  # it is served meanwhile
            assert await alter(peer, here) is OK
            assert (await described(peer))[there] == []
            disk.may_go.set()
            await until(lambda: names(there) == [] or names(there)[0].endswith("-delete"))
            assert broker.place(hosted) == here and offsets(hosted) == 25
            assert await alter(peer, there) is OK
            await until(lambda: broker.place(hosted) == there)
            assert offsets(hosted) == 25

    run(main())


def test_a_replica_that_is_created_later_goes_where_a_client_wanted_it(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path)
        async with started(broker) as peer:
            for at, wanted in enumerate([broker.two, broker.one, broker.two]):
                topic = f"t{at}"
                assert await alter(peer, wanted, topic) is ErrorCode.REPLICA_NOT_AVAILABLE
                hosted = broker.lead(topic)
                assert broker.place(hosted) == wanted
                assert await alter(peer, wanted, topic) is OK

    run(main())


def test_a_copy_that_waits_for_a_change_of_its_log_is_not_begun_for_a_deleted_one(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        broker = Broker(tmp_path)
        async with started(broker) as peer:
            hosted = broker.lead("t")
            fill(hosted, 3)
            there, may_end = broker.other(hosted), threading.Event()

            def change() -> Work[None]:
                yield lambda: may_end.wait(30) and None

            changing = asyncio.create_task(broker.broker.log_work.run(hosted.log, change()))
            await until(lambda: broker.broker.log_work._under_way)
            assert await alter(peer, there) is OK
            await until(lambda: hosted.log.is_mirrored)
            broker.broker.partitions.stop("t", 0, delete=True)
            may_end.set()
            await changing
            await until(lambda: not broker.broker.future_replicas._tasks)
            (target,) = (each for each in broker.broker.directories if each.path == there)
            await broker.broker.log_work.settled()
            removed_now(target)
            assert not target.futures and names(there) == []

    run(main())


@pytest.mark.parametrize("delete", [True, False])
def test_a_replica_that_goes_takes_its_copy_with_it(tmp_path: Path, delete: bool) -> None:
    async def main() -> None:
        disk = HeldDisk()
        broker = Broker(tmp_path, disk)
        async with started(broker) as peer:
            hosted = broker.lead("t")
            fill(hosted, 20)
            there = broker.other(hosted)
            assert await alter(peer, there) is OK
            await until(disk.held.is_set)
            partitions = broker.broker.partitions
            if delete:
                partitions.stop("t", 0, delete=True)
            else:
                partitions.quarantine("t", 0, "a test", durable=False)
            disk.may_go.set()
            await until(lambda: not broker.broker.log_work._under_way)
            assert not len(broker.broker.future_replicas)
            assert [name for name in names(there) if not name.endswith("-delete")] == []
            again = broker.lead("t", epoch=1)
            fill(again, 3)
            assert offsets(again) == 3

    run(main())


def test_a_full_directory_lets_the_copy_rest_and_a_failed_one_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(future_replicas, "REST_S", 0.02)

    async def main() -> None:
        disk = HeldDisk()
        disk.error = OSError(errno.ENOSPC, "no space")
        disk.may_go.set()
        broker = Broker(tmp_path, disk)
        async with started(broker) as peer:
            hosted = broker.lead("t")
            fill(hosted, 20)
            here, there = broker.place(hosted), broker.other(hosted)
            assert await alter(peer, there) is OK
            await until(disk.held.is_set)
            disk.held.clear()
            await until(disk.held.is_set)
            assert (await described(peer))[there][0][2]
            fill(hosted, 5)
            disk.error = None
            await until(lambda: broker.place(hosted) == there)
            assert offsets(hosted) == 25
            assert sum("rests" in line for line in caplog.messages) == 1
            disk.error = OSError(errno.EIO, "broken")
            assert await alter(peer, here) is OK
            await until(lambda: not len(broker.broker.future_replicas))
            failed = next(d for d in broker.broker.directories if d.path == here)
            assert failed.failed is not None and "broken" in failed.failed
            assert not hosted.log.is_mirrored, "it would never be compacted again"
            assert broker.place(hosted) == there and offsets(hosted) == 25
            assert await alter(peer, here) is ErrorCode.KAFKA_STORAGE_ERROR

    run(main())


def test_a_start_goes_on_with_a_copy_and_removes_what_is_none(tmp_path: Path) -> None:
    async def main() -> None:
        disk = HeldDisk()
        broker = Broker(tmp_path, disk)
        await broker.start()
        peer = await Peer.connect(broker.port)
        hosted = broker.lead("t", configs={"segment.bytes": "20000"})
        fill(hosted, 100)
        there = broker.other(hosted)
        assert await alter(peer, there) is OK
        await until(disk.held.is_set)
        closing = asyncio.create_task(broker.broker.future_replicas.close())
        await asyncio.sleep(0)  # It has cancelled the copy, whose thread is still held.
        disk.may_go.set()
        await closing
        peer.writer.close()
        await broker.stop()
        assert names(there)[-1].endswith("-future")
        os.mkdir(f"{there}/gone-0.{'0' * 32}-future")
        again = Broker(tmp_path)
        async with started(again):
            hosted = again.lead("t", epoch=1)
            assert again.place(hosted) != there
            again.broker.future_replicas.start()
            await until(lambda: again.place(hosted) == there)
            assert offsets(hosted) == 100
            await until(lambda: not any(each.endswith("-future") for each in names(there)))

    run(main())


def test_a_start_without_all_directories_keeps_a_copy_that_no_replica_here_has(
    tmp_path: Path,
) -> None:
    """Its replica may be in the directory that failed: the copy may be the only one left."""

    async def main() -> None:
        broker = Broker(tmp_path)
        name = f"gone-0.{'0' * 32}-future"
        os.makedirs(f"{broker.two}/{name}")
        for is_failed in (True, False):
            await broker.start()
            if is_failed:
                broker.broker.directories[0].resources.fail("a test")
            broker.broker.future_replicas.start()
            if is_failed:
                assert names(broker.two) == [name]
            else:
                assert names(broker.two)[0].endswith("-delete")
            await broker.stop()
            broker = Broker(tmp_path)

    run(main())


def test_a_cordoned_directory_takes_no_replica(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path)
        async with started(broker) as peer:
            hosted = broker.lead("t")
            here, there = broker.place(hosted), broker.other(hosted)
            own = {"cordoned.log.dirs": there}
            changes = broker.broker.topic_configs.apply(
                [(EntityType.BROKER, "1", own)], complete=True
            )
            finish(changes)
            assert await alter(peer, there) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert await alter(peer, here) is OK
            assert not len(broker.broker.future_replicas)

    run(main())


def test_nothing_is_compacted_while_it_is_copied(tmp_path: Path) -> None:
    async def main() -> None:
        disk = HeldDisk()
        broker = Broker(tmp_path, disk)
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": "20000",
            "min.cleanable.dirty.ratio": "0",
        }
        async with started(broker) as peer:
            hosted = broker.lead("t", configs=configs)
            fill(hosted, 100)
            hosted.log.sync()
            assert await alter(peer, broker.other(hosted)) is OK
            await until(disk.held.is_set)
            await broker.broker.maintenance.cleaning.clean()
            assert hosted.log.first_dirty_offset == 0
            disk.may_go.set()
            there = broker.other(hosted)
            await until(lambda: broker.place(hosted) == there)
            hosted.log.sync()
            assert finish(hosted.log.housekeeping(NOW_MS)) is None

    run(main())


class HeldHelper(ThreadPoolExecutor):
    """A helper that waits, before its work or after it, until a test lets it go."""

    def __init__(self, *, waits_after: bool) -> None:
        super().__init__(1)
        self.waits, self.may_go = threading.Event(), threading.Event()
        self._waits_after = waits_after

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        def work() -> Any:
            done = fn(*args, **kwargs) if self._waits_after else None
            self.waits.set()
            assert self.may_go.wait(30)
            return done or fn(*args, **kwargs)

        return super().submit(work)


@pytest.mark.parametrize("waits_after", [False, True])
@pytest.mark.parametrize("moves", [1, 2])
def test_a_compaction_that_a_move_overtook_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, moves: int, waits_after: bool
) -> None:
    """Its files are in the former directory: they are none of the log in the new one, whose
    directory has not failed."""

    async def main() -> None:
        with HeldHelper(waits_after=waits_after) as helper:
            broker = Broker(tmp_path, helper=helper)
            configs = {
                "cleanup.policy": "compact",
                "segment.bytes": "20000",
                "min.cleanable.dirty.ratio": "0",
            }
            async with started(broker) as peer:
                hosted = broker.lead("t", configs=configs)
                for _ in range(10):
                    fill(hosted, 10)
                hosted.log.sync()
                cleaning = broker.broker.maintenance.cleaning
                compaction = asyncio.create_task(cleaning.clean())
                await until(helper.waits.is_set)
                for _ in range(moves):
                    there = broker.other(hosted)
                    assert await alter(peer, there) is OK
                    await until(lambda there=there: broker.place(hosted) == there)
                helper.may_go.set()
                await compaction
                assert hosted.log.failed is None and offsets(hosted) == 100
                assert cleaning.uncleanable() == []

    with caplog.at_level(logging.ERROR):
        run(main())
    assert not caplog.records
    assert not list(tmp_path.rglob("t-0/*.cleaned"))


def test_appends_and_cuts_during_a_copy_are_in_it(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path)
        async with started(broker) as peer:
            hosted = broker.lead("t", configs={"segment.bytes": "50000"})
            fill(hosted, 200)
            written = 200
            for _ in range(6):
                there = broker.other(hosted)
                assert await alter(peer, there) is OK
                while broker.place(hosted) != there:
                    fill(hosted, 3)
                    written += 3
                    await asyncio.sleep(0)
                    if written % 50 == 0 and hosted.log.change is None:
                        log = hosted.log
                        work = log.truncation(written - 10, NOW_MS)
                        assert await broker.broker.log_work.run(log, work) is None
                        written -= 10
                assert offsets(hosted) == hosted.log.end_offset == written

    run(main())
