"""The walk over the records of a produced batch: they are compared with what its header says.

Owns which records a leader takes: what every reader reads alike. Reads some records at a time,
about 1 µs each, so that an event loop can do other work between two calls. Trusts no field. Not the
header by itself: see `batch`; not what a payload was compressed with: see `frames`; not the faster
pass over records that have nothing unusual: see `plain_records`.
"""

from __future__ import annotations

from tidelog.records.batch import MAX_INT64, NO_TIMESTAMP, Buffer
from tidelog.records.plain_records import pass_plain
from tidelog.records.record import CorruptRecords

COPIED_BYTES = 1024 * 1024

_NULL = 1
"""The zigzag of -1: no key, or no value."""

MIN_INT64 = -(2**63)

_MOST_OTHERS = 64
"""Most records that are read one by one before plain ones are expected again."""

FEW = 4
"""So few are read as soon without a pass over the plain ones."""


class RecordScan:
    """The records of a whole plain payload.

    ``missing`` are the first ``most`` records without a key; ``newest`` and ``oldest`` are
    (timestamp, index of the record), without those that have NO_TIMESTAMP.

    CorruptRecords when the records do not fill the payload, or their fields not their length; when
    offsets do not count up from 0 by one; when a field has more bits than Kafka's readers take,
    or a length less than that of null; for a header without a name, or one that is not UTF-8.
    """

    __slots__ = (
        "_count",
        "_end",
        "_first",
        "_headers",
        "_most",
        "_others",
        "_payload",
        "_position",
        "_until_plain",
        "index",
        "missing",
        "newest",
        "oldest",
    )

    def __init__(self, payload: Buffer, count: int, first_timestamp: int, most: int) -> None:
        # Bytes are a third faster to scan; a copy of many takes longer than a turn may.
        self._payload = bytes(payload) if len(payload) <= COPIED_BYTES else payload
        self._count = count
        self._first = first_timestamp
        self._most = most
        self._position = 0
        self._headers = self._end = 0  # headers left of the last record, and where that ends
        self._others = 1
        self._until_plain = count if count <= FEW else 0
        self.index = 0
        self.missing: list[int] = []
        self.newest = (NO_TIMESTAMP, 0)
        self.oldest = (MAX_INT64, 0)

    def scan(self, at_most: int) -> bool:
        """Read at most so many records and headers more; True after the last one."""
        try:
            while at_most > 0:
                if self._headers:
                    at_most = self._read_headers(at_most)
                elif self.index < self._count:
                    at_most = self._read_some(at_most)
                else:
                    break
        except IndexError:
            raise CorruptRecords("a record ends inside a field") from None
        if self._headers or self.index < self._count:
            return False
        if self._position != len(self._payload):
            raise CorruptRecords("bytes after the last record of a batch")
        if self.oldest[0] == MAX_INT64:
            self.oldest = NO_TIMESTAMP, 0
        return True

    def _read_some(self, at_most: int) -> int:
        """Pass over plain records, or read others; return what is left of ``at_most``."""
        index = self.index
        if index < self._until_plain:
            now = min(at_most, self._until_plain - index)
            return at_most - now + self._read_records(now)
        keyed = len(self.missing) < self._most
        place = self._position, index, *self.newest, *self.oldest
        stop = min(self._count, index + at_most)
        place = pass_plain(self._payload, place, stop, self._first, keyed)
        self._position, self.index, newest, newest_at, oldest, oldest_at = place
        self.newest, self.oldest = (newest, newest_at), (oldest, oldest_at)
        self._check_times()
        # A batch that has few of them must not pay for a pass at each record.
        self._others = 1 if self.index > index else min(2 * self._others, _MOST_OTHERS)
        self._until_plain = self.index + self._others
        return at_most - (self.index - index)

    def _check_times(self) -> None:
        if self.newest[0] > MAX_INT64 or self.oldest[0] < MIN_INT64:
            raise CorruptRecords("a record has a timestamp of more than 64 bits")

    def _read_records(self, at_most: int) -> int:
        """Read on, up to a record with headers; return what is left of ``at_most``."""
        payload, position, limit = self._payload, self._position, len(self._payload)
        start, first, missing, last_time = self.index, self._first, self.missing, -1
        (newest, newest_at), (oldest, oldest_at) = self.newest, self.oldest
        most = self._most
        for index in range(start, min(self._count, start + at_most)):
            # What a byte holds is read in place, in this loop and nowhere else.
            size = payload[position]
            position += 1
            if size >= 0x80:
                byte = payload[position]
                if byte < 0x80:
                    size = size & 0x7F | byte << 7
                    position += 1
                else:
                    size, position = _read(payload, position - 1, 32)
            end = position + (size >> 1)
            if size & 1 or end > limit:
                raise CorruptRecords("a record is longer than its batch")
            if payload[position] >= 0x80:
                raise CorruptRecords(f"record {index} has attributes that some readers misread")
            time = payload[position + 1]
            position += 2
            if time >= 0x80:
                time, position = _read(payload, position - 1, 64)
            if time != last_time:
                last_time = time
                time = first + ((time >> 1) ^ -(time & 1))
                if time > newest:
                    newest, newest_at = time, index
                if time < oldest and time != NO_TIMESTAMP:
                    oldest, oldest_at = time, index
            delta = payload[position]
            position += 1
            if delta >= 0x80:
                byte = payload[position]
                if byte < 0x80:
                    delta = delta & 0x7F | byte << 7
                    position += 1
                else:
                    delta, position = _read(payload, position - 1, 32)
            if delta != index + index:
                delta = (delta >> 1) ^ -(delta & 1)
                raise CorruptRecords(f"record {index} of the batch says offset delta {delta}")
            size = payload[position]
            if size == _NULL:
                position += 1
                if len(missing) < most:
                    missing.append(index)
            elif size & 0x81:
                position = _after_bytes(payload, position)
            else:
                position += 1 + (size >> 1)
            size = payload[position]
            if size & 0x81:
                position = _after_bytes(payload, position)
            else:
                position += 1 + (size >> 1)
            if payload[position]:
                position = self._begin_headers(index, position, end)
                break
            position += 1
            if position != end:
                raise CorruptRecords(f"the fields of record {index} do not fill its length")
        self.newest, self.oldest = (newest, newest_at), (oldest, oldest_at)
        self._check_times()
        self._position, self.index = position, index + 1
        return at_most - (index + 1 - start)

    def _begin_headers(self, index: int, position: int, end: int) -> int:
        number, position = _read_int(self._payload, position)
        if number & 1 or number > end - position:
            number = (number >> 1) ^ -(number & 1)
            raise CorruptRecords(f"record {index} says it has {number} headers")
        self._headers, self._end = number >> 1, end
        return position

    def _read_headers(self, at_most: int) -> int:
        payload, position, end = self._payload, self._position, self._end
        number = min(self._headers, at_most)
        for _ in range(number):
            size, position = _read_int(payload, position)
            start, position = position, position + (size >> 1)
            if size & 1 or position > end:
                raise CorruptRecords("a header without a name, or one longer than its record")
            try:
                str(payload[start:position], "utf-8")
            except UnicodeDecodeError:
                raise CorruptRecords("a record header's name is not UTF-8") from None
            position = _after_bytes(payload, position)
            if position > end:
                raise CorruptRecords("a header is longer than its record")
        self._position = position
        self._headers -= number
        if not self._headers and position != end:
            raise CorruptRecords("the headers of a record do not fill its length")
        return at_most - number


def _after_bytes(payload: Buffer, position: int) -> int:
    """Return the position after a key or value, which may lie beyond the payload."""
    size = payload[position]
    position += 1
    if size >= 0x80:
        size, position = _read_int(payload, position - 1)
    if size & 1:
        if size == _NULL:
            return position
        raise CorruptRecords("a length below that of null")
    return position + (size >> 1)


def _read_int(payload: Buffer, position: int) -> tuple[int, int]:
    """Return an unsigned number of at most 32 bits, in at most five bytes, before its zigzag."""
    byte = payload[position]
    if byte < 0x80:
        return byte, position + 1
    second = payload[position + 1]
    if second < 0x80:
        return byte & 0x7F | second << 7, position + 2
    return _read(payload, position, 32)


def _read(payload: Buffer, position: int, bits: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, bits, 7):
        byte = payload[position]
        position += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            if found >> bits:
                break
            return found, position
    raise CorruptRecords(f"a number of a record has more than {bits} bits")
