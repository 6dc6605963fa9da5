"""A broker's session with controllers that hang or answer nonsense."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from tests.support.lone_broker import until
from tests.support.processes import DEADLINE_S
from tidelog.broker.control_plane.controller_search import ENDED
from tidelog.broker.control_plane.envelopes import (
    MAX_FORWARDING,
    Check,
    ForwardingRefused,
    unchecked,
)
from tidelog.broker.control_plane.forwarding import ClientGone
from tidelog.broker.control_plane.session import (
    MAX_UNANSWERED,
    RETRY_MS,
    ControllerSession,
    ControllerUnreachable,
    Identity,
    Reported,
)
from tidelog.client.connecting.patience import GrowingTimeout, is_over, patience_ms
from tidelog.client.errors import ClientError, ConnectionLost, ProofFailed, RequestTimedOut
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.principals import ANONYMOUS
from tidelog.model.registration import FormerRegistration
from tidelog.network import api_versions
from tidelog.network.requester import Requester
from tidelog.network.router import Handler, Router, Scope
from tidelog.network.server import Server
from tidelog.protocol import codec, messages

SESSION_TIMEOUT_MS = 60_000
"""So long that no answer is late because the machine is busy."""


class Controller:
    """Answers registrations and heartbeats as configured; once ``hangs``, no heartbeat."""

    def __init__(self) -> None:
        self.registration_errors: list[int] = []
        self.registrations = 0
        self.keeps_registrations = False
        self.heartbeats = 0
        self.heartbeat_ms = -1
        self.hangs = False
        self.active = True
        self.envelopes = 0
        self.keeps_envelopes = False
        self.pauses: asyncio.Future[None] | None = None
        self.descriptions: list[messages.DescribeClusterResponse] = []
        """The responses to a broker that names itself, one after another."""

    async def listen(self, port: int = 0) -> int:
        handlers = [
            Handler(ApiKey.BROKER_REGISTRATION, Scope.BROKER, self._register),
            Handler(ApiKey.BROKER_HEARTBEAT, Scope.BROKER, self._beat, pipelined=True),
            Handler(ApiKey.ENVELOPE, Scope.BROKER, self._unpack),
            Handler(ApiKey.DESCRIBE_CLUSTER, Scope.CLIENT, self._describe, versions=range(1)),
        ]
        self.server = Server(Router([api_versions.HANDLER, *handlers]), self)
        self.port = await self.server.listen("CONTROLLER", "127.0.0.1", port)
        return self.port

    def _register(self, *_: object) -> Any:
        if self.keeps_registrations:
            return asyncio.get_running_loop().create_future()
        self.registrations += 1
        error = self.registration_errors.pop(0) if self.registration_errors else 0
        response = messages.BrokerRegistrationResponse
        return response(
            error_code=error, broker_epoch=self.registrations, heartbeat_ms=self.heartbeat_ms
        )

    def _describe(self, _: object, request: Any, __: object) -> Any:
        if request.broker_id >= 0 and self.descriptions:
            return self.descriptions.pop(0)
        is_standby = bool(self.registration_errors) or not self.active
        error = ErrorCode.NOT_CONTROLLER if is_standby else ErrorCode.NONE
        return messages.DescribeClusterResponse(error_code=error, cluster_id="c")

    def _beat(self, _: object, request: Any, __: object) -> Any:
        self.heartbeats += 1
        if self.hangs:
            return asyncio.get_running_loop().create_future()
        if self.pauses is not None:
            return self._later(self.pauses)
        return messages.BrokerHeartbeatResponse(
            error_code=0 if self.active else ErrorCode.NOT_CONTROLLER,
            should_shut_down=request.want_shut_down,
        )

    async def _later(self, event: asyncio.Future[None]) -> Any:
        await event
        return messages.BrokerHeartbeatResponse()

    def _unpack(self, _: object, request: Any, __: object) -> Any:
        self.envelopes += 1
        if self.keeps_envelopes:
            return asyncio.get_running_loop().create_future()
        if not self.active:
            return messages.EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
        answer = messages.DeleteTopicsResponse(responses=[])
        chunks = codec.encode_response(ApiKey.DELETE_TOPICS, 4, 0, answer)
        return messages.EnvelopeResponse(response_data=b"".join(chunks)[4:])


async def _registered(_broker_epoch: int) -> None:
    pass


def run(
    story: Callable[[list[Controller], ControllerSession], Coroutine[Any, Any, None]],
    heartbeat_ms: int = 50,
    count: int = 2,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    silence_ms: int | None = None,
    **more: Any,
) -> None:
    async def main() -> None:
        controllers = [Controller() for _ in range(count)]
        addresses = [("127.0.0.1", await each.listen()) for each in controllers]
        session = ControllerSession(
            addresses,
            heartbeat_ms,
            session_timeout_ms,
            30_000,
            lambda: Reported(FormerRegistration.CLEAN, -1, -1, []),
            _registered,
            silence_ms=silence_ms,
            **more,
        )
        session.start(Identity(1, "c", uuid.uuid4(), uuid.uuid4(), [], None))
        try:
            await asyncio.wait_for(story(controllers, session), DEADLINE_S)
        finally:
            await session.stop()
            for each in controllers:
                await each.server.stop(0.1)

    asyncio.run(main())


def test_a_controller_that_hangs_is_left_before_the_session_ends() -> None:
    """Promise 24."""
    short_ms = 1_000

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        first, second = controllers
        await until(lambda: first.heartbeats > 2)
        session.search.least_ms = short_ms * 2 // 3
        first.hangs = True
        hung_at = first.heartbeats
        await until(lambda: first.heartbeats > hung_at)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await until(lambda: second.registrations)
        assert loop.time() - began < 10 * short_ms / 1000
        await until(lambda: second.heartbeats > 2)
        assert session.broker_epoch == second.registrations

    run(story)


def test_patience_doubles_to_a_bound() -> None:
    asked = (0, 1, 2, 3, 4, 10**9)
    assert [patience_ms(2_000, each) for each in asked] == [2_000, 4_000, 8_000] + [16_000] * 3


def test_time_outs_are_counted_until_an_answer_and_nothing_else_is() -> None:
    patience = GrowingTimeout(100)
    for failure, expected in (
        (RequestTimedOut("slow"), 200),
        (ConnectionLost("it did not accept"), 200),
        (RequestTimedOut("slow"), 400),
        (ProofFailed("another secret"), 400),
    ):
        with pytest.raises(type(failure)), patience.counted():
            raise failure
        assert patience.now_ms == expected
    patience.answered()
    assert (patience.now_ms, patience.least_ms) == (100, 100)


def waited(caplog: pytest.LogCaptureFixture, port: int | None = None) -> list[int]:
    """How long the session waited, in ms, in each try to begin (with one controller) that timed
    out."""
    said = r"did not (?:respond to BrokerRegistration|complete .+) within (\d+) ms"
    said = said if port is None else f":{port} {said}"
    found = (re.search(said, each) for each in caplog.messages)
    return [int(each[1]) for each in found if each is not None]


def test_a_controller_that_is_slow_to_register_a_broker_gets_longer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker that always gave up after the same time never registered."""
    caplog.set_level(logging.DEBUG)
    growing = [60, 120, 240, 480, 480]

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        (controller,) = controllers
        # Said before the session's first connection can be open.
        controller.keeps_registrations = True
        await until(lambda: len(waited(caplog)) >= 5)
        controller.keeps_registrations = False
        await until(lambda: session.registrations == 1)
        # Registered, it begins at the shortest wait with the next failure.
        controller.keeps_registrations = True
        for connection in list(controller.server.connections):
            connection.abort()
        tries = len(waited(caplog))
        await until(lambda: len(waited(caplog)) >= tries + 2)
        assert waited(caplog)[tries : tries + 2] == growing[:2]

    run(story, heartbeat_ms=3_600_000, count=1, session_timeout_ms=90)
    assert waited(caplog)[:5] == growing


