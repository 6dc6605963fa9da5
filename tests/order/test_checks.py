"""The order checker: it accepts every legal history, and finds each change that breaks a rule."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.order.checks import lags_of, violations_in
from tests.order.history import (
    Commit,
    CommitsLost,
    Delivery,
    Event,
    History,
    Outcome,
    Registration,
    Send,
    Stored,
    UncleanElection,
    from_lines,
    to_lines,
)
from tests.order.model import Model
from tests.order.mutations import MUTATIONS, Mutation
from tests.order.reference import Reference

seeds = st.integers(0, 2**32)


@given(seeds)
def test_a_legal_history_has_no_violation(seed: int) -> None:
    assert violations_in(Reference(Model(seed).run(400))) == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.change.__name__)
def test_a_change_breaks_exactly_its_rule(mutation: Mutation) -> None:
    tried = 0
    for seed in range(60):
        changed = mutation.change(Model(seed).run(300), random.Random(seed))
        if changed is None:
            continue
        tried += 1
        found = violations_in(Reference(changed))
        rules = {each.rule for each in found}
        assert mutation.rule in rules, f"seed {seed}: {found[:5]}"
        assert rules <= {mutation.rule} | mutation.beside, f"seed {seed}: {found[:5]}"
    assert tried >= 10


def test_the_lag_is_the_longest_time_until_a_delivery() -> None:
    history = History(
        1,
        [
            Registration("g", 3.0),
            Send(1, "k", "w", 0, 0, 1.0, Outcome.OK, 2.0, 0, 0),
            Send(2, "k", "w", 1, 0, 4.0, Outcome.OK, 5.0, 0, 1),
            Send(3, "k", "w", 2, 0, 6.0, Outcome.OK, 7.0, 0, 2),
            *(Stored(0, offset, offset + 1) for offset in range(3)),
            Delivery("g", "m", 0, 0, 1, 4.5, 4.5),
            Delivery("g", "m", 0, 1, 2, 9.0, 9.0),
        ],
    )
    assert lags_of(Reference(history)) == {"g": 4.0}


@given(seeds)
def test_a_history_goes_through_its_lines(seed: int) -> None:
    history = Model(seed).run(60)
    assert from_lines(to_lines(history)) == history


def test_a_line_that_is_no_event_is_named() -> None:
    lines = [*to_lines(History(1)), '{"event": "Sent", "uid": 1}']
    with pytest.raises(ValueError, match="line 2 is no event of a history"):
        from_lines(lines)


def an_election(history: History, rng: random.Random) -> UncleanElection:
    """An unclean election of a partition that has records, at any time of the history."""
    end = max(each.begun_at for each in history.of(Delivery))
    partition = rng.choice(history.of(Delivery)).partition
    return UncleanElection(partition, rng.uniform(0, end))


@given(seeds)
def test_an_unclean_election_may_cut_a_partition_and_use_its_offsets_again(seed: int) -> None:
    history, rng = Model(seed).run(300), random.Random(seed)
    if not history.of(Delivery):
        return
    election = an_election(history, rng)
    uids = [each.uid for each in history.of(Stored) if each.partition == election.partition]
    other = dict(zip(uids, [*uids[1:], *uids[:1]], strict=True))
    events: list[Event] = [election]
    for each in history.events:
        if isinstance(each, Stored) and each.partition == election.partition:
            if rng.random() < 0.7:
                events.append(replace(each, uid=other[each.uid]))
        elif isinstance(each, Delivery | Commit) and each.partition == election.partition:
            at = each.begun_at if isinstance(each, Delivery) else each.at
            if at < election.at or rng.random() < 0.7:
                events.append(each)
        else:
            events.append(each)
    assert violations_in(Reference(History(history.initial_count, events))) == []


@given(seeds)
def test_after_lost_commits_a_group_may_begin_anywhere(seed: int) -> None:
    history, rng = Model(seed).run(300), random.Random(seed)
    at = rng.uniform(0, 600)
    kept = [
        each
        for each in history.events
        if not (isinstance(each, Delivery) and each.begun_at >= at and rng.random() < 0.5)
    ]
    changed = History(history.initial_count, [*kept, CommitsLost(at)])
    assert violations_in(Reference(changed)) == []


@pytest.mark.parametrize(("kind", "rule"), [(Stored, "C5"), (Delivery, "C9")])
def test_partitions_that_are_clean_lose_nothing(kind: type, rule: str) -> None:
    """Also records of keys that have been in a partition that is not clean."""
    tried = 0
    for seed in range(60):
        history, rng = Model(seed).run(300), random.Random(seed)
        if not history.of(Delivery):
            continue
        election = replace(an_election(history, rng), at=0.0)
        stored = {each.uid for each in history.of(Stored)}
        clean = [
            each.uid
            for each in history.of(Send)
            if each.outcome is Outcome.OK
            and each.offset >= 0
            and each.partition != election.partition
            and each.uid in stored
        ]
        if not clean:
            continue
        tried += 1
        uid = rng.choice(clean)
        gone = (Stored, Delivery) if kind is Stored else Delivery
        kept = [x for x in history.events if not (isinstance(x, gone) and x.uid == uid)]
        found = violations_in(Reference(History(history.initial_count, [*kept, election])))
        assert rule in {each.rule for each in found}, f"seed {seed}: {found[:5]}"
    assert tried >= 10


def test_before_an_unclean_election_an_order_is_wrong_as_ever() -> None:
    events = [
        Send(1, "k", "w", 0, 0, 1.0, Outcome.OK, 2.0, 0, 1),
        Send(2, "k", "w", 1, 0, 3.0, Outcome.OK, 4.0, 0, 0),
    ]
    wrong: dict[float, set[str]] = {5.0: {"C6", "C7"}, 3.5: set()}
    for at, rules in wrong.items():
        changed = History(1, [*events, UncleanElection(0, at)])
        assert {each.rule for each in violations_in(Reference(changed))} == rules
