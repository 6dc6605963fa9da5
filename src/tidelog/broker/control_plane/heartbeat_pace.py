"""The heartbeat interval: from the broker's own file, or the shorter one of its controller.

Owns the interval and the warning when the two files differ. The controller suspects brokers by its
own ``broker.silence.suspect.ms``, and asks for heartbeats three times as often; a broker knows no
other time of the controller's file. Session timeouts that differ but make the same silence are not
noticed.
"""

from __future__ import annotations

import logging

from tidelog.model.configs.server import (
    HEARTBEAT,
    HEARTBEATS_IN_SILENCE,
    SESSION,
    SILENCE,
)

logger = logging.getLogger(__name__)


class HeartbeatPace:
    """The interval ``ms`` between two heartbeats of one broker."""

    def __init__(self, own_ms: int, silence_ms: int | None) -> None:
        """``silence_ms``: ``broker.silence.suspect.ms`` of this broker's file; None: no warning."""
        self.ms = self._own_ms = own_ms
        self._silence_ms = silence_ms
        self._asked_ms = 0

    def asked_for(self, asked_ms: int, peer: str) -> None:
        """Apply the interval that the controller at ``peer`` asks for; 0 or less: none."""
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
                "%s asks for a heartbeat every %d ms, the file of this broker for one every %d ms: "
                "set %s, %s and %s to the same values for brokers and controllers",
                *(peer, asked_ms, expected_ms, SESSION, SILENCE, HEARTBEAT),
            )
