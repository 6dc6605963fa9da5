"""Late replicas: what a broker holds, and a store that was accepted as restored does not assign.

Owns which replicas these are, and what a second acceptance may do with each. Pure. What it does:
see ``rejoining``. Source: docs/decisions/0103.

An acceptance knows what the brokers hold that had registered by then. Of a broker that registers
later the store knows nothing: that is no proof that its replicas are stale (promise 20). A replica
is stale if a decision of this store took it:

| what the store has | the replica |
|---|---|
| the deletion of its topic, running or remembered (``ended_data``) | is stale |
| its name or topic id, given up by an operator | is stale |
| a stop that its broker owes, no older than its records | is stale: it was moved away |
| the end of its incarnation, or a newer one that a growth made | is stale: it was removed |
| none of these | is kept, not served, and listed |

| a kept replica | a second acceptance |
|---|---|
| of a topic that the store does not know | brings the topic back (``COMES_BACK``) |
| of a partition above those of a topic that was never resized | brings it back (``COMES_BACK``) |
| of a partition that no broker has any data of | it leads (``COMES_BACK``) |
| of a partition that is led, with nothing beyond what that went on with | rejoins (``REJOINS``) |
| the same, with records beyond it, or it is not known what that was | stays, until its partition |
| | is named: then it rejoins, and cuts them (``AHEAD``) |
| another topic has its name, or others have its partition number | stays, until it is named: then |
| | it is given up (``IN_CONFLICT``) |

A damaged replica comes in no report. Its broker keeps the directory until an operator removes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from tidelog.controller.decisions.cluster import NO_ID, NO_LEADER, ClusterState, LogEnd
from tidelog.controller.decisions.ended_data import has_ended, was_accepted
from tidelog.controller.decisions.new_partitions import MAX_PARTITIONS
from tidelog.controller.decisions.soft_state import forget_replicas
from tidelog.controller.decisions.stops import Stop
from tidelog.metadata import layout
from tidelog.metadata.records import TopicHistory, UncleanDebt
from tidelog.model.topics import TopicPartition, why_invalid
from tidelog.model.work import Work, finish

ANY_LEADER_EPOCH = -1
"""StopReplica's leader epoch that is not compared (KIP-570)."""


class Fate(StrEnum):
    """What a second acceptance does with a late replica."""

    REJOINS = "rejoins"
    COMES_BACK = "comes_back"
    AHEAD = "ahead"
    IN_CONFLICT = "in_conflict"


@dataclass(frozen=True, slots=True)
class LateReplica:
    """One of them; ``why`` is a clause if it does not come back by itself."""

    broker: int
    topic: str
    topic_id: UUID
    partition: int
    end: LogEnd
    fate: Fate
    why: str = ""

    @property
    def where(self) -> TopicPartition:
        """The partition by name."""
        return TopicPartition(self.topic, self.partition)


def late_replicas(cluster: ClusterState, broker: int | None = None) -> list[LateReplica]:
    """Return the late replicas of all registered brokers, or of one, sorted. O(their replicas)."""
    return finish(late_steps(cluster, broker))


def late_steps(cluster: ClusterState, broker: int | None = None) -> Work[list[LateReplica]]:
    """Return the same in steps. A store that was never accepted costs nothing."""
    late: list[LateReplica] = []
    if not was_accepted(cluster) or not cluster.level.topic_ids:
        return late
    asked = sorted(cluster.brokers) if broker is None else [broker]
    unreadable = frozenset(cluster.unreadable_topics)
    for one in asked:
        for name, topic_id, index, end in _reported(cluster, one):
            yield None
            if name in unreadable and _may_be_of(cluster, name, topic_id):
                # What of it is assigned is not known (docs/decisions/0111).
                continue
            tp = TopicPartition(name, index)
            if _is_hosted(cluster, one, tp, topic_id, end) or _was_taken(
                cluster, one, tp, topic_id, end
            ):
                continue
            fate, why = _fate(cluster, tp, topic_id, end)
            late.append(LateReplica(one, name, topic_id, index, end, fate, why))
    ids = {(x.topic, x.topic_id) for x in late if x.topic_id not in cluster.names}
    times = Counter(name for name, _ in ids)
    several = "replicas hold several topics of this name"
    late = [
        replace(x, fate=Fate.IN_CONFLICT, why=several)
        if x.fate is Fate.COMES_BACK and times[x.topic] > 1
        else x
        for x in late
    ]
    return sorted(late, key=lambda x: (x.topic, x.topic_id, x.partition, x.broker))


