"""Search for the active controller: the addresses in turn, and the timeout for each.

Owns the addresses, the current one, a growing timeout for each (``client.patience``), and what the
log says of a search without success. A
controller that timed out gets more time on the next try, even if a standby has responded in
between: it may be active and slow. It may also hang while a standby takes over (promise 24). So
whenever another least timeout has passed, the search asks the other controllers whether one of them
is active, and ends the wait if so. That costs one connection to each other controller per least
timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tidelog.client.connecting.connection import (
    ClientConnection,
    api_of_request,
    connect,
)
from tidelog.client.connecting.patience import GrowingTimeout, is_over
from tidelog.client.errors import ClientError, ConnectionLost, ProofFailed, RequestTimedOut
from tidelog.model.api_keys import spoken
from tidelog.model.errors import ErrorCode
from tidelog.observe.repeated_line import RepeatedLine
from tidelog.protocol import messages
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.tasks import call_off
from tidelog.runtime.tls_files import TlsFiles

logger = logging.getLogger(__name__)

A = TypeVar("A")

ENDED = "the session with the controller ended"


class ControllerUnreachable(Exception):
    """No active controller responded in time; the text names the addresses tried."""


class ControllerSearch:
    """The controllers of one session; one of them is the current one."""

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        least_ms: int,
        secret: ClusterSecret | None,
        tls: TlsFiles | None = None,
    ) -> None:
        """``least_ms``: the first timeout for each, which is the cost of one that hangs. ``tls``:
        the keys for connections to controllers; None where their listener has no TLS."""
        self.tls = tls
        self.least_ms = least_ms
        self._addresses = list(addresses)
        self._patience = [GrowingTimeout(least_ms) for _ in self._addresses]
        self._secret = secret
        self._turn = -1
        self._unproven = ""
        """Why the last controller's proof of the cluster secret failed; "" if it did not fail."""
        self._ends = RepeatedLine(logger, logging.INFO, shared=True)
        self._bugs = RepeatedLine(logger, logging.ERROR, shared=True)

    @property
    def address(self) -> tuple[str, int]:
        """The address of the current controller."""
        return self._addresses[max(self._turn, 0)]

    @property
    def tried(self) -> list[str]:
        """All addresses: ``host:port``."""
        return [f"{host}:{port}" for host, port in self._addresses]

    def unreachable(self) -> str:
        """Return one line for the error that no controller can be used."""
        tried = ", ".join(self.tried)
        if self._unproven:
            return f"no active controller at {tried} can be used: {self._unproven}."
        return f"no active controller answers at {tried}: is one running?"

    def failed(self, error: Exception) -> None:
        """Say that a session has ended; then, of all attempts until ``found``, one line a minute.

        There are two attempts a second, and a controller may be away for hours.
        """
        now_s = asyncio.get_running_loop().time()
        if isinstance(error, ClientError):
            self._ends.add(f"{ENDED}: {error}", now_s)
        else:
            self._bugs.add(f"{ENDED}: {error!r}", now_s, error)

    def found(self) -> None:
        """Note that a controller has registered this broker."""
        self._ends.over()
        self._bugs.over()

    async def connect_next(
        self, on_closed: Callable[[ConnectionLost], None] | None = None
    ) -> ClientConnection:
        """Make the next one current and connect to it. Raises as ``connect`` does."""
        self._turn = (self._turn + 1) % len(self._addresses)
        self._unproven = ""
        patience = self._patience[self._turn]
        try:
            with patience.counted():
                return await self._waited(
                    connect(
                        *self.address,
                        client_id="broker-session",
                        connect_timeout_ms=self.least_ms,
                        greeting_timeout_ms=patience.now_ms,
                        on_closed=on_closed,
                        secret=self._secret,
                        tls=self.tls,
                    ),
                    "complete the handshake",
                )
        except ProofFailed as error:
            self._unproven = str(error)
            raise

    async def ask(self, connection: ClientConnection, request: Any, version: int) -> Any:
        """Send a first request of a session to the current controller.

        Raises as ``Connection.send`` does.
        """
        patience = self._patience[self._turn]
        with patience.counted():
            sent = connection.send(request, version, patience.now_ms)
            response = await self._waited(sent, f"respond to {spoken(api_of_request(request).key)}")
        patience.answered()
        return response

    async def _waited(self, work: Coroutine[Any, Any, A], what: str) -> A:
        """Await ``work``, which has this timeout; give up earlier when ``is_over`` says so."""
        patience = self._patience[self._turn]
        if patience.now_ms == self.least_ms or len(self._addresses) == 1:
            return await work
        task = asyncio.ensure_future(work)
        check: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        waited_ms = 0
        try:
            while True:
                await asyncio.wait({task}, timeout=self.least_ms / 1000)
                if task.done():
                    return await task
                waited_ms += self.least_ms
                check = asyncio.ensure_future(self._another_active())
                await asyncio.wait({task, check}, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return await task
                another = check.result()
                if is_over(waited_ms, patience.now_ms, self.least_ms, another is not None):
                    host, port = self.address
                    if another is not None:
                        # ``connect_next`` continues with that one.
                        self._turn = another - 1
                    raise RequestTimedOut(f"{host}:{port} did not {what} within {waited_ms} ms")
        finally:
            await call_off([task, check])

    async def _another_active(self) -> int | None:
        """Return the index of another controller that is active, None if there is none.

        Asks all at once: one that hangs costs the least timeout.
        """
        others = [x for x in range(len(self._addresses)) if x != self._turn]
        are_active = await asyncio.gather(*(self._is_active(self._addresses[x]) for x in others))
        return next((x for x, is_active in zip(others, are_active, strict=True) if is_active), None)

    async def ask_all(self, request: Any, version: int, timeout_ms: int) -> list[Any]:
        """Send a request to every controller at once; return the responses within ``timeout_ms``.

        On connections of its own: O(controllers).
        """
        answers = await self.ask_each(request, version, timeout_ms)
        return [response for _, response in answers if response is not None]

    async def ask_each(
        self, request: Any, version: int, timeout_ms: int
    ) -> list[tuple[str, Any | None]]:
        """Do as ``ask_all``; return each address with its response, None where there is none."""
        asked = (self._ask(address, request, version, timeout_ms) for address in self._addresses)
        tasks = [asyncio.ensure_future(question) for question in asked]
        try:
            await asyncio.wait(tasks, timeout=timeout_ms / 1000)
            return [
                (f"{host}:{port}", task.result() if task.done() else None)
                for (host, port), task in zip(self._addresses, tasks, strict=True)
            ]
        finally:
            await call_off(tasks)

    async def _is_active(self, address: tuple[str, int]) -> bool:
        response = await self._ask(address, messages.DescribeClusterRequest(), 0, self.least_ms)
        # Only the active controller answers without an error.
        return response is not None and bool(response.error_code == ErrorCode.NONE)

    async def _ask(
        self, address: tuple[str, int], request: Any, version: int, timeout_ms: int
    ) -> Any | None:
        """Return the response of one controller; None: it did not respond."""
        try:
            connection = await connect(
                *address,
                client_id="broker-session",
                connect_timeout_ms=timeout_ms,
                secret=self._secret,
                tls=self.tls,
            )
            try:
                return await connection.send(request, version, timeout_ms)
            finally:
                connection.close()
        except ClientError:
            return None
