"""Bugs that stock clients meet in a topic that grows and shrinks (KIP-253), to be planted in a run.

Owns the plants and their table. Not the search for a seed: see ``search``.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.planted.search import Patch, Planted, directed
from tidelog.broker.partitions import resize_checks
from tidelog.replication import resize_rules
from tidelog.replication.resize_rules import NOT_NAMED, ToProduce

LOST = ("order_of_keys: C5", "order_of_keys: C9")


def seal_for_aware_writers_only(patch: Patch) -> None:
    """A retired partition takes the records of writers without a count."""
    answer = resize_rules.answer_to_produce

    def open_to_stock(named: Any, *of: Any, **more: Any) -> ToProduce:
        found = answer(named, *of, **more)
        is_open = found is ToProduce.SEALED and named == NOT_NAMED
        return ToProduce.APPENDED if is_open else found

    patch.setattr(resize_checks, "answer_to_produce", open_to_stock)


QUIET = directed(
    {"kill_broker": 1.0},
    seconds=10.0,
    end_seconds=12.0,
    pause=(2.0, 6.0),
    resizes=(0.2, 1.0),
    controllers=1,
    deletes=False,
    unclean=False,
)

PLANTED = (Planted(seal_for_aware_writers_only, LOST, QUIET),)
