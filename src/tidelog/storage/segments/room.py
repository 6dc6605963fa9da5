"""How far an append may go in a segment before somebody asks whether to roll.

Owns the value only. ``log.retention`` computes it from the configuration.
"""

from __future__ import annotations

from typing import NamedTuple


class Room(NamedTuple):
    """What an append may reach without ``must_roll`` being asked: bytes, time, offset."""

    size: int
    timestamp: int
    offset: int


NO_ROOM = Room(-1, -1, -1)
