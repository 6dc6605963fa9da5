"""The progress output of a job: a bar for people, lines of JSON for programs.

Owns the two forms. Not what is counted: see the jobs. Everything goes to standard error, except
JSON, which is the requested output.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)


class Reporter(Protocol):
    """Where a job reports to. `total` grows when the goal moves."""

    def __enter__(self) -> Reporter: ...

    def __exit__(self, *_: object) -> None: ...

    def update(self, done: int, total: int, **facts: Any) -> None:
        """`done` of `total` are done; `facts` are further fields of the JSON."""
        ...

    def say(self, line: str) -> None:
        """One sentence for people."""
        ...


class Bar:
    """A bar on a terminal; otherwise plain lines, one per tenth and one at the end."""

    def __init__(self, title: str, out: TextIO | None = None) -> None:
        self._console = Console(file=out or sys.stderr)
        self._title = title
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._tenth = -1
        self._line = self._said = ""

    def __enter__(self) -> Bar:
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self._console,
            )
            self._task = self._progress.add_task(self._title, total=None)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
        elif self._line != self._said:
            # The total grew with the progress: the last tenth printed is still the current one.
            self.say(self._line)

    def update(self, done: int, total: int, **facts: Any) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total)
            return
        self._line = f"{self._title}: {done:,} of {total:,}"
        tenth = 10 * done // total if total else 0
        if tenth != self._tenth:
            self._tenth = tenth
            self._said = self._line
            self.say(self._line)

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class Plain:
    """A reporter with nothing to begin and nothing to end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class JsonLines(Plain):
    """One JSON object per change, on standard output."""

    def __init__(self, job: str, out: TextIO | None = None) -> None:
        self._job = job
        self._out = out or sys.stdout
        self._last = ""

    def update(self, done: int, total: int, **facts: Any) -> None:
        line = json.dumps({"job": self._job, "done": done, "total": total, **facts})
        if line != self._last:
            self._last = line
            print(line, file=self._out, flush=True)

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def reporter(job: str, title: str, json_out: TextIO | None) -> Reporter:
    """The reporter of a job: JSON if requested, otherwise for people."""
    return Bar(title) if json_out is None else JsonLines(job, json_out)
