"""The compiled codec against the generic one, for every API, version and message."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.drawn_seed import drawn_seed
from tests.wire import reference_codec
from tidelog.model.api_keys import ApiKey
from tidelog.protocol import codec, schema
from tidelog.protocol.schema import Api, Message

CASES = reference_codec.everything()


def compiled_encode(api: Api, message: Message, version: int, value: Any) -> bytes:
    make = codec.request_encoder if message is api.request else codec.response_encoder
    chunks: list[Any] = []
    last = make(api.key, version)(value, chunks, bytearray())
    if message is api.response:
        again: list[Any] = []
        in_steps: Any = make(api.key, version, in_steps=True)
        again.append(done(in_steps(value, again, bytearray())))
        assert b"".join(again) == b"".join([*chunks, last])
    return b"".join([*chunks, last])


def done(steps: Any) -> Any:
    """What a codec in steps returns in the end."""
    while True:
        try:
            assert next(steps) == 0
        except StopIteration as end:
            return end.value


def compiled_decode(api: Api, message: Message, version: int, data: bytes) -> Any:
    make = codec.request_decoder if message is api.request else codec.response_decoder
    value, stop = make(api.key, version)(memoryview(data), 0)
    assert stop == len(data)
    if message is api.request:
        in_steps: Any = codec.request_decoder(api.key, version, in_steps=True)
        assert done(in_steps(memoryview(data), 0)) == (value, stop)
    return value


@pytest.mark.parametrize("message", sorted({m.name for _, m, _ in CASES}))
def test_random_messages_have_the_same_bytes_and_come_back(message: str) -> None:
    seed = drawn_seed()
    rng = random.Random(seed)
    for api, found, version in CASES:
        if found.name != message:
            continue
        for _ in range(12):
            value = reference_codec.Generator(rng, found, version, tame=False).make()
            data = reference_codec.encode(api, found, version, value)
            assert compiled_encode(api, found, version, value) == data
            assert compiled_decode(api, found, version, data) == value
            assert reference_codec.decode(api, found, version, data) == value


def test_every_api_key_has_a_schema_of_that_key() -> None:
    for key in ApiKey:
        assert codec.api_of(key).key == key
    assert len(ApiKey) == len(schema.file_names())


def test_frames_come_back_with_their_headers() -> None:
    rng = random.Random(1)
    for api, message, version in CASES:
        value = reference_codec.Generator(rng, message, version, tame=False).make()
        if message is api.request:
            frame = b"".join(codec.encode_request(api.key, version, 77, "client", value))
            view = memoryview(frame)[4:]
            header = codec.decode_request_header(view)
            assert header[:4] == (api.key, version, 77, "client")
            assert done(codec.decode_request(api.key, version, view, header.body)) == value
        else:
            frame = b"".join(codec.encode_response(api.key, version, 77, value))
            assert codec.decode_response(api.key, version, memoryview(frame)[4:]) == (77, value)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
