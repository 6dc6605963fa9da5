"""Bugs of compacted topics that grow and shrink (KIP-253), to be planted in a run.

Owns the plants and their table. Not the search for a seed: see ``search``.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.planted.search import Patch, Planted, directed
from tidelog.broker.partitions.older_values import OlderValues

NEWEST = ("order_of_keys: C10",)


def forget_ancestors(patch: Patch) -> None:
    """A child's deletion is removed while an ancestor has an older value of its key."""

    async def never(*_: Any) -> bool:
        return False

    patch.setattr(OlderValues, "may_exist", never)


QUIET = directed(
    {"kill_broker": 1.0},
    seconds=10.0,
    end_seconds=12.0,
    pause=(2.0, 6.0),
    resizes=(1.0, 2.0),
    controllers=1,
    deletes=False,
    unclean=False,
)

PLANTED = (Planted(forget_ancestors, NEWEST, QUIET, first_seed=2),)
