"""A client that does nothing with what it fetches: what a server can give at most.

Fetch v4 over one connection, 1 MB of one partition at a time, one request after another, as Kafka's
consumers ask. Of the answer only the batches' headers are looked at, for the next offset.
"""

from __future__ import annotations

import socket
import struct
import time

PARTITION_BYTES = 1 << 20
MAX_BYTES = 50 << 20
BATCH_HEADER_BYTES = 61


def read_all(port: int, topic: str, count: int) -> float:
    """Read partition 0 up to offset `count`; records per second."""
    name = topic.encode()
    buffer = bytearray(4 * PARTITION_BYTES)
    offset = 0
    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while offset < count:
            connection.sendall(_request(name, offset))
            end = _receive(connection, buffer)
            following = _next_offset(buffer, end, len(name))
            assert following > offset, f"nothing at offset {offset}"
            offset = following
    return count / (time.perf_counter() - begun)


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
