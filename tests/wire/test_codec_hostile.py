"""Hostile bytes for every API and version: a clear error, never a crash or a swollen process."""

from __future__ import annotations

import random
import resource

import pytest

from tests.wire import reference_codec
from tidelog.model.work import finish
from tidelog.protocol import codec
from tidelog.protocol.codec import DecodeError
from tidelog.protocol.primitives import read_uvarint
from tidelog.protocol.schema import Api, Message

CASES = reference_codec.everything()
IDS = [f"{message.name}-v{version}" for _, message, version in CASES]


def frame_of(api: Api, message: Message, version: int, body: bytes) -> tuple[memoryview, int]:
    """Return a frame with a body and where the body begins."""
    if message is api.request:
        head = api.key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
        head += b"\0" if api.is_flexible(version) else b""
    else:
        head = bytes(4) + (b"\0" if api.is_flexible(version) and api.key != 18 else b"")
    return memoryview(head + body), len(head)


def read(api: Api, message: Message, version: int, frame: memoryview) -> object:
    if message is api.request:
        header = codec.decode_request_header(frame)
        return finish(codec.decode_request(header.api_key, header.api_version, frame, header.body))
    return codec.decode_response(api.key, version, frame)


def must_fail(api: Api, message: Message, version: int, frame: memoryview) -> None:
    with pytest.raises(DecodeError):
        read(api, message, version, frame)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80 01", 128),
        ("ff ff ff ff 0f", 2**32 - 1),
        ("ff ff ff ff 1f", None),
        ("80 80 80 80 10", None),
        ("ff ff ff ff ff 01", None),
    ],
)
def test_a_varint_has_32_bits(text: str, value: int | None) -> None:
    data = memoryview(bytes.fromhex(text))
    if value is None:
        with pytest.raises(DecodeError):
            read_uvarint(data, 1, data[0])
    else:
        assert read_uvarint(data, 1, data[0]) == (value, len(data))


@pytest.mark.parametrize(("api", "message", "version"), CASES, ids=IDS)
def test_hostile_bodies(api: Api, message: Message, version: int) -> None:
    rng = random.Random(f"{message.name}{version}")
    value = reference_codec.Generator(rng, message, version, tame=True).make()
    body = reference_codec.encode(api, message, version, value)
    frame, start = frame_of(api, message, version, body)
    read(api, message, version, frame)
    for cut in range(start, min(len(frame), start + 600)):
        must_fail(api, message, version, frame[:cut])
    longer = memoryview(bytes(frame) + b"\0")
    if message.name == "MetadataRequest":
        read(api, message, version, longer)  # docs/decisions/0005: librdkafka sends such bytes.
    else:
        must_fail(api, message, version, longer)
    for _ in range(150):
        flipped = bytearray(frame)
        for _ in range(rng.choice((1, 1, 2, 8))):
            if len(flipped) > start:
                flipped[rng.randrange(start, len(flipped))] ^= 1 << rng.randrange(8)
        read_or_refuse(api, message, version, memoryview(flipped))
    for _ in range(50):
        garbage = rng.randbytes(rng.choice((1, 4, 25, 300)))
        read_or_refuse(api, message, version, frame_of(api, message, version, garbage)[0])


def read_or_refuse(api: Api, message: Message, version: int, frame: memoryview) -> None:
    try:
        read(api, message, version, frame)
    except DecodeError:
        return
    except KeyError:
        # The flip hit the header's version; the router refuses what the schema does not have.
        return


@pytest.mark.parametrize(("api", "message", "version"), CASES, ids=IDS)
def test_huge_counts_cost_nothing(api: Api, message: Message, version: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    huge = b"\xff\xff\xff\xff\x0f" if api.is_flexible(version) else b"\x7f\xff\xff\xff"
    for zeros in range(24):
        frame, _ = frame_of(api, message, version, bytes(zeros) + huge * 3 + bytes(zeros))
        read_or_refuse(api, message, version, frame)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 32 * 1024


def test_unknown_tags_are_skipped_and_bounded() -> None:
    for api, message, version in CASES:
        if not api.is_flexible(version):
            continue
        rng = random.Random(3)
        value = reference_codec.Generator(rng, message, version, tame=True).make()
        for field in message.fields:
            if field.tag is not None:
                setattr(value, field.name, getattr(type(value)(), field.name))
        body = reference_codec.encode(api, message, version, value)
        assert body[-1] == 0
        tagged = body[:-1] + b"\x01" + b"\xff\x7f" + b"\x03abc"
        frame, _ = frame_of(api, message, version, tagged)
        read(api, message, version, frame)
        many = body[:-1] + b"\xff\x7f" + b"\x7f\x00" * 16383
        must_fail(api, message, version, frame_of(api, message, version, many)[0])
        cut = body[:-1] + b"\x01\x7f\x7fabc"
        must_fail(api, message, version, frame_of(api, message, version, cut)[0])


def test_overlong_varints_are_refused() -> None:
    """A count has five bytes at most, and no bits above its 32."""
    refused = 0
    for api, message, version in CASES:
        if not api.is_flexible(version):
            continue
        value = reference_codec.Generator(random.Random(5), message, version, tame=True).make()
        for field in message.fields:
            if field.tag is not None:
                setattr(value, field.name, getattr(type(value)(), field.name))
        body = reference_codec.encode(api, message, version, value)
        assert body[-1] == 0, "the count of tags"
        for count in (b"\x80" * 5 + b"\0", b"\x80" * 500 + b"\0", b"\xff" * 4 + b"\x7f", b"\x80"):
            must_fail(api, message, version, frame_of(api, message, version, body[:-1] + count)[0])
            refused += 1
    assert refused > 200


@pytest.mark.parametrize(
    "head",
    [b"", b"\0", b"\0\x12\0\x03", b"\0\x12\0\x03\0\0\0\1", b"\0\x12\0\x03\0\0\0\1\0\x05ab",
     b"\0\x12\0\x03\0\0\0\1\xff\xfe", b"\0\x12\0\x03\0\0\0\1\0\x02\xff\xfe\0",
     b"\0\x12\0\x03\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\x7f"],
)  # fmt: skip
def test_hostile_headers(head: bytes) -> None:
    with pytest.raises(DecodeError):
        codec.decode_request_header(memoryview(head))


def test_a_message_may_not_announce_millions_of_elements() -> None:
    # Sixteen million empty strings would be a legal array of 16 MB.
    api = codec.api_of(42)
    body = (16_000_000 + 1).to_bytes(4, "little")
    count = 16_000_000 + 1
    varint = b""
    while count > 0x7F:
        varint += bytes([count & 0x7F | 0x80])
        count >>= 7
    varint += bytes([count])
    body = varint + b"\x01" * 16_000_000 + b"\0"
    must_fail(api, api.request, 2, frame_of(api, api.request, 2, body)[0])
