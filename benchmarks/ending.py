"""How a benchmark ends when it is terminated: its servers end with it."""

from __future__ import annotations

import signal
import sys


def end_on_sigterm() -> None:
    """Have SIGTERM raise SystemExit: what runs is left as at its end, the servers stopped."""

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
