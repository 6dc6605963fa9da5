"""Planted bugs of the log: one rule at a time is replaced by a wrong one, and a seed finds it.

The product has no switch for this; the tests replace functions. If one of these tests fails, the
simulation has become blind, however green the others are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.seeds import first_failure
from tidelog.records import batch
from tidelog.storage.compaction.newest import NewestOffsets
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.log import (
    checking,
    epoch_recovery,
    expiring,
    opening,
    preparing,
    recovery,
    syncing,
)
from tidelog.storage.log import partition_log as log
from tidelog.storage.log.producers import ProducerState
from tidelog.storage.log.results import Appended
from tidelog.storage.segments.scan import scan

SEEDS = 400
"""Within so many seeds each bug must be found; most need fewer than twenty."""


def sync_without_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(syncing.PendingSync, "run", lambda self: None)


class _Fits:
    """A CRC that is equal to every other."""

    def __ne__(self, other: object) -> bool:
        return False


def keep_the_torn_tail(patch: pytest.MonkeyPatch) -> None:
    """Recovery takes each batch that is long enough for a sound one."""
    patch.setattr(checking, "crc32c", lambda _: _Fits())


def accept_a_duplicate_after_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "load_producers", lambda *_, **__: ProducerState())


def retain_past_the_watermark(patch: pytest.MonkeyPatch) -> None:
    expired = expiring.expired

    def too_eager(segments: Any, configs: Any, **options: Any) -> Any:
        return expired(segments, configs, **{**options, "high_watermark": 2**62})

    patch.setattr(expiring, "expired", too_eager)


def drop_the_newest_value(patch: pytest.MonkeyPatch) -> None:
    get = NewestOffsets.get

    def off_by_one(self: NewestOffsets, digests: Any) -> Any:
        offsets = get(self, digests)
        return offsets + (offsets >= 0)

    patch.setattr(NewestOffsets, "get", off_by_one)


def ack_before_write(patch: pytest.MonkeyPatch) -> None:
    """Now and then an append is answered although its bytes never reach the file."""
    append = log.PartitionLog.append_as_leader
    calls = itertools.count(1)

    def hasty(self: Any, buffer: Any, leader_epoch: int, now_ms: int, **options: Any) -> Any:
        if next(calls) % 10 or self.failed:
            return append(self, buffer, leader_epoch, now_ms, **options)
        last = self.end_offset + batch.read_header(buffer).last_offset_delta
        return Appended(self.end_offset, last, -1, self.start_offset)

    patch.setattr(log.PartitionLog, "append_as_leader", hasty)


def sync_again_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    run = syncing.PendingSync.run

    def stubborn(self: Any) -> None:
        run(self)
        if self.error is not None:
            self.error = None
            run(self)

    patch.setattr(syncing.PendingSync, "run", stubborn)


def accept_a_bad_crc(patch: pytest.MonkeyPatch) -> None:
    check = batch.check_client_batch

    def trusting(header: Any, content: Any, configs: Any, now_ms: int) -> Any:
        refusal = check(header, content, configs, now_ms)
        return None if refusal and "CRC" in refusal.reason else refusal

    patch.setattr(preparing, "check_client_batch", trusting)


def cut_below_the_synced_end(patch: pytest.MonkeyPatch) -> None:
    """Recovery drops the last sound batch together with the torn tail."""
    judge = recovery._judge

    def eager(resources: Any, found: Any, at: int, position: int, ending: Any) -> None:
        judge(resources, found, at, 0, ending)

    patch.setattr(recovery, "_judge", eager)


def take_the_batch_after_a_gap_for_the_first_of_its_epoch(patch: pytest.MonkeyPatch) -> None:
    """S2: each start rebuilds the leader epochs from the batches that compaction left."""

    def rebuilt(found: log.PartitionLog, _scanned: object) -> epoch_recovery.FoundEpochs:
        epochs = LeaderEpochs()
        for segment in found.segments:
            for _, header in scan(segment.open_log(), 0, segment.size, check=False):
                epochs.begin(header.leader_epoch, header.base_offset)
        epochs.truncate_start(found.start_offset)
        return epoch_recovery.FoundEpochs(epochs, False)

    patch.setattr(opening, "find_epochs", rebuilt)


PLANTED: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (sync_without_fsync, "acked_is_not_lost"),
    (keep_the_torn_tail, "got Rejected(error=<ErrorCode.KAFKA_STORAGE_ERROR"),
    (accept_a_duplicate_after_restart, "idempotent_is_once"),
    (retain_past_the_watermark, "retention_stays_below_the_watermark"),
    (drop_the_newest_value, "acked_is_not_lost"),
    (ack_before_write, "acked_is_not_lost"),
    (sync_again_after_a_failure, "failed_sync_is_final"),
    (accept_a_bad_crc, "no_bad_crc_is_accepted"),
    (cut_below_the_synced_end, "only_the_torn_tail_is_cut"),
    (take_the_batch_after_a_gap_for_the_first_of_its_epoch, "epochs_end_where_they_did"),
]


@pytest.mark.parametrize(("plant", "finding"), PLANTED, ids=[p.__name__ for p, _ in PLANTED])
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = first_failure("log", SEEDS, finding)
    assert found is not None, f"{plant.__name__} survived {SEEDS} seeds"
    line = next(line for line in found.violations if finding in line)
    print(f"{plant.__name__}: seed {found.seed}: {line}")
