"""Resizes while controllers, leaders and reports fail: each commit may be the last of a controller.

The rules that must hold are those of ``tests.support.resizing_model``.
"""

from __future__ import annotations

import random

import pytest

from tests.support.resizing_model import Model
from tidelog.controller.decisions import resizing
from tidelog.controller.decisions.resizing import Progress
from tidelog.metadata.records import ResizeKind, ResizeStep

SEEDS = 150
STEPS = 120


@pytest.mark.parametrize("writes_at_once", [1, 3, 500])
@pytest.mark.parametrize("counts", [(5,), (5, 3), (7, 3, 2), (4, 4)])
@pytest.mark.parametrize("is_undone", [False, True])
def test_a_controller_dies_after_each_commit(
    writes_at_once: int,
    counts: tuple[int, ...],
    is_undone: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the last resize of ``counts``: the next controller finishes it, or undoes it."""
    monkeypatch.setattr(resizing, "WRITES_AT_ONCE", writes_at_once)
    death, total = 0, 1
    while death <= total:
        model = Model(random.Random(1))
        for count in counts[:-1]:
            model.ask(count)
            model.everything_works()
        model.ask(counts[-1])
        plan = model.world.plan
        model.commits = 0
        if death == 0:
            model.controller_dies()
        # All leaders but that of partition 0 work.
        while model.world.history.resize is not None:
            before = model.commits
            progress = model.advance(is_late=is_undone)
            if model.commits == death > before:
                model.controller_dies()
            if progress is Progress.WAITS or is_undone:
                for index in range(1 if is_undone else 0, len(model.world.cluster.states)):
                    model.deliver(index)
                    model.commit(index)
                    model.report(index)
        total = model.commits
        kind = ResizeKind.UNDO if is_undone else plan.kind
        assert model.finished[-1] is kind
        expected = plan.from_count if is_undone else plan.to_count
        assert model.world.shown[:2] == (expected, plan.resize_epoch + is_undone)
        death += 1
    assert death > 2


@pytest.mark.parametrize("writes_at_once", [1, 3, 500])
@pytest.mark.parametrize("births", [1, 2, 6])
def test_a_controller_dies_while_a_growth_is_undone_after_its_births(
    writes_at_once: int, births: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The growth from 2 to 8 partitions has made some of its children when it is late."""
    death, total = 0, 1
    while death <= total:
        monkeypatch.setattr(resizing, "WRITES_AT_ONCE", 1)
        model = Model(random.Random(1))
        model.ask(8)
        while model.world.plan.step is ResizeStep.FENCE or model.world.plan.cursor < births:
            if model.advance() is Progress.WAITS:
                for index in range(2):
                    model.deliver(index)
                    model.commit(index)
                    model.report(index)
        assert model.world.plan.step is ResizeStep.BIRTH
        # One of the children reports, and the others have no leader that does.
        model.deliver(2)
        model.commit(2)
        model.report(2)
        monkeypatch.setattr(resizing, "WRITES_AT_ONCE", writes_at_once)
        model.commits = 0
        if death == 0:
            model.controller_dies()
        while model.world.history.resize is not None:
            before = model.commits
            model.advance(is_late=True)
            if model.commits == death > before:
                model.controller_dies()
        total = model.commits
        assert model.finished == [ResizeKind.UNDO]
        assert model.world.shown == (2, 2, 2)
        assert sorted(model.world.history.former) == list(range(2, 2 + births))
        # Nothing of it stays in the way.
        model.ask(8)
        model.everything_works()
        assert model.world.shown == (8, 3, 8)
        assert model.world.node(2).birth_offset == 1
        death += 1
    assert death > 2


@pytest.mark.parametrize("seed", range(SEEDS))
def test_drawn_histories(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(resizing, "WRITES_AT_ONCE", rng.choice((1, 2, 3, 500)))
    model = Model(rng)
    for _ in range(STEPS):
        index = rng.randrange(len(model.world.cluster.states))
        broker = rng.randint(1, 4)
        match rng.choices(
            (
                "ask",
                "advance",
                "late",
                "controller",
                "dies",
                "returns",
                "deliver",
                "commit",
                "report",
                "again",
            ),
            (6, 30, 2, 3, 2, 5, 30, 30, 30, 5),
        )[0]:
            case "ask":
                model.ask()
            case "advance":
                model.advance()
            case "late":
                model.advance(is_late=True)
            case "controller":
                model.controller_dies()
            case "dies":
                model.broker_dies(broker)
            case "returns":
                model.broker_returns(broker)
            case "deliver":
                model.deliver(index)
            case "commit":
                model.commit(index)
            case "report":
                model.report(index)
            case _ if model.reports:
                model.report_again(rng.choice(model.reports))
    model.everything_works()
    # Something happened, whatever was drawn.
    model.ask()
    model.everything_works()
    assert model.finished


def test_drawn_histories_reach_every_kind() -> None:
    """The control of the seeds: growths, shrinks, epochs of the same count and undos finish."""
    finished: set[ResizeKind] = set()
    for seed in range(12):
        rng = random.Random(seed)
        model = Model(rng)
        for _ in range(4):
            model.ask()
            if rng.random() < 0.3:
                model.advance(is_late=True)
            model.everything_works()
        finished |= set(model.finished)
    assert finished == set(ResizeKind)
