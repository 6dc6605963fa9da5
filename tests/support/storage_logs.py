"""Logs on a temporary directory for tests: making, filling, crashing and reading them."""

from __future__ import annotations

import errno
import functools
import os
import random
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.loop_guard import look
from tests.support.put_files import put
from tidelog.model.configs.resolve import BrokerLayers, resolve_topic
from tidelog.model.configs.topic import TOPIC, TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.records.batch import Rejected
from tidelog.records.builder import NO_PRODUCER, NewRecord, Producer, build_batch
from tidelog.records.reader import read_all
from tidelog.records.record import Record
from tidelog.runtime.disk import Buffer, Directory, RealDisk, RealFile
from tidelog.runtime.seams import Seams
from tidelog.storage import names
from tidelog.storage.checkpoints import (
    KeptConfigs,
    PartitionMetadata,
    encode_clean_shutdown,
    encode_offsets,
)
from tidelog.storage.directory.log_directory import LogDirectory, open_directory
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.time_lookup import Allowance, TimeFound
from tidelog.storage.segments.resources import Resources

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("t", 0)
TOPIC_ID = uuid.UUID(int=7)
BOOT = "this-boot"
DEFAULTS = TopicConfigs()


def offset_for_time(log: PartitionLog, timestamp: int) -> TimeFound:
    """Look up the first record not older than `timestamp` (ms), in one turn."""
    return finish(log.search_time(timestamp, Allowance()))


def newest_record(log: PartitionLog, limit_offset: int) -> TimeFound:
    """Look up the first record below `limit_offset` with the greatest timestamp, in one turn."""
    return finish(log.search_newest(limit_offset, Allowance()))


def _looked_at(sync: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(sync)
    def looking(*args: object) -> None:
        look("a sync")
        sync(*args)

    return looking


class QuickFile(RealFile):
    """A file that is never synced: tests that are not about syncing need not wait for it.

    Nor may an event loop do so, whatever a test puts in the place of that.
    """

    def __init_subclass__(cls) -> None:
        if "sync" in vars(cls):
            cls.sync = _looked_at(cls.sync)  # type: ignore[method-assign]

    def sync(self) -> None:
        look("a sync")

    def truncate(self, size: int) -> None:
        super().truncate(size)
        if not size:
            # ext4 writes a file out at the first close after this: let that be of nothing.
            os.close(os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY))


class NamedDirectory:
    """An open directory whose syncs are those that its disk does by name."""

    def __init__(self, disk: RealDisk, path: str) -> None:
        self.path = path
        self._disk = disk

    def sync(self) -> None:
        self._disk.sync_directory(self.path)

    def close(self) -> None:
        pass


class QuickDisk(RealDisk):
    """The real disk without waiting for it; a loop is kept from what would wait."""

    def __init_subclass__(cls) -> None:
        if "sync_directory" in vars(cls):
            cls.sync_directory = _looked_at(cls.sync_directory)  # type: ignore[method-assign]

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        plain = super().open(path, create=create, read_only=read_only)
        return QuickFile(plain.path, plain._fd)

    def sync_directory(self, path: str) -> None:
        look("a sync of a directory")

    def open_directory(self, path: str) -> Directory:
        return NamedDirectory(self, path)


