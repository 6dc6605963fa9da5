"""The progress and the findings of the start of a log directory.

Owns the figures, which one thread counts and any other thread reads. Not reporting them: see
`broker`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.model.topics import TopicPartition


class LoadAbandoned(Exception):
    """A load ended early because its caller abandoned it."""


@dataclass(slots=True)
class Loading:
    """The progress while the logs of one directory are opened."""

    logs: int = 0
    """How many logs the directory has."""
    opened: int = 0
    checked_bytes: int = 0
    path: str = ""
    """The directory of the log that is being opened."""
    abandoned: bool = False

    def begin(self, path: str) -> None:
        """Note which log is next. LoadAbandoned when the load was abandoned."""
        self.path = path
        self.note(0)

    def note(self, size: int) -> None:
        """Count bytes that were read. LoadAbandoned when the load was abandoned."""
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
    """The findings of a start, for the log lines and the inventory."""

    logs: int = 0
    recovered_bytes: int = 0
    damaged: list[tuple[TopicPartition, str]] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    """Damaged files that the start could do without, a sentence each."""
    compared: list[str] = field(default_factory=list)
    """Files that the start compared with the batches before it used them, a sentence each."""
