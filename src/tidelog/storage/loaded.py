"""How far a start has come with a log directory, whether it is to go on, and what it has found.

Owns the figures, which one thread counts and any other reads; saying them is the broker's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.model.topics import TopicPartition


class LoadAbandoned(Exception):
    """A load ended early because it was told to."""


@dataclass(slots=True)
class Loading:
    """Counted while the logs of one directory are opened."""

    logs: int = 0
    """How many there are."""
    opened: int = 0
    checked_bytes: int = 0
    path: str = ""
    """Of the log that is being opened."""
    abandoned: bool = False

    def begin(self, path: str) -> None:
        """Note which log is next. LoadAbandoned when there is to be none."""
        self.path = path
        self.note(0)

    def note(self, size: int) -> None:
        """Count bytes that were read. LoadAbandoned when no more are to be."""
        self.checked_bytes += size
        if self.abandoned:
            raise LoadAbandoned(self.path)

    def said(self) -> str:
        """Return the figures as a sentence."""
        return (
            f"{self.opened} of {self.logs} logs are open, {self.checked_bytes} bytes checked; "
            f"now {self.path.rpartition('/')[2]}"
        )


@dataclass(slots=True)
class Loaded:
    """What a start found: for the log lines and the inventory."""

    logs: int = 0
    recovered_bytes: int = 0
    damaged: list[tuple[TopicPartition, str]] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    """Damaged files that were done without, a sentence each."""
    compared: list[str] = field(default_factory=list)
    """Files that were held against the batches instead of being believed, a sentence each."""
