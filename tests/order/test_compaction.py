"""C10: the checker accepts what a cleaner may do, and finds a reader with anything else."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.order.checks import violations_in
from tests.order.history import (
    Compaction,
    Delivery,
    Event,
    FreshRead,
    History,
    Outcome,
    Send,
    Stored,
    from_lines,
    to_lines,
)
from tests.order.model import Model
from tests.order.reference import Placed, Reference

seeds = st.integers(0, 2**32)
READER = "fresh"


def cleaned(history: History, rng: random.Random) -> History:
    """Return a legal history of a topic in which some records are deletions, and some are gone."""
    events: list[Event] = [
        replace(each, is_deletion=rng.random() < 0.25) if isinstance(each, Send) else each
        for each in history.events
    ]
    lists = Reference(History(history.initial_count, events)).lists
    uids: dict[str, int] = {}
    gone: set[int] = set()
    for key, placed in lists.items():
        for each in placed[:-1]:
            if _place_is_known(each) and rng.random() < 0.5:
                gone.add(each.send.uid)
        if not placed:
            continue
        newest = placed[-1]
        if newest.send.is_deletion and _place_is_known(newest) and rng.random() < 0.5:
            gone |= {each.send.uid for each in placed if _place_is_known(each)}
        if newest.send.uid not in gone:
            uids[key] = newest.send.uid
        elif left := [each.send.uid for each in placed if each.send.uid not in gone]:
            gone.discard(newest.send.uid)
            uids[key] = newest.send.uid
            assert left
    # Some were read before they went.
    read = {uid for uid in gone if rng.random() < 0.5}
    kept = [
        each
        for each in events
        if not (isinstance(each, Stored) and each.uid in gone)
        and not (isinstance(each, Delivery) and each.uid in gone - read)
    ]
    return History(history.initial_count, [*kept, Compaction(), FreshRead(READER, uids)])


def _place_is_known(placed: Placed) -> bool:
    return placed.send.outcome is not Outcome.OK or placed.send.offset >= 0


def with_read(history: History, uids: dict[str, int]) -> History:
    """Return the history with another result of its fresh reader."""
    kept = [each for each in history.events if not isinstance(each, FreshRead)]
    return History(history.initial_count, [*kept, FreshRead(READER, uids)])


@given(seeds)
def test_a_topic_whose_older_records_are_gone_has_no_violation(seed: int) -> None:
    assert violations_in(Reference(cleaned(Model(seed).run(400), random.Random(seed)))) == []


def test_without_compaction_the_same_records_are_lost() -> None:
    history = cleaned(Model(3).run(400), random.Random(3))
    kept = [each for each in history.events if not isinstance(each, Compaction)]
    found = violations_in(Reference(History(history.initial_count, kept)))
    assert "C5" in {each.rule for each in found}


Ends = Callable[[list[Placed], random.Random], "int | None"]


def an_older_one(placed: list[Placed], rng: random.Random) -> int | None:
    """A value that a newer record of its key voids: also that of a key that was deleted."""
    return rng.choice(placed[:-1]).send.uid if len(placed) > 1 else -1


def nothing(placed: list[Placed], _: random.Random) -> int | None:
    """A key that has a value is absent."""
    return -1 if placed[-1].send.is_deletion else None


def one_that_nobody_sent(_placed: list[Placed], _: random.Random) -> int | None:
    """A record that no client sent."""
    return 1_000_000


@pytest.mark.parametrize("ends", [an_older_one, nothing, one_that_nobody_sent])
def test_a_reader_that_ends_with_another_record_is_found(ends: Ends) -> None:
    tried = 0
    for seed in range(60):
        rng = random.Random(seed)
        history = cleaned(Model(seed).run(300), rng)
        reference = Reference(history)
        (read,) = history.of(FreshRead)
        known = {
            send.key
            for send in history.of(Send)
            if send.is_deletion and send.outcome is Outcome.INFO
        }
        wrong = {
            key: uid
            for key, placed in reference.lists.items()
            if key in read.uids
            and key not in known
            and placed[-1].send.uid in reference.there
            and (uid := ends(placed, rng)) != -1
        }
        if not wrong:
            continue
        tried += 1
        key = rng.choice(sorted(wrong))
        uids = {**read.uids, key: wrong[key]}
        changed = {name: uid for name, uid in uids.items() if uid is not None}
        found = violations_in(Reference(with_read(history, changed)))
        assert {(each.rule, each.key) for each in found} == {("C10", key)}, f"seed {seed}: {found}"
    assert tried >= 10


def test_a_deletion_of_unknown_outcome_explains_an_absent_key() -> None:
    sends = [
        Send(1, "k", "w", 0, 0, 1.0, Outcome.OK, 2.0, 0, 0),
        Send(2, "k", "w", 1, 0, 3.0, Outcome.INFO, 4.0, is_deletion=True),
    ]
    absent = [Compaction(), FreshRead(READER, {})]
    assert violations_in(Reference(History(1, [*sends, Stored(0, 0, 1), *absent]))) == []
    known = replace(sends[1], is_deletion=False)
    found = violations_in(Reference(History(1, [sends[0], known, Stored(0, 0, 1), *absent])))
    assert [each.rule for each in found] == ["C10"]


def test_a_history_of_a_compacted_topic_goes_through_its_lines() -> None:
    history = cleaned(Model(1).run(100), random.Random(1))
    assert from_lines(to_lines(history)) == history
