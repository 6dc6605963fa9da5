"""Making a partition's log: a new one, or one that an earlier life left on disk.

Owns the order of start: segments are recovered, then epochs, then producers, then offsets are
fitted to what is there. Judges no batch itself (``recovery``).
"""

from __future__ import annotations

from dataclasses import replace

from tidelog.model.topic_configs import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.storage import names
from tidelog.storage.checkpoints import (
    DamagedFile,
    PartitionMetadata,
    decode_epochs,
    decode_partition_metadata,
)
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.log import PartitionLog
from tidelog.storage.logfiles import first_segment, new_segment
from tidelog.storage.recovery import Ending, Recovered, recover
from tidelog.storage.resources import Resources
from tidelog.storage.scan import HEADERS_BYTES, scan
from tidelog.storage.segment import Segment
from tidelog.storage.snapshots import load_producers
from tidelog.storage.soundness import Unsound


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
    """Make the directory of a new replica and its empty log. OSError as the disk gives it.

    Durable with the log's next sync, which includes the directory above.
    """
    resources.disk.make_directory(path)
    if start_offset:
        segment = new_segment(resources, path, start_offset, now_ms)
    else:
        segment = first_segment(resources, path, now_ms)
    log = PartitionLog(resources, path, partition, configs, [segment])
    log.mark_created()
    if metadata is not None:
        log.set_metadata(metadata, durable=False)
    return log


def open_log(
    resources: Resources,
    path: str,
    partition: TopicPartition,
    configs: TopicConfigs,
    ending: Ending,
    *,
    now_ms: int,
    first_dirty_offset: int = 0,
) -> PartitionLog:
    """Open an existing replica's directory; damage is named in ``log.damaged``, not raised.

    Constant work after a clean stop, otherwise grows with the bytes behind the recovery point.
    """
    marker = f"{path}/{names.DAMAGED}"
    if resources.disk.exists(marker):
        ending = replace(ending, clean=False, was_damaged=True)
    found = recover(resources, path, ending, configs.index_interval_bytes)
    if not found.segments:
        if ending.recovery_point > ending.log_start:
            found.damaged = f"{path} has no segment, its recovery point is {ending.recovery_point}"
        # A log that never was written to has no file (``first_segment``).
        found.segments = [
            new_segment(resources, path, ending.log_start, now_ms)
            if ending.log_start
            else first_segment(resources, path, now_ms)
        ]
    log = PartitionLog(resources, path, partition, configs, found.segments)
    log.recovered = found
    log.damaged = found.damaged
    log.start_offset = max(ending.log_start, log.start_offset)
    if log.damaged is None and log.start_offset > log.end_offset:
        # Offsets are never given out twice: what was deleted stays behind the log's start.
        log.restart_at(log.start_offset, now_ms)
    _read_metadata(resources, log, ending)
    if log.damaged is not None:
        # The checkpoints stay what they were: the next start must see the damage again.
        log.synced_end_offset = ending.recovery_point
        log.high_watermark = ending.high_watermark
        resources.note_damage(path, log.damaged)
        return log
    if resources.disk.exists(marker):
        resources.disk.remove(marker)
    synced = log.end_offset if ending.clean else ending.recovery_point
    log.synced_end_offset = min(synced, log.end_offset)
    known = max(ending.high_watermark, log.start_offset, log.watermark_note.read())
    log.watermark_note.lower(log.end_offset)
    log.watermark_note.known = known
    log.high_watermark = min(known, log.end_offset)
    log.first_dirty_offset = min(max(first_dirty_offset, log.start_offset), log.end_offset)
    try:
        log.epochs, on_disk = _epochs(resources, log, found)
        log.producers = load_producers(resources, path, log.segments, log.end_offset, now_ms)
    except Unsound as error:
        log.found_damaged(f"{path}: {error}")
        return log
    if log.epochs.entries != on_disk:
        # The recovery point will pass the batches that told them: then only the file does.
        log.mark_epochs_unwritten()
    if not ending.clean:
        log.mark_recovered()
    return log