def test_a_controller_that_is_slow_to_greet_gets_longer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        session = ControllerSession(
            [("127.0.0.1", server.sockets[0].getsockname()[1])],
            *(50, 90, 30_000),
            lambda: Reported(FormerRegistration.CLEAN, -1, -1, []),
            _registered,
        )
        session.start(Identity(1, "c", uuid.uuid4(), uuid.uuid4(), [], None))
        try:
            await until(lambda: len(waited(caplog)) >= 3)
        finally:
            await session.stop()
            server.close()

    asyncio.run(main())
    assert waited(caplog)[:3] == [60, 120, 240]


def test_a_controller_that_hangs_costs_the_least_time_while_another_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Promise 24: the next controller is found as fast as ever, however long that takes."""
    caplog.set_level(logging.DEBUG)

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        first, second = controllers
        first.keeps_registrations = True
        second.registration_errors = [int(ErrorCode.NOT_CONTROLLER)]
        await until(lambda: session.registrations == 1)

    run(story, heartbeat_ms=3_600_000, session_timeout_ms=1_500)
    assert waited(caplog) == [1_000, 1_000]


@pytest.mark.parametrize(
    ("waited_ms", "another", "expected"),
    [
        (399, True, False),
        (400, True, True),
        (400, False, False),
        (1_599, False, False),
        (1_600, False, True),
        (1_600, True, True),
    ],
)
def test_when_a_wait_for_one_of_several_is_over(
    waited_ms: int, another: bool, expected: bool
) -> None:
    assert is_over(waited_ms, 1_600, 400, another) is expected
    # With only the least patience left, other controllers do not matter.
    assert is_over(waited_ms, 400, 400, another) is (waited_ms >= 400)


def test_a_slow_controller_gets_longer_though_a_fast_standby_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is the active one: no other will register this broker."""
    caplog.set_level(logging.DEBUG)
    ports: list[int] = []

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        slow, standby = controllers
        slow.keeps_registrations = True
        standby.registration_errors = [int(ErrorCode.NOT_CONTROLLER)] * 1_000
        ports.append(session.search.address[1])
        await until(lambda: len(waited(caplog, ports[0])) >= 3)
        slow.keeps_registrations = False
        await until(lambda: session.registrations == 1)
        assert (slow.registrations, standby.registrations > 2) == (1, True)

    run(story, heartbeat_ms=3_600_000, session_timeout_ms=900)
    assert waited(caplog, ports[0])[:3] == [600, 1_200, 2_400]


