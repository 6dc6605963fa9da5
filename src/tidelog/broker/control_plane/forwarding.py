"""Forwarding of clients' requests to the controller, each in an Envelope.

Owns what a client gets without a controller: its request waits for one as long as its own time
lasts, and is then answered REQUEST_TIMED_OUT, with a sentence. Never NOT_CONTROLLER: every broker
forwards, so another one could do as little (docs/decisions/0018). The controller's response goes to
the client undecoded, in the client's version: it may be large.

A change whose client has closed its connection is dropped. A broker that was stopped reads it when
it runs again, even minutes later: the deletion of a topic would strike a newer topic of that name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.broker.control_plane.controller_search import ControllerUnreachable
from tidelog.broker.control_plane.envelopes import ForwardingRefused, unchecked
from tidelog.client.errors import ClientError
from tidelog.model.api_keys import ApiKey, spoken
from tidelog.model.errors import ErrorCode
from tidelog.network import frames
from tidelog.network.forwarded import FORWARDED
from tidelog.network.router import FAILED, Handler, RequestContext
from tidelog.protocol import codec
from tidelog.protocol.refusals import refused_in_steps
from tidelog.runtime import pace

if TYPE_CHECKING:
    from tidelog.broker.control_plane.session import ControllerSession
    from tidelog.model.configs.server import ServerConfigs
    from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

MOST_RESERVED_MS = 1_000
"""The controller gets this much less than the time of the request, at most a tenth: Java's client
closes the connection when that time is over, so the response must arrive before. Half of it may
pass until the controller's response is here."""

SHORT_MS = 1_000
"""No client closes its connection after less than this, whatever the time of its request: the
controller's response may then be as late as half of this."""


CLOSE_TURNS = 4
"""Turns of the loop in which a connection is seen to be closed, if its end had arrived with the
request: one reads the end, the next closes, whatever time each takes."""


class ClientGone(Exception):
    """The client closed its connection before a controller took its change."""


class Forwards(Protocol):
    """A broker that sends requests on to the controller."""

    @property
    def session(self) -> ControllerSession: ...

    @property
    def configs(self) -> ServerConfigs: ...

    @property
    def clock(self) -> Clock: ...


def forwarded(api_key: ApiKey) -> Handler:
    """Return the handler of an API of the table that the controller serves."""
    row = FORWARDED[api_key]

    def handle(broker: Forwards, request: Any, context: RequestContext) -> Awaitable[Any]:
        return forward(broker, api_key, request, context)

    return Handler(
        api_key,
        row.scope,
        handle,
        failure=FAILED,
        most_elements=row.most_at_brokers or row.most,
        numbers_in_one=row.numbers_in_one,
    )


async def forward(broker: Forwards, api_key: int, request: Any, context: RequestContext) -> Any:
    """Send ``request`` to the controller; return the frame of its response, or a refusal."""
    try:
        answer = await _answered(broker, api_key, request, context)
        return frames.answer_of(context.correlation_id, answer)
    except ControllerUnreachable as error:
        refusal = ErrorCode.REQUEST_TIMED_OUT, str(error)
    except ClientGone:
        why = "the client closed its connection before a controller took the request"
        logger.info("a %(request)s is dropped: %(why)s", {"request": spoken(api_key), "why": why})
        refusal = ErrorCode.REQUEST_TIMED_OUT, why
    except ForwardingRefused as error:
        refusal = error.code, str(error)
        if error.code is ErrorCode.NOT_CONTROLLER:
            why = "no controller was active in time, the outcome is unknown"
            refusal = ErrorCode.REQUEST_TIMED_OUT, why
    except ClientError as error:
        logger.warning(
            "outcome of a forwarded %(request)s unknown: %(error)s",
            {"request": spoken(api_key), "error": error},
        )
        why = f"no response of the controller, the outcome is unknown: {error}"
        refusal = ErrorCode.REQUEST_TIMED_OUT, why
    # A plan of moves may name 50,000 partitions.
    steps = refused_in_steps(api_key, context.version, request, *refusal)
    return await pace.run(steps, broker.clock)


async def _answered(broker: Forwards, api_key: int, request: Any, context: RequestContext) -> bytes:
    """Wait for a controller and for its response, both within the time of the request."""
    session, clock = broker.session, broker.clock
    asked_ms = getattr(request, "timeout_ms", 0)
    all_ms = asked_ms if asked_ms > 0 else broker.configs.request_timeout_ms
    begun_ms = clock.monotonic_ms()
    reserve_ms = min(MOST_RESERVED_MS, all_ms // 10)
    await session.registered(all_ms - reserve_ms)
    left_ms = max(1, begun_ms + all_ms - reserve_ms - clock.monotonic_ms())
    if asked_ms > 0:
        # The controller says what it did by then, and what it did not.
        request.timeout_ms = left_ms
    # A plan of thousands of partitions is one request: other tasks run meanwhile.
    steps = codec.encode_request_in_steps(api_key, context.version, 0, None, request)
    inner = b"".join(await pace.run(steps, clock))[4:]
    check = unchecked
    if FORWARDED[ApiKey(api_key)].is_change:
        await _read_end()
        check = partial(_check_client, context)
    left_ms = max(1, begun_ms + all_ms - reserve_ms - clock.monotonic_ms())
    late_ms = reserve_ms // 2 if all_ms >= SHORT_MS else SHORT_MS // 2
    return await session.forward(inner, context.requester, left_ms + late_ms, check)


async def _read_end() -> None:
    """Let the connection read its end, if that arrived with the request."""
    for _ in range(CLOSE_TURNS):
        await asyncio.sleep(0)


def _check_client(context: RequestContext) -> None:
    """Raise ClientGone if no response is wanted any longer."""
    if context.connection.is_closing:
        raise ClientGone
