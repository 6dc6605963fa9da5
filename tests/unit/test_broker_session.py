"""A broker's session with controllers that hang or answer nonsense."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.support.lone_broker import until

from tidelog.broker.session import ControllerSession, ForwardingRefused, Identity, Reported
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, Router
from tidelog.network.server import Server
from tidelog.protocol import codec, messages
from tidelog.replication.former_life import LastLife

SESSION_TIMEOUT_MS = 1_000


class Controller:
    """Answers registrations and heartbeats as it is told; a heartbeat, once told to hang, never."""

    def __init__(self) -> None:
        self.registration_errors: list[int] = []
        self.registrations = 0
        self.heartbeats = 0
        self.hangs = False
        self.active = True
        self.envelopes = 0

    async def listen(self) -> int:
        handlers = [
            Handler(ApiKey.BROKER_REGISTRATION, range(1), self._register),
            Handler(ApiKey.BROKER_HEARTBEAT, range(1), self._beat),
            Handler(ApiKey.ENVELOPE, range(1), self._unpack),
        ]
        self.server = Server(Router(handlers), self)
        return await self.server.listen("CONTROLLER", "127.0.0.1", 0)

    def _register(self, *_: object) -> Any:
        self.registrations += 1
        error = self.registration_errors.pop(0) if self.registration_errors else 0
        response = messages.BrokerRegistrationResponse
        return response(error_code=error, broker_epoch=self.registrations)

    def _beat(self, _: object, request: Any, __: object) -> Any:
        self.heartbeats += 1
        if self.hangs:
            return asyncio.get_running_loop().create_future()
        return messages.BrokerHeartbeatResponse(
            error_code=0 if self.active else ErrorCode.NOT_CONTROLLER,
            should_shut_down=request.want_shut_down,
        )

    def _unpack(self, _: object, request: Any, __: object) -> Any:
        self.envelopes += 1
        if not self.active:
            return messages.EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
        answer = messages.DeleteTopicsResponse(responses=[])
        chunks = codec.encode_response(ApiKey.DELETE_TOPICS, 4, 0, answer)
        return messages.EnvelopeResponse(response_data=b"".join(chunks)[4:])


def run(
    story: Callable[[list[Controller], ControllerSession], Coroutine[Any, Any, None]],
    heartbeat_ms: int = 50,
) -> None:
    async def main() -> None:
        controllers = [Controller(), Controller()]
        addresses = [("127.0.0.1", await each.listen()) for each in controllers]
        session = ControllerSession(
            addresses,
            heartbeat_ms,
            SESSION_TIMEOUT_MS,
            30_000,
            lambda: Reported(LastLife.CLEAN, -1, -1, []),
            lambda _: None,
        )
        session.start(Identity(1, "c", uuid.uuid4(), uuid.uuid4(), [], None))
        try:
            await asyncio.wait_for(story(controllers, session), 20)
        finally:
            await session.stop()
            for each in controllers:
                await each.server.stop(0.1)

    asyncio.run(main())


def test_a_controller_that_hangs_is_left_before_the_session_ends() -> None:
    """Promise 24."""

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        first, second = controllers
        await until(lambda: first.heartbeats > 2)
        first.hangs = True
        hung_at = first.heartbeats
        await until(lambda: first.heartbeats > hung_at)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await until(lambda: second.registrations == 1, deadline_s=15)
        assert loop.time() - began < 10 * SESSION_TIMEOUT_MS / 1000
        await until(lambda: second.heartbeats > 2)
        assert session.broker_epoch == 1

    run(story)


def test_an_answer_that_makes_no_sense_is_not_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        # Said before the session's first connection can be open.
        controllers[0].registration_errors = [12_345]
        await until(lambda: controllers[1].heartbeats > 0)
        assert controllers[0].registrations == 1

    run(story)
    assert "12345" in caplog.text


def test_a_broker_that_leaves_does_not_wait_for_its_next_heartbeat() -> None:
    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        await until(lambda: controllers[0].heartbeats == 1)
        session.ask_to_leave()
        await asyncio.wait_for(session.should_shut_down.wait(), 15)

    run(story, heartbeat_ms=3_600_000)


def test_a_connection_that_ends_is_noticed_before_the_next_heartbeat() -> None:
    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        first, second = controllers
        await until(lambda: first.heartbeats == 1)
        for connection in list(first.server.connections):
            connection.abort()
        await until(lambda: second.registrations == 1, deadline_s=15)

    run(story, heartbeat_ms=3_600_000)


async def forwarded(session: ControllerSession, timeout_ms: int) -> Any:
    request = messages.DeleteTopicsRequest(topic_names=[], timeout_ms=0)
    return await session.forward(ApiKey.DELETE_TOPICS, 4, request, "127.0.0.1", timeout_ms)


def test_a_forwarded_request_finds_the_next_controller() -> None:
    """A paused controller wakes, and brokers are still with it: no client is told of that."""

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        first, second = controllers
        await forwarded(session, 10_000)
        first.active = False
        await forwarded(session, 10_000)
        assert (first.envelopes, second.envelopes) == (2, 1)
        assert second.registrations == 1

    run(story, heartbeat_ms=3_600_000)


def test_a_forwarded_request_does_not_wait_for_a_controller_longer_than_it_may() -> None:
    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        for each in controllers:
            each.active = False
        with pytest.raises(ForwardingRefused, match="NOT_CONTROLLER"):
            await forwarded(session, 500)
        assert 2 <= sum(each.envelopes for each in controllers) <= 6

    run(story, heartbeat_ms=3_600_000)
