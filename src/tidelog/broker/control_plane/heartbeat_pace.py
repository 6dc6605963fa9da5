"""How often a broker beats: as its own file says, or as often as its controller asks for.

The controller's file says what silence is: who beats less often is suspected. What it asks for is a
third of its ``broker.silence.suspect.ms``, all that a broker knows of the times in that file; where
its own file makes another third, the log says so. Session timeouts that differ and lead to the same
silence are not noticed.
"""

from __future__ import annotations

import logging

from tidelog.model.configs.session_times import (
    HEARTBEAT,
    HEARTBEATS_IN_SILENCE,
    SESSION,
    SILENCE,
)

logger = logging.getLogger(__name__)


class HeartbeatPace:
    """The interval ``ms`` between two heartbeats of one broker."""

    def __init__(self, own_ms: int, silence_ms: int | None) -> None:
        """``silence_ms`` is what the broker's file says of silence; None: nothing is compared."""
        self.ms = self._own_ms = own_ms
        self._silence_ms = silence_ms
        self._asked_ms = 0

    def asked_for(self, asked_ms: int, peer: str) -> None:
        """Keep to what the controller at ``peer`` asked for; 0 or less: it leaves it to us."""
        former_ms, self._asked_ms = self._asked_ms, asked_ms
        if asked_ms <= 0:
            self.ms = self._own_ms
            return
        self.ms = min(self._own_ms, asked_ms)
        if self._silence_ms is None or asked_ms == former_ms:
            return
        expected_ms = self._silence_ms // HEARTBEATS_IN_SILENCE
        if asked_ms != expected_ms:
            logger.warning(
                "%s wants a heartbeat every %d ms, and the times of this broker's file make it "
                "%d ms: set %s, %s and %s alike for brokers and controllers",
                *(peer, asked_ms, expected_ms, SESSION, SILENCE, HEARTBEAT),
            )
