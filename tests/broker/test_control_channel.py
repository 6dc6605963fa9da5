"""Control requests handed to a real broker over sockets: the channel, KIP-570, KIP-516."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.controlled_broker import ControlledBroker, open_channel
from tests.support.controller_commands import (
    FULL,
    INCREMENTAL,
    OK,
    A,
    B,
    OneBadPlace,
    command,
    leader_and_isr,
    quarantined,
    run,
    running,
    stop,
)
from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.storage_logs import QuickDisk
from tidelog.broker.control_plane.seen_epochs import SEEN_FILE, SeenEpochs, SeenEpochsFile
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.api_keys import ApiKey
from tidelog.model.epochs import HIGHEST_EPOCH, HIGHEST_REVISION
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.runtime.disk import RealDisk, RealFile
from tidelog.runtime.seams import Seams
from tidelog.storage.checkpoints import DamagedFile


def epoch_of(lone: LoneBroker, partition: int = 0) -> int | None:
    hosted = lone.broker.partitions.get("t", partition)
    return None if hosted is None else hosted.leader_epoch


def metadata_file(folder: Path) -> str:
    (file,) = folder.rglob("partition.metadata")
    return file.read_text()


def test_a_newer_channel_closes_the_older_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, first):
            second = await Peer.connect(lone.port)
            stray = await Peer.connect(lone.port)
            commands = leader_and_isr({"t": (A, {0: (0, 0)})})
            assert (await stray.ask(commands, 5)).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
            assert await open_channel(second, 1, 1) is ErrorCode.STALE_CONTROLLER_EPOCH
            assert await open_channel(second, 0, 9) is ErrorCode.STALE_CONTROLLER_EPOCH
            assert await open_channel(second, 1, 2, broker_epoch=6) is ErrorCode.STALE_BROKER_EPOCH
            assert await command(first, commands) == [OK]
            assert await open_channel(second, 1, 2) is ErrorCode.NONE
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await first.ask(leader_and_isr({"t": (A, {0: (1, 1)})}), 5)
            assert epoch_of(lone) == 0
            assert await command(second, leader_and_isr({"t": (A, {0: (1, 1)})})) == [OK]
            assert epoch_of(lone) == 1

    run(work())


def test_leader_and_isr_of_a_former_life_that_stalled_comes_on_a_closed_channel(
    tmp_path: Path,
) -> None:
    # By KIP-516 another id makes the local partition stale: only the order of the channel helps.
    async def work() -> None:
        async with running(tmp_path) as (lone, first):
            former = leader_and_isr({"t": (A, {0: (9, 9)})})
            assert await command(first, former) == [OK]
            second = await Peer.connect(lone.port)
            assert await open_channel(second, 1, 2) is ErrorCode.NONE
            assert await command(second, stop(A, -2), 4) == [OK]
            assert await command(second, leader_and_isr({"t": (B, {0: (0, 0)})})) == [OK]
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await first.ask(former, 5)
            # The same bytes on any other connection, and from the controller before this one.
            stray = await Peer.connect(lone.port)
            assert (await stray.ask(former, 5)).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
            third = await Peer.connect(lone.port)
            assert await open_channel(third, 2, 1) is ErrorCode.NONE
            assert (await third.ask(former, 5)).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
            hosted = lone.broker.partitions.get("t", 0)
            assert hosted is not None
            assert (hosted.topic_id, hosted.leader_epoch) == (B, 0)
            assert quarantined(tmp_path, "stray") == []

    run(work())


def test_a_command_for_a_former_life_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            commands = leader_and_isr({"t": (A, {0: (0, 0)})}, broker_epoch=6)
            assert (await channel.ask(commands, 5)).error_code == ErrorCode.STALE_BROKER_EPOCH
            older = leader_and_isr({"t": (A, {0: (0, 0)})}, epoch=0)
            assert (await channel.ask(older, 5)).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
            assert epoch_of(lone) is None

    run(work())


def test_what_was_seen_survives_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            assert await open_channel(channel, 9, 2, revision=70) is ErrorCode.NONE
            assert lone.broker.channel.seen_epochs.controller_epoch == 9
        again = ControlledBroker(tmp_path)
        await again.start()
        try:
            assert again.broker.channel.seen_epochs.store_revision == 70
            peer = await Peer.connect(again.port)
            old = await open_channel(peer, 8, 1)
            assert old is ErrorCode.STALE_CONTROLLER_EPOCH
        finally:
            await again.stop()

    run(work())


@pytest.mark.parametrize("asks_for_a_proof", [False, True])
def test_the_channel_key_is_checked_before_anything_is_recorded(
    tmp_path: Path, asks_for_a_proof: bool
) -> None:
    """Decision 0019: a key that was given is asked for; none given, none asked for in a roll."""
    refused, given = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, B

    async def work() -> None:
        async with running(tmp_path) as (lone, _):
            server, session = lone.server, lone.session
            peer = await Peer.connect(lone.port)
            await until(lambda: len(server.connections) == 2)
            server.trusts_all = not asks_for_a_proof
            before = (lone.broker.channel.present, lone.broker.channel.seen_epochs)
            # A controller of 02f3bcb gave none.
            assert await open_channel(peer, 4, 1, key=A) is refused
            if asks_for_a_proof:
                assert await open_channel(peer, 4, 1) is refused
            session.channel_key = given
            for wrong in (NO_UUID, A, UUID(int=given.int << 64)):
                assert await open_channel(peer, 4, 1, key=wrong) is refused
            counted = server.audit.refused_by_api[ApiKey.OPEN_CONTROL_CHANNEL]
            assert counted == 4 + asks_for_a_proof, "the audit has them"
            session.broker_epoch = -1
            stale = ErrorCode.STALE_BROKER_EPOCH
            assert await open_channel(peer, 4, 1, broker_epoch=-1, key=given) is stale
            session.broker_epoch = 7
            assert (lone.broker.channel.present, lone.broker.channel.seen_epochs) == before
            assert await open_channel(peer, 4, 1, key=given) is ErrorCode.NONE
            assert lone.broker.channel.seen_epochs.controller_epoch == 4
            if not asks_for_a_proof:
                session.channel_key = NO_UUID
                assert await open_channel(await Peer.connect(lone.port), 5, 1) is ErrorCode.NONE

    run(work())


def test_an_epoch_that_leaves_no_room_is_refused_and_one_on_disk_ends_the_start(
    tmp_path: Path,
) -> None:
    """N1: the epoch of a stranger was durable, and kept the true controller out for ever."""
    no_room = ErrorCode.INVALID_REQUEST

    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            before = lone.broker.channel.seen_epochs
            assert await open_channel(channel, 2**31 - 1, 2) is no_room
            assert await open_channel(channel, HIGHEST_EPOCH + 1, 2) is no_room
            assert await open_channel(channel, 2, 2, revision=2**63 - 1) is no_room
            assert await open_channel(channel, 2, 2, revision=HIGHEST_REVISION + 1) is no_room
            request = messages.UpdateConfigsRequest(1, 1, 7, HIGHEST_REVISION + 1)
            assert (await channel.ask(request, 0)).error_code == no_room
            assert lone.broker.channel.seen_epochs == before
            assert await open_channel(channel, HIGHEST_EPOCH, 2) is ErrorCode.NONE

    run(work())
    file = SeenEpochsFile(RealDisk(), str(tmp_path / SEEN_FILE))
    assert file.read().controller_epoch == HIGHEST_EPOCH
    for poisoned in (SeenEpochs(2**31 - 1, 5), SeenEpochs(5, 2**62 + 2**62 - 1)):
        file.write(poisoned)
        with pytest.raises(DamagedFile, match="leave no room"):
            file.read()
        (tmp_path / SEEN_FILE).unlink()
        file = SeenEpochsFile(RealDisk(), str(tmp_path / SEEN_FILE))


def test_a_channel_waits_for_the_answer_of_a_registration_that_is_on_its_way(
    tmp_path: Path,
) -> None:
    """The controller may open the channel before its answer has come: it was refused once."""

    async def work() -> None:
        async with running(tmp_path) as (lone, _):
            session = lone.broker.session
            session._registering = answer = asyncio.get_running_loop().create_future()
            peer, gone = await Peer.connect(lone.port), await Peer.connect(lone.port)
            request = messages.OpenControlChannelRequest(1, 4, 8, 1, 5, B)
            peer.send(request, 0)
            gone.send(messages.OpenControlChannelRequest(1, 9, 8, 1, 5, B), 0)
            tallies = lone.server.router.tallies[ApiKey.OPEN_CONTROL_CHANNEL]
            await until(lambda: tallies.pending == 2)
            gone.writer.close()
            await until(lambda: len(lone.server.connections) == 2)
            session.broker_epoch, session.channel_key = 8, B
            session._registering = None
            answer.set_result(None)
            assert (await peer.receive()).error_code == 0
            assert lone.broker.channel.seen_epochs.controller_epoch == 4, (
                "whoever is gone opens nothing"
            )

    run(work())


def test_a_stop_that_was_held_back_is_fenced(tmp_path: Path) -> None:
    # KIP-570: the replica was assigned again with a newer epoch before the old delete arrived.
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            await command(channel, leader_and_isr({"t": (A, {0: (5, 0)})}))
            await command(channel, leader_and_isr({"t": (A, {0: (6, 1)})}))
            fenced = int(ErrorCode.FENCED_LEADER_EPOCH)
            for version in (3, 4):
                assert await command(channel, stop(A, 5), version) == [fenced]
            assert epoch_of(lone) == 6
            assert await command(channel, stop(A, 6, delete=False), 4) == [OK]
            assert quarantined(tmp_path, "delete") == []
            assert await command(channel, stop(A, 6), 4) == [OK]
            assert epoch_of(lone) is None
            assert len(quarantined(tmp_path, "delete")) == 1
            assert await command(channel, stop(A, 6), 4) == [OK], "a repeated stop must succeed"

    run(work())


def test_a_delete_of_a_former_topic_does_not_hit_the_new_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            await command(channel, leader_and_isr({"t": (B, {0: (0, 0)})}))
            inconsistent = int(ErrorCode.INCONSISTENT_TOPIC_ID)
            assert await command(channel, stop(A, -2), 4) == [inconsistent]
            assert epoch_of(lone) == 0
            assert await command(channel, stop(B, -2), 4) == [OK]
            assert epoch_of(lone) is None

    run(work())


def test_a_full_quarantines_what_it_does_not_name(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            await command(channel, leader_and_isr({"t": (A, {0: (0, 0), 1: (0, 0)})}))
            unspecified = leader_and_isr({"t": (A, {0: (0, 0)})}, kind=0)
            assert await command(channel, unspecified) == [OK]
            assert epoch_of(lone, 1) == 0
            incremental = leader_and_isr({"t": (A, {0: (0, 0)})}, kind=INCREMENTAL)
            assert await command(channel, incremental) == [OK]
            assert epoch_of(lone, 1) == 0
            full = leader_and_isr({"t": (A, {0: (0, 0)})}, kind=FULL)
            assert await command(channel, full) == [OK]
            assert epoch_of(lone, 0) == 0
            assert epoch_of(lone, 1) is None
            assert len(quarantined(tmp_path, "stray")) == 1

    run(work())


def test_a_stale_partition_is_removed_after_its_delay_and_not_before(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            await command(channel, leader_and_isr({"t": (A, {0: (9, 0)})}))
            clock, delay_ms = lone.broker.clock, lone.broker.configs.stale_partition_delete_delay_ms
            before_ms = clock.wall_ms()
            assert await command(channel, leader_and_isr({"t": (B, {0: (0, 0)})})) == [OK]
            (stray,) = quarantined(tmp_path, "stray")
            removals = lone.broker.directories[0].resources.removals
            assert delay_ms > 0 and removals.due(before_ms + delay_ms - 1) is None
            removal = removals.due(clock.wall_ms() + delay_ms)
            assert removal is not None and [Path(x).name for x in removal.paths] == [stray]

    run(work())


def test_another_topic_id_makes_the_local_partition_stale(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            await command(channel, leader_and_isr({"t": (A, {0: (9, 0)})}))
            assert await command(channel, leader_and_isr({"t": (B, {0: (0, 0)})})) == [OK]
            hosted = lone.broker.partitions.get("t", 0)
            assert hosted is not None and hosted.topic_id == B and hosted.leader_epoch == 0
            assert len(quarantined(tmp_path, "stray")) == 1

    run(work())


def test_older_versions_have_no_ids_and_answer_by_name(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            commands = leader_and_isr({"t": (A, {0: (0, 0)})})
            assert await command(channel, commands, 2) == [OK]
            hosted = lone.broker.partitions.get("t", 0)
            assert hosted is not None and hosted.topic_id == UUID(int=0)
            migrated = leader_and_isr({"t": (A, {0: (0, 0)})}, migrated=True)
            assert await command(channel, migrated) == [OK]
            assert hosted.topic_id == A
            assert "topic_id" in metadata_file(tmp_path)
            assert await command(channel, leader_and_isr({"t": (A, {0: (-1, 0)})})) != [OK]

    run(work())


class Full(RealDisk):
    """A disk with room for nothing new, once ``full``: what is there can be rewritten."""

    full = False

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        if self.full and create and not self.exists(path):
            raise OSError(errno.ENOSPC, "a fault of the test", path)
        return super().open(path, create=create, read_only=read_only)


def test_a_full_disk_keeps_no_controller_out(tmp_path: Path) -> None:
    disk = Full()
    file = SeenEpochsFile(disk, str(tmp_path / "seen"))
    assert file.read() == SeenEpochs()
    file.write(SeenEpochs(1, 1))
    disk.full = True
    size = (tmp_path / "seen").stat().st_size
    for number in range(2, 9):
        file.write(SeenEpochs(number // 2, number))
        file = SeenEpochsFile(disk, str(tmp_path / "seen"))
        assert file.read() == SeenEpochs(number // 2, number)
        assert (tmp_path / "seen").stat().st_size == size


def test_a_torn_write_of_what_was_seen_leaves_what_was_there_before(tmp_path: Path) -> None:
    path = tmp_path / "seen"
    file = SeenEpochsFile(RealDisk(), str(path))
    for number in range(5):
        file.write(SeenEpochs(number, 10 * number))
    newest = path.read_bytes().index(b'"controller_epoch": 4')
    content = bytearray(path.read_bytes())
    content[newest + 20] = ord("9")
    path.write_bytes(content)
    file = SeenEpochsFile(RealDisk(), str(path))
    assert file.read() == SeenEpochs(3, 30)
    file.write(SeenEpochs(6, 60))
    assert SeenEpochsFile(RealDisk(), str(path)).read() == SeenEpochs(6, 60)
    path.write_bytes(bytes(8192))
    with pytest.raises(DamagedFile, match="is damaged: restore it"):
        SeenEpochsFile(RealDisk(), str(path)).read()


class NoNotes(RealDisk):
    """Does not open what a broker notes of its controllers any more, once it is ``bad``."""

    bad = False
    refused = 0

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        if self.bad and path.endswith(SEEN_FILE):
            self.refused += 1
            raise OSError(errno.EIO, "planted", path)
        return super().open(path, create=create, read_only=read_only)


def test_the_controllers_minimum_counts_where_the_brokers_own_is_lower(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            assert await command(channel, leader_and_isr({"t": (A, {0: (0, 0)})})) == [OK]
            request = messages.UpdateConfigsRequest
            assert (await channel.ask(request(1, 1, 7, 5, []), 0)).error_code == ErrorCode.NONE
            partition = lone.broker.partitions.get("t", 0)
            assert partition is not None and partition.log.configs.min_insync_replicas == 1
            told = request(1, 1, 7, 6, [], min_insync_replicas=2)
            assert (await channel.ask(told, 0)).error_code == ErrorCode.NONE
            await until(lambda: partition.log.configs.min_insync_replicas == 2)

    run(work())


def test_a_revision_that_cannot_be_kept_ends_no_channel(tmp_path: Path) -> None:
    """The first disk fails; what lies on the second one is commanded on (promise 25)."""

    async def work() -> None:
        disk = NoNotes()
        places = {"log.dirs": f"{tmp_path}/a,{tmp_path}/b"}
        async with running(tmp_path, disk, **places) as (lone, channel):
            first = leader_and_isr({"t": (A, {0: (0, 0), 1: (0, 0)})})
            assert await command(channel, first) == [OK, OK]
            before, disk.bad = lone.broker.channel.seen_epochs, True
            request = messages.UpdateConfigsRequest
            for revision in (98, 99):
                told = request(1, 1, 7, before.store_revision + revision, [])
                assert (await channel.ask(told, 0)).error_code == ErrorCode.NONE
            assert lone.broker.directories[0].failed
            assert (disk.refused, lone.broker.channel.seen_epochs) == (1, before), "not tried again"
            later = leader_and_isr({"t": (A, {1: (3, 0)})})
            assert await command(channel, later) == [OK]
            assert epoch_of(lone, 1) == 3
            # Commands of another controller apply only when its epoch is on disk.
            other = await Peer.connect(lone.port)
            assert await open_channel(other, 2) == ErrorCode.UNKNOWN_SERVER_ERROR

    run(work())


@asynccontextmanager
async def two_directories(
    folder: Path, topic_id: UUID
) -> AsyncIterator[tuple[LoneBroker, Peer, OneBadPlace]]:
    """Partitions 0 and 1 of a topic lie in two directories."""
    disk = OneBadPlace()
    places = {"log.dirs": f"{folder}/a,{folder}/b"}
    async with running(folder, disk, **places) as (lone, channel):
        assert await command(
            channel, leader_and_isr({"t": (topic_id, {0: (0, 0), 1: (0, 0)})})
        ) == [
            OK,
            OK,
        ]
        yield lone, channel, disk


def test_a_replica_that_cannot_take_its_topic_id_holds_up_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_directories(tmp_path, NO_UUID) as (lone, channel, disk):
            disk.bad = "t-0"
            commands = leader_and_isr({"t": (A, {0: (1, 1), 1: (1, 1)})}, migrated=True)
            assert await command(channel, commands) == [ErrorCode.KAFKA_STORAGE_ERROR, OK]
            assert epoch_of(lone, 1) == 1

    run(work())


def test_a_replica_that_could_not_be_deleted_is_not_confirmed_by_a_second_request(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with two_directories(tmp_path, A) as (lone, channel, disk):
            disk.bad = "t-0"
            for _ in range(2):
                assert await command(channel, stop(A, -2), 4) == [ErrorCode.KAFKA_STORAGE_ERROR]
            assert lone.broker.partitions.get("t", 0) is None
            assert await command(channel, stop(A, -2, partition=1), 4) == [OK]
            assert await command(channel, stop(A, -2, partition=1), 4) == [OK]

    run(work())


def test_a_stale_replica_that_cannot_be_quarantined_holds_up_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_directories(tmp_path, A) as (lone, channel, disk):
            disk.bad = "t-0"
            full = leader_and_isr({"t": (A, {1: (1, 1)})}, FULL)
            for _ in range(2):
                # A replica that is not quarantined is named: OK would confirm that it is gone.
                assert await command(channel, full) == [OK, ErrorCode.KAFKA_STORAGE_ERROR]
            assert epoch_of(lone, 1) == 1
            assert lone.broker.partitions.get("t", 0) is None
            assert await command(channel, stop(A, -2), 4) == [ErrorCode.KAFKA_STORAGE_ERROR]

    run(work())


class CountingDisk(QuickDisk):
    """Counts the syncs of one directory; they fail while ``broken``."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.syncs = 0
        self.broken = False

    def sync_directory(self, path: str) -> None:
        if path == self.path:
            self.syncs += 1
            if self.broken:
                raise OSError(errno.EIO, "a fault of the test", path)


