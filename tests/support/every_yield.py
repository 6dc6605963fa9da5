"""Turns of no length: long work gives way at each yield, as on a machine that is slow enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.runtime import pace

NAMES = "REQUESTS_MS", "BACKGROUND_MS", "PART"


@contextmanager
def every_yield(part: int = 1) -> Iterator[None]:
    """Give way at each yield, also between so many items where usually many are done together."""
    before = {name: getattr(pace, name) for name in NAMES}
    pace.REQUESTS_MS = pace.BACKGROUND_MS = 0
    pace.PART = part
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(pace, name, value)
