"""Scenarios as text that anyone can read: a step is a line, what it answers is indented below it.

    # why this scenario is here
    lead v5 t(A)-0 epoch=5
        t-0 NONE
    hold old stop v4 t(A)-0 epoch=5 delete

Owns the grammar only: lines to steps, and how two answers are shown when they differ. What a
command means is the test's that runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

INDENT = "    "


@dataclass
class Step:
    """One line at the margin: its number, its words, and the answer that is expected."""

    number: int
    words: list[str]
    expected: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"line {self.number}: {' '.join(self.words)}"


def parse(text: str) -> list[Step]:
    """Return the steps of a scenario. Raises ValueError for an answer without a step."""
    steps: list[Step] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].rstrip()
        if not words:
            continue
        if not words.startswith(" "):
            steps.append(Step(number, words.split()))
        elif not words.startswith(INDENT) or words.startswith(INDENT + " "):
            raise ValueError(f"line {number}: an answer is indented by four spaces")
        elif not steps:
            raise ValueError(f"line {number}: an answer without a step")
        else:
            steps[-1].expected.append(words.removeprefix(INDENT))
    return steps


def difference(file: Path, step: Step, found: list[str]) -> str | None:
    """Return what to print when a step answered something else, or None."""
    if found == step.expected:
        return None
    shown = "\n".join(f"{INDENT}{line}" for line in found) or f"{INDENT}(nothing)"
    expected = "\n".join(f"{INDENT}{line}" for line in step.expected) or f"{INDENT}(nothing)"
    return f"{file.name}, {step}\nanswered\n{shown}\ninstead of\n{expected}"
