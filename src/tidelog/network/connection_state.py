"""What the parts of a connection share: its transport, and what blocks it.

Owns the reasons not to serve a connection, and what its parts may ask of the whole (``Owner``). Not
what sets a reason: each is set and removed by one part.
"""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.model.work import Work
from tidelog.network.answer_queue import ResponseWaiter
from tidelog.network.open_connection import OpenConnection
from tidelog.network.turns import Turns, TurnWaiter

if TYPE_CHECKING:
    from tidelog.network.open_request import OpenRequest, Slot


class Blocked(IntFlag):
    """Why no request of a connection is served. Bytes that arrive then stay in the buffer, and
    reading stops when it is full."""

    HANDLER = 1
    """The response of a handler that is not pipelined is pending (as in Kafka)."""
    DEPTH = 2
    """Too many pipelined responses are pending, or responses wait for an earlier one."""
    CLIENT = 4
    """The client does not read its responses: the transport's buffer is above its mark."""
    ANSWERS = 8
    """A request waits until other clients have read their responses."""
    TURN = 16
    """The connection waits for its turn of the loop (``turns``)."""
    STOPPING = 32
    """The server stops; pending responses are still sent."""
    CLOSED = 64
    """Closing."""
    FILES = 128
    """Part of a file is being sent to the client (``sending``)."""
    WORK = 256
    """A request is served in steps, in several turns of the loop."""


# Plain numbers: an operation of an IntFlag takes ten times as long.
HANDLER, DEPTH, CLIENT, ANSWERS, TURN, STOPPING, CLOSED, FILES, WORK = (
    reason.value for reason in Blocked
)


class ConnectionState:
    """The state that several parts of one connection read."""

    __slots__ = ("blocked", "in_turn", "last_active", "transport")

    def __init__(self, now_s: float) -> None:
        self.transport: Any = None
        """None before the connection is made, and after its end."""
        self.blocked: int = 0
        """The reasons not to serve it, of ``Blocked``."""
        self.in_turn = False
        """Whether its requests are being served now: what calls back meanwhile starts nothing."""
        self.last_active = now_s

    @property
    def is_over(self) -> bool:
        """Whether no further response can be sent."""
        return self.transport is None or bool(self.blocked & CLOSED)


class Owner(OpenConnection, ResponseWaiter, TurnWaiter, Protocol):
    """A connection, as its parts see it."""

    turns: Turns

    def go_on(self) -> None:
        """Serve further requests, unless there is a reason not to."""

    def served(self, size: int) -> None:
        """Drop the frame of ``size`` bytes that was served in steps."""

    def go_on_in_steps(self, asked: OpenRequest, slot: Slot, steps: Work[Any]) -> None:
        """Do the rest of a request that has waited, in steps; its response is for ``slot``."""
