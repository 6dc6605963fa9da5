"""Probe of one leader: a connection of its own, on which an empty request asks whether it is alive.

Owns that connection. Not what waits for the responses: see ``metadata.lost_leaders``; not the
fetches, whose responses wait at an idle leader: see ``source_fetcher``.

One probe serves all that ask in one turn of the loop. A leader whose connection is lost, or that
does not respond, proves nothing: the probe stays without a result, and the callers have a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.errors import ClientError
from tidelog.protocol import messages
from tidelog.runtime.backoff import steady

PROBE_VERSION = 4
"""Of OffsetForLeaderEpoch without topics: few bytes, and nothing to look up."""

RESPONSE_MS = 1_000
"""A leader that leaves a probe without a response for so long gets a new connection."""

PAUSES_MS = 20, 1_000
"""First and longest pause before the next attempt to connect."""


class LifeProbe:
    """Asks one leader. Has a connection between ``open`` and ``close``, or tries to."""

    def __init__(self) -> None:
        self._connection: ClientConnection | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._wanted: asyncio.Future[None] | None = None
        """The proof whose probe is not sent yet."""

    def open(self, connect: Callable[[], Awaitable[ClientConnection]]) -> None:
        """Keep a connection from now on. ``connect`` raises ClientError."""
        if self._keeping is None:
            self._keeping = asyncio.get_running_loop().create_task(
                self._keep(connect), name="life-probe"
            )

    def close(self, why: str) -> None:
        """End the connection; proofs that are asked for stay without a result."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(why)
        self._wanted = None

    def proof(self) -> asyncio.Future[None]:
        """Return a future that is done when the leader has responded to a request sent after now.

        It may stay without a result for ever.
        """
        if self._wanted is None:
            loop = asyncio.get_running_loop()
            self._wanted = loop.create_future()
            if self._connection is not None:
                # At the end of this turn: one probe proves it for all that ask in this turn (0090).
                loop.call_soon(self._send)
        return self._wanted

    def _send(self) -> None:
        if self._connection is None or self._wanted is None:
            return  # sent when there is a connection
        wanted, self._wanted = self._wanted, None

        def responded(response: asyncio.Future[object]) -> None:
            if not response.cancelled() and response.exception() is None and not wanted.done():
                wanted.set_result(None)

        request = messages.OffsetForLeaderEpochRequest()
        self._connection.submit(request, PROBE_VERSION, RESPONSE_MS).add_done_callback(responded)

    async def _keep(self, connect: Callable[[], Awaitable[ClientConnection]]) -> None:
        backoff = steady(*PAUSES_MS)
        failures = 0
        while True:
            try:
                self._connection = await connect()
            except ClientError:
                # The fetcher connects to the same address, and logs why it cannot.
                failures += 1
            else:
                failures = 0
                self._send()
                await self._connection.wait_closed()
                self._connection = None
            await asyncio.sleep(backoff.pause_ms(failures) / 1000)
