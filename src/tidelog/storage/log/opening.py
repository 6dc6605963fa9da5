"""Creation of a partition's log, and the start of one that an earlier process left on disk.

Owns the order of a start: first the segments are recovered, then offsets are fitted to what is
there, then come leader epochs, fences and producers. Not the judgement of batches: see `recovery`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.storage import names
from tidelog.storage.checkpoints import (
    KeptConfigs,
    PartitionMetadata,
)
from tidelog.storage.log.aborted_recovery import find_aborted
from tidelog.storage.log.checking import CheckedBatches, Checks
from tidelog.storage.log.epoch_recovery import find_epochs
from tidelog.storage.log.fence_recovery import find_fences
from tidelog.storage.log.fences import fence_key
from tidelog.storage.log.metadata_file import judge_metadata, read_metadata
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.producers import ProducerState
from tidelog.storage.log.recovery import (
    MISSING_FIRST,
    Ending,
    Recovered,
    missing_before,
    recover,
)
from tidelog.storage.log.service import found_damaged, note_damage
from tidelog.storage.log.snapshots import load_producers
from tidelog.storage.segments.fresh_segments import first_segment, new_segment
from tidelog.storage.segments.neighbours import missing_between
from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.soundness import Unsound

NO_RECORD: Mapping[TopicPartition, int] = {}

ConfigsOf = Callable[[KeptConfigs], TopicConfigs]


def create_log(
    resources: Resources,
    path: str,
    partition: TopicPartition,
    configs: TopicConfigs,
    *,
    now_ms: int,
    metadata: PartitionMetadata | None = None,
    start_offset: int = 0,
) -> PartitionLog:
    """Make the directory of a new replica and its empty log. OSError as the disk gives it: then
    what was made is removed, if the disk does so.

    Durable with the log's next sync, which includes the directory above.
    """
    is_new = False
    try:
        is_new = resources.disk.make_directory(path)
        if start_offset:
            segment = new_segment(resources, path, start_offset, now_ms)
        else:
            segment = first_segment(resources, path, now_ms)
        log = PartitionLog(resources, path, partition, configs, Recovered([segment]))
        _mark_created(log)
        if metadata is not None:
            log.set_metadata(metadata, durable=False)
    except OSError:
        if is_new:
            # Otherwise the next creation here would write to a file that has no name any more.
            resources.files.forget_below(path)
            # It may be created in another directory next: a start must not find it in both.
            with contextlib.suppress(OSError):
                resources.disk.remove_tree(path)
        raise
    return log


def open_log(
    resources: Resources,
    path: str,
    partition: TopicPartition,
    configs_of: ConfigsOf,
    ending: Ending,
    *,
    now_ms: int,
    first_dirty_offset: int = 0,
    first_fences: Mapping[TopicPartition, int] = NO_RECORD,
) -> Checks[PartitionLog]:
    """Open an existing replica's directory; damage is named in ``log.damaged``, not raised.

    ``configs_of`` makes the topic's configuration of what the replica keeps of it. Two small reads
    for each segment; after an unclean end it grows with what is to be checked, too.
    """
    marker = f"{path}/{names.DAMAGED}"
    if resources.disk.exists(marker):
        ending = _after_damage(ending, resources.disk.read(marker))
    metadata, unreadable = read_metadata(resources, path)
    configs = configs_of(() if metadata is None else metadata.configs)
    recovered = yield from recover(resources, path, ending, configs.index_interval_bytes, now_ms)
    if not recovered.segments:
        none = f"{path} has no segment"
        if ending.recovery_point > ending.log_start:
            recovered.damaged = f"{none}, its recovery point is {ending.recovery_point}"
        elif ending.must_have:
            recovered.damaged = f"{none}, its high watermark is {ending.high_watermark}"
        # A log that never was written to has no file (``first_segment``).
        recovered.segments = [
            new_segment(resources, path, ending.log_start, now_ms)
            if ending.log_start
            else first_segment(resources, path, now_ms)
        ]
    if recovered.damaged is None:
        recovered.damaged = missing_between(
            resources, recovered.segments, first_dirty_offset, ending.log_start
        )
    if recovered.damaged is None:
        recovered.damaged = missing_before(recovered.segments, ending)
    recovered.log_start, recovered.metadata = ending.log_start, metadata
    log = PartitionLog(resources, path, partition, configs, recovered)
    _note_first_fence(log, first_fences)
    if log.damaged is None and log.start_offset > log.end_offset:
        # Offsets are never given out twice: the log begins again after the deleted ones.
        finish(log.restart(log.start_offset, now_ms))
        if recovered.checked is not None:
            recovered.checked.producers = ProducerState()
    if unreadable is not None:
        judge_metadata(resources, log, ending, unreadable)
    if log.damaged is not None:
        # The checkpoints stay what they were: the next start must see the damage again.
        start = min(log.start_offset, ending.log_start) if ending.knows_start else None
        log.begin_with(ending.recovery_point, ending.high_watermark, start=start)
        note_damage(resources, path, log.damaged, durable=True)
        return log
    if resources.disk.exists(marker):
        resources.disk.remove(marker)
    synced = log.end_offset if ending.clean else ending.recovery_point
    committed = max(ending.high_watermark, log.start_offset, log.watermark_note.read())
    log.watermark_note.begin(committed, log.end_offset)
    log.begin_with(
        min(synced, log.end_offset),
        min(committed, log.end_offset),
        first_dirty=min(max(first_dirty_offset, log.start_offset), log.end_offset),
    )
    if _find_what_batches_say(log, ending, recovered.checked, now_ms) and not ending.clean:
        _mark_recovered(log)
    recovered.checked = None  # its producers take memory
    return log


def _note_first_fence(log: PartitionLog, first_fences: Mapping[TopicPartition, int]) -> None:
    """Note what the log directory has on record about a log's fences (docs/decisions/0157)."""
    if log.metadata is not None:
        key = fence_key(log.metadata, log.partition)
        log.fence_file.first_on_record = first_fences.get(key)


