"""One disk of two fails, in one call: what lies on the other goes on, and the next start too."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.controlled_broker import ControlledBroker
from tests.support.storage_logs import QuickDisk
from tidelog.broker.control_plane.seen_epochs import SeenEpochs
from tidelog.broker.handlers import describe_log_dirs
from tidelog.broker.metadata.configurations import ConfigCache, EntityType
from tidelog.broker.partitions.partition import LeaderAndIsrState, StorageFailed
from tidelog.broker.process import BrokerProcess, StartFailed
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.observe.gathered_lines import GatheredLines
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch
from tidelog.replication.command_rules import StopReplicaCommand
from tidelog.runtime.disk import RealDisk, RealFile
from tidelog.runtime.seams import Seams
from tidelog.storage.directory.log_directory import LogDirectory, open_directory
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended

STATE = LeaderAndIsrState(
    topic_id=UUID(int=0xA), partition_epoch=0, leader=1, leader_epoch=0, isr=(1,), replicas=(1,)
)


class OneBadCall(QuickDisk):
    """Refuses what ends in ``ending``, of the kinds ``kinds``, with ``error``."""

    kinds: tuple[str, ...] = ()
    ending = "none of it"
    error = errno.EIO
    free: Mapping[str, int] = {}
    """Bytes of 1,000 that directories have free, by the ends of their names."""

    @staticmethod
    def watch(_path: str) -> None:
        """Receives the calls to watch for; it watches none."""

    def _judge(self, kind: str, path: str) -> None:
        self.watch(path)
        if kind in self.kinds and path.endswith(self.ending):
            raise OSError(self.error, "planted", path)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        self._judge("open", path)
        return super().open(path, create=create, read_only=read_only)

    def read(self, path: str) -> bytes:
        self._judge("read", path)
        return super().read(path)

    def remove_tree(self, path: str) -> None:
        self._judge("remove_tree", path)
        super().remove_tree(path)

    def sync_directory(self, path: str) -> None:
        self._judge("sync_directory", path)

    def rename(self, source: str, target: str) -> None:
        self._judge("rename", source)
        super().rename(source, target)

    def free_bytes(self, path: str) -> int:
        self._judge("free_bytes", path)
        return self.free.get(path.rpartition("/")[2], 1000)

    def total_bytes(self, path: str) -> int:
        return 1000


def of_two(folder: Path, disk: QuickDisk) -> ControlledBroker:
    places = {"log.dirs": f"{folder}/one,{folder}/two"}
    return ControlledBroker(folder, places, Seams(disk=disk))


def run(folder: Path, disk: QuickDisk, story: Callable[[ControlledBroker], Any]) -> None:
    async def main() -> None:
        lone = of_two(folder, disk)
        await lone.start()
        try:
            await story(lone)
        finally:
            await lone.stop()

    asyncio.run(main())


@pytest.mark.parametrize("failing", ["meta.properties", ".kafka_cleanshutdown"])
def test_a_directory_that_cannot_be_read_is_let_go_of(tmp_path: Path, failing: str) -> None:
    """Its lock stayed: the next start in the process said that another server had it."""

    def opened(disk: QuickDisk) -> Any:
        return open_directory(
            Seams(disk=disk), str(tmp_path), cluster_id="c", node_id=1, boot_id="b"
        )

    class NoAnswer(OneBadCall):
        def exists(self, path: str) -> bool:
            self._judge("exists", path)
            return super().exists(path)

    opened(QuickDisk()).close()
    disk = NoAnswer()
    disk.kinds, disk.ending = ("read", "exists"), failing
    with pytest.raises(OSError, match="planted"):
        opened(disk)
    found = opened(QuickDisk())
    assert isinstance(found, LogDirectory), found
    found.close()


def test_a_disk_that_cannot_say_whether_there_is_a_file_does_not_say_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition's directory was no directory then, and a damaged log's note not there."""
    disk, stat = RealDisk(), os.stat
    (tmp_path / "file").write_text("")
    assert (disk.exists(f"{tmp_path}/file"), disk.is_directory(str(tmp_path))) == (True, True)
    assert (disk.exists(f"{tmp_path}/no"), disk.is_directory(f"{tmp_path}/no")) == (False, False)
    assert not disk.exists(f"{tmp_path}/file/below") and not disk.is_directory(f"{tmp_path}/file")

    def failing(path: Any, *args: Any, **names: Any) -> os.stat_result:
        if str(path).startswith(str(tmp_path)):
            raise OSError(errno.EIO, "planted", path)
        return stat(path, *args, **names)

    monkeypatch.setattr(os, "stat", failing)
    for ask in (disk.exists, disk.is_directory):
        with pytest.raises(OSError, match="planted"):
            ask(f"{tmp_path}/file")


