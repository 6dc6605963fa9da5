"""The positions of a query: how far each partition was read, and their form in Spark's offset log.

Owns the JSON of an offset (docs/design/pipeline.md, docs/decisions/0051); does not decide one.
Spark compares offsets as text, so the same positions always give the same JSON: topics and
partitions are in order. Version 2 is written; version 1, which commit 02f3bcb wrote, is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.topic_ids import normal

_VERSION = 2
_WITHOUT_EPOCHS = 1

UNKNOWN_EPOCH = -1

# The offset before `startingOffsets` was resolved. A Python source cannot keep files in the
# checkpoint; the end of batch 0, which Spark keeps, holds the resolved positions.
SENTINEL: dict[str, Any] = {"init": True}


class Pid(NamedTuple):
    """A partition of one topic id; the id is empty on a cluster that has none.

    A topic that is created again has another id, so it is another key. A partition that is removed
    and comes back has the same: its offsets go on where they ended.
    """

    topic: str
    partition: int
    topic_id: str = ""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Positions:
    """The next offset to read of each partition, and the ids of the topics that are meant.

    `epochs`: the leader epoch in which a position was the end of a read, so no earlier one than
    that of the batch before it; without an entry it is unknown. `resize_epochs`: of the metadata
    that the positions were planned with. `new`: the partitions that the batch that ends here reads
    first, and from where; None when it was planned in version 1. `dropped`: positions of what the
    query no longer reads, kept for the day when it does again.
    """

    at: Mapping[Pid, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    epochs: Mapping[Pid, int] = field(default_factory=dict)
    resize_epochs: Mapping[str, int] = field(default_factory=dict)
    new: Mapping[Pid, int] | None = field(default_factory=dict)
    dropped: Set[Pid] = frozenset()

    def epoch(self, pid: Pid) -> int:
        """The leader epoch of a position; -1 when it is unknown."""
        return self.epochs.get(pid, UNKNOWN_EPOCH)

    def with_ids(self, topic_ids: Mapping[str, str]) -> Positions:
        """The same positions under ids that were not known when they were written."""
        learned = {
            topic: topic_ids[topic]
            for topic, topic_id in self.topic_ids.items()
            if not topic_id and topic_ids.get(topic)
        }
        if not learned:
            return self

        def renamed(values: Mapping[Pid, int]) -> dict[Pid, int]:
            return {
                pid._replace(topic_id=learned.get(pid.topic, pid.topic_id)): value
                for pid, value in values.items()
            }

        return replace(
            self,
            at=renamed(self.at),
            topic_ids={**self.topic_ids, **learned},
            epochs=renamed(self.epochs),
            new=None if self.new is None else renamed(self.new),
            dropped=frozenset(renamed(dict.fromkeys(self.dropped, 0))),
        )

    def parted(self, is_read: Callable[[Pid], bool]) -> tuple[Positions, Positions]:
        """The positions of what a query reads, and those of what it has dropped."""
        left = frozenset(pid for pid in self.at if not is_read(pid))
        if not left:
            return (replace(self, dropped=left) if self.dropped else self), Positions()
        read = {pid.topic for pid in self.at if pid not in left}
        gone = {pid.topic for pid in left} - read
        return (
            Positions(
                {pid: offset for pid, offset in self.at.items() if pid not in left},
                {
                    topic: topic_id
                    for topic, topic_id in self.topic_ids.items()
                    if topic not in gone
                },
                {pid: epoch for pid, epoch in self.epochs.items() if pid not in left},
                {topic: epoch for topic, epoch in self.resize_epochs.items() if topic not in gone},
                self.new,
            ),
            Positions(
                {pid: self.at[pid] for pid in left},
                {pid.topic: self.topic_ids[pid.topic] for pid in left},
                {pid: self.epochs[pid] for pid in left if pid in self.epochs},
                {pid.topic: self.resize_epochs.get(pid.topic, 0) for pid in left},
                dropped=left,
            ),
        )

    def beside(self, left: Positions) -> Positions:
        """These positions, and those of what was dropped, unless another topic has its name now."""
        kept = {
            pid
            for pid in left.at
            if self.topic_ids.get(pid.topic, pid.topic_id) in ("", pid.topic_id)
        }
        if not kept:
            return self
        topics = {pid.topic for pid in kept}
        return replace(
            self,
            at={**{pid: left.at[pid] for pid in kept}, **self.at},
            topic_ids={**{name: left.topic_ids[name] for name in topics}, **self.topic_ids},
            epochs={**{pid: left.epochs[pid] for pid in kept & left.epochs.keys()}, **self.epochs},
            resize_epochs={
                **{name: left.resize_epochs[name] for name in topics},
                **self.resize_epochs,
            },
            dropped=frozenset(kept),
        )

    def to_json(self) -> dict[str, Any]:
        """As Spark's offset."""
        topics: dict[str, Any] = {
            topic: {
                "id": self.topic_ids[topic],
                "resizeEpoch": self.resize_epochs.get(topic, 0),
                "new": {},
                "positions": {},
            }
            for topic in sorted(self.topic_ids)
        }
        for pid in sorted(self.new or {}):
            topics[pid.topic]["new"][str(pid.partition)] = (self.new or {})[pid]
        for pid in sorted(self.at):
            place = [self.at[pid], self.epoch(pid)]
            topics[pid.topic]["positions"][str(pid.partition)] = place
        for pid in sorted(self.dropped):
            topics[pid.topic].setdefault("dropped", []).append(pid.partition)
        return {"version": _VERSION, "topics": topics}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> Positions:
        """Raises PipelineError for an offset that another source or a later version wrote."""
        version = offset.get("version")
        if version not in (_WITHOUT_EPOCHS, _VERSION):
            raise PipelineError(
                f"the checkpoint holds offsets of version {version}; this source knows {_VERSION}"
                f" and {_WITHOUT_EPOCHS}: it belongs to another source or to a newer tidelog"
            )
        try:
            if version == _WITHOUT_EPOCHS:
                return _read_without_epochs(offset["topics"])
            return _read(offset["topics"])
        except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            raise PipelineError(f"the checkpoint holds a damaged offset: {error!r}") from None


