"""The check of where murmur2 puts the keys of a column: Kafka's partitioner, or linear hashing.

Owns the check of one partition's keys, over whole columns with numpy. Not the rule itself: see
`partitioning.audit_rules`. A record of a topic that was resized (KIP-253) has its home at the count
of its resize epoch: fences say both, so a record that a producer of an older count wrote after a
fence is away from home.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.partitioning.audit_rules import TopicCounts, home_in

_MULTIPLIER = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)
_POSITIVE = np.uint32(0x7FFFFFFF)
_WORD = 4


def away_from_home(
    keys: pa.Array,
    partition: int,
    counts: tuple[int, int],
    epochs: pa.Array | None = None,
    resized: TopicCounts | None = None,
) -> npt.NDArray[np.bool_]:
    """Which keys no count of partitions from the least to the most puts into `partition`.

    A topic that was given more partitions has old records where fewer put them. Of a topic that was
    `resized` this holds for the records before the first resize; a later one, by `epochs`, has one
    home, or two where a growth may have been undone. A null key is nowhere away, and neither is a
    record of an epoch whose count is not known, or in which no order was promised.
    """
    hashes = hashes_of(keys.fill_null(b"") if keys.null_count else keys)
    least, most = counts
    if resized is not None:
        least, most = min(least, resized.initial), resized.initial
    kafkas = ((count, count) for count in range(least, most + 1))
    away = np.empty(len(keys), np.bool_)
    is_promised = resized is None or resized.by_epoch.get(0) != ()
    away[:] = is_promised and home_in(partition, kafkas).is_away(hashes)
    if resized is not None and epochs is not None:
        epoch_of_row = epochs.to_numpy(zero_copy_only=False)
        for epoch in np.unique(epoch_of_row[epoch_of_row > 0]).tolist():
            rows = np.flatnonzero(epoch_of_row == epoch)
            home = resized.home_in(partition, epoch)
            away[rows] = home is not None and home.is_away(hashes[rows])
    if keys.null_count:
        away &= ~np.asarray(keys.is_null().to_numpy(zero_copy_only=False), np.bool_)
    return away


def hashes_of(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """`partitioning.hashing.hash_of_key` of each key; none may be null.

    Grows with the keys and with the words of the longest.
    """
    if not len(keys):
        return np.empty(0, np.uint32)
    data, begin, lengths = _bytes_of(keys)
    result = _SEED ^ lengths.astype(np.uint32)
    whole = lengths // _WORD
    rows = np.arange(len(lengths))
    for word in range(int(whole.max(initial=0))):
        rows = rows[whole[rows] > word]
        places = begin[rows] + _WORD * word
        value = _little_endian(data, places, _WORD) * _MULTIPLIER
        value = (value ^ (value >> np.uint32(24))) * _MULTIPLIER
        result[rows] = (result[rows] * _MULTIPLIER) ^ value
    for left in (1, 2, 3):
        rows = np.flatnonzero(lengths % _WORD == left)
        value = _little_endian(data, begin[rows] + _WORD * whole[rows], left)
        result[rows] = (result[rows] ^ value) * _MULTIPLIER
    result = (result ^ (result >> np.uint32(13))) * _MULTIPLIER
    hashes: npt.NDArray[np.uint32] = (result ^ (result >> np.uint32(15))) & _POSITIVE
    return hashes


def _bytes_of(
    keys: pa.Array,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The bytes of a binary column, where each value begins, and how long it is."""
    made = keys.cast(pa.large_binary())
    _, bounds, data = made.buffers()
    ends = np.frombuffer(bounds, np.int64)[made.offset : made.offset + len(made) + 1]
    view = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
    return view, ends[:-1], np.diff(ends)


def _little_endian(
    data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.uint32]:
    value = np.zeros(len(places), np.uint32)
    for byte in range(count):
        value |= data[places + byte].astype(np.uint32) << np.uint32(8 * byte)
    return value