def late_names(cluster: ClusterState) -> set[str]:
    """Return the names of topics that late replicas hold and the store does not know."""
    if not was_accepted(cluster):
        return set()
    # A topic that was deleted costs no walk over all replicas.
    ended = cluster.past.ended.topics
    unknown = {
        topic_id
        for topic_id in cluster.held.keys() - cluster.names.keys()
        if topic_id not in cluster.deletions and ended.get(layout.id_text(topic_id)) != []
    }
    if not unknown:
        return set()
    return {x.topic for x in late_replicas(cluster) if x.topic_id in unknown}


def stops_of_late(late: Collection[LateReplica]) -> list[Stop]:
    """Return the orders to end the service of late replicas, and to keep them."""
    return [
        Stop(
            *(one.topic, one.topic_id, one.partition, ANY_LEADER_EPOCH),
            delete=False,
            partition_epoch=one.end.partition_epoch,
        )
        for one in late
    ]


def forget_stale(
    cluster: ClusterState,
    broker: int,
    named: Mapping[tuple[UUID, int], int],
    refused: Collection[tuple[UUID, int]],
    left: Collection[str] = (),
) -> None:
    """Forget the replicas of a broker's report that a FULL made stale: they are gone.

    ``named`` has the partition epochs of those that it named, ``refused`` those whose directory
    failed, ``left`` the topics that it could not speak of. A store that was never accepted has no
    late ones, and remembers the report as it was.
    """
    if not was_accepted(cluster):
        return

    def gone(topic_id: UUID, index: int, end: LogEnd) -> bool:
        if (topic_id, index) in refused or (NO_ID, index) in refused:
            return False
        if cluster.held.get(topic_id) in left:
            return False
        epoch = named.get((topic_id, index))
        return epoch is None or (
            -1 not in (epoch, end.partition_epoch) and epoch != end.partition_epoch
        )

    forget_replicas(cluster, broker, gone)


def _reported(cluster: ClusterState, broker: int) -> Iterator[tuple[str, UUID, int, LogEnd]]:
    # A list, which is read in steps: replicas may be forgotten meanwhile.
    for (topic_id, index), end in list(cluster.inventories.get(broker, {}).items()):
        name = cluster.names.get(topic_id) or cluster.held.get(topic_id, "?")
        yield name, topic_id, index, end


def _may_be_of(cluster: ClusterState, name: str, topic_id: UUID) -> bool:
    """Whether a replica may be of the topic with this name, whose node cannot be read."""
    history = cluster.topic_histories.get(name)
    return history is None or history.topic_id == layout.id_text(topic_id)


def _is_hosted(
    cluster: ClusterState, broker: int, tp: TopicPartition, topic_id: UUID, end: LogEnd
) -> bool:
    """Whether the store assigns the replica: it is commanded like any other."""
    is_assigned = cluster.names.get(topic_id) == tp.topic and broker in cluster.hosts(tp)
    return is_assigned and cluster.log_end(broker, tp) is not None


def _was_taken(
    cluster: ClusterState, broker: int, tp: TopicPartition, topic_id: UUID, end: LogEnd
) -> bool:
    """Whether a decision of this store made the replica stale."""
    name, index = tp
    if topic_id in cluster.deletions or has_ended(cluster, topic_id, index, broker):
        return True
    if cluster.names.get(topic_id) != name:
        return False
    history = cluster.topic_histories.get(name)
    if name in cluster.marked:
        return True
    if history is None:
        return False
    stop = history.pending_stops.get(index, {}).get(broker)
    if stop is not None and stop >= end.leader_epoch:
        return True
    former = history.former.get(index)
    if former is not None and end.partition_epoch <= former.partition_epoch:
        return True
    node = cluster.partition_nodes.get(tp)
    return node is not None and node.birth_epoch > 0 and node.partition_epoch > end.partition_epoch


