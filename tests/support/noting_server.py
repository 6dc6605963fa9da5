"""`tidelog` that says on standard error what it imports once the loop of its server is watched."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

from tidelog.cli.main import main
from tidelog.runtime.loop_watch import LoopWatch

_start = LoopWatch.start


class Noting(MetaPathFinder):
    """Finds nothing, and is asked first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        print(f"imported {fullname}", file=sys.stderr, flush=True)


def start(self: LoopWatch) -> None:
    """From here on the loop may serve."""
    sys.meta_path.insert(0, Noting())
    _start(self)


LoopWatch.start = start  # type: ignore[method-assign]
if __name__ == "__main__":
    main()
