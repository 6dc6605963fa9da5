"""The part of Spark's offsets that a lake reads: how far each partition was archived.

Owns the one reading of Spark's offset JSON that the lake needs, of versions 1 and 2
(docs/decisions/0051); all other fields of an offset are opaque here and kept as they came.
Partitions are named by topic id, so that a topic that is created again is another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.topic_ids import normal

Offset = Mapping[str, Any]
"""An offset of the source as Spark keeps it: JSON."""

_VERSIONS = (1, 2)
UNKNOWN_END = -1


class LakePartition(NamedTuple):
    """A partition of a topic; the id is empty on a cluster that has none."""

    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def ends(offset: Offset) -> dict[LakePartition, int]:
    """The next offset to read of each partition. Raises LakeRefused for what is no such offset."""
    version = offset.get("version")
    if version not in _VERSIONS:
        raise LakeRefused(
            f"offsets of version {version} are of another source or of a newer tidelog; this one"
            f" knows {' and '.join(map(str, _VERSIONS))}"
        )
    try:
        return {
            LakePartition(topic, normal(str(entry["id"])), int(number)): int(
                position if version == 1 else position[0]
            )
            for topic, entry in offset["topics"].items()
            for number, position in entry["positions"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise LakeRefused(f"an offset is damaged: {error!r}") from None


def leader_epochs(offset: Offset) -> dict[LakePartition, int]:
    """The leader epoch of the last batch before each position; -1 where it is unknown."""
    if offset.get("version") == 1:
        return dict.fromkeys(ends(offset), -1)
    return {
        LakePartition(topic, normal(str(entry["id"])), int(number)): int(position[1])
        for topic, entry in offset["topics"].items()
        for number, position in entry["positions"].items()
    }


def dropped(offset: Offset) -> set[LakePartition]:
    """The partitions that the query no longer reads (docs/decisions/0150)."""
    return {
        LakePartition(topic, normal(str(entry["id"])), int(number))
        for topic, entry in offset["topics"].items()
        for number in entry.get("dropped", ())
    }


def _first_offsets(offset: Offset) -> Iterator[tuple[LakePartition, int]]:
    """The partitions that are new in the batch of this end, and where each begins (version 2)."""
    for topic, entry in offset["topics"].items():
        for number, first in entry.get("new", {}).items():
            yield LakePartition(topic, normal(str(entry["id"])), int(number)), int(first)


def begins(start: Offset | None, end: Offset) -> dict[LakePartition, int]:
    """Where each partition of a batch begins.

    The batch without a start is the one that resolved startingOffsets: it begins where it ends.
    """
    until = ends(end)
    if start is None:
        return until
    firsts = {**dict(_first_offsets(end)), **ends(start)}
    return {home: firsts.get(home, 0) for home in until}


@dataclass(frozen=True, slots=True)
class SkippedRange:
    """Offsets `start` to `end` (exclusive) that a batch passed over although they had been there.

    `cause` is retention (retention, compaction or DeleteRecords removed them before they were
    read), deleted (the partition is gone or no longer read; `end` is UNKNOWN_END), or rewound (the
    log lost its tail, and goes on at `start`). Only with failOnDataLoss=false.
    """

    home: LakePartition
    start: int
    end: int
    cause: str


def losses_between(start: Offset | None, end: Offset) -> list[SkippedRange]:
    """The losses that the two ends of a batch show by themselves; tasks report the others."""
    if start is None:
        return []
    until = ends(end)
    losses = []
    for home, position in ends(start).items():
        if home not in until:
            losses.append(SkippedRange(home, position, UNKNOWN_END, "deleted"))
        elif until[home] < position:
            losses.append(SkippedRange(home, until[home], position, "rewound"))
    return losses
