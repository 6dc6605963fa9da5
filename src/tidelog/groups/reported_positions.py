"""Owners of partitions and the positions that they have reported, of one generation.

Owns the state, in memory only. Not what counts as a position: see `positions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from tidelog.model.topics import TopicPartition

UNKNOWN = -1


class ReportedTopic(NamedTuple):
    """Positions by partition, in the incarnation of a topic in which they were reported.

    ``moved_ms``: when a report last changed each of them.
    """

    topic_id: UUID
    offsets: dict[int, int]
    moved_ms: dict[int, int]


@dataclass(slots=True)
class GenerationPositions:
    """The owners and the reports of one generation: the next one begins without."""

    owners: dict[str, dict[int, str]]
    is_complete: bool
    """Whether every partition that has an owner is among them."""
    held_bytes: int
    reported: dict[str, ReportedTopic]

    def lower(self, tp: TopicPartition, offset: int) -> None:
        """A member has committed an offset: a position above it goes back."""
        topic = self.reported.get(tp.topic)
        if topic is not None and topic.offsets.get(tp.partition, UNKNOWN) > offset:
            topic.offsets[tp.partition] = offset
