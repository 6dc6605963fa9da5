"""128 bits for each key, many keys at once with numpy.

Owns the hash. Two keys with the same bits would be one key for the cleaner, and a record would be
lost. So the hash is universal: its multipliers are drawn in secret for each run, and any two keys
that were chosen without them are alike with a probability of 2^-128 (MULTILINEAR; Lemire and Kaser,
"Strongly universal string hashing is fast", theorem 1: four independent hashes of 32 bits). Among
the five million keys of a run's table that is below 10^-25. Keys above ``MOST_BYTES`` are first
replaced by a BLAKE2b digest of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from tidelog.records.varints import Positions

Digests = npt.NDArray[np.uint64]
"""Two columns: the halves of 128 bits."""

MOST_BYTES = 64
"""The longest key that is read by numpy: each eight bytes more are read of all keys at once."""

PADDING_BYTES = 16
"""What follows the last key: words are read whole."""

_WORD_BYTES = 8
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


class KeyDigests:
    """The hash of one run."""

    def __init__(self, secret: int | None = None) -> None:
        drawn = np.random.default_rng(secrets.randbits(256) if secret is None else secret)
        # A constant, the length, and two halves of each word; a column for each of the four hashes.
        rows = 2 + 2 * MOST_BYTES // _WORD_BYTES
        self._factors = drawn.integers(0, 2**64, size=(rows, 4), dtype=np.uint64)

    def of(self, data: bytes, begins: Positions, lengths: Positions) -> Digests:
        """Return the digests of the keys at these places of ``data``.

        ``data`` has ``PADDING_BYTES`` after the last key, and a multiple of eight bytes.
        """
        is_long = lengths > MOST_BYTES
        if is_long.any():
            return self._with_long_keys(data, begins, lengths, is_long)
        factors = self._factors
        words = np.frombuffer(data, dtype="<u8")
        shift = (begins.astype(np.uint64) & np.uint64(7)) << np.uint64(3)
        back = np.uint64(64) - shift
        place = begins >> 3
        longest = int(lengths.max()) if len(lengths) else 0
        sums = [factors[0, row] + factors[1, row] * lengths.astype(np.uint64) for row in range(4)]
        following = words.take(place, mode="clip")
        for word in range(-(-longest // _WORD_BYTES)):
            here, following = following, words.take(place + (word + 1), mode="clip")
            # A shift of 64 gives zero.
            content = (here >> shift) | (following << back)
            left = np.clip(lengths - word * _WORD_BYTES, 0, _WORD_BYTES).astype(np.uint64)
            content &= (np.uint64(1) << (left << np.uint64(3))) - np.uint64(1)
            low, high = content & _LOW, content >> _HALF
            for row, total in enumerate(sums):
                total += low * factors[2 + 2 * word, row]
                total += high * factors[3 + 2 * word, row]
        digests = np.empty((len(begins), 2), dtype=np.uint64)
        for column in range(2):
            digests[:, column] = sums[2 * column] & ~_LOW
            digests[:, column] |= sums[2 * column + 1] >> _HALF
        return digests

    def _with_long_keys(
        self, data: bytes, begins: Positions, lengths: Positions, is_long: npt.NDArray[np.bool_]
    ) -> Digests:
        digests = np.empty((len(begins), 2), dtype=np.uint64)
        short = np.flatnonzero(~is_long)
        digests[short] = self.of(data, begins[short], lengths[short])
        places = np.flatnonzero(is_long)
        ends = begins + lengths
        long = [
            blake2b(data[begin:end], digest_size=16).digest()
            for begin, end in zip(begins[places].tolist(), ends[places].tolist(), strict=True)
        ]
        digests[places] = np.frombuffer(b"".join(long), dtype="<u8").reshape(-1, 2)
        return digests

    def of_keys(self, keys: list[bytes]) -> Digests:
        """Return the digests of some keys."""
        lengths = np.array([len(key) for key in keys], dtype=np.int64)
        data = padded(keys)
        return self.of(data, np.cumsum(lengths) - lengths, lengths)


def padded(parts: Sequence[bytes | memoryview]) -> bytes:
    """Return all parts in one, with the bytes after them that ``KeyDigests.of`` needs."""
    size = sum(map(len, parts))
    return b"".join([*parts, bytes(PADDING_BYTES + -size % _WORD_BYTES)])
