"""Recovery of a partition's segments after any end: clean stop, kill -9, power loss.

Owns the judgement of what is on disk. Not building the log from it: see `opening`. Rules:

- Unfinished work of the cleaner (``.cleaned``) goes, finished work (``.swap``) is completed,
  ``.deleted`` and ``.tmp`` files go.
- After a clean stop nothing is scanned (``neighbours`` checks where segments end). Otherwise
  everything from the recovery point on is read and its CRCs checked: cost grows with the bytes
  after the recovery point only.
- A torn tail (a last batch that is incomplete or has a wrong CRC) is cut, nothing else: sound
  batches after the damage, or an end below the recovery point or the high watermark, inside a
  batch or between two, are damage (promise 26) and leave the files as they are.
- When the operating system has been restarted since (``unsynced_may_be_gone``), bytes that were
  never synced may be missing anywhere: then the log is cut at the first hole, and reports it. The
  check begins at the last entry of the time index, if that ends before the recovery point.
- A segment wholly below the log's start may be a file that was removed and that a power loss
  brought back torn: damage there does not count, also for ``neighbours`` and ``epoch_recovery``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.records.batch import HEADER_SIZE
from tidelog.storage import names
from tidelog.storage.checkpoints import PartitionMetadata
from tidelog.storage.log.aborted_files import bases_in
from tidelog.storage.log.checking import Check, CheckedBatches, Checks, noting_events
from tidelog.storage.segments.index_files import open_indexes, read_indexes
from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.scan import HEADERS_BYTES, scan, sound_batch_after
from tidelog.storage.segments.segment import Segment


@dataclass(frozen=True, slots=True)
class Ending:
    """How the last process of the log ended, and its checkpoints."""

    recovery_point: int = 0
    """Every offset below was synced."""
    high_watermark: int = 0
    log_start: int = 0
    clean: bool = False
    unsynced_may_be_gone: bool = False
    knows_start: bool = False
    """Whether the log's start is on record; otherwise ``log_start`` is only the least it can be."""
    was_damaged: bool = False
    """An earlier process found damage: all is read, and nothing counts as a torn tail."""

    @property
    def must_have(self) -> int:
        """The offset up to which the log must reach, whatever was synced: its high watermark,
        unless a power loss may have taken what was written, or all below it was deleted."""
        if self.unsynced_may_be_gone or self.high_watermark <= self.log_start:
            return 0
        return self.high_watermark


@dataclass(slots=True)
class Recovered:
    """What a start found of one log on disk, and what it had to do."""

    segments: list[Segment] = field(default_factory=list)
    damaged: str | None = None
    scanned_bytes: int = 0
    cut_bytes: int = 0
    cut_at: int | None = None
    """The end offset after a cut."""
    checked: CheckedBatches | None = None
    """From the batches that were checked, which are all from one on; None without any."""
    lost_sound_batches: bool = False
    """Whether the cut (after a power loss) had sound batches after it."""
    log_start: int = 0
    """The log's start by its checkpoint."""
    metadata: PartitionMetadata | None = None
    mended: list[str] = field(default_factory=list)
    """Damaged files beside the log that the start could do without, a sentence each."""
    compared: list[str] = field(default_factory=list)
    """Files that the start could not simply believe and compared with the batches, likewise."""
    aborted: set[int] = field(default_factory=set)
    """The segments that have a file of aborted transactions, or the check of one."""


def recover(
    resources: Resources, directory: str, ending: Ending, interval: int, now_ms: int
) -> Checks[Recovered]:
    """Return the sound segments of a directory in order; none when it has no log file yet."""
    _tidy(resources, directory)
    recovered = Recovered()
    listed = resources.disk.list(directory)
    recovered.segments = _segments(resources, directory, listed)
    recovered.aborted = bases_in(listed)
    if not recovered.segments:
        return recovered
    segments = recovered.segments
    segments[-1].active = True
    if not (ending.clean and _open_last_clean(resources, segments[-1])):
        yield from _check_from_recovery_point(resources, recovered, ending, interval, now_ms)
    end = recovered.segments[-1].next_offset
    if recovered.damaged is None:
        recovered.damaged = _why_too_short(directory, end, ending)
    return recovered