def _fate(
    cluster: ClusterState, tp: TopicPartition, topic_id: UUID, end: LogEnd
) -> tuple[Fate, str]:
    if topic_id not in cluster.names:
        return _fate_of_unknown(cluster, tp)
    name, index = tp
    history = cluster.topic_histories.get(name)
    partitions = cluster.topics[name].partitions
    if layout.state(*tp) in cluster.damaged or history is None:
        return Fate.IN_CONFLICT, f"the nodes of {tp} are damaged or incomplete"
    if history.resize is not None:
        return Fate.IN_CONFLICT, f"{name} gets another partition count now: accept when it has it"
    if index not in partitions:
        if index >= MAX_PARTITIONS:
            return Fate.IN_CONFLICT, f"it is beyond {MAX_PARTITIONS} partitions"
        if history.resize_epoch or history.former or end.birth_epoch or end.fences:
            count = len(partitions)
            return Fate.IN_CONFLICT, f"{name} was resized, and went on with {count} partitions"
        return Fate.COMES_BACK, ""
    node = cluster.partition_nodes.get(tp)
    is_other = node is not None and end.partition_epoch not in (-1, node.partition_epoch)
    was_resized = bool(history.resize_epoch or history.former or end.birth_epoch)
    if is_without_data(cluster, tp) and not (is_other and was_resized):
        return Fate.COMES_BACK, ""
    if is_other:
        return Fate.IN_CONFLICT, f"{tp} began again without it"
    return _compared(history, tp, end)


def _fate_of_unknown(cluster: ClusterState, tp: TopicPartition) -> tuple[Fate, str]:
    name = tp.topic
    clause = why_invalid(name)
    if clause is not None:
        return Fate.IN_CONFLICT, clause
    if tp.partition >= MAX_PARTITIONS:
        return Fate.IN_CONFLICT, f"it is beyond {MAX_PARTITIONS} partitions"
    if name in cluster.topics or layout.topic(name) in cluster.damaged:
        now_id = cluster.topic_id(name)
        shown = "" if now_id == NO_ID else f" ({layout.id_text(now_id)})"
        why = f"another topic has the name since{shown}: delete that one to have this one back"
        return Fate.IN_CONFLICT, why
    return Fate.COMES_BACK, ""


def is_without_data(cluster: ClusterState, tp: TopicPartition) -> bool:
    """Return whether no replica of a partition was ever found, and none has led it since.

    An acceptance that finds no replica leaves the partition with no leader and no ISR.
    """
    state = cluster.states.get(tp)
    return state is not None and state.leader == NO_LEADER and not _members(cluster, tp)


def _members(cluster: ClusterState, tp: TopicPartition) -> Collection[int]:
    state = cluster.states[tp]
    return {*state.isr, *state.eligible_replicas, *state.unclean_members}


def _compared(history: TopicHistory, tp: TopicPartition, end: LogEnd) -> tuple[Fate, str]:
    """Compare a replica with what its partition went on with: a follower cuts what is beyond."""
    if end.end_offset <= 0:
        return Fate.REJOINS, ""
    election = _parting(history, tp.partition, end)
    if election is None or election.end_offset < 0:
        return Fate.AHEAD, f"it is not on record what {tp} went on with"
    epoch = end.leader_epoch if end.record_epoch < 0 else end.record_epoch
    if (epoch, end.end_offset) <= (election.end_epoch, election.end_offset):
        return Fate.REJOINS, ""
    return Fate.AHEAD, (
        f"{tp} went on from offset {election.end_offset} of leader epoch {election.end_epoch}: "
        "what is beyond that may be acknowledged, and no other replica has it"
    )


def _parting(history: TopicHistory, partition: int, end: LogEnd) -> UncleanDebt | None:
    """Return the first unclean election on record after the last record of a replica."""
    debt = history.unclean.get(partition)
    elections = [*history.unclean_past.get(partition, ()), *([] if debt is None else [debt])]
    later = [x for x in elections if x.leader != NO_LEADER and x.leader_epoch > end.leader_epoch]
    return min(later, key=lambda x: x.leader_epoch, default=None)
