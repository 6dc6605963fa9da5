"""Our own parts of the wire, byte for byte as docs/design/wire.md has them, and the messages of
reassignments, transactions, and the security of clients.

Both codecs and the classes come from the schema files, so that none of them notices a wrong schema;
these bytes were written out by hand. What is ours and has no bytes here fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.golden_bytes import COMMANDS, PRIVATE, Golden, unhex
from tests.wire.golden_reassignments import REASSIGNMENTS
from tests.wire.golden_security import SECURITY
from tests.wire.golden_tags import CLIENTS, PROCESSES
from tests.wire.golden_transactions import TRANSACTIONS
from tidelog.broker import handlers
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network import api_versions
from tidelog.network.router import Scope
from tidelog.protocol import codec, messages, schema
from tidelog.protocol.schema import Api, Field, Message
from tidelog.protocol.secret_exchange import MECHANISM, client_code, server_code
from tidelog.protocol.structs import default_of

GOLDEN = (*PRIVATE, *COMMANDS, *PROCESSES, *CLIENTS, *REASSIGNMENTS, *TRANSACTIONS, *SECURITY)
OURS_FROM = {ApiKey.LEADER_AND_ISR: 3, ApiKey.STOP_REPLICA: 4, ApiKey.UPDATE_METADATA: 8}
"""From which version on a published request is the documents' (docs/decisions/0002)."""

FIRST_KEY_OF_OURS = 10_000
FIRST_TAG_OF_OURS = 10_000


def name_of(golden: Golden) -> str:
    return f"{type(golden.message).__name__} v{golden.version}"


def is_request(golden: Golden) -> bool:
    return type(golden.message).__name__.endswith("Request")


@pytest.mark.parametrize("golden", GOLDEN, ids=name_of)
def test_a_message_is_written_and_read_as_the_design_says(golden: Golden) -> None:
    key, version, message, _ = golden
    if is_request(golden):
        written = codec.request_encoder(key, version)
        read = codec.request_decoder(key, version)
    else:
        written = codec.response_encoder(key, version)
        read = codec.response_decoder(key, version)
    chunks: list[Any] = []
    last = written(message, chunks, bytearray())
    assert b"".join([*chunks, last]).hex() == golden.body.hex()
    assert read(memoryview(golden.body), 0) == (message, len(golden.body))


# --- nothing of ours is without bytes ------------------------------------------------------------


def fields_of(message: Message, version: int, struct: str = "") -> Iterator[tuple[str, Field]]:
    """Each field that a message has in a version, with the name of its struct."""
    for field in message.structs[struct].fields if struct else message.fields:
        if version in field.versions:
            yield struct, field
            if field.type in message.structs:
                yield from fields_of(message, version, field.type)


def is_ours(api: Api, field: Field, version: int) -> bool:
    if api.key > FIRST_KEY_OF_OURS or (field.tag is not None and field.tag >= FIRST_TAG_OF_OURS):
        return True
    # Released Kafka's fields of these versions stand in the bytes as well, so that an order counts.
    return version >= OURS_FROM.get(ApiKey(api.key), version + 1)


def what_is_ours() -> Iterator[tuple[str, int, str, str]]:
    """Each field of ours: its message, the version, its struct, its name.

    A tag is asked for in the lowest version that has it and in the highest.
    """
    for api in map(schema.load, schema.file_names()):
        for message in (api.request, api.response):
            for version in api.all_versions():
                for struct, field in fields_of(message, version):
                    has_tag = [x for x in api.all_versions() if x in field.versions]
                    is_end = version in (has_tag[0], has_tag[-1])
                    is_tag = field.tag is not None and api.key not in OURS_FROM
                    if is_ours(api, field, version) and (is_end or not is_tag):
                        yield message.name, version, struct, field.name


def what_is_written(message: Message, version: int, value: Any, struct: str = "") -> Iterator[Any]:
    """Each field of a message that is not as by default, with the message, version and struct."""
    fields = message.structs[struct].fields if struct else message.fields
    for field in fields:
        found = getattr(value, field.name)
        if found != default_of(field, message.structs):
            yield message.name, version, struct, field.name
        if field.type in message.structs and found is not None:
            for each in found if field.array else [found]:
                yield from what_is_written(message, version, each, field.type)


@pytest.mark.parametrize(
    ("messages_of", "all_keys"),
    [
        (TRANSACTIONS, {22, *range(24, 29), 65, 66}),
        (SECURITY, {17, *range(29, 32), 36, *range(48, 52)}),
    ],
    ids=["transactions", "security"],
)
def test_every_field_has_bytes(messages_of: tuple[Golden, ...], all_keys: set[int]) -> None:
    keys = {golden.api_key for golden in messages_of}
    assert keys == all_keys
    written = {
        (name, struct, field)
        for golden in messages_of
        for name, _, struct, field in what_is_written(
            codec.api_of(golden.api_key).request
            if is_request(golden)
            else codec.api_of(golden.api_key).response,
            golden.version,
            golden.message,
        )
    }
    missing = {
        (message.name, struct, field.name)
        for key in keys
        for message in (codec.api_of(key).request, codec.api_of(key).response)
        for version in codec.api_of(key).all_versions()
        for struct, field in fields_of(message, version)
    } - written
    assert missing == set()