def _after_damage(ending: Ending, note: bytes) -> Ending:
    """Return the ending of a log that an earlier start noted as damaged."""
    # What only a clean end shows, that start has found; a note on a full disk has no text.
    begins_late = not note.strip() or note.strip().endswith(MISSING_FIRST.encode())
    knows_start = ending.knows_start and begins_late
    return replace(ending, clean=False, was_damaged=True, knows_start=knows_start)


def _find_what_batches_say(
    log: PartitionLog, ending: Ending, checked: CheckedBatches | None, now_ms: int
) -> bool:
    """Give a log its leader epochs, fences, producers and aborted transactions; False when its
    batches are damaged."""
    try:
        log.epochs, epochs_are_on_disk = find_epochs(log, checked)
        find_fences(log, ending.recovery_point, checked)
        log.replace_producers(
            load_producers(
                log.resources.disk,
                log.path,
                log.segments,
                log.end_offset,
                now_ms,
                checked,
                high_watermark=log.high_watermark,
            )
        )
        find_aborted(log, checked)
    except Unsound as error:
        found_damaged(log, f"{log.path}: {error}")
        return False
    if not epochs_are_on_disk:
        # The recovery point will pass the batches that have them: then only the file does.
        log.epoch_file.unwritten = True
    return True


def _mark_created(log: PartitionLog) -> None:
    """Let the next sync cover the directory itself and its name in the directory above."""
    log.dirty.directories.add(log.path.rpartition("/")[0] or "/")
    log.dirty.note_names()


def _mark_recovered(log: PartitionLog) -> None:
    """Let the next sync cover what an earlier process may have left unsynced beside segments.

    After kill -9 the files are there, but neither their names nor the small ones' content
    need be on the disk: a later power loss would take them, synced records included.
    """
    _mark_created(log)
    small = (
        names.EPOCH_CHECKPOINT,
        names.EPOCH_CHECKSUM,
        names.FENCE_CHECKPOINT,
        names.PARTITION_METADATA,
        names.SNAPSHOT,
    )
    for name in log.resources.disk.list(log.path):
        if name.endswith(small):
            log.dirty.files.add(f"{log.path}/{name}")
    for segment in log.segments[:-1]:
        # Below the log's start it may be a removed file that came back, without indexes.
        if segment.next_offset >= log.synced_end_offset and segment.next_offset > log.start_offset:
            # It may have been rolled after the sync of its bytes, and its indexes with it.
            log.dirty.files |= set(segment.index_paths)