def stop_all(count: int) -> Any:
    request = stop(A, 0)
    state = messages.StopReplicaRequest.StopReplicaPartitionState
    request.topic_states[0].partition_states = [state(at, 0, True) for at in range(count)]
    return request


def test_many_deletions_are_one_sync_of_the_log_directory(tmp_path: Path) -> None:
    async def work() -> None:
        disk = CountingDisk(tmp_path)
        lone = ControlledBroker(tmp_path, seams=Seams(disk=disk))
        await lone.start()
        peer = await Peer.connect(lone.port)
        assert await open_channel(peer) is ErrorCode.NONE
        everything = leader_and_isr({"t": (A, dict.fromkeys(range(20), (0, 0)))})
        assert await command(peer, everything) == [OK] * 20
        disk.syncs = 0
        assert await command(peer, stop_all(20), 4) == [OK] * 20
        assert disk.syncs == 1
        assert len(quarantined(tmp_path, "delete")) == 20
        assert await command(peer, leader_and_isr({"t": (B, {0: (0, 0), 1: (0, 0)})})) == [OK] * 2
        disk.broken = True
        request = stop_all(2)
        request.topic_states[0].topic_id = B
        assert await command(peer, request, 4) == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        assert lone.broker.directories[0].failed is not None
        await lone.stop()

    run(work())