def test_everything_of_ours_has_bytes() -> None:
    known: set[tuple[str, int, str, str]] = set()
    for golden in GOLDEN:
        api = codec.api_of(golden.api_key)
        message = api.request if is_request(golden) else api.response
        known.update(what_is_written(message, golden.version, golden.message))
    versioned = {(name, struct, field) for name, _, struct, field in known}
    # In one version of a command it may be left out, so that its default is written, too.
    missing = {
        (name, version, struct, field)
        for name, version, struct, field in set(what_is_ours()) - known
        if not (name.startswith("LeaderAndIsr") and (name, struct, field) in versioned)
    }
    assert missing == set()


def test_responses_of_published_apis_have_tags_of_ours_only_if_the_client_asks() -> None:
    """A client of another project may read no tag that it does not know."""
    found = {
        (api.name, version)
        for handler in (*handlers.HANDLERS, api_versions.HANDLER)
        if handler.scope is Scope.CLIENT and handler.api_key < FIRST_KEY_OF_OURS
        for api in [codec.api_of(handler.api_key)]
        for version in handler.versions
        for _, field in fields_of(api.response, version)
        if field.tag is not None and field.tag >= FIRST_TAG_OF_OURS
    }
    asks = {
        ApiKey.METADATA: "include_counts",
        ApiKey.DESCRIBE_CLUSTER: "broker_id",
        ApiKey.OFFSET_FETCH: "include_expiry",
        ApiKey.LIST_TRANSACTIONS: "include_covered",
    }
    asked = {
        (codec.api_of(key).name, version)
        for key, name in asks.items()
        for version in codec.api_of(key).all_versions()
        for _, field in fields_of(codec.api_of(key).request, version)
        if field.name == name and field.tag is not None
    }
    assert found == asked != set()


# --- frames --------------------------------------------------------------------------------------


def test_a_command_goes_out_with_size_and_header() -> None:
    request = messages.OpenControlChannelRequest(controller_id=1, controller_epoch=2)
    frame = b"".join(codec.encode_request(ApiKey.OPEN_CONTROL_CHANNEL, 0, 77, "c1", request))
    expected = """
        0000002e                              # 46 bytes follow
        2713 0000 0000004d 0002 6331 00       # key 10003, version, correlation, client, no tags
        00000001 00000002 0000000000000000 0000000000000000 0000000000000000
        00
    """
    assert frame.hex() == unhex(expected).hex()
    answer = messages.OpenControlChannelResponse(error_code=11)
    frame = b"".join(codec.encode_response(ApiKey.OPEN_CONTROL_CHANNEL, 0, 77, answer))
    assert frame.hex() == unhex("00000008 0000004d 00 000b 00").hex()


def test_the_error_of_ours_has_its_number() -> None:
    assert ErrorCode.INVALID_PARTITION_METADATA == 0x04E5


# --- TIDELOG-SECRET ------------------------------------------------------------------------------

SECRET = b"a secret of the cluster"
CLIENT_NONCE, SERVER_NONCE = b"a" * 32, b"b" * 32
SERVER_PROOF = "c3e833b24da5d7c1a5356c2b6a6a5b4999b4d80c08bb85380b65d3a9e8734e02"
CLIENT_PROOF = "a77832b3e661ffc8917ae563293c4ea9317ff302d0e4d4fd9fd12e6caefd6e24"
"""HMAC-SHA256 of "server" or "client" and both nonces, the client's first: as openssl has them."""


def test_the_proofs_of_the_secret() -> None:
    assert server_code(SECRET, CLIENT_NONCE, SERVER_NONCE).hex() == SERVER_PROOF
    assert client_code(SECRET, CLIENT_NONCE, SERVER_NONCE).hex() == CLIENT_PROOF


def test_the_exchange_of_the_secret_byte_for_byte() -> None:
    said = [
        (
            ApiKey.SASL_HANDSHAKE,
            1,
            messages.SaslHandshakeRequest(mechanism=MECHANISM),
            f"0011 0001 0000004d 0001 63  000e {b'TIDELOG-SECRET'.hex()}",
        ),
        (
            ApiKey.SASL_AUTHENTICATE,
            2,
            messages.SaslAuthenticateRequest(auth_bytes=CLIENT_NONCE),
            f"0024 0002 0000004d 0001 63 00  21 {CLIENT_NONCE.hex()} 00",
        ),
        (
            ApiKey.SASL_AUTHENTICATE,
            2,
            messages.SaslAuthenticateRequest(auth_bytes=bytes.fromhex(CLIENT_PROOF)),
            f"0024 0002 0000004d 0001 63 00  21 {CLIENT_PROOF} 00",
        ),
    ]
    for key, version, request, expected in said:
        frame = b"".join(codec.encode_request(key, version, 77, "c", request))
        assert frame[4:].hex() == unhex(expected).hex()
    answer = messages.SaslAuthenticateResponse(
        auth_bytes=SERVER_NONCE + server_code(SECRET, CLIENT_NONCE, SERVER_NONCE)
    )
    frame = b"".join(codec.encode_response(ApiKey.SASL_AUTHENTICATE, 2, 77, answer))
    # No error and an empty message; 64 bytes; no lifetime.
    expected = f"0000004d 00  0000 01 41 {SERVER_NONCE.hex()}{SERVER_PROOF} 0000000000000000 00"
    assert frame[4:].hex() == unhex(expected).hex()
