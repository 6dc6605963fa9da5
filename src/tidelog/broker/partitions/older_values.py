"""Whether older values of a compacted partition's keys may be in other partitions (promise 12).

Owns the questions and what is remembered of their responses. Not the rule: see
``partitioning.older_homes``. Each replica asks before a run of its cleaner, as a client: the leader
of each ancestor for its fences (DescribeFences) and its log start (ListOffsets).

| known | older values |
|---|---|
| no LeaderAndIsr v6 has named the partition (below level 1.5) | none |
| this broker's metadata of the topic are older than the replica's resize epoch | maybe |
| a retired partition is listed of which it is an ancestor | maybe |
| an ancestor has records below its fence of the birth epoch, or does not say | maybe |
| any other | none |

That an ancestor has none is true for ever, and remembered. That it may have some is asked again
after ``AGAIN_MS``; on a topic that is only compacted it stays so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.broker.metadata.leader_fences import FencePlace, ask_for_fences
from tidelog.broker.metadata.leader_offsets import EARLIEST, ask_leader
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.older_homes import (
    ancestors_with_older_values,
    has_no_older_values,
    survives_retired,
)

if TYPE_CHECKING:
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.metadata.other_brokers import OtherBrokers
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.runtime.clock import Clock

AGAIN_MS = 60_000
"""How long a response that an ancestor may have older values holds."""

MOST_KNOWN = 100_000
"""Partitions of which something is remembered; beyond it is forgotten and asked again."""

PURPOSE = "older-values"

_Known = tuple[UUID, int, int]
"""Topic id, partition, partition epoch."""


@dataclass(slots=True)
class OlderValues:
    """The questions of one broker; ``may_exist`` is called by one task."""

    metadata: MetadataCache
    others: OtherBrokers
    clock: Clock
    _free: set[_Known] = field(default_factory=set)
    _again_ms: dict[_Known, int] = field(default_factory=dict)

    async def may_exist(self, hosted: HostedPartition) -> bool:
        """Return whether tombstones of this partition must stay. Asks for at most 2 s for each
        leader of its ancestors, of which there is one for each doubling."""
        state = hosted.state
        if state.undeleted_count < 0:
            return False
        topic = self.metadata.topic(hosted.topic)
        if topic is None or topic.topic_id != hosted.topic_id:
            return True
        if topic.undeleted_partition_count < 0 or topic.resize_epoch < state.resize_epoch:
            return True
        initial = topic.initial_partition_count
        retired = [
            index
            for index, partition in topic.partitions.items()
            if partition.retirement_epoch >= 0
        ]
        if survives_retired(hosted.partition, initial, retired):
            return True
        ancestors = ancestors_with_older_values(hosted.partition, initial, state.birth_epoch)
        incarnation = (hosted.topic_id, hosted.partition, state.partition_epoch)
        if not ancestors or incarnation in self._free:
            return False
        now_ms = self.clock.monotonic_ms()
        if now_ms < self._again_ms.get(incarnation, now_ms):
            return True
        wanted = [TopicPartition(hosted.topic, ancestor) for ancestor in ancestors]
        if not await self._are_free(wanted, state.birth_epoch):
            _bound(self._again_ms)
            self._again_ms[incarnation] = now_ms + AGAIN_MS
            return True
        _bound(self._free)
        self._free.add(incarnation)
        self._again_ms.pop(incarnation, None)
        return False

    async def _are_free(self, ancestors: list[TopicPartition], birth_epoch: int) -> bool:
        """Ask the leaders of ancestors whether these have no record below their fences."""
        by_leader: dict[int, list[TopicPartition]] = {}
        epochs: dict[TopicPartition, int] = {}
        for tp in ancestors:
            shown = self.metadata.partition(*tp)
            if shown is None or shown.leader < 0:
                return False
            by_leader.setdefault(shown.leader, []).append(tp)
            epochs[tp] = shown.leader_epoch
        for leader, some in by_leader.items():
            starts = await ask_leader(
                self.others, leader, PURPOSE, some, EARLIEST, epochs.__getitem__
            )
            if len(starts) < len(some):
                return False
            fences = await ask_for_fences(self.others, leader, PURPOSE, some)
            for tp in some:
                fence = _fence_of(fences.get(tp, []), birth_epoch)
                if not has_no_older_values(starts[tp], fence):
                    return False
        return True


def _fence_of(fences: list[FencePlace], resize_epoch: int) -> int | None:
    """Return the offset of a fence, None when its leader does not say."""
    return next((fence.offset for fence in fences if fence.resize_epoch == resize_epoch), None)


def _bound(answers: set[_Known] | dict[_Known, int]) -> None:
    if len(answers) >= MOST_KNOWN:
        answers.clear()
