"""The whole server in the simulation: a fixed number of seeds, replay, planted bugs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.replay import in_other_processes
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.seeds import first_failure, run_seeds
from tidelog.broker.fetching import fetch_fast_path, partition_reads, read_positions
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode
from tidelog.storage.log import opening
from tidelog.storage.log.producers import ProducerState

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quiet")]

WORLDS = 30
"""Twenty seconds of a quiet core."""

LIMIT_S = 300.0
SEEDS = 60
"""Within so many seeds each planted bug must be found."""


def test_no_promise_breaks_in_many_worlds() -> None:
    totals = run_seeds("broker", WORLDS, LIMIT_S)
    # About half of what they do.
    floors = {"faults": 1.5, "acked": 230, "reads": 240, "starts": 1.5, "deletions": 5}
    low = {what: totals[what] for what, each in floors.items() if totals[what] < each * WORLDS}
    assert not low, f"too little of {low} in {totals}"


def test_a_seed_replays_in_every_process() -> None:
    seed = 5
    digest = SCENARIOS["broker"](seed).digest
    program = (
        "import logging; logging.disable(50)\n"
        "from tests.simulation.scenarios.broker import run_broker\n"
        f"print(run_broker({seed}).digest)"
    )
    assert in_other_processes(program, 0, 77) == {digest}


def ack_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        HostedPartition, "when_committed", lambda _, offset, told, **__: told(ErrorCode.NONE)
    )


def read_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(read_positions, "read_limit", lambda log, committed: log.end_offset)
    for module in (partition_reads, fetch_fast_path):
        patch.setattr(module, "limit_of_consumer", lambda hosted, named: hosted.log.end_offset)


def accept_a_duplicate_after_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "load_producers", lambda *_: ProducerState())


PLANTED: list[tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = [
    (ack_before_the_sync, ("acked_is_not_lost", "one_offset_one_record")),
    (read_what_is_not_committed, ("above the high watermark", "read_is_not_unread")),
    (accept_a_duplicate_after_restart, ("idempotent_is_once",)),
]


@pytest.mark.parametrize(("plant", "findings"), PLANTED, ids=[p.__name__ for p, _ in PLANTED])
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    findings: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    found = first_failure("broker", SEEDS, *findings)
    assert found is not None, f"{plant.__name__} survived {SEEDS} seeds"
    print(f"{plant.__name__}: seed {found.seed}: {found.violations[0]}")