@pytest.mark.parametrize("away", ["one", "two"])
def test_what_was_seen_and_cannot_be_read_takes_one_directory_out_of_service(
    tmp_path: Path, away: str
) -> None:
    """It ended the start, with all other directories."""
    disk = OneBadCall()

    async def see(lone: ControlledBroker) -> None:
        await lone.broker.channel.note(3, 7)

    async def look(lone: ControlledBroker) -> None:
        failed = {each.path.rpartition("/")[2] for each in lone.broker.directories if each.failed}
        assert failed == {away}
        assert lone.broker.channel.seen_epochs == SeenEpochs(3, 7 if away == "two" else -1)

    run(tmp_path, disk, see)
    disk.kinds, disk.ending = ("read",), f"{away}/controller-seen"
    run(tmp_path, disk, look)


@pytest.mark.parametrize("before", [False, True])
def test_a_broker_whose_first_disk_has_failed_applies_the_commands_of_the_next_controller(
    tmp_path: Path, before: bool
) -> None:
    """It refused each new control channel: replicas on other disks got no further command."""
    disk = OneBadCall()

    async def see(lone: ControlledBroker) -> None:
        channel, (first, second) = lone.broker.channel, lone.broker.directories
        await channel.note(3, 7)
        if before:
            first.resources.fail("planted")
        disk.kinds, disk.ending = ("open",), "one/controller-seen"
        await channel.note(4, 8)
        assert (channel.seen_epochs, second.failed) == (SeenEpochs(4, 8), None)
        assert first.failed is not None
        disk.kinds, disk.ending = ("open",), "controller-seen"
        with pytest.raises(OSError, match="planted"):
            await channel.note(5, 9)
        assert channel.seen_epochs == SeenEpochs(4, 8), "no disk has it"

    async def look(lone: ControlledBroker) -> None:
        assert lone.broker.channel.seen_epochs == SeenEpochs(4, 7)

    run(tmp_path, disk, see)
    disk.kinds = ()
    run(tmp_path, disk, look)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("stays", [False, True])
def test_a_creation_that_one_disk_refused_is_made_on_another_and_the_next_start_succeeds(
    tmp_path: Path, error: int, stays: bool
) -> None:
    """What the first one had made of it lay in both: no start took that."""
    disk = OneBadCall()
    disk.kinds, disk.error = ("open",), error
    disk.ending = "one/t-0/partition.metadata.tmp"

    class Stays(OneBadCall):
        def _judge(self, kind: str, path: str) -> None:
            if stays and kind == "remove_tree":
                raise OSError(error, "planted", path)
            super()._judge(kind, path)

    disk.__class__ = Stays

    async def create(lone: ControlledBroker) -> None:
        partitions = lone.broker.partitions
        if error != errno.ENOSPC:
            with pytest.raises(StorageFailed):
                partitions.create("t", 0, STATE)
        hosted = partitions.create("t", 0, STATE)
        assert hosted.log.path == f"{tmp_path}/two/t-0"
        assert (tmp_path / "one" / "t-0").exists() is stays

    run(tmp_path, disk, create)
    (first, second), _ = start_again(tmp_path)
    assert (first, list(second)) == ({}, [TopicPartition("t", 0)])
    assert second[TopicPartition("t", 0)].metadata is not None


