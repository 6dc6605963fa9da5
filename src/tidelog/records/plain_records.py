"""Plain records: those that most batches have, which half of a full check is enough for.

Owns what a plain record is, and a pass over the plain records at a place of a payload: each of them
is sound as `record_scan` says, which has the word on all others. A plain record has attributes 0, a
timestamp delta of one byte, the offset delta of its place in the shortest form, a key of less than
64 bytes or none, a value of less than 8 KiB or none, and no headers. Records of one layout in a row
are compared byte by byte of it, for all records at a time: 0.05 µs each, where others take 0.6 µs.
"""

from __future__ import annotations

from operator import length_hint
from struct import Struct, error
from typing import NamedTuple

from tidelog.records.batch import NO_TIMESTAMP, Buffer

_NULL = 1
"""The zigzag of -1: no key, or no value."""

_LEAST_ROW = 8
"""Fewer records of one layout are as soon read one by one."""

_FIRST_SINGLES = 64
"""How many records are read one by one before the next look for such a row; twice as many after
each look that was in vain."""


Place = tuple[int, int, int, int, int, int]
"""How far a scan has come: the next record's position and index; of the records before, the newest
timestamp and its record's index, and the oldest one and its record's index."""


class _Deltas(NamedTuple):
    # The offset deltas whose shortest form has ``size`` bytes, from ``begin`` on: as ``unpack``
    # reads them, between attributes with timestamp (one number, attributes are the low byte) and
    # the key's length; and as columns of bytes.
    begin: int
    end: int
    size: int
    unpack: Struct
    values: list[int]
    columns: tuple[bytes, ...]


_PAIRS = [(2 * index & 0x7F | 0x80, 2 * index >> 7) for index in range(64, 8192)]
_DELTAS = (
    _Deltas(0, 64, 1, Struct("<HBB"), list(range(0, 128, 2)), (bytes(range(0, 128, 2)),)),
    _Deltas(
        64,
        8192,
        2,
        Struct("<HHB"),
        [low | high << 8 for low, high in _PAIRS],
        (bytes(low for low, _ in _PAIRS), bytes(high for _, high in _PAIRS)),
    ),
)


def pass_plain(payload: Buffer, place: Place, stop: int, first: int, keyed: bool) -> Place:
    """Return the place of the first record that is not plain, or of the record ``stop``.

    ``first``: the batch's base timestamp. ``keyed``: a record without a key is not plain.
    """
    singles = _FIRST_SINGLES
    for deltas in _DELTAS:
        end = min(stop, deltas.end)
        while (index := place[1]) < end:
            if end - index >= _LEAST_ROW and _may_be_row(payload, place[0]):
                row = _pass_row(payload, place, end, deltas, first, keyed)
                if row[1] >= index + _LEAST_ROW:
                    place, singles = row, _FIRST_SINGLES
                    continue
            until = min(end, index + singles)
            place = _pass_singles(payload, place, until, deltas, first, keyed)
            if place[1] < until:
                return place
            singles *= 2
    return place


def _may_be_row(payload: Buffer, position: int) -> bool:
    """Whether the last of the fewest records of a row is as long as the first, if all are."""
    if position + 2 > len(payload):
        return False
    size = payload[position]
    length = 1 + (size >> 1)
    if size >= 0x80:
        length = 2 + ((size & 0x7F | payload[position + 1] << 7) >> 1)
    last = position + (_LEAST_ROW - 1) * length
    return last + length <= len(payload) and payload[last] == size


def _pass_row(
    payload: Buffer, place: Place, stop: int, deltas: _Deltas, first: int, keyed: bool
) -> Place:
    """Pass over the records that have the layout of the next one, and lengths as it has."""
    position, index = place[0], place[1]
    after = _pass_singles(payload, place, index + 1, deltas, first, keyed)
    if after[1] == index:
        return place
    length = after[0] - position
    count = min(stop - index, (len(payload) - position) // length)
    rows = bytes(payload[position : position + count * length])
    size_bytes = 1 if rows[0] < 0x80 else 2
    key_at = size_bytes + 2 + deltas.size
    key = rows[key_at]
    value_at = key_at + 1 + (0 if key == _NULL else key >> 1)
    # Each byte that says how a record is read: of its size, attributes and timestamp delta, of the
    # lengths of key and value, and the number of headers. The offset deltas follow.
    columns = [*range(size_bytes + 2), key_at, value_at, length - 1]
    if rows[value_at] >= 0x80:
        columns.append(value_at + 1)
    for at in columns:
        column = rows[at : count * length : length]
        if column.count(column[:1]) < count:
            count = len(column) - len(column.lstrip(column[:1]))
            if count < _LEAST_ROW:
                return after
    start = index - deltas.begin
    for at, expected in enumerate(deltas.columns, key_at - deltas.size):
        if rows[at : count * length : length] != expected[start : start + count]:
            return after
    return (position + count * length, index + count, *after[2:])


def _pass_singles(
    payload: Buffer, place: Place, stop: int, deltas: _Deltas, first: int, keyed: bool
) -> Place:
    position, index, newest, newest_at, oldest, oldest_at = place
    unpack, fixed = deltas.unpack.unpack_from, 3 + deltas.size
    last_head = -1
    # It knows how many are left: no count of its own in this loop.
    rest = iter(deltas.values[index - deltas.begin : stop - deltas.begin])
    try:
        for delta in rest:
            size = payload[position]
            if size < 0x80:
                body = position + 1
            else:
                high = payload[position + 1]
                if high >= 0x80:
                    break
                size = size & 0x7F | high << 7
                body = position + 2
            head, said, key = unpack(payload, body)
            if said != delta:
                break
            at = body + fixed
            if not key & 0x81:
                at += key >> 1
            elif key != _NULL or keyed:
                break
            value = payload[at]
            if value < 0x80:
                if not value & 1:
                    at += 1 + (value >> 1)
                elif value == _NULL:
                    at += 1
                else:
                    break
            else:
                high = payload[at + 1]
                if high >= 0x80 or value & 1:
                    break
                at += 2 + ((value & 0x7F | high << 7) >> 1)
            # The number of headers, and with that the end of the record; no odd size is twice that.
            if payload[at] or (at + 1 - body) * 2 != size:
                break
            if head != last_head:
                time = head >> 8
                if head & 0xFF or time >= 0x80:
                    break
                last_head, index = head, stop - 1 - length_hint(rest)
                time = first + ((time >> 1) ^ -(time & 1))
                if time > newest:
                    newest, newest_at = time, index
                if time < oldest and time != NO_TIMESTAMP:
                    oldest, oldest_at = time, index
            position = at + 1
        else:
            return position, stop, newest, newest_at, oldest, oldest_at
    except (IndexError, error):
        # The payload ends within this record, or soon after its head.
        pass
    index = stop - 1 - length_hint(rest)
    return position, index, newest, newest_at, oldest, oldest_at
