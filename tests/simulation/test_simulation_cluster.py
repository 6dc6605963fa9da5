"""A whole cluster in the simulation: many seeds within a time."""

from __future__ import annotations

from tests.simulation.seeds import run_in_workers

SECONDS = 180.0
"""Wall time for seeds, in two workers."""


def test_no_promise_breaks_in_many_clusters() -> None:
    totals = run_in_workers("cluster", SECONDS)
    seeds = totals["seeds"]
    assert seeds >= 2
    assert totals["faults"] > 8 * seeds
    assert totals["acked"] > 300 * seeds
    assert totals["reads"] > 300 * seeds
    assert totals["elections"] > 3 * seeds
    assert totals["commits"] > 3 * seeds
    assert totals["audits"] > 30 * seeds
