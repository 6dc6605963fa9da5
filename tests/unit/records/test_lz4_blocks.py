"""LZ4 block by block: payloads become what the library's reader of whole frames makes of them."""

from __future__ import annotations

import random
from typing import Any

import cramjam
import lz4.frame
import pytest

from tests.support.drawn_seed import drawn_seed
from tidelog.records.compression import Codec, compress, decompress, decompress_start
from tidelog.records.record import CorruptRecords

FRAMES = 1500
SIZES = (0, 1, 10, 1000, 65_535, 65_536, 65_537, 200_000)
BLOCK_BYTES = 65_536


def _drawn_frame(dice: random.Random) -> bytes:
    size = dice.choice(SIZES)
    plain = dice.randbytes(size)
    if dice.random() < 0.6:
        plain = (dice.randbytes(dice.randrange(1, 40)) * (size + 1))[:size]
    if dice.random() < 0.5:
        return compress(Codec.LZ4, plain, dice.choice((None, None, 9, 1, 12)))
    made: bytes = lz4.frame.compress(
        plain,
        block_size=dice.choice((0, 4, 5, 7)),
        block_linked=dice.random() < 0.3,
        content_checksum=dice.random() < 0.3,
        block_checksum=dice.random() < 0.3,
        store_size=dice.random() < 0.3,
    )
    return made


def _damaged(dice: random.Random, frame: bytes) -> bytes:
    changed = bytearray(frame)
    for _ in range(dice.randrange(1, 3)):
        at = dice.randrange(dice.choice((min(16, len(changed)), len(changed))))
        changed[at] ^= 1 << dice.randrange(8)
    end = dice.random()
    if end < 0.2:
        return bytes(changed[: dice.randrange(len(changed))])
    if end < 0.4:
        return bytes(changed) + dice.randbytes(dice.randrange(1, 6))
    return bytes(changed) if end < 0.8 else frame + frame


def _plain(codec_module: Any, frame: bytes) -> bytes | None:
    try:
        return bytes(codec_module.decompress(frame))
    except (cramjam.DecompressionError, OSError):
        return None


def test_drawn_frames_become_what_the_library_makes_of_them() -> None:
    """All kinds of frames, whole and damaged, with limits below and above what they become."""
    dice = random.Random(drawn_seed())
    refused = 0
    for _ in range(FRAMES):
        frame = _drawn_frame(dice)
        if dice.random() < 0.4:
            frame = _damaged(dice, frame)
        expected = _plain(cramjam.lz4, frame)
        limit = 1 << 20
        if expected is None:
            refused += 1
            with pytest.raises(CorruptRecords):
                decompress(Codec.LZ4, frame, limit)
            continue
        assert decompress(Codec.LZ4, frame, limit) == expected
        limit = dice.choice((1, 1000, BLOCK_BYTES, len(expected), max(0, len(expected) - 1)))
        start, complete = decompress_start(Codec.LZ4, frame, limit)
        assert (bytes(start), complete) == (expected[:limit], len(expected) <= limit)
    assert FRAMES // 20 < refused < FRAMES // 2, "of both kinds"


@pytest.mark.parametrize("level", [None, -1, 1, 9, 12])
@pytest.mark.parametrize("size", SIZES)
def test_every_reader_reads_what_is_written(size: int, level: int | None) -> None:
    """Blocks of up to 64 KiB, independent; what does not become smaller stays as it is."""
    dice = random.Random(size)
    for plain in (dice.randbytes(size), bytes(size)):
        frame = compress(Codec.LZ4, plain, level)
        assert lz4.frame.decompress(frame) == plain
        assert decompress(Codec.LZ4, frame) == plain
        assert len(frame) <= len(plain) + 11 + 4 * (size // BLOCK_BYTES + 1)


def test_the_default_level_is_the_fast_one_as_kafkas_is() -> None:
    """Level 9 is the default, and the fast compressor; others compress more."""
    dice = random.Random(5)
    words = [dice.randbytes(6) for _ in range(300)]
    plain = b"".join(dice.choice(words) for _ in range(5000))
    assert compress(Codec.LZ4, plain) == compress(Codec.LZ4, plain, 9)
    assert len(compress(Codec.LZ4, plain, 12)) < len(compress(Codec.LZ4, plain, 9))
