"""The rights of a request in an Envelope: those of the client that it names, over real sockets.

The broker that forwards it has proved the cluster secret; its client has not, or has (decision
0132). The controller's audit line names the client's address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.support.authorization import REFUSED, World, world_in
from tests.support.lone_broker import Peer, until
from tests.support.proofs import prove, proven
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.principals import ANONYMOUS, PROCESS, Principal
from tidelog.network.forwarded import FORWARDED
from tidelog.network.router import Scope
from tidelog.protocol import codec, messages, principal_data

ACCEPT = messages.RestoredStoreRequest(accept=True)
NOT_GONE_BACK = int(ErrorCode.INVALID_REQUEST)
"""What an operator with the secret gets for it from a store that is no restored one."""

CLIENT_HOST = "127.0.0.2"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def frame_of(request: Any, version: int, key: ApiKey) -> bytes:
    return b"".join(codec.encode_request(key, version, 7, "c", request))[4:]


def envelope(principal: bytes | None, host: bytes = b"10.1.2.3") -> messages.EnvelopeRequest:
    return messages.EnvelopeRequest(frame_of(ACCEPT, 0, ApiKey.RESTORED_STORE), principal, host)


def inner_error(answer: messages.EnvelopeResponse) -> int:
    assert answer.error_code == 0, answer
    found = codec.decode_response(ApiKey.RESTORED_STORE, 0, memoryview(answer.response_data or b""))
    assert found[0] == 7
    return int(found[1].error_code)


async def a_broker(world: World) -> Peer:
    """A connection to the controller that may send Envelopes."""
    return await proven(world.port("controller"), world.proof)


def audited(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    lines = [r.getMessage() for r in caplog.records if r.name == "tidelog.audit"]
    return [line for line in lines if text in line]


def test_an_envelope_lends_no_right_of_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with world_in(tmp_path) as world:
            before = world.state()
            broker = await a_broker(world)
            users = (ANONYMOUS, Principal("User", "cluster-secret"), Principal("process", "x"))
            for user in users:
                answer = await broker.ask(envelope(principal_data.encode(user)), 0)
                assert inner_error(answer) == REFUSED
            assert world.state() == before
            # The broker's own connection goes on, with its own rights.
            answer = await broker.ask(envelope(principal_data.encode(PROCESS)), 0)
            assert inner_error(answer) == NOT_GONE_BACK
            server = world.controller.server
            assert server is not None
            assert server.audit.refused_by_api == {ApiKey.RESTORED_STORE: len(users)}

    with caplog.at_level(logging.WARNING, "tidelog.audit"):
        run(work())
    assert audited(caplog, "refused RestoredStore")[0] == (
        "refused RestoredStore from 10.1.2.3: it is for brokers, and was asked without a proof of "
        "the cluster secret; forwarded by the broker at 127.0.0.1, on CONTROLLER"
    )


def test_a_hole_in_a_broker_is_none_in_the_controller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that forwards what it should have refused: a real one, with the check taken out."""

    async def work() -> None:
        async with world_in(tmp_path) as world:
            router = world.broker.server.router
            hole = router.route(ApiKey.RESTORED_STORE, 0, trusted=True)
            assert hole is not None
            router.client_routes[ApiKey.RESTORED_STORE << 16] = hole
            client = await Peer.connect(world.port("broker"), CLIENT_HOST)
            answer = await client.ask(ACCEPT, 0)
            assert answer.error_code == REFUSED
            # The same client with a proof of its own is an operator.
            await prove(client, world.proof)
            assert (await client.ask(ACCEPT, 0)).error_code == NOT_GONE_BACK

    with caplog.at_level(logging.WARNING, "tidelog.audit"):
        run(work())
    (line,) = audited(caplog, "refused RestoredStore")
    assert f"from {CLIENT_HOST}: " in line
    assert "forwarded by the broker at 127.0.0.1" in line


def test_an_envelope_of_an_earlier_release_is_judged_as_its_broker_judged(tmp_path: Path) -> None:
    async def work() -> None:
        async with world_in(tmp_path) as world:
            broker = await a_broker(world)
            for empty in (b"", None):
                assert inner_error(await broker.ask(envelope(empty), 0)) == NOT_GONE_BACK

    run(work())
    # No other request that is forwarded has rights that a client lacks.
    others = {key for key, row in FORWARDED.items() if row.scope is not Scope.CLIENT}
    assert others == {ApiKey.RESTORED_STORE}


NO_PRINCIPALS = {
    "cut": principal_data.encode(ANONYMOUS)[:-2],
    "longer": principal_data.encode(ANONYMOUS) + b"\0",
    "another version": b"\0\1" + principal_data.encode(ANONYMOUS)[2:],
    "no name": principal_data.encode(Principal("User", "")),
    "no type": principal_data.encode(Principal("", "x")),
    "a line break": principal_data.encode(Principal("User", "x\nrefused Y from 10.0.0.1")),
    "100 kB": principal_data.encode(Principal("User", "x" * 100_000)),
    "a token": principal_data.encode(ANONYMOUS)[:-2] + b"\1\0",
    "a null name": b"\0\0\5User\0\0\0",
    "not UTF-8": b"\0\0\5User\2\xff\0\0",
    "one byte": b"\0",
}


def test_a_principal_that_cannot_be_read_is_no_process(tmp_path: Path) -> None:
    async def work() -> None:
        async with world_in(tmp_path) as world:
            before = world.state()
            broker = await a_broker(world)
            for name, data in NO_PRINCIPALS.items():
                answer = await broker.ask(envelope(data), 0)
                assert answer.error_code == ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, name
                assert not answer.response_data
            for host in (b"10.0.0.1\n", b"\xff", b"1" * 256):
                answer = await broker.ask(envelope(principal_data.encode(PROCESS), host), 0)
                assert answer.error_code == ErrorCode.INVALID_REQUEST, host
            assert world.state() == before

    run(work())


def test_a_broker_names_its_client(tmp_path: Path) -> None:
    """What reaches the controller's handler of a request that a client sent to a broker."""
    seen: list[Any] = []

    async def work() -> None:
        async with world_in(tmp_path) as world:
            controller = world.controller.server
            assert controller is not None
            for trusted in (True, False):
                route = controller.router.route(ApiKey.DELETE_TOPICS, 6, trusted)
                assert route is not None
                handle = route.handle

                def noting(state: Any, request: Any, context: Any, handle: Any = handle) -> Any:
                    seen.append(context)
                    return handle(state, request, context)

                route.handle = noting
            client = await Peer.connect(world.port("broker"), CLIENT_HOST)
            request = messages.DeleteTopicsRequest
            deletion = request([request.DeleteTopicState("t")], timeout_ms=20_000)
            assert (await client.ask(deletion, 6)).responses[0].error_code == 0
            await until(lambda: "t" not in world.controller.cluster.topics)

    run(work())
    (context,) = seen
    assert (context.principal, context.client_host) == (ANONYMOUS, CLIENT_HOST)
    assert context.forwarded and not context.connection.is_trusted
    assert context.carrier.is_trusted and context.carrier.client_host == "127.0.0.1"
    with pytest.raises(RuntimeError, match="cannot prove"):
        context.connection.trust()
    context.connection.close("planted")
