"""The order checker: it accepts every legal history, and finds each change that breaks a rule."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.order.checks import lags_of, violations_in
from tests.order.history import (
    Delivery,
    History,
    Outcome,
    Registration,
    Send,
    Stored,
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