class FaultyFile(QuickFile):
    """A file whose disk fails when a test says so."""

    disk: FaultyDisk

    def write_at(self, position: int, chunks: Sequence[Buffer]) -> int:
        fault = self.disk.fault_for(self.path)
        self.disk.written(self.path, position)
        if fault is None or not any(chunks):  # nothing takes no room
            return super().write_at(position, chunks)
        # A failing write leaves a part of its bytes in the file.
        content = b"".join(chunks)
        super().write_at(position, [content[: len(content) // 2]])
        raise OSError(fault, "a fault of the test", self.path)

    def sync(self) -> None:
        self.disk.syncs.append(self.path)
        if self.disk.sync_fault is not None:
            raise OSError(self.disk.sync_fault, "a fault of the test", self.path)


class FaultyDisk(QuickDisk):
    """The real disk, with writes to paths ending in ``failing`` refused with ``fault``."""

    def __init__(self) -> None:
        self.fault: int | None = None
        self.failing: tuple[str, ...] = (".log",)
        self.sync_fault: int | None = None
        self.syncs: list[str] = []

    def written(self, path: str, position: int) -> None:
        """Called after each write."""

    def fault_for(self, path: str) -> int | None:
        return self.fault if path.endswith(self.failing) else None

    def fill_up(self) -> None:
        self.fault = errno.ENOSPC

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        plain = super().open(path, create=create, read_only=read_only)
        file = FaultyFile(plain.path, plain._fd)
        file.disk = self
        return file


def resources(disk: RealDisk | None = None, open_files: int = 64) -> Resources:
    made = Resources.of(disk or QuickDisk(), open_files)
    made.random = random.Random(1)
    return made


def texts_of(configs: TopicConfigs) -> KeptConfigs:
    """What was set for a topic that has these configurations, as its replicas keep it."""
    found = {}
    for name in TOPIC:
        value = getattr(configs, name.replace(".", "_"), None)
        if value != getattr(DEFAULTS, name.replace(".", "_"), None):
            found[name] = ",".join(value) if isinstance(value, frozenset) else str(value)
    texts = tuple(sorted(found.items()))
    assert resolve(texts) == configs, f"no topic can be configured so: {configs}"
    return texts


@functools.cache
def resolve(kept: KeptConfigs) -> TopicConfigs:
    """The configuration that a start makes of what a replica keeps."""
    return resolve_topic(dict(kept), BrokerLayers()).configs


class FixedClock:
    """A wall clock that a test has set."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms


_locked: dict[str, LogDirectory] = {}


def open_as_a_server(
    path: Path, shared: Resources | None = None, *, now_ms: int = NOW_MS
) -> LogDirectory:
    """Open and load a log directory; whoever had it before counts as killed.

    Logs are opened here and in the server by the same two calls, with the configuration that a
    start has: what their replicas keep on disk.
    """
    former = _locked.pop(str(path), None)
    if former is not None:
        former._lock.close()
    shared = shared or resources()
    seams = Seams(clock=FixedClock(now_ms), random=shared.random, disk=shared.disk)
    found = open_directory(seams, str(path), cluster_id="c", node_id=1, boot_id=BOOT)
    assert isinstance(found, LogDirectory), found
    _locked[str(path)] = found
    shared.before_cut = found.resources.before_cut
    found.resources = shared
    found.load(resolve)
    return found


def new_log(
    path: Path,
    configs: TopicConfigs | None = None,
    shared: Resources | None = None,
    *,
    checks_records: bool = False,
) -> PartitionLog:
    configs = configs or DEFAULTS
    found = open_as_a_server(path, shared)
    found.resources.checks_records = checks_records
    return found.create(PARTITION, configs, PartitionMetadata(TOPIC_ID, 0, texts_of(configs)))


def removed_now(directory: LogDirectory) -> int:
    """Remove all that is due in a log directory; return how many files and directories."""
    removal = directory.due_removal()
    if removal is None:
        return 0
    removal.run()
    directory.removed(removal)
    return len(removal.paths) - len(removal.left)


def remove_due(log: PartitionLog, now_ms: int) -> int:
    """Remove what of all logs beside this one is due, as the broker does each second."""
    removal = log.resources.removals.due(now_ms)
    if removal is None:
        return 0
    removal.run()
    log.resources.removals.finished(removal, now_ms)
    assert removal.error is None
    return len(removal.paths)


def reopen(
    path: Path,
    configs: TopicConfigs | None = None,
    shared: Resources | None = None,
    *,
    now_ms: int = NOW_MS,
    ending: Ending = Ending(),  # noqa: B008
    cleaned: bytes | None = None,
) -> PartitionLog:
    """Start after a life that ended so. ``configs`` is what the controller says afterwards,
    ``cleaned`` the checkpoint of the cleaner."""
    for name, offset in (
        (names.RECOVERY_POINTS, ending.recovery_point),
        (names.HIGH_WATERMARKS, ending.high_watermark),
        (names.LOG_STARTS, ending.log_start),
    ):
        put(path / name, encode_offsets({PARTITION: offset}))
    (path / names.CLEANER_OFFSETS).unlink(missing_ok=True)
    if cleaned is not None:
        put(path / names.CLEANER_OFFSETS, cleaned)
    boot = "another" if ending.unsynced_may_be_gone else BOOT
    put(path / names.LIFE, f"boot.id={boot}\nlog.durability=replicated\n".encode())
    marker = path / names.CLEAN_SHUTDOWN
    marker.unlink(missing_ok=True)
    if ending.clean:
        put(marker, encode_clean_shutdown(1))
    log = open_as_a_server(path, shared, now_ms=now_ms).logs[PARTITION]
    log.configure(configs or DEFAULTS)
    return log


def batch(
    count: int = 1,
    *,
    timestamp: int = NOW_MS,
    step: int = 1,
    size: int = 20,
    key: bytes | None = b"k",
    producer: Producer = NO_PRODUCER,
    codec: int = 0,
) -> bytes:
    """A batch of ``count`` records, ``step`` ms apart, with values of ``size`` bytes."""
    return build_batch(
        [NewRecord(timestamp + at * step, key, bytes(size)) for at in range(count)],
        producer=producer,
        codec=codec,
    )


def records_of(log: PartitionLog, from_offset: int | None = None) -> list[Record]:
    """Read a log to its end in small steps, checking CRCs and that offsets rise."""
    offset = log.start_offset if from_offset is None else from_offset
    found: list[Record] = []
    while offset < log.end_offset:
        data = log.read(offset, 700)
        assert not isinstance(data, Rejected), data
        assert len(data), f"nothing at {offset} of {log.end_offset}"
        part = list(read_all(data, offset))
        found += part
        last = _last_offset(data)
        assert last >= offset
        offset = last + 1
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    return found


def _last_offset(data: memoryview) -> int:
    from tidelog.records.batch import walk

    return max(header.last_offset for _, header in walk(data))
