"""Whether a controller is active, and what was lost when it ceased to be.

Owns the two events and the reason. Not what happens at a change of them: see ``controller`` for the
beginning and the resignation, ``process`` for the attempts to become active again.
"""

from __future__ import annotations

import asyncio
import logging

logger = logging.getLogger(__name__)


class Activity:
    """The activity of one controller."""

    def __init__(self, node_id: int) -> None:
        self.activated = asyncio.Event()
        self.lost = asyncio.Event()
        """Set while this controller must reload from the store before it can be active."""
        self.why_lost = ""
        self.trusts_store = True
        """False from a failure of the store's session until ``process`` opens a new one."""
        self._node_id = node_id

    def lose(self, why: str, level: int) -> None:
        """Step down: the state may differ from the store, which is loaded again."""
        if self.activated.is_set():
            logger.log(
                level,
                "controller %(controller)s is no longer active: %(why)s",
                {"controller": self._node_id, "why": why},
            )
        self.activated.clear()
        self.why_lost = why
        self.distrust_store()

    def distrust_store(self) -> None:
        """Have the next attempt to become active open a new session of the store."""
        self.trusts_store = False
        self.lost.set()