def _why_too_short(directory: str, end: int, ending: Ending) -> str | None:
    """Return why a sound log that ends at ``end`` is damaged all the same: whole batches are
    missing that must be there. None where none is."""
    if end < ending.recovery_point:
        return f"{directory} ends at offset {end}, below its recovery point {ending.recovery_point}"
    if end < ending.must_have:
        return f"{directory} ends at offset {end}, below the high watermark {ending.high_watermark}"
    return None


_ABORTED_DELETED = tuple(suffix + names.DELETED for suffix in names.ABORTED_SUFFIXES)

MISSING_FIRST = "one before it is missing"


def missing_before(segments: Sequence[Segment], ending: Ending) -> str | None:
    """Return a sentence if the first segments of a log are missing, or None.

    A clean end records where each log begins. After another one the record may be older than the
    last removal, and nothing distinguishes a removed segment from a lost one.
    """
    first = segments[0]
    is_recorded = ending.knows_start and (ending.clean or ending.was_damaged)
    if not is_recorded or first.base_offset <= ending.log_start:
        return None
    return (
        f"{first.log_path} is the first segment, and the log begins at offset {ending.log_start}: "
        f"{MISSING_FIRST}"
    )


def _tidy(resources: Resources, directory: str) -> None:
    """Finish or undo the work on files that an earlier process had begun."""
    disk = resources.disk
    listed = disk.list(directory)
    if any(name.endswith(_ABORTED_DELETED) for name in listed):
        if _doubt_aborted(resources, directory):
            # Before the other file of the two goes: no crash may leave neither.
            disk.sync_directory(directory)
        listed = disk.list(directory)
    for name in listed:
        is_draft = name.endswith((names.DELETED, names.CLEANED, names.TEMPORARY))
        if is_draft and names.is_of_partition(name):
            disk.remove(f"{directory}/{name}")
    swaps = [
        offset
        for name in listed
        if (offset := names.offset_of(name, names.LOG + names.SWAP)) is not None
    ]
    for offset in swaps:
        _complete_swap(resources, directory, offset)
    for name in disk.list(directory):
        if name.endswith(names.SWAP):
            disk.remove(f"{directory}/{name}")
    present = set(disk.list(directory))
    for suffix in names.SEGMENT_SUFFIXES[1:]:
        for name in sorted(present):
            base = names.offset_of(name, suffix)
            if base is not None and names.file_name(base, names.LOG) not in present:
                disk.remove(f"{directory}/{name}")


def _doubt_aborted(resources: Resources, directory: str) -> bool:
    """Let the batches say what was aborted in a segment without files of that, if one is renamed;
    return whether a file got its name back.

    A power loss may undo the removal of a segment, and not that of these files; without them it
    would have no aborted transactions. Or they are of a segment that was cut off: one of the two
    proves nothing.
    """
    listed = set(resources.disk.list(directory))
    is_doubted = False
    for name in sorted(listed):
        for suffix in names.ABORTED_SUFFIXES:
            base = names.offset_of(name, suffix + names.DELETED)
            if base is None or names.file_name(base, names.LOG) not in listed:
                continue
            if listed.isdisjoint(names.file_name(base, one) for one in names.ABORTED_SUFFIXES):
                path = f"{directory}/{names.file_name(base, suffix)}"
                resources.disk.rename(path + names.DELETED, path)
                listed.add(names.file_name(base, suffix))
                is_doubted = True
    return is_doubted


