"""Frames of requests and responses: request headers are read in place, responses written once.

Owns the fast path through the headers. Not headers with unusual fields: see `protocol.codec`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from tidelog.protocol import codec
from tidelog.protocol.codec import DecodeError
from tidelog.protocol.primitives import Buffer

if TYPE_CHECKING:
    from tidelog.network.router import Route

MIN_REQUEST_BYTES = 8

UNREADABLE = (DecodeError, struct.error, IndexError, ValueError, OverflowError)
"""The exceptions of compiled decoders for truncated or invalid bytes."""

UNWRITABLE = (struct.error, AttributeError, TypeError, ValueError)
"""The exceptions of compiled encoders for a message that violates its schema: a bug."""

Header = tuple[int, int, int, int]
"""API key, version, correlation id, length of the client id."""

_TLS_HANDSHAKE = 0x1603
"""The first two bytes of a TLS connection: a handshake record of any version."""

_HTTP_METHODS = frozenset(
    int.from_bytes(method)
    for method in (b"GET ", b"HEAD", b"POST", b"PUT ", b"PRI ", b"DELE", b"OPTI", b"PATC", b"CONN")
)

NOT_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\n"
    b"Content-Type: text/plain\r\nContent-Length: 78\r\nConnection: close\r\n\r\n"
    b"This is a port for Kafka clients. Metrics and health are on the metrics_port.\n"
)
"""What a client gets that sends an HTTP request."""

size_at = struct.Struct(">i").unpack_from
key_at = struct.Struct(">h").unpack_from
header_at = struct.Struct(">hhih").unpack_from
_HEADER_BYTES = 10
_CORRELATION_BYTES = 4
_pack_size_into = struct.Struct(">i").pack_into
_pack_head = struct.Struct(">ii").pack


def message_at(length: int, route: Route, frame: memoryview) -> int:
    """Return where the message begins; 0 when only ``read_rest`` can read the header."""
    stop = _HEADER_BYTES + length
    if length < 0 or (route.flexible and frame[stop]):
        return 0
    return stop + route.flexible


def read_rest(header: Header, route: Route, frame: memoryview) -> tuple[str | None, int]:
    """Return the client id, and where the message begins. Raises one of ``UNREADABLE``."""
    length = header[3]
    stop = _HEADER_BYTES + length
    if length >= 0 and not (route.flexible and frame[stop]):
        if stop > len(frame):
            raise DecodeError("the client id ends after the frame")
        return str(frame[_HEADER_BYTES:stop], "utf-8"), stop + route.flexible
    # No client id, or tagged fields in the header: rare.
    slow = codec.decode_request_header(frame)
    return slow.client_id, slow.body


def encode_answer(route: Route, correlation_id: int, answer: Any) -> list[Buffer]:
    """Return a response's frame as buffers to send in order. Raises one of ``UNWRITABLE``.

    A response in bytes is the whole frame already (``router.Direct``), a list its buffers.
    """
    if answer.__class__ is bytes:
        return [answer]
    if answer.__class__ is list:
        encoded: list[Buffer] = answer
        return encoded
    head = bytearray(_pack_head(0, correlation_id))
    if route.flexible_answer:
        head.append(0)
    chunks: list[Buffer] = []
    rest = route.encode(answer, chunks, head)
    if rest or not chunks:
        # No empty buffer after the records: it would cost a system call.
        chunks.append(rest)
    size = len(head) if len(chunks) == 1 else sum(map(len, chunks))
    _pack_size_into(head, 0, size - 4)
    return chunks


def answer_of(correlation_id: int, answer: bytes) -> list[Buffer]:
    """Return the frame of a response that another process wrote, given without its size.

    Raises DecodeError when it is too short to be one.
    """
    if len(answer) < _CORRELATION_BYTES:
        raise DecodeError(f"a response of {len(answer)} bytes")
    return [_pack_head(len(answer), correlation_id), memoryview(answer)[_CORRELATION_BYTES:]]


def is_http(size: int) -> bool:
    """Whether the bytes that were read as the size of a request begin an HTTP request."""
    return size in _HTTP_METHODS


def why_size(size: int, limit: int) -> str:
    """Return why a connection that announced a request of this size is closed."""
    if size < MIN_REQUEST_BYTES:
        return f"it announced a request of {size} bytes, which cannot be one"
    if is_http(size):
        return (
            "it sent an HTTP request, and this is a port for Kafka clients; "
            "metrics and health are served on metrics_port"
        )
    if size >> 16 == _TLS_HANDSHAKE:
        return (
            "it began with TLS, which this listener does not speak; "
            "set security.protocol=PLAINTEXT in the client"
        )
    return f"it announced a request of {size} bytes; socket.request.max.bytes is {limit}"
