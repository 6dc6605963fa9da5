"""What a scenario gives back. Owns the shape, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class Findings(list[str]):
    """What a watcher has found while a run goes on; tells of a line that was waited for."""

    def __init__(self, is_awaited: Callable[[str], bool], tell: Callable[[], None]) -> None:
        super().__init__()
        self._is_awaited = is_awaited
        self._tell = tell

    def append(self, line: str) -> None:
        super().append(line)
        if self._is_awaited(line):
            self._tell()


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
        """Return what a person needs to replay a failure."""
        lines = [
            f"simulation failed: scenario {self.scenario}, seed {self.seed}, digest {self.digest}",
            f"replay with: make simulate SEED={self.seed} SCENARIO={self.scenario}",
            *self.violations[:20],
            "last events:",
            self.trace,
        ]
        return "\n".join(lines)


Scenario = Callable[[int], Result]