def start_again(
    folder: Path, disk: QuickDisk | None = None
) -> tuple[list[dict[TopicPartition, PartitionLog]], list[str | None]]:
    """Start a broker as far as it judges what its directories hold; return their logs, and why each
    of them is out of service."""

    async def start() -> Any:
        lone = of_two(folder, disk or QuickDisk())
        process = BrokerProcess(lone.configs, lone.seams, [("127.0.0.1", 1)])
        process._directories.open("lone-cluster-lone-clus", "", 4096)
        try:
            await process._directories.load(ConfigCache(1, lone.configs.texts))
            found = [dict(each.logs) for each in process._directories.all]
            return found, [each.failed for each in process._directories.all]
        finally:
            for directory in process._directories.all:
                directory.close()

    return asyncio.run(start())  # type: ignore[no-any-return]


def in_directory(folder: Path) -> list[str]:
    return sorted(each.name.split(".")[0] for each in folder.iterdir() if each.is_dir())


STAYS = [("rename", "/one/t-0"), ("sync_directory", "/one")]
ANEW = replace(STATE, topic_id=UUID(int=0xB), leader_epoch=1)


@pytest.mark.parametrize("how", STAYS, ids=["rename", "sync"])
@pytest.mark.parametrize("again", [STATE, replace(STATE, leader_epoch=5), ANEW])
@pytest.mark.parametrize("stale", [False, True])
def test_a_replica_created_again_beside_one_that_a_disk_kept_is_the_replica(
    tmp_path: Path, how: tuple[str, str], again: LeaderAndIsrState, stale: bool
) -> None:
    """The deletion had failed, the next start found both, and was refused: for the same topic, too,
    which was assigned here again."""
    disk = OneBadCall()

    async def lose(lone: ControlledBroker) -> None:
        partitions = lone.broker.partitions
        partitions.apply(partitions.create("t", 0, STATE), STATE)
        append(lone, 3)
        await lone.broker.commit.settled()
        disk.kinds, disk.ending = how[:1], how[1]
        with pytest.raises(StorageFailed):
            if stale:
                partitions.quarantine("t", 0, "planted")
            else:
                partitions.stop("t", 0, delete=True)
            finish(partitions.syncing_names())
        hosted = partitions.create("t", 0, again)
        partitions.apply(hosted, again)
        assert hosted.log.path == f"{tmp_path}/two/t-0"
        append(lone, 1)

    run(tmp_path, disk, lose)
    for renamed in (tmp_path / "one").glob("t-0.*"):
        renamed.rename(tmp_path / "one" / "t-0")  # a power loss took the name that was not synced

    # The disk does still not take it: the others are served, and the next start knows it, too.
    disk.kinds, disk.ending = ("rename",), "/one/t-0"
    (first, second), (why, other) = start_again(tmp_path, disk)
    assert (list(first), list(second), other) == ([], [TopicPartition("t", 0)], None)
    assert why is not None and "t-0, what is left of a deletion that failed, cannot be" in why
    assert (tmp_path / "one" / "t-0").exists()

    (first, second), failed = start_again(tmp_path)
    assert (list(first), list(second), failed) == ([], [TopicPartition("t", 0)], [None, None])
    assert second[TopicPartition("t", 0)].end_offset == 1
    assert not (tmp_path / "one" / "t-0").exists()
    (aside,) = (tmp_path / "one").glob("t-0.*-stray")
    assert list(aside.glob("*.log")), "it is quarantined, not removed"


def test_what_a_replica_replaces_the_next_one_replaces_too(tmp_path: Path) -> None:
    """Of three lives on two disks the last one is the replica, whatever became of the second."""
    disk = OneBadCall()
    key = TopicPartition("t", 0)

    async def lose(lone: ControlledBroker) -> None:
        partitions = lone.broker.partitions
        partitions.create("t", 0, STATE)
        disk.kinds, disk.ending = ("rename",), "/one/t-0"
        with pytest.raises(StorageFailed):
            partitions.stop("t", 0, delete=True)
        partitions.create("t", 0, STATE)
        append(lone, 1)

    async def again(lone: ControlledBroker) -> None:
        partitions = lone.broker.partitions
        partitions.stop("t", 0, delete=True)
        lone.broker.directories[0].resources.fail("planted")
        partitions.create("t", 0, STATE)
        append(lone, 2)

    run(tmp_path, disk, lose)
    (tmp_path / "one" / "t-0").rename(tmp_path / "kept")
    run(tmp_path, QuickDisk(), again)
    (tmp_path / "kept").rename(tmp_path / "one" / "t-0")
    (first, second), _ = start_again(tmp_path)
    assert (list(first), second[key].end_offset) == ([], 2)


