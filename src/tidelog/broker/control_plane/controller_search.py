"""Whom a broker asks for the active controller, in turn, and how long it waits for each.

Owns the addresses, whose turn it is, and the patience with each (``client.patience``). A controller
that timed out is waited for longer the next time, also when a standby has answered in between: it
may be the active one, slow. It may as well hang, and the standby be about to follow it (promise
24). So each time that the least patience is over once more, the others are asked whether one of
them is active by now, and the wait is over if one is. That costs a connection to each other
controller, once in the least patience.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tidelog.client.connecting.connection import ClientConnection, api_of_request, connect
from tidelog.client.connecting.patience import GrowingTimeout, is_over
from tidelog.client.errors import ClientError, ConnectionLost, ProofFailed, RequestTimedOut
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.runtime.cluster_secret import ClusterSecret

A = TypeVar("A")


class ControllerSearch:
    """The controllers of one session; one of them has its turn at a time."""

    def __init__(
        self, addresses: Sequence[tuple[str, int]], least_ms: int, secret: ClusterSecret | None
    ) -> None:
        """``least_ms`` is what each is waited for at least: what a hanging one may cost."""
        self.least_ms = least_ms
        self._addresses = list(addresses)
        self._patience = [GrowingTimeout(least_ms) for _ in self._addresses]
        self._secret = secret
        self._turn = -1
        self._unproven = ""
        """Why the controller that was tried last has another secret than ours; "" if it has not."""

    @property
    def address(self) -> tuple[str, int]:
        """The address of the controller that has its turn, or had it last."""
        return self._addresses[max(self._turn, 0)]

    def unreachable(self) -> str:
        """Return the line that says that none of them can be used."""
        tried = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        if self._unproven:
            return f"no active controller at {tried} can be used: {self._unproven}."
        return f"no active controller answers at {tried}: is one running?"

    async def connect_next(
        self, on_closed: Callable[[ConnectionLost], None] | None = None
    ) -> ClientConnection:
        """Give the next one its turn and connect to it. Raises as ``connect`` does."""
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
                    ),
                    "complete the greeting",
                )
        except ProofFailed as error:
            self._unproven = str(error)
            raise

    async def ask(self, connection: ClientConnection, request: Any, version: int) -> Any:
        """Send what a session begins with to the one that has its turn.

        Raises as ``Connection.send`` does.
        """
        patience = self._patience[self._turn]
        with patience.counted():
            sent = connection.send(request, version, patience.now_ms)
            answer = await self._waited(sent, f"answer {ApiKey(api_of_request(request).key).name}")
        patience.answered()
        return answer

    async def _waited(self, work: Coroutine[Any, Any, A], what: str) -> A:
        """Wait for what ends by itself when the patience is over, or sooner, by the rule."""
        patience = self._patience[self._turn]
        if patience.now_ms == self.least_ms or len(self._addresses) == 1:
            return await work
        task = asyncio.ensure_future(work)
        look: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        waited_ms = 0
        try:
            while True:
                await asyncio.wait({task}, timeout=self.least_ms / 1000)
                if task.done():
                    return await task
                waited_ms += self.least_ms
                look = asyncio.ensure_future(self._another_active())
                await asyncio.wait({task, look}, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return await task
                another = look.result()
                if is_over(waited_ms, patience.now_ms, self.least_ms, another is not None):
                    host, port = self.address
                    if another is not None:
                        # It has its turn next.
                        self._turn = another - 1
                    raise RequestTimedOut(f"{host}:{port} did not {what} within {waited_ms} ms")
        finally:
            for each in (task, look):
                each.cancel()
            await asyncio.gather(task, look, return_exceptions=True)

    async def _another_active(self) -> int | None:
        """Return the position of a controller that says that it is active, but for the one whose
        turn it is; None if none does. Asks all at once: one that hangs costs the least patience."""
        others = [x for x in range(len(self._addresses)) if x != self._turn]
        answers = await asyncio.gather(*(self._is_active(self._addresses[x]) for x in others))
        return next((x for x, is_active in zip(others, answers, strict=True) if is_active), None)

    async def _is_active(self, address: tuple[str, int]) -> bool:
        try:
            connection = await connect(
                *address,
                client_id="broker-session",
                connect_timeout_ms=self.least_ms,
                secret=self._secret,
            )
            try:
                answer = await connection.send(messages.DescribeClusterRequest(), 0, self.least_ms)
            finally:
                connection.close()
        except ClientError:
            return False
        # Only the active one answers it.
        return bool(answer.error_code == ErrorCode.NONE)
