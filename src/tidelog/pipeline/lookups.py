"""One look at the log: metadata first, then both ends of every partition, then where epochs end.

Owns how a snapshot is asked for, partition by partition: what nobody answers is `silent` or
`unread` in the snapshot, and keeps nothing else from being read. What a look means is
`planning.losses`; how often one is taken, `brokers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused, VersionUnsupported, error_code
from tidelog.client.metadata import ClusterMetadata, Topic
from tidelog.client.offsets import (
    EARLIEST,
    LATEST,
    IsolationLevel,
    list_offsets,
    offsets_for_leader_epoch,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import INTERNAL_TOPICS, TopicPartition
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.places import Subscription, SubscriptionKind
from tidelog.pipeline.planning.losses import epochs_to_ask
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.snapshot import UNKNOWN_END, PartitionSnapshot, Snapshot

_NOT_THERE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@dataclass(slots=True)
class ClusterLook:
    """What one look found; `missing` are topics and partitions that the options name in vain.

    Each stands there with its number, None for a topic as a whole, and a line that says so.
    """

    snapshot: Snapshot
    missing: dict[tuple[str, int | None], str] = field(default_factory=dict)

    def missing_besides(self, known: Positions) -> set[str]:
        """What is missing and has no position, which would keep it."""
        places = {(pid.topic, pid.partition) for pid in known.at}
        return {
            line
            for (topic, number), line in self.missing.items()
            if (topic, number) not in places
            and (number is not None or topic not in known.topic_ids)
        }

    def problem(self) -> str | None:
        """Why this look does not show all that is to be read; None when it does."""
        for line in self.missing.values():
            return line
        for topic, why in self.snapshot.unread.items():
            return f"topic {topic} cannot be read: {why}"
        for pid, why in self.snapshot.silent.items():
            return f"{pid} cannot be read: {why}"
        return None


async def look(
    cluster: Cluster,
    subscription: Subscription,
    isolation: IsolationLevel,
    known: Positions,
    *,
    node_id: int | None = None,
    timeout_ms: int | None = None,
) -> ClusterLook:
    """Look once. `node_id`: whose metadata is asked; any broker's without.

    Errors of topics and partitions stand in the look. Raises ClientError when no broker answers
    within `timeout_ms`, and PipelineError for a topic that this client may not read.
    """
    names = subscription.named_topics()
    view = await cluster.describe(names, node_id=node_id, timeout_ms=timeout_ms)
    chosen, unread, missing = _chosen(view, subscription)
    ids = {name: _id_text(topic) or known.topic_ids.get(name, "") for name, topic in chosen.items()}
    pids = {
        TopicPartition(name, index): Pid(name, index, ids[name])
        for name, topic in chosen.items()
        for index in topic.partitions
        if subscription.chooses(name, index)
    }
    failed: dict[TopicPartition, ClientError] = {}
    starts, ends = [
        await list_offsets(
            cluster,
            {each: where for each in pids if each not in failed},
            isolation=isolation,
            timeout_ms=timeout_ms,
            failed=failed,
        )
        for where in (EARLIEST, LATEST)
    ]
    asked = epochs_to_ask(
        known.with_ids(ids),
        {pids[each]: (found.offset, found.leader_epoch) for each, found in ends.items()},
    )
    epoch_ends = await _epoch_ends(cluster, asked, failed, timeout_ms)
    states = {
        pids[each]: PartitionSnapshot(
            starts[each].offset,
            ends[each].offset,
            leader_epoch=ends[each].leader_epoch,
            epoch_end=epoch_ends.get(each, UNKNOWN_END),
        )
        for each in pids
        if each not in failed
    }
    if names is None and not chosen and not unread and not known.at:
        missing["", None] = f"no topic matches the pattern {subscription.pattern}"
    snapshot = Snapshot(
        ids,
        states,
        resize_epochs={name: max(0, topic.resize_epoch) for name, topic in chosen.items()},
        silent={pids[each]: str(error) for each, error in failed.items()},
        unread=unread,
    )
    return ClusterLook(snapshot, missing)


def _chosen(
    view: ClusterMetadata, subscription: Subscription
) -> tuple[dict[str, Topic], dict[str, str], dict[tuple[str, int | None], str]]:
    """The topics that are read, those that cannot be now, and what is named but not there."""
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
            missing[name, None] = f"topic {name} cannot be read: {code.name}"
        elif code.retriable:
            unread[name] = code.name
        else:
            raise PipelineError(f"topic {name} cannot be read: {code.name}")
    if subscription.kind is SubscriptionKind.ASSIGN:
        for name, topic in chosen.items():
            for index in subscription.assigned[name]:
                if index not in topic.partitions:
                    line = f"option assign names {name}-{index}, which is not there"
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
    found = await offsets_for_leader_epoch(
        cluster, wanted, timeout_ms=timeout_ms, failed=unanswered
    )
    # A broker that cannot say settles nothing: the offset decides.
    failed.update(
        (each, error)
        for each, error in unanswered.items()
        if not isinstance(error, VersionUnsupported)
    )
    return {each: answer.end_offset for each, answer in found.items()}


async def topic_id(cluster: Cluster, topic: str, node_id: int | None = None) -> str | None:
    """The id of a topic as a broker has it now: "" where there are none, None for no topic."""
    found = (await cluster.describe([topic], node_id=node_id)).topics.get(topic)
    code = _NOT_THERE if found is None else found.error
    if found is None or code == _NOT_THERE:
        return None
    if code:
        raise Refused(code, f"topic {topic}")
    return _id_text(found)


def _id_text(topic: Topic) -> str:
    """A topic id as text; empty for a cluster that has none."""
    return str(topic.topic_id) if topic.topic_id.int else ""
