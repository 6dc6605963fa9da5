"""Reading one partition's log by offset.

Owns that a reader gets no other bytes than were written (promise 26): what is read is checked, and
damage takes the log out of service. Changes no file. Large reads of committed batches may go from
the file to the network (`region`); these are checked once per process. Not reading by time: see
`time_lookup`.
"""

from __future__ import annotations

from tidelog.model.errors import ErrorCode
from tidelog.records.batch import Rejected, read_header, walk
from tidelog.records.record import CorruptRecords
from tidelog.storage.log.service import out_of_service, unreadable
from tidelog.storage.log.state import LogState
from tidelog.storage.segments.checked_reads import Slice, read_batches
from tidelog.storage.segments.kept_reads import MOST_BYTES as MOST_KEPT_BYTES
from tidelog.storage.segments.kept_reads import KeptRead

MOST_BYTES = 1024 * 1024
"""Of one read, for all of it is checked; a first batch that is larger is given whole."""

_EMPTY = memoryview(b"")


def read(
    log: LogState,
    offset: int,
    max_bytes: int,
    up_to_offset: int | None = None,
    *,
    at_least_one: bool = True,
) -> memoryview | Rejected:
    """Return whole batches from the one that holds ``offset``, all below ``up_to_offset``.

    Empty at the end. At most ``max_bytes``, but with ``at_least_one`` a larger first batch is
    given whole. OFFSET_OUT_OF_RANGE outside of start and end. Normally one read of the file.
    """
    if log.damaged or log.closed:
        return out_of_service(log)
    end = log.end_offset
    if offset < log.start_offset or offset > end:
        return Rejected(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is outside {log.start_offset} to {end} of {log.partition}",
        )
    limit = end if up_to_offset is None or up_to_offset > end else up_to_offset
    if offset >= limit:
        return _EMPTY
    try:
        return _read(log, offset, min(max_bytes, MOST_BYTES), limit, at_least_one)
    except (OSError, CorruptRecords) as error:
        return unreadable(log, error)


def read_before(
    log: LogState, offset: int, max_bytes: int, limit: int, *, at_least_one: bool
) -> memoryview | None:
    """Return what ``read`` would, if that is known without the file: see `kept_reads`."""
    kept = log.resources.kept_reads.find(log, offset, max_bytes, limit, at_least_one)
    if kept is None or log.damaged or log.closed or offset < log.start_offset:
        return None
    return kept


def _read(
    log: LogState, offset: int, max_bytes: int, limit: int, at_least_one: bool
) -> memoryview | Rejected:
    located = log.segments.remembered(offset)
    least = offset
    if located is None:
        least = 0
        located = log.segments.beginning_at(offset) or log.segments.locate(offset)
        if located is None:
            return _EMPTY
    segment, position = located
    batches = read_batches(segment, position, max_bytes, limit, at_least_one, log.epochs, least)
    kept_reads = log.resources.kept_reads
    if batches is None:
        if not at_least_one:
            kept_reads.keep(log, KeptRead(offset, limit, _EMPTY, max_bytes))
        return _EMPTY
    if batches.next_position < segment.size or segment is log.segments.active:
        log.segments.remember(batches.next_offset, segment, batches.next_position)
    if segment is not log.segments.active and not read_header(batches.data).record_count:
        return _on_to_records(log, batches, max_bytes, limit, at_least_one)
    if batches.next_offset == limit and len(batches.data) <= MOST_KEPT_BYTES:
        kept_reads.keep(log, KeptRead(offset, limit, batches.data, max_bytes))
    return batches.data


def _on_to_records(
    log: LogState, batches: Slice, max_bytes: int, limit: int, at_least_one: bool
) -> memoryview:
    """Continue after batches that compaction emptied, until there are records too.

    A response without records ends the poll of a Java consumer, as at the end of the log. Grows
    with the emptied batches, up to ``max_bytes``.
    """
    pieces, size = [batches.data], len(batches.data)
    while (
        size < max_bytes
        and batches.next_offset < limit
        and not any(header.record_count for _, header in walk(pieces[-1]))
    ):
        located = log.segments.locate(batches.next_offset)
        more = located and read_batches(*located, max_bytes - size, limit, at_least_one, log.epochs)
        if not more:
            break
        batches = more
        pieces.append(batches.data)
        size += len(batches.data)
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
