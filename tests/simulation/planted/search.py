"""The search for a seed that finds a planted bug."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest

from tests.simulation import promises
from tests.simulation.scenarios.cluster import ClusterRun
from tests.simulation.scenarios.course import Course
from tests.simulation.scenarios.result import Result

Patch = pytest.MonkeyPatch
SEEDS = 12
"""Within so many seeds each bug must be found; most need one or two."""

MOST_SEEDS = 40
"""Within so many a long run must find it, from the first seed on."""


KILLS = {"kill_broker": 3.0, "bounce_broker": 3.0, "kill_two": 1.0}


def directed(weights: dict[str, float], **more: Any) -> Course:
    """Return a short course with only these faults."""
    course = {"seconds": 14.0, "end_seconds": 18.0, "pause": (0.1, 1.5), "mixed": False, **more}
    return Course(weights=weights, **course)


class Planted(NamedTuple):
    """A bug, what is said of it, and the course that finds it."""

    plant: Callable[[Patch], None]
    findings: tuple[str, ...]
    course: Course
    first_seed: int = 0
    """Where the search begins: those before it were once searched and found nothing."""
    alone: bool = False
    """Whether only a run in which nothing else is said counts."""


LOSSES = (
    "one_offset_one_record",
    "acked_is_not_lost",
    "only_the_complete_lead",
    "no_loss_while_clean",
)


PROOF = ("no_delete_without_proof",)


def find(
    planted: Planted,
    *,
    first: int | None = None,
    seeds: int = SEEDS,
    scenario: type[ClusterRun] = ClusterRun,
) -> tuple[Result, str] | None:
    """Run seeds until one finds it; return the result and the line.

    ``first`` None: where the planted bug says. A run ends as soon as a watcher has seen it, unless
    all that is said of a run counts.
    """
    begin = planted.first_seed if first is None else first

    def is_finding(line: str) -> bool:
        return any(finding in line for finding in planted.findings)

    for seed in range(begin, begin + seeds):
        enough = None if planted.alone else is_finding
        result = scenario(seed, planted.course, enough).run()
        said = [line for line in result.violations if is_finding(line)]
        if said and not (planted.alone and len(said) < len(result.violations)):
            return result, said[0]
    return None


def survivors(
    table: Iterable[Planted], scenario: type[ClusterRun] = ClusterRun, seeds: int = MOST_SEEDS
) -> int:
    """Print the first seed that finds each planted bug; return how many bugs survive."""
    print("\n| planted bug | seed that finds it | what is said |\n|---|---|---|", flush=True)
    survived = 0
    for planted in table:
        with pytest.MonkeyPatch.context() as patch:
            planted.plant(patch)
            found = find(planted, first=0, seeds=seeds, scenario=scenario)
        seed, said = f"none of {seeds}", "**nothing**"
        if found is not None:
            result, line = found
            seed, said = str(result.seed), f"`{promises.name_of(line) or line[:60]}`"
        survived += found is None
        name = planted.plant.__name__.replace("_", " ")
        print(f"| {name} | {seed} | {said} |", flush=True)
    return survived
