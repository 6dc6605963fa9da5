"""What an audit counted, as plain values.

Owns the shapes; `gather` fills them with Spark, `rules` judges them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog.pipeline.lake.files import FileFacts
from tidelog.pipeline.lake.manifest import LakeFile


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition in the lake and in the log. Ranges of offsets are [from, to).

    `log_start` and `log_end` are -1 when the partition is no longer there. What the log holds can
    be compared only from `log_start` on: retention took the rest.
    """

    topic: str
    partition: str
    archived_from: int
    archived_to: int
    log_start: int = -1
    log_end: int = -1
    lake_rows: int = 0
    lake_distinct: int = 0
    outside: int = 0
    log_rows: int = 0
    missing: int = 0
    extra: int = 0
    differing: int = 0
    missing_first: int = -1
    missing_last: int = -1

    @property
    def duplicates(self) -> int:
        return self.lake_rows - self.lake_distinct

    @property
    def behind(self) -> int:
        """Offsets that the log has and the lake does not have yet."""
        return max(0, self.log_end - self.archived_to)

    @property
    def ahead(self) -> int:
        """Offsets that the lake has reached and the log has not."""
        return max(0, self.archived_to - self.log_end) if self.log_start >= 0 else 0

    @property
    def unverifiable(self) -> int:
        """Offsets without a row that the log can no longer explain."""
        if self.log_start < 0:
            end = self.archived_to
        else:
            end = min(self.log_start, self.archived_to)
        return max(0, end - self.archived_from)


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """The order of keys: how many there are and what was out of order."""

    keys: int = 0
    unkeyed: int = 0
    two_homes: int = 0
    two_homes_examples: tuple[str, ...] = ()
    sequence: str = ""
    out_of_sequence: int = 0
    out_of_sequence_examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """All that an audit saw."""

    lake: str
    batches: int
    partitions: tuple[PartitionFacts, ...]
    keys: KeyFacts = KeyFacts()
    listed: tuple[LakeFile, ...] = ()
    found: Mapping[str, FileFacts] = field(default_factory=dict)
    orphans: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
