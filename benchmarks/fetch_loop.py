"""Clients that do nothing with what they fetch: what a server can give at most.

Fetch v4 over one connection, 1 MB of one partition at a time, one request after another, as Kafka's
consumers ask. Of the response only the batches' headers are read, for the next offset. Several
clients at once are connections of one thread: together they cost little more than one.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

PARTITION_BYTES = 1 << 20
MAX_BYTES = 50 << 20
BATCH_HEADER_BYTES = 61
DEADLINE_S = 30

_DISCARDED = bytearray(4 * PARTITION_BYTES)


class Step(NamedTuple):
    """One request: its offset, the size of its response, and the offset of the next one."""

    offset: int
    response_bytes: int
    following: int


def read_all(port: int, topic: str, count: int) -> float:
    """Read partition 0 up to offset `count`; records per second."""
    begun = time.perf_counter()
    _read(port, topic, count, [])
    return count / (time.perf_counter() - begun)


def _read(port: int, topic: str, count: int, found: list[Step]) -> None:
    name = topic.encode()
    buffer = bytearray(4 * PARTITION_BYTES)
    offset = 0
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while offset < count:
            connection.sendall(_request(name, offset))
            end = _receive(connection, buffer)
            following = _next_offset(buffer, end, len(name))
            assert following > offset, f"nothing at offset {offset}"
            found.append(Step(offset, end, following))
            offset = following


def steps(port: int, topic: str, count: int) -> list[Step]:
    """Read partition 0 up to offset `count` once: what each request asks for, and what comes."""
    found: list[Step] = []
    _read(port, topic, count, found)
    return found


def read_all_at_once(port: int, topic: str, known: Sequence[Step], clients: int) -> float:
    """Have so many clients take these steps at once; records per second of all together.

    The kernel discards what they receive, unread and uncopied (MSG_TRUNC of TCP): otherwise the
    clients would be at work for longer than the broker.
    """
    begun = time.perf_counter()
    with selectors.DefaultSelector() as ready:
        for _ in range(clients):
            client = _Discarding(port, topic.encode(), known)
            ready.register(client.connection, selectors.EVENT_READ, client)
            client.ask()
        while ready.get_map():
            events = ready.select(DEADLINE_S)
            assert events, f"no response for {DEADLINE_S} s"
            for key, _ in events:
                if key.data.take() and not key.data.ask():
                    ready.unregister(key.data.connection)
                    key.data.connection.close()
    return clients * known[-1].following / (time.perf_counter() - begun)


class _Discarding:
    """One connection with one request under way, of whose response it looks at the size alone."""

    def __init__(self, port: int, name: bytes, known: Sequence[Step]) -> None:
        self._name = name
        self._steps = iter(known)
        self._step = known[0]
        self._size = bytearray(4)
        self._got = 0
        self.connection = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> bool:
        """Send the next request; False where there is none."""
        step = next(self._steps, None)
        if step is None:
            return False
        self._step, self._got = step, 0
        self.connection.sendall(_request(self._name, step.offset))
        return True

    def take(self) -> bool:
        """Take what has come; whether it was the end of the response."""
        if self._got < 4:
            room = memoryview(self._size)[self._got :]
            received = self.connection.recv_into(room)
        else:
            # Discarded: nothing is written to the buffer, however many bytes it stands for.
            left = self._step.response_bytes - self._got
            received = self.connection.recv_into(_DISCARDED, left, socket.MSG_TRUNC)
        assert received, "the server closed the connection"
        self._got += received
        if self._got == 4:
            size = 4 + int.from_bytes(self._size, "big")
            assert size == self._step.response_bytes, f"{size} bytes from {self._step}"
        return self._got == self._step.response_bytes


def _request(name: bytes, offset: int) -> bytes:
    # API 1, version 4; no replica, 500 ms, at least a byte, read uncommitted.
    body = struct.pack(">hhih", 1, 4, 1, 4) + b"loop"
    body += struct.pack(">iiiib", -1, 500, 1, MAX_BYTES, 0)
    body += struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">iiqi", 1, 0, offset, PARTITION_BYTES)
    return struct.pack(">i", len(body)) + body


def _receive(connection: socket.socket, buffer: bytearray) -> int:
    """Take one answer into the buffer; where it ends."""
    view = memoryview(buffer)
    got, end = 0, 4
    while got < end:
        received = connection.recv_into(view[got:])
        assert received, "the server closed the connection"
        got += received
        if end == 4 and got >= 4:
            end += struct.unpack_from(">i", buffer)[0]
    return end


def _next_offset(buffer: bytearray, end: int, name_bytes: int) -> int:
    # Size, correlation id, throttle time, one topic and its name, one partition and its index.
    at = 4 + 4 + 4 + 4 + 2 + name_bytes + 4 + 4
    error = struct.unpack_from(">h", buffer, at)[0]
    assert error == 0, f"error {error}"
    # High watermark, last stable offset, no aborted transactions, the records' size.
    at += 2 + 8 + 8 + 4 + 4
    following = -1
    while at + BATCH_HEADER_BYTES <= end:
        base, length = struct.unpack_from(">qi", buffer, at)
        if at + 12 + length > end:
            break
        following = base + struct.unpack_from(">i", buffer, at + 23)[0] + 1
        at += 12 + length
    return following
