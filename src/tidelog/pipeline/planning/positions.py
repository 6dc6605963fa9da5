"""The positions of a query: how far each partition was read, and their form in Spark's offset log.

Owns the JSON of an offset; does not decide one. Spark compares offsets as text, so the same
positions always give the same JSON: topics and partitions are in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidelog.pipeline.errors import PipelineError

_VERSION = 1

# The offset before `startingOffsets` was resolved. A Python source cannot keep files in the
# checkpoint; the end of batch 0, which Spark keeps, holds the resolved positions (spark.md 1.4).
SENTINEL: dict[str, Any] = {"init": True}


class Pid(NamedTuple):
    """One life of a partition. `incarnation` is its partition epoch; 0 where there are none."""

    topic: str
    partition: int
    incarnation: int = 0

    @property
    def text(self) -> str:
        """`3`, or `3@2` for the life that began at partition epoch 2."""
        return f"{self.partition}@{self.incarnation}" if self.incarnation else f"{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}-{self.text}"

    @classmethod
    def parse(cls, topic: str, text: str) -> Pid:
        """The reverse of `text`. Raises ValueError."""
        number, _, life = text.partition("@")
        return cls(topic, int(number), int(life or 0))


@dataclass(frozen=True, slots=True)
class Positions:
    """The next offset to read of each partition, and the ids of the topics that are meant."""

    at: Mapping[Pid, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As Spark's offset."""
        topics: dict[str, Any] = {
            topic: {"id": self.topic_ids[topic], "positions": {}}
            for topic in sorted(self.topic_ids)
        }
        for pid in sorted(self.at):
            topics[pid.topic]["positions"][pid.text] = self.at[pid]
        return {"version": _VERSION, "topics": topics}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> Positions:
        """Raises PipelineError for an offset that another source or a later version wrote."""
        version = offset.get("version")
        if version != _VERSION:
            raise PipelineError(
                f"the checkpoint holds offsets of version {version}; this source knows {_VERSION}:"
                " it belongs to another source or to a newer tidelog"
            )
        topics = offset["topics"]
        at = {
            Pid.parse(topic, text): int(position)
            for topic, entry in topics.items()
            for text, position in entry["positions"].items()
        }
        return cls(at, {topic: str(entry["id"]) for topic, entry in topics.items()})


def is_sentinel(offset: Mapping[str, Any]) -> bool:
    """Whether startingOffsets still has to be resolved."""
    return "init" in offset
