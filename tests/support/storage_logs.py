"""Logs on a temporary directory for tests: making, filling, crashing and reading them."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from pathlib import Path

from tidelog.model.topic_configs import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import Rejected
from tidelog.records.builder import NO_PRODUCER, NewRecord, Producer, build_batch
from tidelog.records.reader import read_all
from tidelog.records.record import Record
from tidelog.runtime.disk import Buffer, RealDisk, RealFile
from tidelog.storage.log import PartitionLog
from tidelog.storage.opening import create_log, open_log
from tidelog.storage.recovery import Ending
from tidelog.storage.resources import Resources

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("t", 0)


class QuickFile(RealFile):
    """A file that is never synced: tests that are not about syncing need not wait for it."""

    def sync(self) -> None:
        pass


class QuickDisk(RealDisk):
    """The real disk without waiting for it."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        plain = super().open(path, create=create, read_only=read_only)
        return QuickFile(plain.path, plain._fd)

    def sync_directory(self, path: str) -> None:
        pass


class FaultyFile(QuickFile):
    """A file whose disk can be told to fail."""

    disk: FaultyDisk

    def write_at(self, position: int, chunks: Sequence[Buffer]) -> int:
        fault = self.disk.fault_for(self.path)
        if fault is None or not any(chunks):  # nothing takes no room
            return super().write_at(position, chunks)
        # A failing write leaves a part of itself behind.
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


def new_log(
    path: Path, configs: TopicConfigs | None = None, shared: Resources | None = None
) -> PartitionLog:
    return create_log(
        shared or resources(),
        str(path / "t-0"),
        PARTITION,
        configs or TopicConfigs(),
        now_ms=NOW_MS,
    )


def reopen(
    path: Path,
    configs: TopicConfigs | None = None,
    shared: Resources | None = None,
    *,
    now_ms: int = NOW_MS,
    ending: Ending = Ending(),  # noqa: B008
) -> PartitionLog:
    return open_log(
        shared or resources(),
        str(path / "t-0"),
        PARTITION,
        configs or TopicConfigs(),
        ending,
        now_ms=now_ms,
    )


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
