"""Whole batches as they were read from a segment, and where reading continues."""

from __future__ import annotations

from typing import NamedTuple


class Slice(NamedTuple):
    """Whole batches of a segment. ``next_offset``/``next_position``: where reading goes on."""

    data: memoryview
    next_offset: int
    next_position: int
