"""Words that many sentences for people share: the first of many names, a count, a moment. Pure."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

NAMES_SHOWN = 5
"""Names of partitions, topics or brokers that a sentence has; it counts the others."""


def named(names: Collection[object], count: int | None = None, *, between: str = ", ") -> str:
    """Return the first names, and how many more there are; they stand for ``count``, if given."""
    shown = between.join(map(str, list(names)[:NAMES_SHOWN]))
    more = (len(names) if count is None else count) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: 1 topic, 2 topics."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def moment_text(at_ms: int) -> str:
    """Return a time in ms since 1970 as people and programs read it, in UTC and whole seconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%FT%TZ")
