"""Frames out of arbitrary pieces of a stream."""

from __future__ import annotations

import random

import pytest

from tidelog.client.frames import SHARED_BYTES, FrameReader, OversizedFrame


def feed(reader: FrameReader, data: bytes, piece: int) -> list[bytes]:
    """Give the reader ``data`` in pieces of at most ``piece`` bytes."""
    frames = []
    position = 0
    while position < len(data):
        room = reader.buffer()
        assert len(room) > 0
        count = min(piece, len(room), len(data) - position)
        room[:count] = data[position : position + count]
        frames += [bytes(frame) for frame in reader.received(count)]
        position += count
    return frames


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


@pytest.mark.parametrize("piece", [1, 3, 4, 5, 1000, SHARED_BYTES, 10**9])
def test_any_cut_of_the_stream_gives_the_same_frames(piece: int) -> None:
    sizes = [4, 5, 100, SHARED_BYTES - 4, SHARED_BYTES - 3, SHARED_BYTES, 3 * SHARED_BYTES, 4, 7]
    if piece < 1000:
        sizes = [4, 5, 100, 4, 700, 4]
    wanted = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    assert feed(FrameReader(), b"".join(map(framed, wanted)), piece) == wanted


def test_random_sizes_and_cuts() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    wanted = [chance.randbytes(chance.choice([4, 17, 900, 70_000])) for _ in range(60)]
    data = b"".join(map(framed, wanted))
    reader = FrameReader()
    found = []
    while data:
        count = chance.choice([1, 2, 3, 5, 4000, 66_000])
        found += feed(reader, data[:count], count)
        data = data[count:]
    assert found == wanted


def test_frames_stay_as_they_are_when_more_comes() -> None:
    reader = FrameReader()
    room = reader.buffer()
    room[:12] = framed(b"a" * 8)
    (kept,) = reader.received(12)
    feed(reader, framed(b"b" * 8) * 100, 50)
    assert bytes(kept) == b"a" * 8


@pytest.mark.parametrize("head", [b"\xff\xff\xff\xff", b"\0\0\0\3", b"HTTP", b"\x7f\xff\xff\xff"])
def test_what_is_no_size_is_refused(head: bytes) -> None:
    with pytest.raises(OversizedFrame):
        feed(FrameReader(), head + b"rest of it", 100)
