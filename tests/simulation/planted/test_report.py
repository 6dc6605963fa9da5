"""A red run of the simulation says in its first three lines what to do next."""

from __future__ import annotations

import ast
import re

import pytest

from tests.simulation import checkers, group_checkers, transaction_checkers
from tests.simulation.promises import PROMISES, RULES
from tests.simulation.scenarios.result import Result
from tests.simulation.seeds import run_seeds
from tests.support.repository import PYTHON, ROOT, parsed
from tidelog.storage.log import syncing


def test_the_promise_the_event_and_the_seed_are_the_first_three_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(syncing.PendingSync, "run", lambda self: None)
    with pytest.raises(AssertionError) as red:
        # Seed 0 breaks promise 3 first: which one it is depends on the operations of the disk.
        run_seeds("log", 400, 300.0, first=1)
    promise, event, seed, *_ = str(red.value).splitlines()
    assert promise == "broken: promise 1 of docs/promises.md: acked_is_not_lost"
    assert re.fullmatch(r"event: \S+ \S+ .* acked at \d+ is gone", event), event
    found = re.fullmatch(
        r"seed: (\d+) of scenario log; replay it with: make simulate SEED=(\d+) SCENARIO=log", seed
    )
    assert found is not None, seed
    with pytest.raises(AssertionError) as again:
        run_seeds("log", 1, 300.0, first=int(found[1]))
    assert str(again.value) == str(red.value)


def test_a_promise_comes_before_an_error_of_the_run() -> None:
    error = "the run ended with an error:\nTraceback:\nValueError: planted"
    red = Result("cluster", 7, "d", [error, "acked_is_not_lost: t-0 w#1 is gone", "unhandled: x"])
    assert red.report().splitlines()[:3] == [
        "broken: promise 1 of docs/promises.md: acked_is_not_lost",
        "event: t-0 w#1 is gone",
        "seed: 7 of scenario cluster; replay it with: make simulate SEED=7 SCENARIO=cluster",
    ]
    alone = Result("broker", 3, "d", [error]).report().splitlines()
    assert alone[:2] == [
        "broken: no promise by name: the run itself failed",
        "event: ValueError: planted",
    ]


def test_every_finding_has_its_promise_or_rule() -> None:
    """Checkers give their names, watchers write `name: …` themselves."""
    named = {check.__name__ for check in (*checkers.ALL, *group_checkers.ALL)}
    named |= transaction_checkers.ALL.keys()
    for path in PYTHON:
        if path.is_relative_to(ROOT / "tests" / "simulation") and "test_" not in path.name:
            for node in ast.walk(parsed(path)):
                text = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else None
                if isinstance(text, ast.Constant):
                    named.update(re.findall(r"^([a-z]+(?:_[a-z]+)+): ", str(text.value)))
    assert named == PROMISES.keys() | RULES.keys()
