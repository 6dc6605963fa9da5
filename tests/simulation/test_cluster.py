"""A whole cluster in the simulation: a fixed number of seeds."""

from __future__ import annotations

from tests.simulation.cluster import faults
from tests.simulation.seeds import run_in_workers

SEEDS = 40
"""In two workers: three minutes on quiet cores."""

LIMIT_S = 720.0
"""Four times as long: then it fails."""

RARE = frozenset({"kill_all", "lose_all_power", "lose_a_new_member", "lose_the_answer_to_a_join"})
"""Faults that come rarely, or seldom find what they want: planted bugs have courses of them."""


def test_no_promise_breaks_in_many_clusters() -> None:
    totals = run_in_workers("cluster", SEEDS, LIMIT_S)
    assert totals["seeds"] == SEEDS
    # About half of what they do.
    floors = {
        "faults": 10,
        "acked": 1_200,
        "reads": 2_400,
        "elections": 12,
        "commits": 18,
        "group commits": 80,
        "audits": 60,
        "deletions": 25,
        "moves completed": 0.5,
        "targets joined": 0.3,
    }
    low = {what: totals[what] for what, each in floors.items() if totals[what] < each * SEEDS}
    assert not low, f"too little of {low} in {totals}"
    # A fault that begins may find nothing to strike.
    struck = {kind: totals.get(f"struck {kind}", 0) for kind in faults.ALL}
    missed = [kind for kind, count in struck.items() if not count and kind not in RARE]
    assert not missed, f"never struck: {missed}; {struck}"
    assert sum(struck[kind] for kind in RARE) >= len(RARE), struck
    assert sum(struck.values()) > totals["faults"] // 2
