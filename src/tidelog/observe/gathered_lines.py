"""Log lines of many partitions as a few: one command is one line, with a count and the first names.

Owns the gathering of lines between two calls of ``say``. A command may concern every replica of a
broker: a line for each fills a disk and hides all others.
"""

from __future__ import annotations

import logging

NAMES_SHOWN = 5
"""Partitions that a line names; it counts the others."""

MOST_LINES = 8
"""The most different sentences of one ``say``; the partitions of all others share one line."""

OTHERS = "other changes, each like one of these"


class GatheredLines:
    """Partitions by what is said of them, until ``say``."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._names: dict[tuple[int, str], list[str]] = {}
        self._counts: dict[tuple[int, str], int] = {}

    def add(self, partition: object, sentence: str, level: int = logging.INFO) -> None:
        """Note a sentence about one partition. O(1), and keeps a few names only."""
        key = level, sentence
        if key not in self._counts and len(self._counts) >= MOST_LINES:
            key = level, OTHERS
        names = self._names.setdefault(key, [])
        self._counts[key] = self._counts.get(key, 0) + 1
        if len(names) < NAMES_SHOWN:
            names.append(str(partition))

    def say(self) -> None:
        """Log one line for each sentence, and forget them."""
        gathered, counts = self._names, self._counts
        self._names, self._counts = {}, {}
        for key, names in gathered.items():
            level, sentence = key
            more = counts[key] - len(names)
            listed = ", ".join(names) + (f" and {more} more" if more else "")
            self._logger.log(
                level, "%(partition)s: %(what)s", {"partition": listed, "what": sentence}
            )
