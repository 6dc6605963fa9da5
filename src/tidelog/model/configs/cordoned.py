"""Cordoned log directories (KIP-1066): what a value of ``cordoned.log.dirs`` means.

Owns the comparison of a value with a broker's log directories. Not its effect: see
`controller.decisions.cordons` for placement among brokers, and `broker.partitions.registry` for
placement among the directories of one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

CORDONED_LOG_DIRS = "cordoned.log.dirs"

ALL = "*"
"""The entry that stands for every log directory."""


def cordoned_among(entries: Collection[str], log_dirs: Iterable[str]) -> list[str]:
    """Return the log directories that a value cordons."""
    named = {_plain(entry) for entry in entries}
    return [path for path in log_dirs if ALL in named or _plain(path) in named]


def unknown_entries(entries: Iterable[str], log_dirs: Iterable[str]) -> list[str]:
    """Return the entries of a value that are no log directory of the broker."""
    known = {ALL, *map(_plain, log_dirs)}
    return [entry for entry in entries if _plain(entry) not in known]


def closes(entries: Collection[str], log_dirs: Sequence[str]) -> bool:
    """Return whether a value cordons all log directories; unknown ones count as not cordoned."""
    if ALL in entries:
        return True
    return bool(log_dirs) and len(cordoned_among(entries, log_dirs)) == len(log_dirs)


def _plain(path: str) -> str:
    """Return a path without slashes at its end, which mean nothing."""
    return path.rstrip("/") or path
