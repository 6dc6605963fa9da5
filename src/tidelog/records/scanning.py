"""Scans of the records of a plain payload, some at a time: for keys, or a timestamp.

Owns two searches that a server makes in payloads that it has appended: perhaps by an earlier
version, or unchecked. Each call of ``scan`` reads at most the given number of records, about 0.5 µs
each, so that an event loop can do other work between two calls. Trusts no field: lengths, offsets
and timestamps are compared with the header. Not the check before the append: see `record_scan`.
"""

from __future__ import annotations

from tidelog.records.batch import BatchHeader, Buffer
from tidelog.records.record import CorruptRecords, read_varint


class KeyReader:
    """The keys of the records of a whole payload, in order; records without a key are left out.

    CorruptRecords where a field is longer than its record, or a record than the payload.
    """

    __slots__ = ("_left", "_payload", "_position")

    def __init__(self, payload: Buffer, count: int) -> None:
        self._payload = payload
        self._left = count
        self._position = 0

    @property
    def is_over(self) -> bool:
        """Whether all records were read."""
        return self._left <= 0

    def read(self, at_most: int) -> list[bytes]:
        """Return the keys of at most so many records more."""
        payload, position, keys = self._payload, self._position, []
        stop = min(self._left, at_most)
        try:
            for _ in range(stop):
                size, position = read_varint(payload, position)
                end = position + size
                _, at = read_varint(payload, position + 1)
                _, at = read_varint(payload, at)
                length, at = read_varint(payload, at)
                if size < 0 or end > len(payload) or at + max(0, length) > end:
                    raise CorruptRecords("a field is longer than its record")
                if length >= 0:
                    keys.append(bytes(payload[at : at + length]))
                position = end
        except IndexError:
            raise CorruptRecords("a record ends inside a field") from None
        self._position = position
        self._left -= stop
        return keys


class TimeScan:
    """The first record of a batch from an offset on that is not older than a time (ms).

    Begins with a part of the payload and may be given more of it. ``found`` is its (timestamp,
    offset), ``greatest`` the newest of those that were checked and are too old. A time above the
    header's greatest counts as that one.
    """

    __slots__ = ("_from_offset", "_header", "_position", "_time", "found", "greatest", "index")

    def __init__(self, header: BatchHeader, timestamp: int, from_offset: int) -> None:
        self._header = header
        self._time = timestamp
        self._from_offset = from_offset
        self._position = 0
        self.index = 0
        self.found: tuple[int, int] | None = None
        self.greatest: tuple[int, int] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the record was found, or all were checked."""
        return self.found is not None or self.index >= self._header.record_count

    def scan(self, payload: Buffer, complete: bool, at_most: int) -> bool:
        """Check so many records more; False when that needs more of the payload than this is.

        ``complete``: this is all of it. CorruptRecords for what is no record, or has an offset
        that its batch does not have.
        """
        header, limit = self._header, len(payload)
        base, first, newest = header.base_offset, header.base_timestamp, header.max_timestamp
        stop = min(header.record_count, self.index + at_most)
        try:
            while self.index < stop:
                size, position = read_varint(payload, self._position)
                end = position + size
                if size < 0 or (end > limit and complete):
                    raise CorruptRecords("a record is longer than its batch")
                # The rest of the record need not be there: its head says enough.
                time, position = read_varint(payload, position + 1)
                delta, position = read_varint(payload, position)
                if position > end or not 0 <= delta <= header.last_offset_delta:
                    raise CorruptRecords(f"a record of a batch says offset delta {delta}")
                time = newest if header.log_append_time else min(first + time, newest)
                if base + delta >= self._from_offset:
                    if time >= self._time:
                        self.found = (time, base + delta)
                        return True
                    if self.greatest is None or time > self.greatest[0]:
                        self.greatest = (time, base + delta)
                self._position = end
                self.index += 1
                if end > limit:
                    return False
        except (IndexError, CorruptRecords):
            # The head of a record is far shorter: with so many bytes there it is not cut short, but
            # wrong.
            if complete or limit - self._position > 64:
                raise
            return False
        return True
