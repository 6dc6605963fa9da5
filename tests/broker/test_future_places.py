"""The directories of copies are made before their requests are answered."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from pathlib import Path

import pytest

from tests.support.lone_broker import Peer, until
from tests.support.storage_logs import NOW_MS
from tests.support.turn_costs import TurnCosts
from tests.support.two_directories import Broker, HeldDisk, alter, started
from tidelog.broker.handlers import alter_replica_log_dirs
from tidelog.broker.partitions import future_replicas
from tidelog.broker.partitions.future_places import PER_TRIP
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.records.batch import Rejected
from tidelog.records.builder import NewRecord, build_batch
from tidelog.replication.copying import CopyQueue, CopyTurn
from tidelog.runtime.loop import run
from tidelog.storage.names import PARTITION_METADATA

OK = ErrorCode.NONE
MANY = 3 * PER_TRIP
VERY_MANY = 10_000
LONGEST_S = 0.06
"""A turn of a request for so many takes 17 ms where nothing else runs. Heartbeats have 100 ms."""


class GatedDisk(HeldDisk):
    """Holds or refuses the making of a copy's directory; counts the syncs of names."""

    def __init__(self) -> None:
        super().__init__()
        self.may_make = threading.Event()
        self.makes = threading.Event()
        self.refusal: Exception | None = None
        self.syncs = 0

    def make_directory(self, path: str) -> bool:
        if path.endswith("-future"):
            self.makes.set()
            if self.refusal is not None:
                raise self.refusal
            assert self.may_make.wait(30)
        return super().make_directory(path)

    def sync_directory(self, path: str) -> None:
        self.syncs += 1


def futures_in(path: str) -> list[Path]:
    return sorted(each for each in Path(path).iterdir() if each.name.endswith("-future"))


def all_of(broker: Broker, partitions: int) -> list[HostedPartition]:
    found = [broker.broker.partitions.get("t", index) for index in range(partitions)]
    return [hosted for hosted in found if hosted is not None]


def fill(hosted: HostedPartition) -> None:
    batch = build_batch([NewRecord(NOW_MS, b"key", bytes(1_000))])
    assert not isinstance(hosted.append(batch, NOW_MS), Rejected)