def test_a_takeover_is_found_in_the_midst_of_a_long_wait(caplog: pytest.LogCaptureFixture) -> None:
    """Promise 24: the wait for one that hangs is over when another says that it is active."""
    caplog.set_level(logging.DEBUG)
    ports: list[int] = []

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        hung, standby = controllers
        hung.keeps_registrations = True
        standby.registration_errors = [int(ErrorCode.NOT_CONTROLLER)] * 1_000
        ports.append(session.search.address[1])
        await until(lambda: len(waited(caplog, ports[0])) >= 2)
        refused = standby.registrations
        await until(lambda: standby.registrations > refused)
        standby.registration_errors = []
        await until(lambda: session.registrations == 1)

    run(story, heartbeat_ms=3_600_000, session_timeout_ms=900)
    # At the first look of the third wait, or a later one if the standby answered none in time.
    assert waited(caplog, ports[0])[:2] == [600, 1_200]
    assert waited(caplog, ports[0])[2] < 2_400


def test_a_refused_registration_is_said_once_with_the_way_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was a line twice a second for ever, and the way out in the controller's log alone."""

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        (only,) = controllers
        only.registration_errors = [int(ErrorCode.DUPLICATE_BROKER_REGISTRATION)] * 4
        await until(lambda: session.registrations == 1)
        assert only.registrations == 5

    run(story, count=1)
    (line,) = [each for each in caplog.messages if "refused the registration" in each]
    assert "DUPLICATE_BROKER_REGISTRATION: the node id is taken" in line
    assert "another node.id" in line and "log.dirs" in line


@pytest.mark.parametrize("takes", [True, False])
def test_a_broker_with_a_wrong_id_asks_until_the_controller_says_whose_mistake_it_was(
    *, takes: bool
) -> None:
    """Seen once in a run: the controller loaded its lost store again just then, and a broker on an
    empty disk ended with an error."""
    taken: list[str] = []

    async def take(cluster_id: str) -> bool:
        taken.append(cluster_id)
        return takes

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        (one,) = controllers
        wrong, described = ErrorCode.INCONSISTENT_CLUSTER_ID, messages.DescribeClusterResponse
        one.registration_errors += [wrong, wrong]
        one.descriptions += [
            described(error_code=ErrorCode.NOT_CONTROLLER),
            described(cluster_id="right", founded_as="c"),
        ]
        if takes:
            await session.registered(DEADLINE_S * 1000)
            assert one.registrations == 3 and not session.refusals.failed.done()
        else:
            assert "INCONSISTENT_CLUSTER_ID" in await session.refusals.failed
            assert one.registrations >= 2
        assert taken == ["right"] and not one.descriptions

    run(story, count=1, take_cluster_id=take)