def test_two_replicas_of_one_topic_without_proof_are_refused(tmp_path: Path) -> None:
    """A copy, or one created again while the other disk was away: the longer may be older."""

    async def make(lone: ControlledBroker) -> None:
        lone.broker.partitions.create("t", 0, STATE)
        append(lone, 1)

    run(tmp_path, QuickDisk(), make)
    shutil.copytree(tmp_path / "one" / "t-0", tmp_path / "two" / "t-0")
    with pytest.raises(StartFailed, match=r"t-0 is in .*one and in .*two: .* move the older"):
        start_again(tmp_path)
    assert in_directory(tmp_path / "one") == in_directory(tmp_path / "two") == ["t-0"]


def append(lone: ControlledBroker, count: int) -> None:
    hosted = lone.broker.partitions.get("t", 0)
    assert hosted is not None
    records = build_batch([NewRecord(-1, None, b"a")] * count)
    assert isinstance(hosted.log.append_as_leader(records, 9, 0), Appended)
    hosted.log.sync()


def test_a_full_disk_takes_no_new_replica_while_another_has_room(tmp_path: Path) -> None:
    """It had the fewest replicas, so each new one was tried there, again and again."""
    disk = OneBadCall()

    async def create(lone: ControlledBroker) -> None:
        partitions = lone.broker.partitions

        def place(index: int) -> str:
            path = partitions.create("t", index, STATE).log.path
            return path.rpartition("/")[0].rpartition("/")[2]

        disk.free = {"one": 20}
        assert [place(index) for index in range(3)] == ["two", "two", "two"]
        disk.free = {"two": 20}
        assert place(3) == "one", "the rule is not of a place"
        disk.free = {"one": 10, "two": 20}
        assert place(4) == "two", "of two full ones the one with more room"
        disk.free = {}
        assert place(5) == "one", "it has room again"
        # The kernel refuses, and tells of room (a quota): the other one takes it, at once.
        disk.kinds, disk.error, disk.ending = ("open",), errno.EDQUOT, "partition.metadata.tmp"
        disk.ending = "one/t-6/partition.metadata.tmp"
        assert place(6) == "two"
        assert in_directory(tmp_path / "one") == ["t-3", "t-5"]
        asked: list[str] = []
        disk.watch = asked.append
        assert place(7) == "two", "it is not asked again"
        assert not [path for path in asked if "/one/" in path]
        disk.free = {"one": 1001}
        assert place(8) == "one", "it has more room since"
        disk.kinds, disk.ending = ("free_bytes",), "one"
        assert place(9) == "two", "a disk that cannot say how full it is comes last"

    run(tmp_path, disk, create)


def test_a_cordoned_directory_takes_no_new_replica_while_another_is_in_service(
    tmp_path: Path,
) -> None:
    """KIP-1066: the dynamic value counts before that of the file, an empty one included."""
    disk = OneBadCall()
    disk.free = {"two": 500}

    def in_file(folder: Path) -> ControlledBroker:
        places = {"log.dirs": f"{folder}/one,{folder}/two", "cordoned.log.dirs": f"{folder}/one"}
        return ControlledBroker(folder, places, Seams(disk=disk))

    async def main() -> None:
        lone = in_file(tmp_path)
        await lone.start()
        partitions, configs = lone.broker.partitions, lone.broker.topic_configs

        def place(index: int, cordoned: str | None) -> str:
            values = {} if cordoned is None else {"cordoned.log.dirs": cordoned}
            finish(configs.apply([(EntityType.BROKER, "1", values)], complete=True))
            path = partitions.create("t", index, STATE).log.path
            return path.rpartition("/")[0].rpartition("/")[2]

        try:
            assert place(0, None) == "two", "the value of the file"
            assert place(1, "") == "one", "the one with the most free bytes"
            assert place(2, f"{tmp_path}/one/") == "two"
            assert place(3, f"{tmp_path}/two") == "one"
            assert place(4, "*") == "one", "all are: as if none were"
            assert place(5, "*,/a") == "two", "a value that cannot be read counts as none"
            disk.kinds, disk.ending = ("open",), "two/t-6/partition.metadata.tmp"
            disk.error = errno.EDQUOT
            with pytest.raises(StorageFailed, match="two cannot take t-6"):
                place(6, f"{tmp_path}/one")
        finally:
            await lone.stop()

    asyncio.run(main())


