"""The search of a record by its time, in pieces between which an event loop can run other work.

Owns the search over segments, their time indexes and batch headers, and the scan of the one batch
that may hold the answer: its beginning first, more only while the answer is not there. Works on a
log that changes between two pieces: it goes on by offset. Source: ListOffsets (KIP-79), max
timestamp (KIP-734).

A batch is its sender's word. One that claims a time which none of its records has, or that does not
decompress, is passed over. Where a request's ``Allowance`` is spent, or a batch is larger inside
than ``MOST_SEARCHED_BYTES``, the answer is what the header claims: the batch's first offset (of the
newest record: its last) with its greatest time. Readers then begin a little too early, never too
late.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tidelog.model.work import Work
from tidelog.records.batch import HEADER_SIZE, NO_TIMESTAMP, BatchHeader, Buffer, Rejected
from tidelog.records.compression import Codec, decompress_start
from tidelog.records.record import CorruptRecords
from tidelog.records.scanning import TimeScan
from tidelog.runtime import pace
from tidelog.storage.log.results import TimeOffset
from tidelog.storage.log.segment_list import SegmentList
from tidelog.storage.log.service import out_of_service, unreadable
from tidelog.storage.log.state import LogState
from tidelog.storage.segments.segment import Segment
from tidelog.storage.segments.soundness import Unsound, check_batch
from tidelog.storage.segments.times import from_newest, from_time

TimeFound = TimeOffset | Rejected | None

MOST_SEARCHED_BYTES = 16 * 1024 * 1024
"""Decompressed bytes of one batch that are searched."""

REQUEST_BYTES, REQUEST_RECORDS, REQUEST_BATCHES = 256 * 1024 * 1024, 1_000_000, 1000
"""What the look-ups of one request may decompress, check, and find fruitless."""

FIRST_READ_BYTES = 64 * 1024
SMALL_BYTES = 16 * 1024
"""Compressed: the first read of so few bytes takes less time than a thread does to begin."""

CHECKED_BYTES = 4 * 1024 * 1024
"""Of a larger batch a thread checks the CRC."""


@dataclass(slots=True)
class Allowance:
    """What is left to the look-ups of one request. Each look-up has one read in any case."""

    bytes: int = REQUEST_BYTES
    records: int = REQUEST_RECORDS
    batches: int = REQUEST_BATCHES


class _Candidate(NamedTuple):
    segment: Segment
    position: int
    header: BatchHeader


def search_time(log: LogState, timestamp: int, allowance: Allowance) -> Work[TimeFound]:
    """Return the first record not older than ``timestamp`` (ms), or None; in pieces.

    The log may change between two of them.
    """
    return _search(log, first_at_or_after(log, timestamp, allowance))


def search_newest(log: LogState, limit_offset: int, allowance: Allowance) -> Work[TimeFound]:
    """Return the first record below ``limit_offset`` with the greatest timestamp there (ListOffsets
    -3), in pieces. The log may change between two of them."""
    return _search(log, newest(log, limit_offset, allowance))


def _search(log: LogState, pieces: Work[TimeOffset | None]) -> Work[TimeFound]:
    record = None
    if not (log.damaged or log.closed):
        try:
            record = yield from pieces
        except (OSError, CorruptRecords) as error:
            return unreadable(log, error)
    return out_of_service(log) if log.damaged or log.closed else record


def first_at_or_after(
    log: LogState, timestamp: int, allowance: Allowance
) -> Work[TimeOffset | None]:
    """Return the first record not older than ``timestamp`` (ms) from the log's start on.

    Grows with the number of segments and one index interval of headers. Unsound when batches are
    not what was written.
    """
    offset = log.start_offset
    while not (log.damaged or log.closed):
        start = max(offset, log.start_offset)
        candidate = _next_candidate(log.segments, timestamp, start)
        if candidate is None:
            return None
        if isinstance(candidate, int):
            offset = candidate
            yield None
            continue
        claimed = max(candidate.header.base_offset, start)
        fallback = TimeOffset(
            candidate.header.max_timestamp, claimed, candidate.header.leader_epoch
        )
        scan = TimeScan(candidate.header, timestamp, start)
        spent = yield from _scan_records(candidate, scan, allowance)
        if spent or scan.found is not None:
            return fallback if scan.found is None else _answer(scan.found, candidate.header)
        offset = candidate.header.next_offset
    return None


def newest(log: LogState, limit_offset: int, allowance: Allowance) -> Work[TimeOffset | None]:
    """Return the first record with the greatest timestamp from the log's start up to, not with,
    ``limit_offset``; None when no record there has a time.

    Grows with the number of segments; where the newest of a segment is outside, by the headers
    between the last entry of its time index that is inside and the end.
    """
    start = offset = log.start_offset
    best, best_offset = NO_TIMESTAMP, -1
    while offset < limit_offset and not (log.damaged or log.closed):
        segment = log.segments[log.segments.segment_at(offset)]
        if segment.next_offset <= offset:
            break
        best, best_offset, offset = _newer(segment, start, offset, limit_offset, best, best_offset)
        yield None
    if log.damaged or log.closed:
        return None  # a file that is opened now would stay open for the next log of this path
    cut = yield from _newest_of_cut_batch(log, start, limit_offset, best, allowance)
    if cut is not None or best_offset < 0 or log.damaged or log.closed:
        return cut
    candidate = _candidate_at(log, best_offset)
    if candidate is None or candidate.header.newest_time != best:
        return None  # it went in this moment
    scan = TimeScan(candidate.header, best, start)
    yield from _scan_records(candidate, scan, allowance)
    header = candidate.header
    if scan.found is None:
        return TimeOffset(header.max_timestamp, header.last_offset, header.leader_epoch)
    return _answer(scan.found, header)


def _answer(record: tuple[int, int], header: BatchHeader) -> TimeOffset:
    return TimeOffset(*record, header.leader_epoch)


def _next_candidate(
    segments: SegmentList, timestamp: int, start_offset: int
) -> _Candidate | int | None:
    """Return the next batch that claims the time; an offset to go on from after many headers."""
    for segment in segments:
        if segment.next_offset <= start_offset or segment.sound_newest[0] < timestamp:
            continue
        walk = from_time(segment, timestamp, start_offset)
        for number, (position, header) in enumerate(walk, 1):
            claims = header.newest_time >= timestamp and header.record_count
            if claims and header.last_offset >= start_offset:
                return _Candidate(segment, position, header)
            if number >= pace.PART and header.next_offset > start_offset:
                return header.next_offset
    return None


def _newer(
    segment: Segment, start: int, offset: int, limit: int, best: int, best_offset: int
) -> tuple[int, int, int]:
    """Check one segment, or a part of it: the greatest time, its batch, where to go on.

    A batch that begins before ``start`` is left out: what is deleted of it may be its newest.
    """
    timestamp, last = segment.sound_newest
    if timestamp <= best:
        return best, best_offset, segment.next_offset
    if offset <= last < limit:
        located = segment.locate(last)
        if located is not None and located[1].base_offset >= start:
            return timestamp, located[1].base_offset, segment.next_offset
    for number, (_, header) in enumerate(from_newest(segment, offset, limit), 1):
        if header.next_offset > limit:
            return best, best_offset, limit
        if header.newest_time > best and header.base_offset >= start:
            best, best_offset = header.newest_time, header.base_offset
        if number >= pace.PART and header.next_offset > offset:
            return best, best_offset, header.next_offset
    return best, best_offset, segment.next_offset


def _newest_of_cut_batch(
    log: LogState, start: int, limit: int, best: int, allowance: Allowance
) -> Work[TimeOffset | None]:
    """Return the newest record of the batch that ``start`` is in the midst of, if it is the one."""
    candidate = None if start >= limit else _candidate_at(log, start)
    if candidate is None or candidate.header.next_offset > limit:
        return None
    header = candidate.header
    if header.base_offset >= start or header.newest_time < max(best, 0):
        return None
    scan = TimeScan(header, header.newest_time, start)
    yield from _scan_records(candidate, scan, allowance)
    newest_there = scan.found or scan.greatest
    if newest_there is None or newest_there[0] < max(best, 0):
        return None
    return _answer(newest_there, header)


def _candidate_at(log: LogState, offset: int) -> _Candidate | None:
    for segment in log.segments[log.segments.segment_at(offset) :]:
        located = segment.locate(offset)
        if located is not None:
            return _Candidate(segment, *located)
    return None


def _scan_records(candidate: _Candidate, scan: TimeScan, allowance: Allowance) -> Work[bool]:
    """Look for a record in one batch; return whether the allowance ended before the batch did.

    Not so for what does not decode: nothing is found there. Unsound when the CRC is wrong.
    """
    if allowance.batches <= 0:
        return True
    allowance.batches -= 1
    segment, position, header = candidate
    data = segment.read_bytes(position, header.size)
    if len(data) > CHECKED_BYTES:
        yield partial(check_batch, data)
    else:
        check_batch(data)
    try:
        return (yield from _scan(memoryview(data)[HEADER_SIZE:], header, scan, allowance))
    except Unsound:
        raise
    except CorruptRecords:
        return False


def _scan(
    payload: memoryview, header: BatchHeader, scan: TimeScan, allowance: Allowance
) -> Work[bool]:
    limit = FIRST_READ_BYTES
    while True:
        plain: Buffer = payload
        complete = True
        if header.codec != Codec.NONE:
            read = partial(decompress_start, header.codec, payload, limit)
            is_small = limit == FIRST_READ_BYTES and len(payload) <= SMALL_BYTES
            plain, complete = read() if is_small else (yield read)
            allowance.bytes -= len(plain)
        while True:
            before = scan.index
            wants_more = not scan.scan(plain, complete, pace.PART)
            allowance.records -= scan.index - before
            if scan.is_over:
                return False
            if wants_more:
                break
            if allowance.records <= 0:
                return True
            yield None
        if limit >= MOST_SEARCHED_BYTES or allowance.bytes <= 0:
            return True
        limit = min(4 * limit, MOST_SEARCHED_BYTES)
