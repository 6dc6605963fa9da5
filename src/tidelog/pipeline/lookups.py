"""One lookup of the log: metadata first, then both ends of every partition, then ends of epochs.

Owns the requests for a snapshot. A partition without a response is `silent` in the snapshot, a
topic without one is `unread`; the others are still read. Not the meaning of a snapshot: see
`planning.losses`. Not the repetition of lookups: see `brokers`.
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
    """The result of one lookup; `missing` are named topics and partitions that do not exist.

    Each is there with its number (None for a whole topic), and a line for the user.
    """

    snapshot: Snapshot
    missing: dict[tuple[str, int | None], str] = field(default_factory=dict)

    def missing_besides(self, known: Positions) -> set[str]:
        """The missing topics and partitions without a position."""
        places = {(pid.topic, pid.partition) for pid in known.at}
        return {
            line
            for (topic, number), line in self.missing.items()
            if (topic, number) not in places
            and (number is not None or topic not in known.topic_ids)
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


async def look(
    cluster: Cluster,
    subscription: Subscription,
    isolation: IsolationLevel,
    known: Positions,
    *,
    node_id: int | None = None,
    timeout_ms: int | None = None,
) -> ClusterLook:
    """Look up once. `node_id`: the broker to ask for metadata; any broker without it.

    Errors of topics and partitions are in the result. Raises ClientError when no broker responds
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
            missing[name, None] = f"topic {name} cannot be read: {code.name}"
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
    found = await offsets_for_leader_epoch(
        cluster, wanted, timeout_ms=timeout_ms, failed=unanswered
    )
    # Without a response of the broker only the offset counts.
    failed.update(
        (each, error)
        for each, error in unanswered.items()
        if not isinstance(error, VersionUnsupported)
    )
    return {each: answer.end_offset for each, answer in found.items()}


async def topic_id(cluster: Cluster, topic: str, node_id: int | None = None) -> str | None:
    """A topic's current id at a broker: "" on a cluster without ids, None without the topic."""
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