@pytest.mark.parametrize(("asked_ms", "warnings"), [(666, 0), (20, 1), (-1, 0)])
def test_times_that_differ_from_the_controllers_are_said_once(
    asked_ms: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        first, second = controllers
        first.heartbeat_ms = second.heartbeat_ms = asked_ms
        for count in (1, 2):
            await until(lambda count=count: session.registrations == count and session.is_open)
            assert session._connection is not None
            session._connection.close()
        await until(lambda: session.registrations == 3)

    run(story, silence_ms=2_000)
    said = [x.message for x in caplog.records if "asks for a heartbeat every" in x.message]
    assert len(said) == warnings
    assert all("20 ms" in line and "broker.session.timeout.ms" in line for line in said)


def test_a_broker_beats_as_often_as_its_controller_asks_for() -> None:
    """Its own file has a longer interval, and the controller's says that so long is a silence."""

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        first, second = controllers
        # Said before the session's first connection can be open.
        first.heartbeat_ms = 20
        await until(lambda: first.heartbeats > 3)
        # One that does not say leaves it to the broker, and a longer interval is not asked for.
        for other, asked_ms in ((second, -1), (first, 90_000)):
            beaten = other.heartbeats
            other.heartbeat_ms = asked_ms
            connection = session._connection
            assert connection is not None
            for each in controllers:
                each.active = each is other
            connection.close()
            await until(lambda other=other, beaten=beaten: other.heartbeats > beaten)
            assert session._pace.ms == 60_000

    run(story, heartbeat_ms=60_000)


def test_a_search_without_success_is_one_line_and_the_next_end_is_said_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each attempt was one, two a second, while a controller was away for hours."""
    caplog.set_level(logging.DEBUG)

    def said(level: int) -> list[str]:
        found = [record for record in caplog.records if ENDED in record.getMessage()]
        return [record.getMessage() for record in found if record.levelno == level]

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        (controller,) = controllers

        def counted(registrations: int) -> bool:
            return session.registrations >= registrations

        def tried(times: int) -> bool:
            return len(said(logging.DEBUG)) >= times

        for end in (1, 2):
            await until(partial(counted, end))
            await controller.server.stop(0.1)
            tries = len(said(logging.DEBUG)) + 2
            await until(partial(tried, tries))
            assert len(said(logging.INFO)) == end
            await controller.listen(controller.port)

    run(story, heartbeat_ms=3_600_000, count=1)


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
        await session.should_shut_down.wait()

    run(story, heartbeat_ms=3_600_000)


def test_a_connection_that_ends_is_noticed_before_the_next_heartbeat() -> None:
    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        first, second = controllers
        await until(lambda: first.heartbeats == 1)
        for connection in list(first.server.connections):
            connection.abort()
        await until(lambda: second.registrations == 1)

    run(story, heartbeat_ms=3_600_000)


async def forwarded(session: ControllerSession, timeout_ms: int, check: Check = unchecked) -> Any:
    request = messages.DeleteTopicsRequest(topic_names=[], timeout_ms=0)
    inner = codec.encode_request(ApiKey.DELETE_TOPICS, 4, 0, None, request)
    return await session.forward(
        b"".join(inner)[4:], Requester(ANONYMOUS, "127.0.0.1"), timeout_ms, check
    )


def test_a_forwarded_request_finds_the_next_controller() -> None:
    """A paused controller wakes, and brokers are still with it: no client notices."""

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        first, second = controllers
        await forwarded(session, 10_000)
        first.active = False
        await forwarded(session, 10_000)
        assert (first.envelopes, second.envelopes) == (2, 1)
        assert second.registrations == 1

    run(story, heartbeat_ms=3_600_000)


def test_a_request_whose_client_leaves_while_it_waits_for_a_controller_is_not_sent() -> None:
    """The next controller would carry out a change that its client has given up."""

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        first, second = controllers

        def check() -> None:
            if first.envelopes:
                raise ClientGone

        first.active = False
        with pytest.raises(ClientGone):
            await forwarded(session, 10_000, check)
        assert (first.envelopes, second.envelopes) == (1, 0)
        # Its place is free, and the session serves the next request.
        await forwarded(session, 10_000)
        assert second.envelopes == 1

    run(story, heartbeat_ms=3_600_000)


@pytest.mark.parametrize("leaves_at", [1, 2])
def test_a_request_whose_client_has_left_costs_no_connection(leaves_at: int) -> None:
    """A broker that was stopped drops hundreds at once, and serves others meanwhile. The first
    check comes before the connection is made, the second one when it is there."""

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        first = controllers[0]
        await until(lambda: first.heartbeats == 1)
        seen = set(first.server.connections)
        before, checks = len(seen), 0

        def check() -> None:
            nonlocal checks
            checks += 1
            if checks == leaves_at:
                raise ClientGone

        for _ in range(3):
            checks = 0
            with pytest.raises(ClientGone):
                await forwarded(session, 10_000, check)
            seen.update(first.server.connections)
        assert first.envelopes == 0
        assert len(seen) - before == leaves_at - 1
        await forwarded(session, 10_000)
        assert first.envelopes == 1
        seen.update(first.server.connections)
        assert len(seen) - before == 1

    run(story, heartbeat_ms=3_600_000)


def test_a_forwarded_request_does_not_wait_for_a_controller_longer_than_it_may() -> None:
    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        for each in controllers:
            each.active = False
        # The error depends on where the request was when its time was over.
        with pytest.raises((ForwardingRefused, ControllerUnreachable, ClientError)):
            await forwarded(session, 1_000)
        assert 2 <= sum(each.envelopes for each in controllers) <= 1_000 / RETRY_MS + 1

    run(story, heartbeat_ms=3_600_000)


def test_a_request_does_not_wait_for_a_forwarding_slot_longer_than_it_may() -> None:
    """B13: nothing was sent for it, so its client may ask again; the slots are free afterwards."""

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        first = controllers[0]
        await forwarded(session, 10_000)
        first.keeps_envelopes = True
        held = [asyncio.ensure_future(forwarded(session, 600_000)) for _ in range(MAX_FORWARDING)]
        await until(lambda: first.envelopes == 1 + MAX_FORWARDING)
        with pytest.raises(ControllerUnreachable, match="64 requests already wait"):
            await forwarded(session, 300)
        assert first.envelopes == 1 + MAX_FORWARDING, "it was sent all the same"
        for each in held:
            each.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        first.keeps_envelopes = False
        await forwarded(session, 10_000)

    run(story, heartbeat_ms=3_600_000)


def test_the_time_that_a_request_waits_for_a_forwarding_slot_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B13: otherwise a client may wait twice as long as it said."""
    waits_s, limit_ms = 0.05, 10_000

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        loop = asyncio.get_running_loop()
        take_place, left_ms = session._envelopes._take_place, []

        async def late(timeout_ms: int) -> None:
            await take_place(timeout_ms)
            began = loop.time()
            await until(lambda: loop.time() >= began + waits_s)

        async def sent(envelope: Any, timeout_ms: int, check: Check) -> Any:
            left_ms.append(timeout_ms)
            raise RequestTimedOut("no answer")

        monkeypatch.setattr(session._envelopes, "_take_place", late)
        monkeypatch.setattr(session._envelopes, "_send_apart", sent)
        with pytest.raises(RequestTimedOut):
            await forwarded(session, limit_ms)
        assert left_ms[0] <= limit_ms - waits_s * 1000

    run(story)


def test_heartbeats_go_on_while_an_answer_is_waited_for() -> None:
    """A broker that waits for a response is not silent: its session must not end for that."""

    async def story(controllers: list[Controller], session: ControllerSession) -> None:
        first = controllers[0]
        await until(lambda: first.heartbeats > 1)
        first.pauses = asyncio.get_running_loop().create_future()
        asked = first.heartbeats
        await until(lambda: first.heartbeats > asked + 3)
        first.pauses.set_result(None)
        first.pauses = None
        asked = first.heartbeats
        await until(lambda: first.heartbeats > asked + MAX_UNANSWERED)
        assert session.registrations == 1

    run(story)
