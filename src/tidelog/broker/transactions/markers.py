"""What a broker has of markers: one object for its handlers and its transaction coordinator.

Owns the record only. Not how the parts are made: see ``assembly``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.broker.transactions.asked_markers import AskedMarkers
from tidelog.broker.transactions.hanging_checks import HangingChecks
from tidelog.broker.transactions.marker_sender import MarkerSender
from tidelog.broker.transactions.marker_writer import MarkerWriter


@dataclass(frozen=True, slots=True)
class Markers:
    """Both ends of a marker's way, and the checks of what waits for one in vain."""

    writer: MarkerWriter
    sender: MarkerSender
    checks: HangingChecks
    """What ends transactions whose marker, or whose coordinator's states, were lost."""
    asked: AskedMarkers
    """Markers that clients ask for."""
