"""The append of one plain batch leaves alone, untouched, all that the general append must judge."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.storage_logs import NOW_MS, FaultyDisk, new_log, resources
from tidelog.broker.partitions.plain_append import append_plain
from tidelog.model.configs.topic import LOG_APPEND_TIME, TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import Rejected
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.storage.log.changes import LogChange
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended

CONFIGS = TopicConfigs(segment_bytes=1000)
EPOCH = 3


def batch(size: int = 10, *, at_ms: int = NOW_MS, sequence: int = -1) -> bytes:
    producer = Producer(7, 0, sequence) if sequence >= 0 else Producer()
    return build_batch([NewRecord(at_ms, None, bytes(size))], producer=producer)


def begun(folder: Path) -> PartitionLog:
    """A log whose active segment has a batch, and whose room is known."""
    log = new_log(folder, CONFIGS)
    for sequence in range(2):
        appended = log.append_as_leader(batch(sequence=sequence), EPOCH, NOW_MS)
        assert isinstance(appended, Appended)
    return log


def state_of(log: PartitionLog) -> tuple[Any, ...]:
    entry = log.producers.entries[7]
    active = log.segments.active
    files = {path.name: path.read_bytes() for path in Path(log.path).iterdir()}
    return log.end_offset, active.size, list(entry.batches), len(log.segments), files


def fail(log: PartitionLog) -> None:
    log.resources.failed = "planted"


CHANGES: dict[str, Callable[[PartitionLog], None]] = {
    "damaged": lambda log: setattr(log, "damaged", "planted"),
    "failed": fail,
    "closed": lambda log: setattr(log, "closed", True),
    "cutting": lambda log: setattr(log, "change", LogChange.CUT),
    "LogAppendTime": lambda log: log.configure(
        replace(CONFIGS, message_timestamp_type=LOG_APPEND_TIME)
    ),
    "compacted": lambda log: log.configure(replace(CONFIGS, cleanup_policy=frozenset({"compact"}))),
    "recompressed": lambda log: log.configure(replace(CONFIGS, compression_type="gzip")),
    "configured": lambda log: log.configure(CONFIGS),
    "rolled": lambda log: log.roll(NOW_MS),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_log_that_is_not_as_it_was_is_left_to_the_general_append(
    tmp_path: Path, change: str
) -> None:
    log = begun(tmp_path)
    CHANGES[change](log)
    before = state_of(log)
    assert append_plain(log, batch(), EPOCH, NOW_MS) is None
    assert state_of(log) == before


@pytest.mark.parametrize(
    ("payload", "epoch"),
    [
        (batch(), EPOCH + 1),
        (batch(), EPOCH - 1),
        (batch() + batch(), EPOCH),
        (batch()[:-1], EPOCH),
        (batch()[:61], EPOCH),
        (b"", EPOCH),
        (batch(2000), EPOCH),
        (batch(at_ms=-1), EPOCH),
        (batch(sequence=0), EPOCH),
    ],
)
def test_a_payload_that_is_not_plain_is_left_to_the_general_append(
    tmp_path: Path, payload: bytes, epoch: int
) -> None:
    log = begun(tmp_path)
    before = state_of(log)
    assert append_plain(log, payload, epoch, NOW_MS) is None
    assert state_of(log) == before


@pytest.mark.parametrize("payload", [batch()[:-1] + b"?", batch(sequence=9)])
def test_a_plain_batch_that_breaks_a_rule_is_refused(tmp_path: Path, payload: bytes) -> None:
    log = begun(tmp_path)
    before = state_of(log)
    assert isinstance(append_plain(log, payload, EPOCH, NOW_MS), Rejected)
    assert state_of(log) == before


def test_a_plain_batch_is_appended_at_the_end(tmp_path: Path) -> None:
    log = begun(tmp_path)
    assert append_plain(log, batch(sequence=2), EPOCH, NOW_MS) == Appended(2, 2, -1, 0)
    assert log.producers.entries[7].batches[-1].first_offset == 2


def test_the_last_offset_of_a_segment_fits_its_indexes(tmp_path: Path) -> None:
    log = begun(tmp_path)
    active = log.segments.active
    active.room = active.room._replace(offset=log.end_offset - 1)
    assert append_plain(log, batch(), EPOCH, NOW_MS) is None
    active.room = active.room._replace(offset=log.end_offset)
    assert isinstance(append_plain(log, batch(), EPOCH, NOW_MS), Appended)


def test_a_batch_that_the_disk_refuses_is_given_back_as_it_was_sent(tmp_path: Path) -> None:
    """The fast path writes offset and epoch into the request; the general path then reads it."""
    disk = FaultyDisk()
    log = new_log(tmp_path, CONFIGS, resources(disk))
    assert isinstance(log.append_as_leader(batch(sequence=0), EPOCH, NOW_MS), Appended)
    assert isinstance(log.append_as_leader(batch(sequence=1), EPOCH, NOW_MS), Appended)
    sent = memoryview(bytearray(batch(sequence=2)))
    disk.failing, disk.fault = (".log",), errno.ENOSPC
    refused = append_plain(log, sent, EPOCH, NOW_MS)
    assert isinstance(refused, Rejected)
    assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert sent == batch(sequence=2)
    disk.failing = ()
    assert append_plain(log, sent, EPOCH, NOW_MS) == Appended(2, 2, -1, 0)
