"""Planted bugs of one broker: one rule at a time is replaced, and a seed of `broker` finds it.

Those of the log alone: see `test_log.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.seeds import first_failure
from tidelog.broker.fetching import fetch_fast_path, partition_reads, read_positions
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode
from tidelog.storage.log import opening
from tidelog.storage.log.producers import ProducerState

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quiet")]

SEEDS = 60
"""Within so many seeds each planted bug must be found."""


def ack_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        HostedPartition, "when_committed", lambda _, offset, told, **__: told(ErrorCode.NONE)
    )


def read_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(read_positions, "read_limit", lambda log, committed: log.end_offset)
    for module in (partition_reads, fetch_fast_path):
        patch.setattr(module, "limit_of_consumer", lambda hosted, named: hosted.log.end_offset)


def accept_a_duplicate_after_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "load_producers", lambda *_, **__: ProducerState())


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
