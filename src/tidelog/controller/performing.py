"""The interface of a change to the parts of a controller: ``Performer``, and ``NotActive``.

Owns what every part may rely on: the state, whether this controller is active, and ``perform``.
Not the order of a change: see ``controller``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision

Answer = TypeVar("Answer")


class NotActive(Exception):
    """This controller is not the active one. It did not carry out the request, or the outcome is
    unknown."""


class Performer(Protocol):
    """A controller, as its parts see it."""

    cluster: ClusterState

    @property
    def active(self) -> bool:
        """Whether this controller owns the metadata now."""

    async def perform(
        self,
        decide: Callable[[ClusterState], Decision[Answer]],
        applied: Callable[[Answer], None] = ...,
    ) -> tuple[Answer, int]:
        """Decide, persist and apply a change; return its result and revision. Raises NotActive."""

    async def complete_topics(self) -> None:
        """Fill in what the nodes of topics lack, as far as it is known now. Raises NotActive."""

    def when_sent(self) -> None:
        """Let requests go on that wait until brokers have been sent a revision."""
