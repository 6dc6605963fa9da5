"""The refusal type of the commands: an exit status and one error line on standard error.

Owns the statuses: 0 is success, 1 a failed operation, 2 wrong usage. Not the advice for an error of
the cluster: see `failures`. Imports no click, because ``tidelog server`` runs without it.
"""

from __future__ import annotations

import sys

FAILED = 1
WRONG_USAGE = 2

LAST_WORDS = "failed "
"""How the line begins by which a worker tells its supervisor why it ends."""

LAST_WORDS_CHARACTERS = 2_000
"""The supervisor's log line has them in full."""


class Failed(Exception):
    """The operation failed, or the server cannot start: exit status 1 and this text."""

    exit_code = FAILED

    def show(self) -> int:
        """Print the error line and return the exit status."""
        print_error(str(self))
        return self.exit_code


class WrongUsage(Failed):
    """The arguments are wrong: exit status 2 and this text."""

    exit_code = WRONG_USAGE


def print_last_words(text: str) -> None:
    """Print on standard output why this process ends: its supervisor reads that, and not the
    standard error, which they share."""
    print(f"{LAST_WORDS}{' '.join(text.split())[:LAST_WORDS_CHARACTERS]}", flush=True)


def print_error(text: str) -> None:
    """Print one error line, however many lines ``text`` has."""
    print(f"error: {' '.join(text.split())}", file=sys.stderr)
