"""Frames <-> messages: headers, versions, and the compiled codec of each message.

Owns the request and response headers (v1 and v2; an ApiVersions response has a v0 header always).
Decoding never raises anything but ``DecodeError``; encoding nothing but ``EncodeError``.
"""

from __future__ import annotations

import struct
from functools import cache, lru_cache
from typing import Any, NamedTuple

from tidelog.model.api_keys import ApiKey
from tidelog.model.work import Work
from tidelog.protocol import compiler, messages, primitives, schema
from tidelog.protocol.compiler import Joined
from tidelog.protocol.primitives import Buffer, DecodeError, EncodeError

__all__ = ["DecodeError", "EncodeError", "Joined"]

JOINED: dict[int, tuple[str, ...]] = {
    ApiKey.METADATA: ("MetadataResponseTopic", "MetadataResponsePartition"),
}
"""The structs of responses whose arrays may be ``Joined``."""

_HEADER = struct.Struct(">hhih")
_SIZE_AND_CORRELATION = struct.Struct(">ii")
_BAD = (struct.error, IndexError, UnicodeDecodeError, ValueError, OverflowError)


class RequestHeader(NamedTuple):
    """The head of a request frame; ``body`` is the position at which its message begins."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int


@cache
def _file_by_key() -> dict[int, str]:
    """Map API keys to schema files by name alone, so that a start parses only what it uses."""
    return {int(key): key.name.lower() + ".txt" for key in ApiKey}


@cache
def api_of(api_key: int) -> schema.Api:
    """Return the schema of an API key. Raises KeyError for one that has none."""
    return schema.load(_file_by_key()[api_key])


@cache
def request_decoder(
    api_key: int,
    version: int,
    most: int | None = None,
    numbers: int = 1,
    *,
    in_steps: bool = False,
) -> compiler.Decoder:
    """Return the compiled decoder of a request; KeyError when there is no such version.

    It refuses more than ``most`` elements of arrays, and ``MAX_ELEMENTS`` in any case; so many
    ``numbers`` count as one element. ``in_steps``: one that returns ``Work``, as for the encoders.
    """
    api = api_of(api_key)
    if version not in api.versions:
        raise KeyError(f"{api.name} has no version {version}")
    classes = messages.classes_of(api.request)
    flexible = api.is_flexible(version)
    return compiler.decoder(
        api.request, classes, version, flexible, most, numbers, in_steps=in_steps
    )


@cache
def response_decoder(api_key: int, version: int) -> compiler.Decoder:
    """Return the compiled decoder of a response."""
    api = api_of(api_key)
    classes = messages.classes_of(api.response)
    return compiler.decoder(api.response, classes, version, api.is_flexible(version))


@cache
def request_encoder(api_key: int, version: int, *, in_steps: bool = False) -> compiler.Encoder:
    """Return the compiled encoder of a request."""
    api = api_of(api_key)
    return compiler.encoder(api.request, version, api.is_flexible(version), in_steps=in_steps)


@cache
def response_encoder(
    api_key: int, version: int, *, in_steps: bool = False, element: str | None = None
) -> compiler.Encoder:
    """Return the compiled encoder of a response, or of one struct of it: a part of ``Joined``."""
    api, joined = api_of(api_key), JOINED.get(api_key, ())
    return compiler.encoder(
        api.response,
        version,
        api.is_flexible(version),
        in_steps=in_steps,
        element=element,
        joined=joined,
    )


@lru_cache(1024)
def is_flexible(api_key: int, version: int) -> bool:
    """Return whether a known API's version uses flexible headers; False for what is unknown."""
    try:
        return api_of(api_key).is_flexible(version)
    except KeyError:
        return False


def decode_request_header(frame: memoryview) -> RequestHeader:
    """Read the header of a request frame (without its four bytes of size).

    An unknown API or version is read as far as the client id; ``body`` then means nothing.
    """
    try:
        api_key, version, correlation_id, length = _HEADER.unpack_from(frame, 0)
        position = _HEADER.size
        client_id = None
        if length >= 0:
            if position + length > len(frame):
                raise DecodeError("the client id ends after the frame")
            client_id = str(frame[position : position + length], "utf-8")
            position += length
        elif length != -1:
            raise DecodeError("a negative length of the client id")
        if _has_tags(api_key, version):
            count = frame[position]
            position += 1
            if count > 127:
                count, position = primitives.read_uvarint(frame, position, count)
            if count:
                position = primitives.skip_tags(frame, position, count, len(frame))
    except _BAD as error:
        raise DecodeError(f"the request header cannot be read: {error}") from None
    return RequestHeader(api_key, version, correlation_id, client_id, position)


@cache
def _has_tags(api_key: int, version: int) -> bool:
    return is_flexible(api_key, version)


