"""Whose keys the application has: when state is loaded and flushed (PartitionKeyRebalanceListener).

Owns, for one member in one generation, which callback is due, and up to where records may be
delivered meanwhile. Pure. Not the gates: see ``topic_gates``. Not calling back: see ``key_turns``.

| the partition | the application | left by |
|---|---|---|
| shut | has not loaded the state of its keys | *assigned*, to open, when a gate opens |
| open | has loaded it | *maybe revoked*, to shut, when a flush is due |

A record is delivered only between *assigned* and *maybe revoked* of its partition, and only up to
the gate that was shut when *assigned* was called. A flush is due when the application is done with
all records before a fence or seal that gates of others wait for, before a commit of what it
received since the last flush, before its partitions are given up, and when a gate that was shut
within the partition opens: other keys come in then, and state is loaded again. A position counts
for gates, reports and commits only up to where it was flushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from tidelog.model.topics import TopicPartition

Ends = Mapping[TopicPartition, int]
"""Up to where gates let partitions be delivered; a partition that is missing has no shut gate."""


class HeldKeys:
    """The partitions of one generation."""

    def __init__(self) -> None:
        self._loaded: dict[TopicPartition, float] = {}
        self._flushed: dict[TopicPartition, int] = {}

    def begin_again(self) -> None:
        """Forget everything: another generation begins, in which nothing is loaded."""
        self._loaded, self._flushed = {}, {}

    @property
    def loaded(self) -> list[TopicPartition]:
        """The partitions whose state the application has."""
        return list(self._loaded)

    def limits(self, ends: Ends, own: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return up to where partitions may be delivered; those that are missing without limit."""
        limits = {}
        for partition in own:
            limit = min(ends.get(partition, inf), self._loaded.get(partition, 0))
            if limit != inf:
                limits[partition] = int(limit)
        return limits

    def to_flush(
        self,
        positions: Mapping[TopicPartition, int],
        ends: Ends,
        fences: Mapping[TopicPartition, Iterable[int]],
    ) -> list[TopicPartition]:
        """Return the loaded partitions whose flush is due.

        ``fences``: the offsets in each partition of this member that gates wait for.
        """
        due = []
        for partition, offset in positions.items():
            flushed = min(self._flushed.get(partition, -1), offset)
            if partition in self._flushed:
                # A rewind: what was flushed beyond it counts for nothing.
                self._flushed[partition] = flushed
            limit = self._loaded.get(partition)
            if limit is None:
                # Nothing of it was received since the last flush.
                self._flushed[partition] = offset
                continue
            end = ends.get(partition, inf)
            self._loaded[partition] = min(limit, end)
            has_passed = any(flushed < fence <= offset for fence in fences.get(partition, ()))
            if has_passed or end > limit:
                due.append(partition)
        return due

    def received(self, positions: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the loaded partitions that have moved since their last flush."""
        return [
            partition
            for partition in self._loaded
            if positions.get(partition, -1) != self._flushed.get(partition, -1)
        ]

    def flushed(self, positions: Mapping[TopicPartition, int]) -> None:
        """Record that the application has flushed the state of these partitions, up to there."""
        for partition, offset in positions.items():
            self._flushed[partition] = offset
            self._loaded.pop(partition, None)

    def to_load(self, positions: Mapping[TopicPartition, int], ends: Ends) -> list[TopicPartition]:
        """Return the partitions that may deliver something as soon as their state is loaded."""
        return [
            partition
            for partition, offset in positions.items()
            if partition not in self._loaded and ends.get(partition, inf) > offset
        ]

    def were_loaded(self, partitions: Iterable[TopicPartition], ends: Ends) -> None:
        """Record that the application has loaded the state of these partitions."""
        for partition in partitions:
            self._loaded[partition] = ends.get(partition, inf)

    def done_with(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return how far the application has flushed what it received."""
        return {
            partition: min(offset, self._flushed.get(partition, -1))
            for partition, offset in positions.items()
            if partition in self._flushed
        }
