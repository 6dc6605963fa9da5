"""The leader epochs that a start takes from their file, its checksum, and the batches.

Owns which of them counts (docs/decisions/0023): the file is the authority where its checksum is
right, and nothing that follows from the batches moves the start of an epoch upwards. Batches that
compaction removed leave no trace: the first remaining batch of an epoch may lie far above where the
epoch began, and a follower that took it for the start would keep records that were never committed.
So an epoch that is known from batches only begins where the batch before it ends.

| the file | what counts |
|---|---|
| its checksum is right | the file, unless a batch contradicts it |
| it has none, or another one | the same, but no start at the end of a gap: at its beginning |
| it is older than the newest batches | these too, in the same way |
| it cannot be read, is missing, or a batch contradicts it | all batches |

Version 02f3bcb writes no checksum, and leaves an existing one as it is (docs/decisions/0039). A
file that agrees with the batches on both sides of each epoch's beginning agrees with all batches.

Where the log begins lower than the file's first epoch (a power loss took the log start that the
file was written for), that epoch begins with the log, if the first batch has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidelog.records.batch import BatchHeader
from tidelog.records.crc import crc32c
from tidelog.storage import names
from tidelog.storage.checkpoints import DamagedFile, decode_epochs, fits_checksums
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.log.checking import CheckedBatches
from tidelog.storage.log.state import LogState
from tidelog.storage.segments.scan import HEADERS_BYTES, scan
from tidelog.storage.segments.segment import Segment
from tidelog.storage.segments.soundness import Unsound

Entries = list[tuple[int, int]]


class FoundEpochs(NamedTuple):
    """The leader epochs that a start has found."""

    epochs: LeaderEpochs
    is_on_disk: bool
    """Whether the file has the same epochs, and a checksum."""


class _File(NamedTuple):
    entries: Entries
    crc: int
    checksum: bool | None
    """Whether the checksum fits the bytes; None without a checksum."""


class _Contradicted(Exception):
    """A batch contradicts the file of the epochs."""


def find_epochs(log: LogState, checked: CheckedBatches | None) -> FoundEpochs:
    """Return the leader epochs of a log that is being opened.

    ``checked``: from the batches after the recovery point. A damaged file is named in
    ``log.recovered.mended``; one that had to be compared with the batches, in
    ``log.recovered.compared``. Two look-ups for each epoch; grows with the other batches of the log
    only where the file cannot be believed. Unsound when the batches cannot be walked.
    """
    path = f"{log.path}/{names.EPOCH_CHECKPOINT}"
    epochs: LeaderEpochs | None = None
    on_disk: Entries = []
    is_believed = False
    try:
        file = _read(log, path)
        log.epoch_file.crc, on_disk, is_believed = file.crc, file.entries, file.checksum is True
        epochs = _agreed(log, file, checked)
        if file.checksum is False:
            log.recovered.compared.append(
                f"{path}: its checksum is not of these bytes (a version without checksums wrote "
                f"them, or they are damaged); compared with the batches, which agree"
            )
    except FileNotFoundError:
        pass
    except _Contradicted as error:
        line = f"{path}: the batches contradict it ({error}): the leader epochs are taken from them"
        (log.recovered.mended if file.checksum is False else log.recovered.compared).append(line)
    except DamagedFile as error:
        log.recovered.mended.append(f"{path}: {error}: taken from the log instead")
    if epochs is None:
        epochs, is_believed = _of_batches(log, checked), False
    epochs.truncate_start(log.start_offset)
    present = epochs.all_from(log.segments[0].base_offset)
    # A log without any epoch needs no file.
    return FoundEpochs(epochs, (is_believed or not present) and present == on_disk)


def _agreed(log: LogState, file: _File, checked: CheckedBatches | None) -> LeaderEpochs:
    """Return the epochs of a file and of the ``checked`` batches; _Contradicted when they
    disagree."""
    epochs = LeaderEpochs(file.entries)
    epochs.truncate_end(log.end_offset)
    for epoch, offset in () if checked is None else checked.epochs:
        epochs.begin(epoch, offset)
    believed = frozenset(file.entries if file.checksum else ())
    return LeaderEpochs(_compared(log, epochs.entries, believed))


def _read(log: LogState, path: str) -> _File:
    disk = log.resources.disk
    content = disk.read(path)
    crc = crc32c(content)
    beside = f"{log.path}/{names.EPOCH_CHECKSUM}"
    fits = fits_checksums(crc, disk.read(beside)) if disk.exists(beside) else None
    return _File(decode_epochs(content), crc, fits)


def _compared(log: LogState, entries: Entries, believed: frozenset[tuple[int, int]]) -> Entries:
    """Return the epochs as the batches allow them; _Contradicted when a batch contradicts them.

    One that is not ``believed`` and begins at the end of a gap is lowered to the beginning of it.
    """
    epochs = LeaderEpochs()
    if entries and entries[0][1] > log.start_offset:
        entries = [(entries[0][0], _start_of_first(log, *entries[0])), *entries[1:]]
        believed |= {entries[0]}
    for place, (epoch, offset) in enumerate(entries):
        ends = entries[place + 1][1] if place + 1 < len(entries) else log.end_offset
        first = max(offset, log.start_offset)
        if first < min(ends, log.end_offset):
            before = _batch_before(log, epochs, epoch, first) if first == offset else True
            if not (_begins(log, epoch, offset, first, ends) and before is not None):
                raise _Contradicted(f"epoch {epoch} does not begin at offset {offset}")
            if not before and (epoch, offset) not in believed:
                offset = _gap_before(log, epochs, first)
        epochs.begin(epoch, offset)
    # The last batch of an empty log lies below its start: in a file that was removed, and that a
    # power loss may bring back without bytes that were never synced. It does not count.
    is_empty = log.end_offset <= log.start_offset
    last = None if is_empty else log.segments.header_at(log.end_offset - 1)
    if last is not None and last.leader_epoch > epochs.latest:
        raise _Contradicted(f"epoch {last.leader_epoch} is not in it")
    return epochs.entries


def _begins(log: LogState, epoch: int, offset: int, first: int, ends: int) -> bool:
    """Whether the first batch from ``first`` on allows that ``epoch`` has begun at ``offset``."""
    header = log.segments.header_at(first)
    if header is None:
        return False
    if header.base_offset < ends and 0 <= header.leader_epoch != epoch:
        return False
    # A log may begin within a batch (DeleteRecords), and with it its first epoch.
    return header.base_offset >= offset or offset <= log.start_offset


def _batch_before(log: LogState, former: LeaderEpochs, epoch: int, first: int) -> bool | None:
    """Whether a batch holds the offset before ``first``; None when it contradicts the epochs."""
    if first <= log.start_offset:
        return True
    before = log.segments.header_at(first - 1)
    if before is None or before.base_offset >= first:
        return False
    named = before.leader_epoch
    if named < 0:
        return True
    # Whatever began at ``first`` itself has no records.
    leads = former.epoch_at(first - 1)
    return True if (named == leads if leads >= 0 else named < epoch) else None


def _gap_before(log: LogState, former: LeaderEpochs, first: int) -> int:
    """Return where the gap before an offset begins; _Contradicted when not the ``former`` epochs
    lead up to it."""
    begins = log.segments[log.segments.segment_at(first - 1)].cut_for(first)[1]
    before = log.segments.header_at(begins - 1) if begins > log.start_offset else None
    if before is not None and before.base_offset < begins:
        named = before.leader_epoch
        if named >= 0 and named != former.epoch_at(begins - 1):
            raise _Contradicted(f"epoch {named} does not lead up to offset {begins} in it")
    return begins


def _start_of_first(log: LogState, epoch: int, offset: int) -> int:
    """Return where the first epoch begins in a log that begins lower than it.

    The file was written for a log start that a power loss took: the batches below it had been
    deleted, and the file lacks their epochs. _Contradicted when batches have other epochs.
    """
    header = log.segments.header_at(log.start_offset)
    if header is None or header.leader_epoch < 0:
        return offset
    if header.leader_epoch != epoch:
        raise _Contradicted(f"epoch {header.leader_epoch} is not in it")
    return log.start_offset


def _of_batches(log: LogState, checked: CheckedBatches | None) -> LeaderEpochs:
    """Return the epochs as all batches have them. Grows with the batches that were not checked.

    Unsound when the epochs fall, or when the batches cannot be walked: then a batch is wrong, and a
    false epoch must not spread. Below the log's start a segment may be a file that was removed and
    came back torn: no reader gets its batches, and they count where they lead up to the others.
    """
    lower = [one for one in log.segments if one.next_offset <= log.start_offset]
    epochs = LeaderEpochs()
    next_offset = max((one.next_offset for one in lower), default=log.segments[0].base_offset)
    for segment in log.segments[len(lower) :]:
        limit, end = _unchecked(segment, checked), 0
        for position, header in _walked(segment, limit):
            end = position + header.size
            _begin(epochs, header.leader_epoch, next_offset, header.base_offset)
            next_offset = header.next_offset
        if end != limit:
            raise Unsound(f"{segment.log_path} has no batch at position {end}")
    for place, (epoch, offset) in enumerate(() if checked is None else checked.epochs):
        # The first may have begun in a gap before what was checked, or be the last that was walked.
        _begin(epochs, epoch, offset if place else next_offset, offset)
    return _with_lower(lower, checked, epochs) if lower else epochs


def _with_lower(
    lower: Iterable[Segment], checked: CheckedBatches | None, upper: LeaderEpochs
) -> LeaderEpochs:
    """Return the epochs of all batches: those above the log's start are in ``upper``.

    No CRC covers an epoch: what a segment below it says above the first of ``upper``, or falling,
    is left out, with the rest of that segment.
    """
    ceiling, above = upper.entries[0] if upper.entries else (None, -1)
    epochs = LeaderEpochs()
    next_offset = -1
    for segment in lower:
        next_offset = segment.base_offset if next_offset < 0 else next_offset
        for _, header in _walked(segment, _unchecked(segment, checked)):
            epoch = header.leader_epoch
            is_false = 0 <= epoch < epochs.latest or (ceiling is not None and epoch > ceiling)
            if is_false or not next_offset <= header.base_offset < segment.next_offset:
                break
            epochs.begin(epoch, next_offset)
            next_offset = min(header.next_offset, segment.next_offset)
    if ceiling is not None:
        epochs.begin(ceiling, min(above, next_offset))
    for epoch, offset in upper.entries[1:]:
        epochs.begin(epoch, offset)
    return epochs


def _unchecked(segment: Segment, checked: CheckedBatches | None) -> int:
    """Return the position up to which the batches of a segment were not checked."""
    return segment.size if checked is None else checked.limit(segment.base_offset, segment.size)


def _walked(segment: Segment, limit: int) -> Iterator[tuple[int, BatchHeader]]:
    return scan(segment.open_log(), 0, limit, check=False, chunk_bytes=HEADERS_BYTES)


def _begin(epochs: LeaderEpochs, epoch: int, start_offset: int, base_offset: int) -> None:
    """Add the epoch of a batch; Unsound when epochs fall."""
    if 0 <= epoch < epochs.latest:
        raise Unsound(f"offset {base_offset} has leader epoch {epoch}, after epoch {epochs.latest}")
    epochs.begin(epoch, start_offset)