def test_a_step_that_fails_holds_up_no_other_step_and_no_other_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            broker, partitions = lone.broker, lone.broker.partitions
            applied: list[int] = []
            resigned: list[int] = []

            def fails(*what: object) -> None:
                raise ValueError(what)

            def apply(hosted: HostedPartition) -> None:
                applied.append(hosted.partition)

            def resign(key: TopicPartition, _: int) -> None:
                resigned.append(key.partition)

            monkeypatch.setattr(broker.isr_changes, "began", fails)
            monkeypatch.setattr(broker.followers, "created", apply)
            monkeypatch.setattr(broker.data_loss, "stopped", fails)
            monkeypatch.setattr(broker.coordinator, "resign", resign)
            monkeypatch.setattr(broker.loss_reports, "removed", fails)
            both = leader_and_isr({"t": (A, {0: (0, 0), 1: (0, 0)})})
            assert await command(channel, both) == [OK, OK]
            assert applied == [0, 1]
            assert sum("fails" in each.getMessage() for each in caplog.records) == 2
            assert await command(channel, stop(A, 0), 4) == [OK]
            assert resigned == [0]
            assert partitions.get("t", 0) is None
            directory = lone.broker.directories[0]
            directory.resources.fail("a fault of the test")
            hosted = partitions.get("t", 1)
            assert hosted is not None and hosted.offline_reason is not None
            assert resigned == [0, 1]

    run(work())


def test_nothing_is_kept_of_the_configuration_of_a_topic_that_is_gone(tmp_path: Path) -> None:
    async def work() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        resolved = lone.broker.topic_configs._resolved
        for number in range(20):
            lone.lead(f"t{number}", 2, {"retention.ms": "1000"})
            assert f"t{number}" in resolved
            for index in range(2):
                assert f"t{number}" in resolved
                if number % 2:
                    lone.broker.partitions.stop(f"t{number}", index, delete=True)
                else:
                    lone.broker.partitions.quarantine(f"t{number}", index, "test")
        assert not [name for name in resolved if name.startswith("t")]
        await lone.stop()

    run(work())