def _read_metadata(resources: Resources, log: PartitionLog, ending: Ending) -> None:
    path = f"{log.path}/{names.PARTITION_METADATA}"
    try:
        log.metadata = decode_partition_metadata(resources.disk.read(path))
    except FileNotFoundError:
        log.metadata = None
    except DamagedFile as error:
        if ending.unsynced_may_be_gone and ending.recovery_point <= log.start_offset:
            # Torn by the power loss: it becomes durable with the log's first sync.
            resources.disk.remove(path)
            log.metadata = None
        else:
            log.damaged = log.damaged or f"{path}: {error}"


def _epochs(
    resources: Resources, log: PartitionLog, found: Recovered
) -> tuple[LeaderEpochs, list[tuple[int, int]]]:
    """Return the leader epochs as the log has them, and as its file does."""
    path = f"{log.path}/{names.EPOCH_CHECKPOINT}"
    on_disk: list[tuple[int, int]] = []
    try:
        on_disk = decode_epochs(resources.disk.read(path))
        why = _why_untrue(on_disk, log)
        if why is not None:
            raise DamagedFile(why)
        from_log = found.epochs
    except FileNotFoundError:
        from_log = _epochs_of(log.segments)
    except DamagedFile as error:
        log.mended.append(f"{path}: {error}: taken from the log instead")
        on_disk = []
        from_log = _epochs_of(log.segments)
    epochs = LeaderEpochs(on_disk)
    epochs.truncate_end(log.end_offset)
    for epoch, offset in from_log:
        epochs.begin(epoch, offset)
    epochs.truncate_start(log.start_offset)
    return epochs, on_disk


def _why_untrue(entries: list[tuple[int, int]], log: PartitionLog) -> str | None:
    """Return why the epochs' checkpoint does not fit the log, or None.

    The file has no checksum, but the batches say it too: that of an epoch's first offset, and the
    one before it. Two look-ups for each epoch.
    """
    compacted = log.configs.compacted
    former = -1
    for at, (epoch, offset) in enumerate(entries):
        first = max(offset, log.start_offset)
        if first >= log.end_offset or (at + 1 < len(entries) and entries[at + 1][1] <= first):
            continue
        said = log.header_at(first)
        # A log may begin within a batch (DeleteRecords), and with it its first epoch.
        within = offset <= log.start_offset
        fits = said is not None and (within or said.base_offset >= offset)
        if said is not None and 0 <= said.leader_epoch != epoch:
            fits = fits and compacted and said.leader_epoch > epoch
        before = log.header_at(first - 1) if first == offset and first > log.start_offset else None
        if before is not None and before.leader_epoch >= 0:
            known = compacted or former < 0 or before.leader_epoch == former
            fits = fits and known and before.leader_epoch < epoch
        if not fits:
            return f"epoch {epoch} does not begin at offset {offset}"
        former = epoch
    last = log.header_at(log.end_offset - 1) if entries and former >= 0 and not compacted else None
    if last is not None and last.leader_epoch > former:
        return f"epoch {last.leader_epoch} is not in it"
    return None


def _epochs_of(segments: list[Segment]) -> list[tuple[int, int]]:
    """Return the epochs of all batches: for a log whose checkpoint is lost. Grows with batches.

    Unsound when they fall, or when the batches cannot be walked: then it is a batch that lies, and
    a false epoch must not get about.
    """
    found: list[tuple[int, int]] = []
    for segment in segments:
        end = 0
        for position, header in scan(
            segment.open_log(), 0, segment.size, check=False, chunk_bytes=HEADERS_BYTES
        ):
            end = position + header.size
            if not found or header.leader_epoch > found[-1][0]:
                found.append((header.leader_epoch, header.base_offset))
            elif 0 <= header.leader_epoch < found[-1][0]:
                raise Unsound(
                    f"offset {header.base_offset} says leader epoch {header.leader_epoch}, "
                    f"behind epoch {found[-1][0]}"
                )
        if end != segment.size:
            raise Unsound(f"{segment.log_path} has no batch at position {end}")
    return found
