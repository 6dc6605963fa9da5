"""Stock clients in a history: what they write and read is complete, and keeps no order."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.order.checks import violations_in
from tests.order.history import (
    Delivery,
    Event,
    History,
    Outcome,
    Registration,
    Send,
    Stored,
    Unaware,
)
from tests.order.model import WRITERS, Model
from tests.order.mutations import drop, duplicate, swap
from tests.order.reference import Reference

ALL = [Unaware(f"w{number}") for number in range(WRITERS)]


def rules_of(history: History, *more: Event) -> set[str]:
    """Return the rules that a history breaks with more events."""
    changed = History(history.initial_count, [*history.events, *more])
    return {each.rule for each in violations_in(Reference(changed))}


def test_records_of_unaware_writers_keep_no_order() -> None:
    tried = 0
    for seed in range(30):
        changed = swap(Model(seed).run(300), random.Random(seed))
        if changed is not None:
            tried += 1
            assert "C7" in rules_of(changed)
            assert rules_of(changed, *ALL) == set(), f"seed {seed}"
    assert tried >= 10


def test_records_of_unaware_writers_are_not_lost_and_not_there_twice() -> None:
    for seed in range(30):
        for change, rule in ((drop, "C5"), (duplicate, "C3")):
            changed = change(Model(seed).run(300), random.Random(seed))
            if changed is not None:
                assert rule in rules_of(changed, *ALL), f"seed {seed}"


def test_what_was_refused_to_an_unaware_writer_is_not_there() -> None:
    sends = [Send(1, "k", "w0", 0, -1, 1.0, Outcome.FAIL, 2.0), Stored(0, 0, 1)]
    assert rules_of(History(1, sends), *ALL) == {"C4"}


def test_an_unaware_group_receives_everything_in_any_order() -> None:
    sends = [Send(uid, "k", "a", uid, 0, uid, Outcome.OK, uid + 0.5, 0, uid) for uid in range(3)]
    stored = [Stored(0, uid, uid) for uid in range(3)]
    read = [Delivery("g", "m", 0, uid, uid, 10 - uid, 10 - uid) for uid in range(3)]
    history = History(1, [*sends, *stored, *read, Registration("g", 0.0)])
    assert rules_of(history) == {"C8"}
    assert rules_of(history, Unaware("g")) == set()
    lacking = replace(history, events=[each for each in history.events if each is not read[1]])
    assert rules_of(lacking, Unaware("g")) == {"C9"}
