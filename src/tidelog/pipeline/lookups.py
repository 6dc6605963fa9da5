"""One lookup of the log: metadata, both ends of every partition, ends of epochs, resizes.

Owns the requests for a snapshot, and that all of it is of one resize epoch: leaders name no end
beyond a fence that is newer than the metadata, and where a newer epoch shows meanwhile, the lookup
begins again. A partition without a response is `silent` in the snapshot, a
topic without one is `unread`; the others are still read. Not the meaning of a snapshot: see
`planning.losses`. Not the repetition of lookups: see `brokers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused, VersionUnsupported, error_code
from tidelog.client.metadata import ClusterMetadata, Partition, Topic
from tidelog.client.offsets import (
    EARLIEST,
    LATEST,
    IsolationLevel,
    list_offsets,
    offsets_for_leader_epoch,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import INTERNAL_TOPICS, TopicPartition
from tidelog.partitioning.audit_rules import TopicCounts
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.places import QuerySubscription, SubscriptionKind
from tidelog.pipeline.planning.losses import epochs_to_ask
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.snapshot import (
    UNKNOWN_END,
    FormerEnd,
    PartitionSnapshot,
    Snapshot,
)
from tidelog.pipeline.resized_topics import FormerCache, FoundResizes, look_up_resizes
from tidelog.pipeline.topic_ids import text_of

# Resizes that one lookup may meet: the next trigger checks again.
_MOST_RESIZES = 3
_NOT_THERE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@dataclass(slots=True)
class ClusterLookup:
    """The result of one lookup; `missing` are named topics and partitions that do not exist.

    Each is there with its number (None for a whole topic), and a line for the user.
    """

    snapshot: Snapshot
    missing: dict[tuple[str, int | None], str] = field(default_factory=dict)

    def missing_besides(self, positions: Positions) -> set[str]:
        """The missing topics and partitions without a position."""
        places = {(pid.topic, pid.partition) for pid in positions.at}
        return {
            line
            for (topic, number), line in self.missing.items()
            if (topic, number) not in places
            and (number is not None or topic not in positions.topic_ids)
        }

    def problem(self) -> str | None:
        """Why this lookup is incomplete; None when it is complete."""
        for line in self.missing.values():
            return line
        for topic, why in self.snapshot.unread.items():
            return f"topic {topic} cannot be read: {why}"
        for pid, why in self.snapshot.silent.items():
            return f"{pid} cannot be read: {why}"
        return None


async def look_up(
    cluster: Cluster,
    subscription: QuerySubscription,
    isolation: IsolationLevel,
    positions: Positions,
    *,
    former: FormerCache,
    gates: bool = True,
    node_id: int | None = None,
    timeout_ms: int | None = None,
) -> ClusterLookup:
    """Look up once. `node_id`: the broker to ask for metadata; any broker without it.

    `gates`: whether the gates of resized topics count. Errors of topics and partitions are in the
    result. Raises ClientError when no broker responds within `timeout_ms`, and PipelineError for a
    topic that this client may not read, and for partitions that wait for others not chosen.
    """
    asking = _Lookup(cluster, subscription, isolation, positions, former, gates, timeout_ms)
    for _ in range(_MOST_RESIZES):
        lookup = await asking.once(node_id)
        newer = asking.newer_topics(lookup)
        if not newer:
            return lookup
    reason = "its resize epoch is newer than the metadata of the broker that was asked"
    unread = {**lookup.snapshot.unread, **dict.fromkeys(newer, reason)}
    return ClusterLookup(replace(lookup.snapshot, unread=unread), lookup.missing)


@dataclass(frozen=True, slots=True)
class _Lookup:
    cluster: Cluster
    subscription: QuerySubscription
    isolation: IsolationLevel
    known: Positions
    former: FormerCache
    gates: bool
    timeout_ms: int | None

    async def once(self, node_id: int | None) -> ClusterLookup:
        """Ask for everything, once."""
        subscription, timeout_ms = self.subscription, self.timeout_ms
        names = subscription.named_topics()
        view = await self.cluster.describe(names, node_id=node_id, timeout_ms=timeout_ms)
        chosen, unread, missing = _chosen(view, subscription)
        ids = {
            name: text_of(topic.topic_id) or self.known.topic_ids.get(name, "")
            for name, topic in chosen.items()
        }
        pids = {
            TopicPartition(name, index): Pid(name, index, ids[name])
            for name, topic in chosen.items()
            for index in topic.partitions
            if subscription.chooses(name, index)
        }
        failed: dict[TopicPartition, ClientError] = {}
        states = await self._states(pids, ids, failed)
        resizes = await self._resizes(chosen, failed)
        failed.update((tp, error) for tp, error in resizes.failed.items() if tp in pids)
        unread |= resizes.failed_topics
        if self.gates:
            _check_closed(subscription, resizes)
        if names is None and not chosen and not unread and not self.known.at:
            missing["", None] = f"no topic matches the pattern {subscription.pattern}"
        snapshot = Snapshot(
            ids,
            {
                pids[tp]: _of_metadata(state, chosen[tp.topic].partitions[tp.partition])
                for tp, state in states.items()
                if tp not in failed
            },
            former={
                Pid(tp.topic, tp.partition, ids[tp.topic]): FormerEnd(
                    end.data_end, end.final_offset, end.resize_epoch
                )
                for tp, end in resizes.former.items()
                if subscription.chooses(tp.topic, tp.partition)
            },
            gates=resizes.gates if self.gates else {},
            resize_epochs={
                name: topic.resize_epoch for name, topic in chosen.items() if topic.is_ordered
            },
            counts={
                name: _counts_of(chosen[name], counts) for name, counts in resizes.counts.items()
            },
            silent={pids[tp]: str(error) for tp, error in failed.items()},
            unread=unread,
        )
        return ClusterLookup(snapshot, missing)

    def newer_topics(self, lookup: ClusterLookup) -> list[str]:
        """Topics that the client knows in a newer resize epoch than this lookup."""
        topics = self.cluster.view.topics
        return [
            name
            for name, epoch in lookup.snapshot.resize_epochs.items()
            if name in topics
            and topics[name].resize_epoch > epoch
            and text_of(topics[name].topic_id) == lookup.snapshot.topic_ids[name]
        ]

    async def _states(
        self,
        pids: Mapping[TopicPartition, Pid],
        ids: Mapping[str, str],
        failed: dict[TopicPartition, ClientError],
    ) -> dict[TopicPartition, PartitionSnapshot]:
        # The starts first: one that retention has moved since could lie above an older end.
        starts, ends = [
            await list_offsets(
                self.cluster,
                {tp: when for tp in pids if tp not in failed},
                isolation=self.isolation,
                timeout_ms=self.timeout_ms,
                failed=failed,
                as_of_view=True,
            )
            for when in (EARLIEST, LATEST)
        ]
        asked = epochs_to_ask(
            self.known.with_ids(ids),
            {pids[tp]: (listed.offset, listed.leader_epoch) for tp, listed in ends.items()},
        )
        epoch_ends = await _epoch_ends(self.cluster, asked, failed, self.timeout_ms)
        return {
            tp: PartitionSnapshot(
                starts[tp].offset,
                ends[tp].offset,
                leader_epoch=ends[tp].leader_epoch,
                epoch_end=epoch_ends.get(tp, UNKNOWN_END),
            )
            for tp in pids
            if tp not in failed
        }

    async def _resizes(
        self, chosen: Mapping[str, Topic], failed: Mapping[TopicPartition, ClientError]
    ) -> FoundResizes:
        positions: dict[str, set[int]] = {}
        for pid in self.known.at:
            positions.setdefault(pid.topic, set()).add(pid.partition)
        return await look_up_resizes(
            self.cluster,
            chosen,
            self.former,
            positions,
            timeout_ms=self.timeout_ms,
            failed=failed,
        )


def _of_metadata(state: PartitionSnapshot, listed: Partition) -> PartitionSnapshot:
    return replace(state, first=max(0, listed.birth_offset), is_retired=listed.is_retired)


def _check_closed(subscription: QuerySubscription, resizes: FoundResizes) -> None:
    """Raise PipelineError for a partition that waits for one that is not chosen, for ever."""
    if subscription.kind is not SubscriptionKind.ASSIGN:
        return
    for name, gates in resizes.gates.items():
        needs = {
            (index, need.partition)
            for index, of_partition in gates.items()
            if subscription.chooses(name, index)
            for gate in of_partition
            for need in gate.needs
        }
        for index, needed in sorted(needs):
            if not subscription.chooses(name, needed):
                raise PipelineError(
                    f"option assign names {name}-{index}, whose keys were in {name}-{needed} before"
                    f" a resize: name {needed} too, or set gates=off to read without their order"
                )


def _chosen(
    view: ClusterMetadata, subscription: QuerySubscription
) -> tuple[dict[str, Topic], dict[str, str], dict[tuple[str, int | None], str]]:
    """The topics to read, those that cannot be read now, and those that do not exist."""
    named = subscription.named_topics()
    if named is None:
        names = [
            name
            for name in view.topics
            if subscription.chooses(name, 0) and name not in INTERNAL_TOPICS
        ]
    else:
        names = list(named)
    chosen: dict[str, Topic] = {}
    unread: dict[str, str] = {}
    missing: dict[tuple[str, int | None], str] = {}
    for name in names:
        topic = view.topics.get(name)
        code = _NOT_THERE if topic is None else error_code(topic.error)
        if topic is not None and not code:
            chosen[name] = topic
        elif code == _NOT_THERE:
            missing[name, None] = (
                f"topic {name} does not exist ({code.name}): compare `tidelog topics --list`"
            )
        elif code.retriable:
            unread[name] = code.name
        else:
            raise PipelineError(f"topic {name} cannot be read: {code.name}")
    if subscription.kind is SubscriptionKind.ASSIGN:
        for name, topic in chosen.items():
            for index in subscription.assigned[name]:
                if index not in topic.partitions:
                    line = f"option assign names {name}-{index}, which does not exist"
                    missing[name, index] = line
    return chosen, unread, missing


async def _epoch_ends(
    cluster: Cluster,
    asked: Mapping[Pid, int],
    failed: dict[TopicPartition, ClientError],
    timeout_ms: int | None,
) -> dict[TopicPartition, int]:
    wanted = {TopicPartition(pid.topic, pid.partition): epoch for pid, epoch in asked.items()}
    if not wanted:
        return {}
    unanswered: dict[TopicPartition, ClientError] = {}
    answers = await offsets_for_leader_epoch(
        cluster, wanted, timeout_ms=timeout_ms, failed=unanswered
    )
    # Without a response of the broker only the offset counts.
    failed.update(
        (tp, error) for tp, error in unanswered.items() if not isinstance(error, VersionUnsupported)
    )
    return {tp: answer.end_offset for tp, answer in answers.items()}


async def topic_id(cluster: Cluster, topic: str, node_id: int | None = None) -> str | None:
    """A topic's current id at a broker: "" on a cluster without ids, None without the topic."""
    described = (await cluster.describe([topic], node_id=node_id)).topics.get(topic)
    code = _NOT_THERE if described is None else described.error
    if described is None or code == _NOT_THERE:
        return None
    if code:
        raise Refused(code, f"topic {topic}")
    return text_of(described.topic_id)


def _counts_of(topic: Topic, by_epoch: Mapping[int, int]) -> TopicCounts:
    initial = topic.initial_partition_count
    births = {partition.birth_epoch for partition in topic.partitions.values()}
    return TopicCounts.of(initial, by_epoch, births)