def _read(topics: Mapping[str, Any]) -> Positions:
    offsets: dict[Pid, int] = {}
    epochs: dict[Pid, int] = {}
    new: dict[Pid, int] = {}
    dropped: set[Pid] = set()
    for topic, entry in topics.items():
        topic_id = normal(str(entry["id"]))
        for number, (position, epoch) in entry["positions"].items():
            pid = Pid(topic, int(number), topic_id)
            offsets[pid] = int(position)
            if epoch != UNKNOWN_EPOCH:
                epochs[pid] = int(epoch)
        for number, first in entry["new"].items():
            new[Pid(topic, int(number), topic_id)] = int(first)
        # Without the field nothing of the topic was dropped.
        dropped |= {Pid(topic, int(number), topic_id) for number in entry.get("dropped", ())}
    ids = {topic: normal(str(entry["id"])) for topic, entry in topics.items()}
    resized = {topic: int(entry["resizeEpoch"]) for topic, entry in topics.items()}
    return Positions(offsets, ids, epochs, resized, new, frozenset(dropped))


def _read_without_epochs(topics: Mapping[str, Any]) -> Positions:
    places = {
        Pid(topic, int(number), normal(str(entry["id"]))): int(position)
        for topic, entry in topics.items()
        for number, position in entry["positions"].items()
    }
    ids = {topic: normal(str(entry["id"])) for topic, entry in topics.items()}
    return Positions(places, ids, new=None)


def is_sentinel(offset: Mapping[str, Any]) -> bool:
    """Whether startingOffsets still has to be resolved."""
    return "init" in offset