def test_a_deletion_that_one_disk_does_not_take_is_confirmed_of_the_other(tmp_path: Path) -> None:
    """All of the request counted as kept, until a restart."""
    disk = OneBadCall()

    async def delete(lone: ControlledBroker) -> None:
        partitions, control = lone.broker.partitions, lone.broker.control
        for index in (0, 1):
            partitions.apply(partitions.create("t", index, STATE), STATE)
        paths = [partitions.get("t", index).log.path for index in (0, 1)]  # type: ignore[union-attr]
        assert [path.rpartition("/")[0].rpartition("/")[2] for path in paths] == ["one", "two"]
        disk.kinds, disk.ending = ("sync_directory",), "/one"
        order = StopReplicaCommand(0, True, True, STATE.topic_id, 0)
        said = GatheredLines(logging.getLogger("test"))
        for index in (0, 1):
            assert control._stop(TopicPartition("t", index), order, said) == 0
        with pytest.raises(StorageFailed) as failure:
            await control._sync_names()
        assert failure.value.keys == {TopicPartition("t", 0)}  # type: ignore[attr-defined]
        assert [bool(each.failed) for each in lone.broker.directories] == [True, False]
        assert not lone.broker.directories[1]._renamed, "the second disk was synced"

    run(tmp_path, disk, delete)


def test_a_directory_that_fails_while_it_is_loaded_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing said why its replicas were out of service."""
    disk = OneBadCall()

    async def leave(lone: ControlledBroker) -> None:
        directory = lone.broker.directories[0]
        assert finish(directory.recording_life("boot", durability="sync"))
        hosted = lone.broker.partitions.create("t", 0, STATE)
        lone.broker.partitions.apply(hosted, STATE)
        records = build_batch([NewRecord(-1, None, b"a")])
        assert isinstance(hosted.append(records, 0), Appended)
        directory.resources.fail("planted: the stop is no clean one")

    async def start() -> None:
        lone = of_two(tmp_path, disk)
        process = BrokerProcess(lone.configs, lone.seams, [("127.0.0.1", 1)])
        process._directories.open("lone-cluster-lone-clus", "boot", 4096)
        disk.kinds, disk.ending = ("sync_directory",), "one/t-0"
        await process._directories.load(ConfigCache(1, lone.configs.texts))
        (reason,) = [each.failed for each in process._directories.all if each.failed]
        assert f"{tmp_path}/one is out of service: {reason}" in caplog.messages
        for directory in process._directories.all:
            directory.close()

    run(tmp_path, disk, leave)
    asyncio.run(start())


def test_a_disk_that_cannot_say_how_full_it_is_is_described_without(tmp_path: Path) -> None:
    """The whole answer, with all other directories, was lost to it."""
    disk = OneBadCall()

    async def describe(lone: ControlledBroker) -> None:
        disk.kinds, disk.ending = ("free_bytes",), "/one"
        request = messages.DescribeLogDirsRequest(topics=None)
        answer = done(describe_log_dirs.handle(lone.broker, request, None))  # type: ignore[arg-type]
        said = [(each.error_code, each.usable_bytes, each.total_bytes) for each in answer.results]
        assert said == [(0, -1, -1), (0, 1000, 1000)]

    run(tmp_path, disk, describe)


def done(steps: Any) -> Any:
    """Run the steps of a handler to its answer."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
