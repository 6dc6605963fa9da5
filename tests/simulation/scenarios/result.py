"""What a scenario gives back. Owns the shape, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation import promises

MOST_FINDINGS = 20
"""Findings that a report shows."""


class Findings(list[str]):
    """A watcher's findings during a run; calls `on_awaited` for a finding that ends the run."""

    def __init__(self, is_awaited: Callable[[str], bool], on_awaited: Callable[[], None]) -> None:
        super().__init__()
        self._is_awaited = is_awaited
        self._on_awaited = on_awaited

    def append(self, line: str) -> None:
        super().append(line)
        if self._is_awaited(line):
            self._on_awaited()


@dataclass
class Result:
    """One run of one scenario with one seed."""

    scenario: str
    seed: int
    digest: str
    violations: list[str]
    trace: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    """What happened how often; a test may assert that the scenario was not idle."""

    def report(self) -> str:
        """Return what a person needs first, a line each: the promise, the event, the seed.

        All findings and the last events follow.
        """
        first = promises.first_of(self.violations)
        name = promises.name_of(first)
        # Of an error of the run the last line of the traceback says what happened.
        event = first.removeprefix(f"{name}: ") if name else first.strip().splitlines()[-1]
        lines = [
            f"broken: {promises.broken(first)}",
            f"event: {event}",
            f"seed: {self.seed} of scenario {self.scenario}; replay it with: "
            f"make simulate SEED={self.seed} SCENARIO={self.scenario}",
            f"digest: {self.digest}",
            f"findings: {len(self.violations)}",
            *self.violations[:MOST_FINDINGS],
            "last events:",
            self.trace,
        ]
        return "\n".join(lines)


Scenario = Callable[[int], Result]
