"""The interface of a change to the parts of a controller: ``Performer``, and ``NotActive``.

Owns what every part may rely on: the state, whether this controller is active, and ``perform``.
Not the order of a change: see ``controller``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from tidelog.controller.consequences import ControllerEvent, Kind
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

    def changed(self, *kinds: Kind) -> None:
        """Have the parts checked soon that a change concerns: ``consequences`` has the table."""

    async def settle(self, change: ControllerEvent) -> None:
        """Do the same, and make the decisions that follow from the change. Raises NotActive."""
