"""A reader of many zigzag varints at once with numpy, one per record.

Owns the arithmetic of the wire's varints; does not know what a field means. The cost grows with the
longest varint, not with the number of records in Python.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidelog.records.record import CorruptRecords

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

# A 64-bit number fits into ten groups of seven bits (Kafka protocol guide, VARLONG).
MAX_BYTES = 10


def read_varints(data: Bytes, places: Positions) -> tuple[Positions, Positions]:
    """The numbers at `places`, and the positions after them.

    `places` is not changed. Raises CorruptRecords for a varint that is too long or leaves the data.
    """
    try:
        return _read(data, places)
    except IndexError:
        raise CorruptRecords("a record reaches beyond the end of its batch") from None


def _read(data: Bytes, places: Positions) -> tuple[Positions, Positions]:
    byte = data[places]
    more = byte > 127
    if not more.any():
        return _unzigzag(byte.astype(np.int64)), places + 1
    value = (byte & 127).astype(np.int64)
    after = places + 1
    for group in range(1, MAX_BYTES):
        if more.all():
            byte = data[after]
            value |= (byte & 127).astype(np.int64) << (7 * group)
            after += 1
            more = byte > 127
        else:
            longer = np.flatnonzero(more)
            byte = data[after[longer]]
            value[longer] |= (byte & 127).astype(np.int64) << (7 * group)
            after[longer] += 1
            more[longer] = byte > 127
        if group == MAX_BYTES - 1 and (byte > 1).any():
            raise CorruptRecords("a varint of a record has more than 64 bits")
        if not more.any():
            return _unzigzag(value), after
    raise CorruptRecords("a varint of a record is longer than ten bytes")


def _unzigzag(value: Positions) -> Positions:
    # The shift of a signed number copies the sign; a 64-bit zigzag may have set it.
    return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1)
