"""Golden bytes of the responses that refuse whole requests, of each API in each version.

They were recorded when each API made its refusals by hand, except those of DescribeConfigs, which
had none.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.authorization import codes_in
from tests.support.refusals import samples
from tidelog.broker import handlers as broker_handlers
from tidelog.controller import handlers as controller_handlers
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, refusal
from tidelog.network.stepping import ENCODED_AT_ONCE_BYTES
from tidelog.protocol import codec
from tidelog.protocol.refusals import refused, refused_in_steps

FILE = Path(__file__).parents[1] / "fixtures" / "refusals.json"
GOLDEN: dict[str, str | None] = json.loads(FILE.read_text())
"""Frames by "API VERSION REQUEST SIDE": the side is the server whose handler failed, or "sentence",
where the handler refuses with one."""

SERVED: dict[tuple[str, ApiKey], Handler] = {
    (side, handler.api_key): handler
    for side, module in (("broker", broker_handlers), ("controller", controller_handlers))
    for handler in module.HANDLERS
}


def frame(api_key: ApiKey, version: int, response: object) -> str | None:
    if response is None:
        return None
    return b"".join(codec.encode_response(api_key, version, 7, response)).hex()


@pytest.mark.parametrize("api_key", ApiKey, ids=lambda key: key.name)
def test_refusals_have_the_bytes_that_they_always_had(api_key: ApiKey) -> None:
    for case, golden in GOLDEN.items():
        name, number, kind, side = case.split()
        if name != api_key.name:
            continue
        version = int(number)
        request = samples(api_key, version)[kind]
        if side == "sentence":
            error, why = ErrorCode.REQUEST_TIMED_OUT, "why"
            made = refused(api_key, version, request, error, why)
        else:
            handler = SERVED[side, api_key]
            made = refusal(handler, request, ErrorCode.UNKNOWN_SERVER_ERROR, version)
        assert frame(api_key, version, made) == golden, case


def test_every_version_that_is_served_has_golden_bytes() -> None:
    served = {
        f"{key.name} {version} {kind} {side}"
        for (side, key), handler in SERVED.items()
        for version in handler.versions
        for kind in ("full", "empty")
    }
    assert served == {case for case in GOLDEN if not case.endswith("sentence")}


def test_a_request_without_a_response_gets_none() -> None:
    request = samples(ApiKey.PRODUCE, 9)["full"]
    request.acks = 0
    handler = SERVED["broker", ApiKey.PRODUCE]
    assert refusal(handler, request, ErrorCode.UNKNOWN_SERVER_ERROR, 9) is None


def test_a_refusal_of_very_many_elements_is_made_in_steps() -> None:
    request = samples(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0)["full"]
    request.topics[0].partitions *= 2_000
    steps = refused_in_steps(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request, ErrorCode.REQUEST_TIMED_OUT, "why"
    )
    turns = grown = 0
    while True:
        try:
            grown += next(steps) or 0
        except StopIteration as end:
            assert len(end.value.responses[0].partitions) == 4_000
            break
        turns += 1
    assert turns >= 4_000
    assert grown > ENCODED_AT_ONCE_BYTES, "the response is encoded in steps, too"


@pytest.mark.parametrize(
    "api_key",
    [ApiKey(number) for number in (*range(24, 29), ApiKey.DESCRIBE_TRANSACTIONS)],
    ids=lambda key: key.name,
)
def test_requests_of_transactions_can_be_refused_whole(api_key: ApiKey) -> None:
    """Their schemas have a place for the error of each item."""
    error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    for version in codec.api_of(api_key).all_versions():
        request = samples(api_key, version)["full"]
        response = refused(api_key, version, request, error)
        again = codec.decode_response(
            api_key, version, memoryview(bytes.fromhex(frame(api_key, version, response) or ""))[4:]
        )[1]
        codes = list(codes_in(again))
        if api_key is ApiKey.ADD_PARTITIONS_TO_TXN and version < 4:
            codes.remove(0)  # The error at the top, which these versions lack.
        assert codes and set(codes) == {error}, (api_key, version, again)