def _complete_swap(resources: Resources, directory: str, base: int) -> None:
    """Replace the segments that a finished rewriting covers."""
    disk = resources.disk
    source = f"{directory}/{names.file_name(base, names.LOG + names.SWAP)}"
    end = base + 1
    file = disk.open(source, read_only=True)
    try:
        for _, header in scan(file, 0, file.size(), check=False, chunk_bytes=HEADERS_BYTES):
            end = header.next_offset
    finally:
        file.close()
    present = set(disk.list(directory))
    for name in sorted(present):
        for suffix in names.SEGMENT_SUFFIXES:
            offset = names.offset_of(name, suffix)
            is_new = suffix in names.ABORTED_SUFFIXES and offset == base
            if is_new and names.file_name(base, suffix + names.SWAP) not in present:
                continue  # it has its final name already, durably before the log
            if offset is not None and base <= offset < end:
                disk.remove(f"{directory}/{name}")
    # The log last: as long as it is a .swap, the next start does all of this again.
    _rename_swaps(resources, directory, base, names.ABORTED_SUFFIXES)
    _rename_swaps(resources, directory, base, (*names.INDEX_SUFFIXES, names.LOG))


def _rename_swaps(resources: Resources, directory: str, base: int, suffixes: Sequence[str]) -> None:
    """Give ``.swap`` files of a segment, as far as there are any, their final names, durably."""
    disk = resources.disk
    paths = [f"{directory}/{names.file_name(base, suffix)}" for suffix in suffixes]
    present = [path for path in paths if disk.exists(path + names.SWAP)]
    for path in present:
        disk.rename(path + names.SWAP, path)
    if present:
        disk.sync_directory(directory)


def _segments(resources: Resources, directory: str, listed: Sequence[str]) -> list[Segment]:
    disk = resources.disk
    bases = sorted(
        base for name in listed if (base := names.offset_of(name, names.LOG)) is not None
    )
    segments = []
    for place, base in enumerate(bases):
        following = bases[place + 1] if place + 1 < len(bases) else base
        path = f"{directory}/{names.file_name(base, names.LOG)}"
        segments.append(Segment(resources, directory, base, disk.size(path), following))
        segments[-1].created_ms = disk.modified_ms(path)
    return segments


def _open_last_clean(resources: Resources, last: Segment) -> bool:
    """Find the end of the last segment by its index; False when a clean stop did not leave it
    so."""
    both = open_indexes(resources, last.base_offset, *last.index_paths)
    if both is None:
        return False
    last.set_indexes(*both)
    start = end = both[0].last_position()
    file = resources.files.get(last.log_path)
    for position, header in scan(file, start, last.size, check=False, chunk_bytes=HEADERS_BYTES):
        end = position + header.size
        last.next_offset = header.next_offset
    # A clean stop ends a file with its last batch: where it does not, the flag does not vouch for
    # it.
    return end == last.size


def _check_from_recovery_point(
    resources: Resources, recovered: Recovered, ending: Ending, interval: int, now_ms: int
) -> Checks[None]:
    segments = recovered.segments
    for place, segment in enumerate(segments):
        last = place + 1 == len(segments)
        # All of it was synced: no crash can have torn it.
        if not last and segment.next_offset <= ending.recovery_point and not ending.was_damaged:
            continue
        begins_next = segment.next_offset
        start = _begin_check(resources, segment, ending)
        if recovered.checked is None:
            recovered.checked = CheckedBatches(segment.base_offset, start, now_ms)
            recovered.checked.producers = noting_events(ending.high_watermark)
        position = yield from _check_segment(recovered, segment, start, interval, recovered.checked)
        if recovered.damaged is not None:
            return
        if not last and segment.next_offset == begins_next:
            if position < segment.size:
                # All its records are there; after them come bytes that were cut off on a full disk
                # and that a power loss brought back.
                recovered.cut_bytes += segment.size - position
                segment.truncate(position, begins_next)
            segment.close_indexes()
            continue
        if last and position == segment.size:
            continue
        _judge(resources, recovered, place, position, ending)
        return


def _begin_check(resources: Resources, segment: Segment, ending: Ending) -> int:
    """Return where the check of a segment begins, and let the segment end there."""
    start = 0 if ending.was_damaged else _trusted_start(resources, segment, ending)
    segment.next_offset = segment.base_offset
    if start:
        segment.next_offset = segment.header_at(start).base_offset
        segment.truncate_indexes(start, segment.next_offset)
    else:
        segment.restart_indexes()
    return start


