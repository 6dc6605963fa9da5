"""Frames out of arbitrary pieces of a stream."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc

import pytest

from tests.support.processes import free_ports
from tidelog.client.connecting.connection import connect
from tidelog.client.connecting.frames import SHARED_BYTES, FrameReader, OversizedFrame
from tidelog.client.errors import ConnectionLost


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


@pytest.mark.parametrize("size", [4, 900, 3 * SHARED_BYTES])
def test_a_frame_has_begun_with_its_first_byte_and_until_its_last(size: int) -> None:
    reader = FrameReader()
    data = framed(bytes(size))
    assert not reader.has_begun
    for count in (1, 2, 3, len(data) - 7):
        assert feed(reader, data[:count], count) == []
        assert reader.has_begun
        data = data[count:]
    assert feed(reader, data, 1) == [bytes(size)]
    assert not reader.has_begun


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


def test_what_was_received_stays_valid_when_the_memory_is_given_back() -> None:
    reader = FrameReader()
    small, large = framed(b"small"), framed(b"x" * 2 * SHARED_BYTES)
    reader.buffer()[: len(small)] = small
    (frame,) = reader.received(len(small))
    reader.buffer()[:1000] = large[:1000]
    assert reader.received(1000) == []
    reader.release()
    assert 0 < len(reader.buffer()) < 100
    assert bytes(frame) == b"small"


def test_a_connection_that_has_ended_keeps_no_buffer() -> None:
    """Follower connections that came and went held 64 KiB each until a collection, of which a
    server makes few: 145 kB for each topic that came and went."""

    async def main() -> None:
        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connections = [await connect("127.0.0.1", port, negotiate=False) for _ in range(2)]
        connections[0].close()
        await connections[1].wait_closed()
        for connection in connections:
            assert len(connection._protocol.get_buffer(-1)) < 100
        server.close()

    asyncio.run(main())


def test_connections_that_are_refused_keep_no_buffer() -> None:
    """The controller asked for a killed broker again and again: 200 kB for each of its restarts."""
    refused = 20

    async def main() -> None:
        (port,) = free_ports(1)
        for _ in range(refused):
            with pytest.raises(ConnectionLost, match="cannot be reached"):
                await connect("127.0.0.1", port, negotiate=False)

    gc.disable()
    tracemalloc.start()
    try:
        asyncio.run(main())
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert kept_bytes < refused * SHARED_BYTES / 2
