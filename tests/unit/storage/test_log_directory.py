"""One log directory: whose it is, how its last life ended, loading, deleting, checkpoints."""

from __future__ import annotations

import errno
import os
import random
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.put_files import put
from tests.support.storage_logs import (
    NOW_MS,
    FaultyDisk,
    QuickDisk,
    batch,
    records_of,
    removed_now,
    resolve,
    texts_of,
)
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.runtime.seams import Seams
from tidelog.storage import names
from tidelog.storage.checkpoints import PartitionMetadata, decode_offsets, encode_uuid
from tidelog.storage.directory.identity import how_it_ended
from tidelog.storage.directory.log_directory import (
    DirectoryRefused,
    LastStop,
    LogDirectory,
    open_directory,
)
from tidelog.storage.loaded import LoadAbandoned
from tidelog.storage.names import DirectoryName, marked_name, parse_directory

CONFIGS = TopicConfigs(segment_bytes=1000)
T0 = TopicPartition("t", 0)


class Clock:
    def __init__(self) -> None:
        self.now = NOW_MS

    def wall_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Opener:
    """Opens one directory again and again; ``kill`` gives the lock back as a dead process does."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self.seams = Seams(clock=clock, random=random.Random(5))
        self.opened: list[LogDirectory] = []

    def try_open(
        self, cluster: str = "c1", node: int = 1, boot: str = "b1"
    ) -> LogDirectory | DirectoryRefused:
        found = open_directory(
            self.seams, str(self.path / "data"), cluster_id=cluster, node_id=node, boot_id=boot
        )
        if isinstance(found, LogDirectory):
            self.opened.append(found)
        return found

    def open(self, boot: str = "b1") -> LogDirectory:
        found = self.try_open(boot=boot)
        assert isinstance(found, LogDirectory), found
        self.loaded = found.load(resolve)
        return found

    def kill(self, found: LogDirectory) -> None:
        found.resources.files.close()
        found._lock.close()


@pytest.fixture
def opener(tmp_path: Path, clock: Clock) -> Iterator[Opener]:
    made = Opener(tmp_path, clock)
    yield made
    for found in made.opened:
        made.kill(found)


METADATA = PartitionMetadata(uuid.UUID(int=9), 4, texts_of(CONFIGS))


def fill(found: LogDirectory, partition: TopicPartition = T0, batches: int = 20) -> None:
    log = found.create(partition, CONFIGS, METADATA)
    for _ in range(batches):
        log.append_as_leader(batch(2), 1, NOW_MS)
    log.high_watermark = log.end_offset


def checkpoint(found: LogDirectory) -> None:
    for log in found.logs.values():
        log.sync()
    made = finish(found.checkpoint())
    if made is not None:
        made.run()
        found.checkpointed(made)


def test_a_second_server_is_refused(opener: Opener) -> None:
    first = opener.open()
    refused = opener.try_open()
    assert isinstance(refused, DirectoryRefused) and "in use by another server" in refused.reason
    first.close()
    assert isinstance(opener.try_open(), LogDirectory)


def test_the_directory_of_another_cluster_or_node_is_refused(opener: Opener) -> None:
    opener.open().close()
    for cluster, node, name in (("c2", 1, "cluster c1"), ("c1", 2, "node 1")):
        refused = opener.try_open(cluster, node)
        assert isinstance(refused, DirectoryRefused) and name in refused.reason
    assert isinstance(opener.try_open(), LogDirectory), "a refusal leaves no lock"


def test_a_damaged_meta_properties_is_refused(opener: Opener, tmp_path: Path) -> None:
    opener.open().close()
    (tmp_path / "data" / "meta.properties").write_text("version=1\n")
    refused = opener.try_open()
    assert isinstance(refused, DirectoryRefused) and "meta.properties" in refused.reason


def test_how_the_last_life_ended(opener: Opener) -> None:
    found = opener.open()
    assert found.last_stop is LastStop.NEW
    opener.kill(found)
    found = opener.open()
    assert found.last_stop is LastStop.UNCLEAN, "no boot on record: it may have been another one"
    finish(found.recording_life("b1", durability="replicated"))
    opener.kill(found)
    found = opener.open()
    assert found.last_stop is LastStop.CRASHED
    finish(found.recording_life("b1", durability="replicated"))
    assert found.close()
    found = opener.open(boot="b2")
    assert found.last_stop is LastStop.CLEAN
    opener.kill(found)
    found = opener.open(boot="b2")
    assert found.last_stop is LastStop.UNCLEAN, "the boot on record is older than this life"


def test_a_clean_stop_brings_everything_back_without_a_scan(opener: Opener) -> None:
    found = opener.open()
    fill(found)
    fill(found, TopicPartition("other", 3), 3)
    assert found.close(broker_epoch=12)
    found = opener.open()
    assert (opener.loaded.logs, opener.loaded.recovered_bytes) == (2, 0)
    log = found.logs[T0]
    assert (log.end_offset, log.high_watermark, log.synced_end_offset) == (40, 40, 40)
    assert log.metadata == METADATA
    assert log.epochs.entries == [(1, 0)]
    assert len(records_of(log)) == 40


def test_after_a_kill_the_checkpoint_bounds_the_scan(opener: Opener) -> None:
    found = opener.open()
    fill(found, batches=200)
    checkpoint(found)
    finish(found.recording_life("b1", durability="replicated"))
    fill(found, batches=5)
    opener.kill(found)
    found = opener.open()
    log = found.logs[T0]
    assert log.end_offset == 410
    assert 0 < opener.loaded.recovered_bytes <= 2 * 1000
    assert log.high_watermark == 400, "as of the checkpoint"


def test_a_partition_metadata_file_as_kafka_writes_it(opener: Opener, tmp_path: Path) -> None:
    found = opener.open()
    fill(found)
    topic_id = encode_uuid(uuid.UUID(int=9))
    file = tmp_path / "data" / "t-0" / "partition.metadata"
    kafkas = f"version: 0\ntopic_id: {topic_id}\n"
    assert file.read_text() == (
        f"{kafkas}partition_epoch: 4\nconfigs: segment.bytes=1000\ncrc32c: 2853739486\n"
    )
    found.close()
    file.write_text(f"version: 0\ntopic_id: {topic_id}")
    found = opener.open()
    assert found.logs[T0].metadata == PartitionMetadata(uuid.UUID(int=9), -1)
    found.close()
    file.write_text("version: 9")
    found = opener.open()
    assert found.logs[T0].damaged is not None
    assert [partition for partition, _ in opener.loaded.damaged] == [T0]


def test_a_deleted_replica_is_renamed_and_removed_after_its_delay(
    opener: Opener, tmp_path: Path, clock: Clock
) -> None:
    found = opener.open()
    fill(found)
    log = found.logs[T0]
    found.delete(T0, delay_ms=1000)
    assert T0 not in found.logs and log.closed
    names = [path.name for path in (tmp_path / "data").iterdir() if path.is_dir()]
    assert len(names) == 1 and names[0].startswith("t-0.") and names[0].endswith("-delete")
    assert removed_now(found) == 0
    clock.now += 1000
    assert removed_now(found) == 1
    assert not [path for path in (tmp_path / "data").iterdir() if path.is_dir()]
    fill(found, batches=1)
    assert found.logs[T0].end_offset == 2


def test_a_deleted_replica_keeps_no_file_open(opener: Opener, tmp_path: Path) -> None:
    """A sync opens the small files of a log too: they stayed open until others needed the room."""
    found = opener.open()
    fill(found)
    log = found.logs[T0]
    log.append_as_leader(batch(2), 3, NOW_MS)
    checkpoint(found)
    assert held_below(tmp_path) != []
    found.delete(T0)
    assert held_below(tmp_path) == []


def held_below(folder: Path) -> list[str]:
    """Return the files of replicas that this process has open, as they are named now."""
    with os.scandir("/proc/self/fd") as found:
        held = [os.readlink(each.path) for each in found if os.path.lexists(each.path)]
    return [path for path in held if path.startswith(f"{folder}/") and "/t-0" in path]


def test_after_a_restart_a_deleted_replica_is_removed_after_the_configured_delay(
    opener: Opener, clock: Clock
) -> None:
    found = opener.open()
    fill(found)
    found.delete(T0)
    found.close()
    opened = opener.try_open()
    assert isinstance(opened, LogDirectory)
    opened.load(lambda kept: TopicConfigs(file_delete_delay_ms=700))
    assert removed_now(opened) == 0
    clock.now += 700
    assert removed_now(opened) == 1
    opened.close()


def test_deletion_goes_on_after_a_restart_and_strays_stay(
    opener: Opener, tmp_path: Path, clock: Clock
) -> None:
    found = opener.open()
    fill(found)
    fill(found, TopicPartition("stale", 0))
    found.delete(T0)
    stray = Path(found.mark_stray(TopicPartition("stale", 0)))
    (tmp_path / "data" / "lost+found").mkdir()
    found.close()
    found = opener.open()
    assert not found.logs
    assert opener.loaded.strays == [stray.name]
    assert opener.loaded.unknown == ["lost+found"]
    clock.now += 60_000
    assert removed_now(found) == 1
    assert stray.exists()


def test_checkpoints_say_only_what_was_synced(opener: Opener, tmp_path: Path) -> None:
    found = opener.open()
    fill(found)
    made = finish(found.checkpoint())
    assert made is not None
    made.run()
    found.checkpointed(made)
    folder = tmp_path / "data"
    assert decode_offsets((folder / "recovery-point-offset-checkpoint").read_bytes()) == {T0: 0}
    assert decode_offsets((folder / "replication-offset-checkpoint").read_bytes()) == {T0: 40}
    assert finish(found.checkpoint()) is None
    checkpoint(found)
    assert decode_offsets((folder / "recovery-point-offset-checkpoint").read_bytes()) == {T0: 40}


def test_what_a_power_loss_took_is_known_until_it_is_on_record(
    opener: Opener, tmp_path: Path
) -> None:
    """Promise 17: also after a kill following the registration: it lowers the checkpoint."""
    found = opener.open()
    fill(found)
    finish(found.recording_life("b1", durability="replicated"))
    checkpoint(found)
    opener.kill(found)
    (tmp_path / "data" / "recovery-point-offset-checkpoint").unlink()
    segments = sorted((tmp_path / "data" / "t-0").glob("*.log"))
    os.truncate(segments[-1], segments[-1].stat().st_size - 1)
    for _ in range(3):
        found = opener.open(boot="b2")
        finish(found.recording_life("b2", durability="replicated"))
        log = found.logs[T0]
        assert log.end_offset == log.high_watermark == 38
        assert log.watermark_note.known == 40
        opener.kill(found)
    found = opener.open(boot="b2")
    found.logs[T0].watermark_note.on_record()
    opener.kill(found)
    assert opener.open(boot="b2").logs[T0].watermark_note.known == 38


@pytest.mark.parametrize("content", [b"", b"junk", b"0\n5\nt 0 3\n", b"\xff\xfe"])
def test_a_damaged_checkpoint_costs_time_not_data(
    opener: Opener, tmp_path: Path, content: bytes
) -> None:
    found = opener.open()
    fill(found)
    finish(found.recording_life("b1", durability="replicated"))
    checkpoint(found)
    opener.kill(found)
    for file in (tmp_path / "data").glob("*-checkpoint"):
        put(file, content)
    found = opener.open()
    assert len(records_of(found.logs[T0])) == 40


def test_the_limit_on_open_files_holds(tmp_path: Path, clock: Clock) -> None:
    opened = open_directory(
        Seams(clock=clock, random=random.Random(5)),
        str(tmp_path / "data"),
        cluster_id="c",
        node_id=1,
        boot_id="b",
        open_files=10,
    )
    assert isinstance(opened, LogDirectory)
    opened.load(resolve)
    for number in range(20):
        fill(opened, TopicPartition("t", number), 12)
    for log in opened.logs.values():
        assert len(records_of(log)) == 24
        log.sync()
    assert len(opened.resources.files) <= 10
    assert opened.close()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("t-0", DirectoryName(T0, "")),
        ("a-b.c_d-12", DirectoryName(TopicPartition("a-b.c_d", 12), "")),
        ("t-0.0123abc-delete", DirectoryName(T0, "-delete")),
        ("t-0.0123abc-stray", DirectoryName(T0, "-stray")),
        ("x-delete-3", DirectoryName(TopicPartition("x-delete", 3), "")),
        ("t", None),
        ("t-", None),
        ("-1", None),
        ("t-x", None),
        ("lost+found", None),
        ("t-٣", None),
    ],
)
def test_names_of_directories(name: str, expected: DirectoryName | None) -> None:
    assert parse_directory(name) == expected


def test_the_longest_name_still_fits_when_it_is_marked() -> None:
    name = marked_name(TopicPartition("x" * 249, 2**31 - 1), "f" * 32, "-delete")
    assert len(name) <= 255
    found = parse_directory(name)
    assert found is not None and found.ending == "-delete"


def test_a_stop_that_could_not_write_everything_is_not_clean(tmp_path: Path, clock: Clock) -> None:
    disk = FaultyDisk()
    seams = Seams(clock=clock, random=random.Random(5), disk=disk)

    def opened() -> LogDirectory:
        found = open_directory(
            seams, str(tmp_path / "data"), cluster_id="c", node_id=1, boot_id="b"
        )
        assert isinstance(found, LogDirectory)
        found.load(resolve)
        return found

    found = opened()
    finish(found.recording_life("b", durability="replicated"))
    fill(found)
    disk.failing = (".snapshot.tmp",)
    disk.fill_up()
    assert not found.close()
    assert found.failed is None, "a full disk is not a broken one"
    disk.fault = None
    found = opened()
    assert found.last_stop is LastStop.CRASHED
    assert len(records_of(found.logs[T0])) == 40
    assert found.close()


def test_a_stop_after_which_nothing_changed_writes_nothing(tmp_path: Path, clock: Clock) -> None:
    disk = FaultyDisk()
    seams = Seams(clock=clock, random=random.Random(5), disk=disk)
    for life in range(2):
        found = open_directory(
            seams, str(tmp_path / "data"), cluster_id="c", node_id=1, boot_id="b"
        )
        assert isinstance(found, LogDirectory)
        found.load(resolve)
        if life == 0:
            fill(found)
        disk.syncs.clear()
        assert found.close()
    assert not [path for path in disk.syncs if "t-0" in Path(path).parts]


def files_beside_logs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_start_that_ends_before_loading_leaves_the_directory_as_it_is(
    opener: Opener, tmp_path: Path
) -> None:
    found = opener.open()
    fill(found)
    found.logs[T0].advance_start(12)
    checkpoint(found)
    finish(found.recording_life("b1", durability="replicated"))
    opener.kill(found)
    before = files_beside_logs(tmp_path / "data")
    failed = opener.try_open(boot="b2")
    assert isinstance(failed, LogDirectory)
    assert failed.close()
    assert files_beside_logs(tmp_path / "data") == before
    abandoned = opener.try_open(boot="b2")
    assert isinstance(abandoned, LogDirectory)
    abandoned.abandon_load()
    with pytest.raises(LoadAbandoned):
        abandoned.load(resolve)
    abandoned.close()
    assert files_beside_logs(tmp_path / "data") == before
    found = opener.open(boot="b2")
    assert found.last_stop is LastStop.UNCLEAN
    assert (found.logs[T0].start_offset, found.logs[T0].synced_end_offset) == (12, 40)


def test_an_unclean_end_is_forgotten_only_when_it_was_reported(opener: Opener) -> None:
    found = opener.open()
    fill(found)
    finish(found.recording_life("b1", durability="replicated"))
    opener.kill(found)
    for _ in range(2):
        found = opener.open(boot="b2")
        assert found.last_stop is LastStop.UNCLEAN
        assert found.close()
    found = opener.open(boot="b2")
    finish(found.recording_life("b2", durability="replicated"))
    assert found.close()
    for _ in range(2):
        found = opener.open(boot="b2")
        assert found.last_stop is LastStop.CLEAN, "a start that does not register loses nothing"
        assert found.close()


def test_a_late_checkpoint_does_not_replace_a_newer_one(opener: Opener, tmp_path: Path) -> None:
    found = opener.open()
    fill(found)
    late = finish(found.checkpoint())
    assert late is not None
    finish(found.logs[T0].truncation(10, NOW_MS))  # lowers the checkpoints at once
    late.run()
    found.checkpointed(late)
    watermarks = tmp_path / "data" / "replication-offset-checkpoint"
    assert decode_offsets(watermarks.read_bytes()) == {T0: 10}
    fill(found, batches=1)
    checkpoint(found)
    assert decode_offsets(watermarks.read_bytes()) == {T0: 12}


def test_a_late_checkpoint_says_nothing_of_a_new_replica_of_a_deleted_ones_name(
    opener: Opener, tmp_path: Path
) -> None:
    """A slow disk: it was under way when the replica went and another of its name was made."""
    found = opener.open()
    fill(found)
    found.logs[T0].sync()
    late = finish(found.checkpoint())
    assert late is not None
    found.delete(T0)
    fill(found, batches=0)
    late.run()
    points = tmp_path / "data" / "recovery-point-offset-checkpoint"
    assert decode_offsets(points.read_bytes()) == {}


def test_a_full_disk_takes_no_directory_out_at_a_registration(tmp_path: Path, clock: Clock) -> None:
    disk = FaultyDisk()
    disk.failing = (".tmp",)
    seams = Seams(clock=clock, disk=disk)

    def opened(boot: str) -> LogDirectory:
        found = open_directory(seams, str(tmp_path / "d"), cluster_id="c", node_id=1, boot_id=boot)
        assert isinstance(found, LogDirectory)
        found.load(resolve)
        return found

    found = opened("b1")
    assert finish(found.recording_life("b1", durability="replicated"))
    disk.fill_up()
    assert finish(found.recording_life("b1", durability="replicated")), (
        "nothing new is to be written"
    )
    found._lock.close()
    found = opened("b2")
    assert not finish(found.recording_life("b2", durability="replicated"))
    checkpoint(found)
    disk.fault = None
    checkpoint(found)
    assert found.failed is None
    assert "boot.id=b2\n" in (tmp_path / "d" / "tidelog.life").read_text()
    assert found.close()
    assert opened("b2").last_stop is LastStop.CLEAN


def test_a_record_that_claims_too_much_does_not_stay(tmp_path: Path, clock: Clock) -> None:
    disk = FaultyDisk()
    disk.failing = (".tmp",)
    seams = Seams(clock=clock, disk=disk)
    for durability in ("sync", "replicated"):
        found = open_directory(seams, str(tmp_path / "d"), cluster_id="c", node_id=1, boot_id="b")
        assert isinstance(found, LogDirectory)
        found.load(resolve)
        if durability == "sync":
            finish(found.recording_life("b", durability=durability))
            disk.fill_up()
        else:
            with pytest.raises(OSError, match="a fault of the test"):
                finish(found.recording_life("b", durability=durability))
        found._lock.close()


def test_what_was_removed_by_hand_is_removed(opener: Opener, tmp_path: Path, clock: Clock) -> None:
    found = opener.open()
    for number in range(3):
        fill(found, TopicPartition("t", number), 1)
        found.delete(TopicPartition("t", number), delay_ms=1000)
    gone = next((tmp_path / "data").glob("t-0.*-delete"))
    shutil.rmtree(gone)
    clock.now += 1000
    assert removed_now(found) == 3
    assert found.failed is None
    assert not list((tmp_path / "data").glob("*-delete"))


class Stubborn(FaultyDisk):
    """A disk that does not remove one directory."""

    def remove_tree(self, path: str) -> None:
        if "/t-0." in path:
            raise OSError(errno.EIO, "a fault of the test", path)
        super().remove_tree(path)


def test_one_bad_directory_keeps_no_other(tmp_path: Path, clock: Clock) -> None:
    found = open_directory(
        Seams(clock=clock, disk=Stubborn()),
        str(tmp_path / "d"),
        cluster_id="c",
        node_id=1,
        boot_id="b",
    )
    assert isinstance(found, LogDirectory)
    found.load(resolve)
    for number in range(3):
        fill(found, TopicPartition("t", number), 1)
        found.delete(TopicPartition("t", number), delay_ms=0)
    assert removed_now(found) == 2
    assert found.failed is not None
    assert len(list((tmp_path / "d").glob("*-delete"))) == 1
    found._lock.close()


def test_where_nothing_names_a_boot_it_may_have_been_another_one(tmp_path: Path) -> None:
    disk = QuickDisk()
    put(tmp_path / names.LIFE, b"boot.id=\n")
    assert how_it_ended(disk, str(tmp_path), "") == (LastStop.UNCLEAN, False)
    put(tmp_path / names.LIFE, b"boot.id=one\n")
    assert how_it_ended(disk, str(tmp_path), "") == (LastStop.UNCLEAN, False)
    assert how_it_ended(disk, str(tmp_path), "another") == (LastStop.UNCLEAN, False)
    assert how_it_ended(disk, str(tmp_path), "one") == (LastStop.CRASHED, False)
