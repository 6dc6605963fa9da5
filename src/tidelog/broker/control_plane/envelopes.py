"""Envelopes to the active controller: clients' requests, on connections apart from the session.

Owns these connections, how many requests wait at once, and the second try with another controller.
Not which requests are forwarded: see ``forwarding``; not the session: see ``session``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tidelog.broker.control_plane.controller_search import ControllerUnreachable
from tidelog.client.connecting.connection import connect
from tidelog.client.errors import ClientError
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages, principal_data

if TYPE_CHECKING:
    from tidelog.broker.control_plane.controller_search import ControllerSearch
    from tidelog.client.connecting.connection import ClientConnection
    from tidelog.network.requester import Requester
    from tidelog.runtime.cluster_secret import ClusterSecret

logger = logging.getLogger(__name__)

AGAIN_MS = 100
"""Pause before a request goes to the next controller."""

ENVELOPE_VERSION = 0

KEPT_FORWARDING = 4
"""How many idle connections for forwarding are kept open."""

MAX_FORWARDING = 64
"""Most requests forwarded at once; others wait."""


Check = Callable[[], None]
"""What is called before a request is sent; raises if it must not be."""


def unchecked() -> None:
    """Any request may be sent."""


class ForwardingRefused(Exception):
    """The controller refused an Envelope; ``code`` says why."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(f"the controller refused a forwarded request: {code.name}")
        self.code = code


class Envelopes:
    """The forwarding of one broker's session."""

    def __init__(
        self,
        registered: Callable[[int], Awaitable[object]],
        search: ControllerSearch,
        wake: Callable[[], None],
        secret: ClusterSecret | None,
    ) -> None:
        """``registered`` waits, for so many ms, until there is a session; ``wake`` has the session
        send a heartbeat now."""
        self._registered = registered
        self._search = search
        self._wake = wake
        self._secret = secret
        self._kept: list[ClientConnection] = []
        self._places = asyncio.Semaphore(MAX_FORWARDING)
        self.is_stopping = False
        """No connection is kept any longer."""

    def close(self) -> None:
        """Close the kept connections: their controller may no longer be the active one."""
        kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()

    async def forward(
        self, inner: bytes, requester: Requester, timeout_ms: int, check: Check = unchecked
    ) -> bytes:
        """Send a client's request (a frame without its size, correlation id 0) to the controller in
        an Envelope; return the inner response, from its correlation id on, in its version.

        The controller judges it by ``requester``, and not by the proof of this broker.

        ``check`` is called directly before each sending, after all waits, and before each attempt
        to connect; it raises if the request must not be sent.

        A request that could not be sent, or was answered NOT_CONTROLLER, goes to the active
        controller within the same timeout; after NOT_CONTROLLER it may be applied twice, if the
        former controller had committed it. Raises ControllerUnreachable, ClientError,
        ForwardingRefused when the controller refused the envelope, and what ``check`` raises.
        """
        envelope = messages.EnvelopeRequest(
            request_data=inner,
            request_principal=principal_data.encode(requester.principal),
            client_host_address=requester.client_host.encode(),
        )
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        await self._take_place(timeout_ms)
        try:
            while True:
                check()
                left_ms = int((end - loop.time()) * 1000)
                answer = await self._send_apart(envelope, left_ms, check)
                is_passed = answer is None or answer.error_code == ErrorCode.NOT_CONTROLLER
                if not is_passed or end - loop.time() <= AGAIN_MS / 1000:
                    break
                # Only a heartbeat moves the session to the new controller: send one now.
                self._wake()
                self.close()
                await asyncio.sleep(AGAIN_MS / 1000)
        finally:
            self._places.release()
        if answer is None:
            raise ControllerUnreachable(self._search.unreachable())
        if answer.error_code != ErrorCode.NONE:
            raise ForwardingRefused(ErrorCode(answer.error_code))
        return bytes(answer.response_data or b"")

    async def _take_place(self, timeout_ms: int) -> None:
        """Wait for one of the places. ControllerUnreachable when none is free in time."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._places.acquire()
        except TimeoutError:
            raise ControllerUnreachable(
                f"{MAX_FORWARDING} requests already wait for the controller, and none of them "
                f"got a response within {timeout_ms} ms: is it overloaded?"
            ) from None

    async def _send_apart(self, envelope: Any, timeout_ms: int, check: Check) -> Any:
        """Send on a connection without heartbeats and without another request under way; return
        None if there is no connection, so that nothing was sent.

        Responses on a connection come in order, and a forwarded request may take long.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000

        def left_ms() -> int:
            return max(1, int((end - loop.time()) * 1000))

        await self._registered(timeout_ms)
        connection = None
        while self._kept and connection is None:
            kept = self._kept.pop()
            connection = None if kept.closed else kept
        if connection is None:
            try:
                # Another controller may be active before one that hangs has greeted.
                patience_ms = min(left_ms(), self._search.least_ms)
                connection = await connect(
                    *self._search.address,
                    client_id="broker-forwarding",
                    connect_timeout_ms=patience_ms,
                    greeting_timeout_ms=patience_ms,
                    secret=self._secret,
                    tls=self._search.tls,
                )
            except ClientError as error:
                logger.info("nothing is forwarded: %(error)s", {"error": error})
                return None
        try:
            check()
        except BaseException:
            # Nothing was sent: the next request may use the connection.
            self._keep(connection)
            raise
        try:
            answer = await connection.send(envelope, ENVELOPE_VERSION, left_ms())
        except BaseException:
            connection.close()
            raise
        self._keep(connection)
        return answer

    def _keep(self, connection: ClientConnection) -> None:
        if self.is_stopping or len(self._kept) >= KEPT_FORWARDING:
            connection.close()
        else:
            self._kept.append(connection)
