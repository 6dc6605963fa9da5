"""The times of a broker's session, one against the other: heartbeat, silence, death.

Owns what ``broker.silence.suspect.ms`` is when nobody set it, and which times are refused because a
live broker would be suspected, or die, between two heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidelog.model.configs.types import Refused

HEARTBEATS_IN_SILENCE = 3
"""How many heartbeats must be missing before a silence is suspicious."""

SILENCE, SESSION = "broker.silence.suspect.ms", "broker.session.timeout.ms"
HEARTBEAT = "broker.heartbeat.interval.ms"


def silence_suspect_ms(values: Mapping[str, Any], is_set: bool) -> int | Refused:
    """Return after how long a silence a broker is suspected, in ms, or why these times are refused.

    A value that nobody set follows the other two: half of a short session, three intervals of slow
    heartbeats; where that leaves no room it is the session's whole time, and death comes first.
    """
    session_ms: int = values[SESSION]
    heartbeat_ms: int = values[HEARTBEAT]
    silence_ms: int = values[SILENCE]
    if session_ms <= heartbeat_ms:
        return Refused(
            SESSION,
            f"{SESSION} is {session_ms}: it must be above {HEARTBEAT} ({heartbeat_ms}), or every "
            "broker dies between two heartbeats.",
        )
    least_ms = HEARTBEATS_IN_SILENCE * heartbeat_ms
    if not is_set:
        return min(session_ms, max(least_ms, min(silence_ms, session_ms // 2)))
    if not least_ms <= silence_ms < session_ms:
        return Refused(
            SILENCE,
            f"{SILENCE} is {silence_ms}: it must be at least {least_ms} (three times {HEARTBEAT}) "
            f"and below {session_ms} ({SESSION}).",
        )
    return silence_ms