@pytest.mark.parametrize("left", ["whole", "torn", "empty", "full"])
def test_a_kill_after_the_response_forgets_no_move(
    tmp_path: Path, left: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of the copies that wait for a place, and after a power loss that took the content, or
    where the next start has no space for what it writes."""
    monkeypatch.setattr(future_replicas, "REST_S", 0.02)

    async def main() -> None:
        disk = HeldDisk()
        config = {"reassignment.parallel.copies": 1}
        broker = Broker(tmp_path / "first", disk, config=config)
        wanted: dict[int, str] = {}
        async with started(broker) as peer:
            broker.lead("t", 4)
            for hosted in all_of(broker, 4):
                fill(hosted)
                other = broker.other(hosted)
                wanted[hosted.key.partition] = Path(other).name
                assert await alter(peer, other, "t", hosted.key.partition) is OK
            await until(disk.held.is_set)
            shutil.copytree(tmp_path / "first", tmp_path / "killed")
            disk.may_go.set()
        full = GatedDisk()
        full.may_go.set()
        full.may_make.set()
        again = Broker(tmp_path / "killed", full)
        found = [path for each in (again.one, again.two) for path in futures_in(each)]
        assert len(found) == 4, "a move that was answered is on no disk"
        for path in found:
            metadata = path / PARTITION_METADATA
            assert metadata.stat().st_size > 0
            if left == "torn":
                metadata.write_bytes(metadata.read_bytes()[:9])
            elif left == "empty":
                metadata.unlink()
        async with started(again):
            again.lead("t", 4, epoch=1)
            copies = again.broker.future_replicas
            if left == "full":
                full.refusal = OSError(errno.ENOSPC, "no space")
            copies.start()
            if left == "full":
                rests = "no space"
                await until(
                    lambda: len(copies) < 4 or sum(rests in line for line in caplog.messages) == 4
                )
                assert len(copies) == 4, "a move that was answered is given up"
                assert all(path.exists() for path in found)
                full.refusal = None
            await until(lambda: not len(copies))
            moved = {h.key.partition: Path(again.place(h)).name for h in all_of(again, 4)}
            assert moved == wanted
            assert all(hosted.log.end_offset == 1 for hosted in all_of(again, 4))

    run(main())


def test_a_copy_of_a_former_topic_is_removed_whatever_its_metadata(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path)
        async with started(broker):
            hosted = broker.lead("t")
        path = Path(broker.other(hosted)) / f"t-0.{'0' * 32}-future"
        path.mkdir()
        (path / PARTITION_METADATA).write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAEQ\n")
        again = Broker(tmp_path)
        async with started(again):
            hosted = again.lead("t", epoch=1)
            again.broker.future_replicas.start()
            assert not len(again.broker.future_replicas) and not path.exists()

    run(main())


def test_one_request_for_many_partitions_makes_many_directories_in_one_trip(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        disk = GatedDisk()
        broker = Broker(tmp_path, disk)
        async with started(broker) as peer:
            broker.lead("t", MANY)
            request = messages.AlterReplicaLogDirsRequest
            parts: dict[str, list[int]] = {broker.one: [], broker.two: []}
            for hosted in all_of(broker, MANY):
                fill(hosted)
                parts[broker.other(hosted)].append(hosted.key.partition)
            topics = {
                path: [request.AlterReplicaLogDirTopic("t", indexes)]
                for path, indexes in parts.items()
            }
            asked = request([request.AlterReplicaLogDir(*each) for each in topics.items()])
            answering = asyncio.create_task(peer.ask(asked, 2))
            await until(lambda: len(broker.broker.future_replicas) == MANY)
            assert not answering.done(), "no directory is there yet"
            before = disk.syncs
            disk.may_make.set()
            answer = await answering
            errors = [p.error_code for result in answer.results for p in result.partitions]
            assert errors == [0] * MANY
            assert len(futures_in(broker.one)) + len(futures_in(broker.two)) == MANY
            # Those that came before the rest of the request have a first trip.
            trips = sum(1 + -(-len(each) // PER_TRIP) for each in parts.values())
            assert disk.syncs - before <= trips
            disk.may_go.set()

    run(main())


def test_a_request_for_very_many_replicas_does_not_hold_the_loop(tmp_path: Path) -> None:
    """Not while the copies begin, nor when their directories are made and they wait for places."""

    async def main() -> None:
        disk = GatedDisk()
        disk.may_make.set()
        broker = Broker(tmp_path, disk)
        async with started(broker) as peer:
            broker.lead("t", VERY_MANY)
            request = messages.AlterReplicaLogDirsRequest
            parts: dict[str, list[int]] = {broker.one: [], broker.two: []}
            for hosted in all_of(broker, VERY_MANY):
                parts[broker.other(hosted)].append(hosted.key.partition)
            dirs = [
                request.AlterReplicaLogDir(path, [request.AlterReplicaLogDirTopic("t", indexes)])
                for path, indexes in parts.items()
            ]
            async with TurnCosts() as turns:
                answer = await peer.ask(request(dirs), 2)
                errors = [p.error_code for result in answer.results for p in result.partitions]
                assert errors == [0] * VERY_MANY
                copies = broker.broker.future_replicas
                await until(lambda: len(copies) < VERY_MANY - 50)  # they go on
            assert turns.longest_s < LONGEST_S
            disk.may_go.set()

    run(main())


def test_a_disk_that_hangs_holds_up_no_other_and_no_response_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        disk = GatedDisk()
        disk.may_go.set()
        broker = Broker(tmp_path, disk)
        async with started(broker) as peer:
            hosted = broker.lead("t")
            fill(hosted)
            monkeypatch.setattr(alter_replica_log_dirs, "MADE_S", 0.05)
            there = broker.other(hosted)
            assert await alter(peer, there) is ErrorCode.REQUEST_TIMED_OUT
            assert disk.makes.is_set() and len(broker.broker.future_replicas) == 1
            other = broker.lead("u")
            if broker.other(other) == there:
                other = broker.lead("v")
            assert broker.other(other) != there
            disk.makes.clear()
            moving = asyncio.create_task(alter(peer, broker.other(other), other.key.topic))
            await until(disk.makes.is_set)  # its directory is made, although the first one hangs
            disk.may_make.set()
            await moving
            await until(lambda: broker.place(hosted) == there)

    run(main())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, None])
def test_a_directory_that_cannot_be_made_refuses_the_request(
    tmp_path: Path, number: int | None
) -> None:
    """None: for an error of this program, which must leave no copy without a task."""

    async def main() -> None:
        disk = GatedDisk()
        disk.may_go.set()
        disk.may_make.set()
        disk.refusal = ValueError("a bug") if number is None else OSError(number, "refused")
        broker = Broker(tmp_path, disk)
        async with started(broker) as peer:
            hosted = broker.lead("t")
            fill(hosted)
            there = broker.other(hosted)
            assert await alter(peer, there) is ErrorCode.KAFKA_STORAGE_ERROR
            assert not len(broker.broker.future_replicas) and not futures_in(there)
            assert not broker.broker.future_replicas.beginnings(hosted.key)
            (target,) = (each for each in broker.broker.directories if each.path == there)
            assert (target.failed is not None) is (number == errno.EIO)
            disk.refusal = None
            if number != errno.EIO:
                assert await alter(peer, there) is OK
                await until(lambda: broker.place(hosted) == there)

    run(main())


def test_a_copy_that_a_request_ends_while_its_directory_is_made_leaves_none(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        disk = GatedDisk()
        disk.may_go.set()
        broker = Broker(tmp_path, disk)
        async with started(broker) as peer:
            hosted = broker.lead("t")
            fill(hosted)
            here, there = broker.place(hosted), broker.other(hosted)
            beginning = asyncio.create_task(alter(peer, there))
            await until(disk.makes.is_set)
            second = await Peer.connect(broker.port)
            ending = asyncio.create_task(alter(second, here))
            await until(lambda: not len(broker.broker.future_replicas))
            assert not ending.done(), "a kill would find the copy that has ended"
            disk.may_make.set()
            assert (await beginning, await ending) == (OK, OK)
            assert not futures_in(there) and broker.place(hosted) == here
            second.writer.close()

    run(main())


def test_a_stop_leaves_no_directory_that_is_still_made(tmp_path: Path) -> None:
    async def main() -> None:
        disk = GatedDisk()
        disk.may_go.set()
        broker = Broker(tmp_path, disk)
        async with started(broker) as peer:
            hosted = broker.lead("t")
            fill(hosted)
            beginning = asyncio.create_task(alter(peer, broker.other(hosted)))
            await until(disk.makes.is_set)
            copies = broker.broker.future_replicas
            assert copies.beginnings(hosted.key)
            await copies.close()
            assert not copies.beginnings(hosted.key)
            assert await beginning is ErrorCode.REQUEST_TIMED_OUT
            disk.may_make.set()

    run(main())


class FailingQueue(CopyQueue[TopicPartition]):
    """Counts its turns; one of them fails."""

    turns, fails_at = 0, 0

    def turn(self, limit: int, now_ms: int) -> CopyTurn[TopicPartition]:
        FailingQueue.turns += 1
        if FailingQueue.turns == FailingQueue.fails_at:
            raise ValueError("a bug")
        return super().turn(limit, now_ms)


def test_a_check_that_failed_is_not_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a copy without progress would keep its place for ever."""
    monkeypatch.setattr(future_replicas, "CopyQueue", FailingQueue)
    monkeypatch.setattr(future_replicas, "CHECKED_S", 0.01)
    monkeypatch.setattr(FailingQueue, "turns", 0)
    monkeypatch.setattr(FailingQueue, "fails_at", 0)

    async def main() -> None:
        disk = HeldDisk()
        broker = Broker(tmp_path, disk, config={"reassignment.parallel.copies": 1})
        async with started(broker) as peer:
            broker.lead("t", 3)
            for hosted in all_of(broker, 3):
                fill(hosted)
            first, second, third = all_of(broker, 3)
            assert await alter(peer, broker.other(first), "t", 0) is OK
            await until(disk.held.is_set)
            assert await alter(peer, broker.other(second), "t", 1) is OK
            await until(lambda: FailingQueue.turns > 4)  # only a check has so many
            FailingQueue.fails_at = FailingQueue.turns + 1
            await until(lambda: FailingQueue.turns >= FailingQueue.fails_at)
            assert await alter(peer, broker.other(third), "t", 2) is OK
            await until(lambda: FailingQueue.turns > FailingQueue.fails_at + 4, 10)
            disk.may_go.set()
            await until(lambda: not len(broker.broker.future_replicas))

    run(main())
