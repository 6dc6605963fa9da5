"""A request whose response is not sent yet, and the place of its response.

Owns nothing but their fields: `answering` and `stepping` work on them.
"""

from __future__ import annotations

from typing import Any

from tidelog.network.router import Route
from tidelog.protocol.primitives import Buffer


class OpenRequest:
    """A request whose response is not made at once."""

    __slots__ = ("began_ns", "correlation_id", "request", "route", "size")

    def __init__(
        self, route: Route, request: Any, correlation_id: int, size: int, began_ns: int
    ) -> None:
        self.route = route
        self.request = request
        """None until it is parsed, or on the fast path: then a failure has no response."""
        self.correlation_id = correlation_id
        self.size = size
        """Bytes of its frame."""
        self.began_ns = began_ns
        """When the server began the run of requests that it is of."""


class Slot:
    """The place of one response in their order."""

    __slots__ = ("blocks", "chunks", "done", "held", "in_steps")

    def __init__(self, chunks: list[Buffer] | None = None, *, in_steps: bool = False) -> None:
        self.done = chunks is not None
        self.chunks = chunks
        self.held = 0
        """The charge of its request."""
        self.blocks = False
        """Whether no further request is served before it is done."""
        self.in_steps = in_steps
        """Whether a response that blocks may be long, and is encoded in steps."""