def decode_request(
    api_key: int,
    version: int,
    frame: memoryview,
    position: int,
    *,
    most: int | None = None,
    numbers: int = 1,
) -> Work[Any]:
    """Read a request's message, as ``request_decoder`` says, from ``position`` to the very end of
    the frame.

    Bytes after a Metadata request are ignored: librdkafka (2.16) writes the empty array of a
    flexible request for all topics as four bytes, and Kafka reads no further than the message.
    """
    decode: Any = request_decoder(api_key, version, most, numbers, in_steps=True)
    try:
        message, stop = yield from decode(frame, position)
    except _BAD as error:
        raise DecodeError(f"the message cannot be read: {error}") from None
    check_end(api_key, frame, stop)
    return message


def check_end(api_key: int, frame: memoryview, stop: int) -> None:
    """Refuse bytes after the message of a request; see ``decode_request``."""
    if stop != len(frame) and api_key != ApiKey.METADATA:
        raise DecodeError(f"{len(frame) - stop} bytes are left after the message")


def decode_response(api_key: int, version: int, frame: memoryview) -> tuple[int, Any]:
    """Read a response frame (without its size): (correlation id, message)."""
    try:
        (correlation_id,) = struct.unpack_from(">i", frame, 0)
        position = 4
        if is_flexible(api_key, version) and api_key != ApiKey.API_VERSIONS:
            count = frame[position]
            position += 1
            if count:
                position = primitives.skip_tags(frame, position, count, len(frame))
    except _BAD as error:
        raise DecodeError(f"the response header cannot be read: {error}") from None
    try:
        message, stop = response_decoder(api_key, version)(frame, position)
    except _BAD as error:
        raise DecodeError(f"the message cannot be read: {error}") from None
    if stop != len(frame):
        raise DecodeError(f"{len(frame) - stop} bytes are left after the message")
    return correlation_id, message


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, request: Any
) -> list[Buffer]:
    """Write a request with its size and header: buffers to send one after another."""
    head = _request_head(api_key, version, correlation_id, client_id)
    return _write(request_encoder(api_key, version), request, head)


def encode_request_in_steps(
    api_key: int, version: int, correlation_id: int, client_id: str | None, request: Any
) -> Work[list[Buffer]]:
    """Do as ``encode_request`` where a request may be long."""
    head = _request_head(api_key, version, correlation_id, client_id)
    return _write_in_steps(request_encoder(api_key, version, in_steps=True), request, head)


def _request_head(
    api_key: int, version: int, correlation_id: int, client_id: str | None
) -> bytearray:
    client = client_id.encode() if client_id is not None else b""
    length = -1 if client_id is None else len(client)
    head = bytearray(4) + _HEADER.pack(api_key, version, correlation_id, length) + client
    if is_flexible(api_key, version):
        head.append(0)
    return head


class EncodedRequest(NamedTuple):
    """A request's message as bytes, without size and header: made once, sent to many."""

    api_key: int
    version: int
    message: list[Buffer]


def encode_message(api_key: int, version: int, request: Any) -> bytes:
    """Write a request's message alone, for an ``EncodedRequest``."""
    head = 4 + _HEADER.size + is_flexible(api_key, version)
    return b"".join(encode_request(api_key, version, 0, None, request))[head:]


def frame_request(encoded: EncodedRequest, correlation_id: int, client_id: str) -> list[Buffer]:
    """Put size and header before an encoded request: buffers to send one after another."""
    api_key, version, message = encoded
    head = _request_head(api_key, version, correlation_id, client_id)
    struct.pack_into(">i", head, 0, len(head) + sum(map(len, message)) - 4)
    return [head, *message]


def encode_response(api_key: int, version: int, correlation_id: int, response: Any) -> list[Buffer]:
    """Write a response with its size and header: buffers to send one after another."""
    head = _response_head(api_key, version, correlation_id)
    return _write(response_encoder(api_key, version), response, head)


def encode_response_in_steps(
    api_key: int, version: int, correlation_id: int, response: Any
) -> Work[list[Buffer]]:
    """Do as ``encode_response`` where a response may be long."""
    head = _response_head(api_key, version, correlation_id)
    return _write_in_steps(response_encoder(api_key, version, in_steps=True), response, head)


def _response_head(api_key: int, version: int, correlation_id: int) -> bytearray:
    head = bytearray(_SIZE_AND_CORRELATION.pack(0, correlation_id))
    if is_flexible(api_key, version) and api_key != ApiKey.API_VERSIONS:
        head.append(0)
    return head


def _write_in_steps(encode: Any, message: Any, head: bytearray) -> Work[list[Buffer]]:
    chunks: list[Buffer] = []
    last = yield from encode(message, chunks, head)
    if last or not chunks:
        chunks.append(last)
    struct.pack_into(">i", head, 0, sum(map(len, chunks)) - 4)
    return chunks


def _write(encode: compiler.Encoder, message: Any, buffer: bytearray) -> list[Buffer]:
    chunks: list[Buffer] = []
    try:
        last = encode(message, chunks, buffer)
    except (struct.error, AttributeError, TypeError, ValueError) as error:
        raise EncodeError(f"{type(message).__name__} cannot be written: {error}") from error
    chunks.append(last)
    head = chunks[0]
    assert isinstance(head, bytearray)
    struct.pack_into(">i", head, 0, sum(map(len, chunks)) - 4)
    return chunks
