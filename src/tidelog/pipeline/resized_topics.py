"""One lookup of the resizes of topics: their fences, and where removed partitions ended.

Owns the requests (DescribeFences) and what makes their responses complete: a leader that does not
know the fence of its partition's own resize epoch yet is asked again. Not what gates follow from
fences: see `partitioning.gates`. Nothing is asked for a topic that was never resized.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused, VersionUnsupported
from tidelog.client.fences import (
    DescribedFences,
    FenceList,
    FormerIncarnation,
    counts_of,
    describe_fences,
    describe_former,
    is_complete,
)
from tidelog.client.groups.topic_gates import resized
from tidelog.client.metadata import Topic
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.gates import Gate, gates_of


@dataclass(frozen=True, slots=True)
class FoundResizes:
    """What one lookup found. `gates` are by topic and partition, `counts` by topic and resize epoch
    (a topic that was never resized has neither), `failed` topics and partitions without a response.
    """

    gates: Mapping[str, Mapping[int, list[Gate]]] = field(default_factory=dict)
    counts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    former: Mapping[TopicPartition, FormerIncarnation] = field(default_factory=dict)
    failed: Mapping[TopicPartition, ClientError] = field(default_factory=dict)
    failed_topics: Mapping[str, str] = field(default_factory=dict)


class FormerCache:
    """Where removed partitions ended, as the controller said: a query goes on without it.

    An end holds while the same partitions are listed in the same resize epoch: within one,
    partitions are only ever removed.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[_State, dict[int, FormerIncarnation]]] = {}

    def of(self, topic: Topic, wanted: Collection[int]) -> dict[int, FormerIncarnation] | None:
        """The ends of a topic's removed partitions; None where they, or one of `wanted`, have to be
        asked for. What is listed is not wanted.
        """
        state, former = self._known.get(topic.name, (None, {}))
        if state != _state(topic) or {*wanted} - {*topic.partitions} - {*former}:
            return None
        return former

    def keep(self, topic: Topic, former: dict[int, FormerIncarnation]) -> None:
        self._known[topic.name] = _state(topic), former


_State = tuple[UUID, int, frozenset[int]]


def _state(topic: Topic) -> _State:
    return topic.topic_id, topic.resize_epoch, frozenset(topic.partitions)


async def look_up_resizes(
    cluster: Cluster,
    topics: Mapping[str, Topic],
    cache: FormerCache,
    positions: Mapping[str, Collection[int]],
    *,
    timeout_ms: int | None = None,
    failed: Mapping[TopicPartition, ClientError],
) -> FoundResizes:
    """Look up the topics that were resized, as their metadata say.

    One request to each leader, and one to the controller for what `cache` does not say of the
    partitions in `positions`. Errors are in the result; `failed`: partitions that cannot be asked.
    """
    changed = {name: topic for name, topic in topics.items() if was_resized(topic)}
    if not changed:
        return FoundResizes()
    places = {
        TopicPartition(name, index) for name, topic in changed.items() for index in topic.partitions
    }
    silent: dict[TopicPartition, ClientError] = {}
    described = await describe_fences(
        cluster, sorted(places - failed.keys()), timeout_ms=timeout_ms, failed=silent
    )
    fences: dict[str, dict[int, FenceList]] = {name: {} for name in changed}
    for tp, of_partition in described.items():
        if is_complete(of_partition.fences, changed[tp.topic].resize_epoch):
            fences[tp.topic][tp.partition] = of_partition.fences
        else:
            silent[tp] = _no_fence(tp)
    ends = {name: cache.of(topic, positions.get(name, ())) for name, topic in changed.items()}
    unknown = [name for name, end in ends.items() if end is None]
    failed_topics: dict[str, str] = {}
    try:
        answer = await describe_former(cluster, unknown, timeout_ms=timeout_ms) if unknown else {}
        for name in unknown:
            found_ends = {tp.partition: one for tp, one in answer.items() if tp.topic == name}
            cache.keep(changed[name], found_ends)
            ends[name] = found_ends
    except ClientError as error:
        failed_topics = dict.fromkeys(unknown, f"where removed partitions ended: {error}")
    former = {
        TopicPartition(name, index): one
        for name, some in ends.items()
        for index, one in (some or {}).items()
    }
    return FoundResizes(
        {name: _gates(topic, fences[name]) for name, topic in changed.items()},
        {name: counts_of(fences[name].values()) for name in changed},
        former,
        silent,
        failed_topics,
    )


def was_resized(topic: Topic) -> bool:
    """Whether a topic's keys are kept in order, and it was resized."""
    return topic.is_ordered and topic.resize_epoch > 0


def _gates(topic: Topic, fences: Mapping[int, FenceList]) -> dict[int, list[Gate]]:
    partitions = {
        index: resized(listed, tuple(fence.fence for fence in fences.get(index, ())))
        for index, listed in topic.partitions.items()
    }
    return gates_of(topic.initial_partition_count, topic.resize_epoch, partitions)


class FenceCache:
    """Fences of partitions, by the leader epoch and the resize epoch that they were asked in.

    Those below an offset that was read once do not change within a leader epoch.
    """

    def __init__(self) -> None:
        self._known: dict[TopicPartition, tuple[tuple[UUID, int, int], OffsetEpochs]] = {}

    async def of(
        self, cluster: Cluster, tp: TopicPartition, resize_epoch: int, timeout_ms: int
    ) -> OffsetEpochs:
        """As (offset, resize epoch); none for a topic that was never resized.

        `resize_epoch`: one that the topic is known to have reached; the client's metadata may say a
        later one. Raises ClientError.
        """
        topic = cluster.view.topics.get(tp.topic)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(tp))
        newest = max(resize_epoch, topic.resize_epoch)
        # Brokers say no resize epoch of a topic whose keys are not kept in order.
        is_unordered = topic.resize_epoch < 0 <= topic.max_partition_epoch
        if newest <= 0 and not is_unordered:
            return ()
        listed = topic.partitions.get(tp.partition)
        asked_in = topic.topic_id, -1 if listed is None else listed.leader_epoch, newest
        kept = self._known.get(tp)
        if kept is not None and kept[0] == asked_in and not is_unordered:
            return kept[1]
        fences = await _fences(cluster, tp, newest, timeout_ms)
        self._known[tp] = asked_in, fences
        return fences


def _no_fence(tp: TopicPartition) -> Refused:
    """What a leader's response lacks while its high watermark is below its newest fence."""
    return Refused(ErrorCode.OFFSET_NOT_AVAILABLE, f"the newest fence of {tp}")


OffsetEpochs = tuple[tuple[int, int], ...]


def _is_late(error: ClientError) -> bool:
    """Whether to ask again: not where fresh metadata do not have the partition (see `leaders`)."""
    return isinstance(error, Refused) and error.code == ErrorCode.OFFSET_NOT_AVAILABLE


async def _fences(
    cluster: Cluster, tp: TopicPartition, resize_epoch: int, timeout_ms: int
) -> OffsetEpochs:
    async def attempt() -> DescribedFences:
        answer = (await describe_fences(cluster, [tp], timeout_ms=timeout_ms))[tp]
        if resize_epoch > 0 and not is_complete(answer.fences, resize_epoch):
            raise _no_fence(tp)
        return answer

    try:
        described = await cluster.retry(attempt, timeout_ms, retry_on=_is_late)
    except VersionUnsupported:
        if resize_epoch > 0:
            raise
        # A cluster without resizes.
        return ()
    return tuple((fence.fence.offset, fence.fence.resize_epoch) for fence in described.fences)
