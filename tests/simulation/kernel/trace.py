"""The trace of one simulated run: what happened when, and the digest that two runs must share.

Owns the order and the text of events. Does not decide anything: a run without a trace would take
the same course.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import deque
from collections.abc import Callable

KEPT_LINES = 400
"""Lines that a failing run shows; older ones only live in the digest."""


class Trace:
    """Every event of a run with its virtual time in microseconds, folded into one digest."""

    def __init__(self, now: Callable[[], float], *, keep: int = KEPT_LINES) -> None:
        self._now = now
        self._hash = hashlib.sha256()
        self.lines: deque[str] = deque(maxlen=keep)
        self.count = 0

    def event(self, kind: str, *fields: object) -> None:
        """Add one event. Fields are printed with ``str``: give names and numbers, no objects."""
        line = f"{round(self._now() * 1_000_000)} {kind} {' '.join(map(str, fields))}"
        self._hash.update(f"{line}\n".encode())
        self.lines.append(line)
        self.count += 1

    def digest(self) -> str:
        """Return the SHA-256 over all events so far, in hex."""
        return self._hash.hexdigest()

    def tail(self, lines: int = 40) -> str:
        """Return the last ``lines`` events, one a line."""
        return "\n".join(list(self.lines)[-lines:])


def fingerprint(content: bytes | bytearray | memoryview) -> str:
    """Return a short text that stands for the bytes in a trace."""
    return f"{len(content)}:{zlib.crc32(content):08x}"