def _check_segment(
    recovered: Recovered, segment: Segment, start: int, interval: int, checked: CheckedBatches
) -> Checks[int]:
    """Check a segment's batches from ``start`` on; return where the sound ones end."""
    newest, next_offset = segment.newest, segment.next_offset
    path, base_offset = segment.log_path, segment.base_offset
    check = yield Check(
        path, segment.size, base_offset, interval, checked, start, next_offset, newest
    )
    recovered.checked = check.checked
    segment.index.extend(*check.entries)
    segment.time_index.extend(*check.times)
    segment.noted(check.next_offset, check.newest, check.bytes_since_entry)
    recovered.scanned_bytes += check.position - start
    if check.falling_epoch is not None:
        # No leader epoch follows a higher one, and no CRC covers it.
        epoch, offset = check.falling_epoch
        recovered.damaged = (
            f"{segment.log_path} has leader epoch {epoch} at offset {offset}, "
            f"after epoch {check.checked.epochs[-1][0]}"
        )
    return check.position


def _trusted_start(resources: Resources, segment: Segment, ending: Ending) -> int:
    """Return the position of an index entry below the recovery point that fits its batch, or 0."""
    trusted = ending.recovery_point - 1
    if trusted < segment.base_offset:
        return 0
    both = read_indexes(resources, segment.base_offset, *segment.index_paths, segment.size)
    if both is None:
        return 0
    index, time_index = both
    if ending.unsynced_may_be_gone:
        # No sync covers the indexes of an active segment: the times may end before the offsets do,
        # and a newest time that is too old would let retention remove the segment too early.
        trusted = min(trusted, (time_index.last() or (0, -1))[1])
    position, expected = index.entry_for(trusted) or (0, -1)
    if position == 0 or position + HEADER_SIZE > segment.size:
        return 0
    header = segment.header_at(position)
    if header.magic != 2 or header.last_offset != expected:
        return 0
    segment.set_indexes(index, time_index)
    return position


def _judge(
    resources: Resources, recovered: Recovered, place: int, position: int, ending: Ending
) -> None:
    """Cut a torn tail at ``position`` of the segment at ``place``, or name the damage."""
    segment = recovered.segments[place]
    later = recovered.segments[place + 1 :]
    end = segment.next_offset
    file = resources.files.get(segment.log_path)
    has_more = any(one.size for one in later)
    if not has_more and position < segment.size:
        has_more = sound_batch_after(file, position, segment.size, end) is not None
    damage = f"{segment.log_path} has a damaged batch at position {position} (offset {end})"
    if end < ending.recovery_point:
        # Synced bytes are torn by no crash (promise 26).
        recovered.damaged = f"{damage}, below its recovery point {ending.recovery_point}"
    elif ending.was_damaged and not ending.unsynced_may_be_gone:
        recovered.damaged = damage
    elif not ending.unsynced_may_be_gone and has_more:
        # A process that dies tears its last write only: what lies before sound batches, a disk has
        # done.
        recovered.damaged = f"{damage}, and sound batches after it"
    elif end < ending.must_have:
        recovered.damaged = f"{damage}, below the high watermark {ending.high_watermark}"
    if recovered.damaged is not None:
        return
    recovered.lost_sound_batches = has_more
    recovered.cut_bytes = segment.size - position + sum(one.size for one in later)
    recovered.cut_at = end
    # Empty, or after a power loss: no log goes on after a hole.
    for one in later:
        for suffix in names.SEGMENT_SUFFIXES:
            if resources.disk.exists(one.path(suffix)):
                resources.files.forget(one.path(suffix))
                resources.disk.remove(one.path(suffix))
    del recovered.segments[place + 1 :]
    segment.active = True
    segment.truncate(position, end)
    # Durable at once: new batches must never be followed by old bytes after a power loss.
    segment.open_log().sync()
    resources.disk.sync_directory(segment.directory)
