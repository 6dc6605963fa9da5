"""Upper bounds of controller epochs and store revisions: later ones must still fit."""

from __future__ import annotations

ROOM = 100_000_000
"""Numbers that must be free above an epoch or a revision: an accepted restoration skips a million,
and each activation and commit takes one."""

HIGHEST_EPOCH = 2**31 - 1 - ROOM
HIGHEST_REVISION = 2**63 - 1 - ROOM


def leaves_room(controller_epoch: int, store_revision: int) -> bool:
    """Whether later controllers and commits can still have larger numbers."""
    return controller_epoch <= HIGHEST_EPOCH and store_revision <= HIGHEST_REVISION
