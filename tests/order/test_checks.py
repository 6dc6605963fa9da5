"""The order checker: it accepts every legal history, and finds each change that breaks a rule."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.order.checks import violations_in
from tests.order.history import History, from_lines, to_lines
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


@given(seeds)
def test_a_history_goes_through_its_lines(seed: int) -> None:
    history = Model(seed).run(60)
    assert from_lines(to_lines(history)) == history


def test_a_line_that_is_no_event_is_named() -> None:
    lines = [*to_lines(History(1)), '{"event": "Sent", "uid": 1}']
    with pytest.raises(ValueError, match="line 2 is no event of a history"):
        from_lines(lines)
