"""The records that a leader takes, written down as plainly as decision 0088 says it.

Owns the reference that the product's faster scans are compared with. Slow, and without their code.
"""

from __future__ import annotations

from typing import NamedTuple

NULL = -1
MOST_INT64 = 2**63 - 1


class Untaken(ValueError):
    """Records that are not what every reader reads alike."""


class Taken(NamedTuple):
    """Indexes of the records without a key; the newest and the oldest (timestamp, index)."""

    missing: list[int]
    newest: tuple[int, int]
    oldest: tuple[int, int]


def strict_records(payload: bytes, count: int, first_timestamp: int) -> Taken:
    """Return what the records of a whole plain payload are; Untaken for any fault."""
    reader, missing, times = _Reader(payload), [], []
    for index in range(count):
        size = reader.number(32)
        end = reader.position + size
        _demand(size >= 0 and end <= len(payload), "a record's length")
        _demand(reader.byte() < 0x80, "attributes")
        times.append(first_timestamp + reader.number(64))
        _demand(-(2**63) <= times[-1] <= MOST_INT64, "a timestamp of more than 64 bits")
        _demand(reader.number(32) == index, "an offset delta")
        if reader.text() is None:
            missing.append(index)
        reader.text()
        for _ in range(reader.count()):
            name = reader.text()
            _demand(name is not None, "a header without a name")
            try:
                (name or b"").decode()
            except UnicodeDecodeError:
                raise Untaken("a name") from None
            reader.text()
            _demand(reader.position <= end, "a header beyond its record")
        _demand(reader.position == end, "fields that do not fill a record")
    _demand(reader.position == len(payload), "bytes after the last record")
    dated = [time for time in times if time != -1]
    if not dated:
        return Taken(missing, (-1, 0), (-1, 0))
    newest, oldest = max(times), min(dated)
    newest_at = times.index(newest) if newest > -1 else 0
    return Taken(missing, (max(newest, -1), newest_at), (oldest, times.index(oldest)))


def _demand(is_so: bool, what: str) -> None:
    if not is_so:
        raise Untaken(what)


class _Reader:
    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.position = 0

    def byte(self) -> int:
        _demand(self.position < len(self._payload), "the end of the payload")
        self.position += 1
        return self._payload[self.position - 1]

    def number(self, bits: int) -> int:
        """A zigzag varint of at most so many bits, in at most the bytes that they need."""
        value = 0
        for shift in range(0, bits, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                _demand(value < 2**bits, "a number's bits")
                return value // 2 if value % 2 == 0 else -(value + 1) // 2
        raise Untaken("a number's bytes")

    def text(self) -> bytes | None:
        """A key, a value, or a part of a header."""
        size = self.number(32)
        _demand(size >= NULL, "a length below that of null")
        if size == NULL:
            return None
        self.position += size
        _demand(self.position <= len(self._payload), "a field beyond the payload")
        return self._payload[self.position - size : self.position]

    def count(self) -> int:
        """The number of headers, each of which has two bytes at least."""
        number = self.number(32)
        _demand(0 <= number <= len(self._payload), "a number of headers")
        return number
