"""Restored stores: the acceptance of a store that has gone back in time.

Owns the step from an older copy of the store to a store whose controller may command brokers again
(docs/design/metadata-store.md): every counter jumps above what was reported or is possible, no
stored ISR is used, and every replica of a known topic keeps its records:

| a partition | result |
|---|---|
| replicas reported | the leader of the newest command leads, flagged, with its ISR |
| | (``newest_commands``), otherwise the highest (leader epoch, end offset) |
| their broker is not assigned | it joins the assignment: the partition moved after the backup |
| it is a target of a move | it joins only if it leads; the move goes on (KIP-455) |
| it was moved away before the backup, and not stopped yet | it joins only if it leads |
| no replica reported, an assigned broker is away | no leader: that broker may have it |
| no replica reported, all are present | no leader, no ISR: one that is late may have it |

Data that the store does not know comes back too (``unknown_data``), unless the operator names it to
be given up. Not the report that precedes it: see ``restoration_report``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState, LogEnd
from tidelog.controller.decisions.decision import Decision, Put, Remove, RequestRefusal, Write
from tidelog.controller.decisions.ended_data import JUMP, remembered
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.decisions.losses import most_debts, with_debts
from tidelog.controller.decisions.newest_commands import Successor, newest_command, successor
from tidelog.controller.decisions.restoration_report import (
    ends_of,
    missing_brokers,
    present_brokers,
    report,
)
from tidelog.controller.decisions.restored_resizes import restored_resize
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.decisions.uncertain_replicas import accepted
from tidelog.controller.decisions.unknown_data import (
    Unknown,
    by_topic_id,
    coming_back,
    configs_of,
    node_of,
)
from tidelog.metadata import layout
from tidelog.metadata.records import (
    ConfigNode,
    Counter,
    PartitionNode,
    PartitionState,
    ProducerIdBlock,
    TopicHistory,
    TopicNode,
    UncleanDebt,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

PRODUCER_ID_JUMP = 1_000_000_000
"""A million blocks of producer ids."""

MAX_EPOCH = 2**31 - 1


def accept(
    cluster: ClusterState, without: Collection[int], dropped: Collection[str], entropy: Entropy
) -> Decision[dict[str, Any] | RequestRefusal]:
    """Decide to go on with this store, without the brokers in ``without`` if they are missing.

    ``dropped`` names unknown data to give up; all other comes back. The answer is the report as it
    was before, with the data that is given up. The write that removes ``/tidelog/went_back`` is the
    last one. Walks over all partitions.
    """
    refusal = _why_not(cluster, without)
    outcome = refusal or coming_back(cluster, dropped)
    if isinstance(outcome, RequestRefusal):
        return Decision(outcome)
    unknown, dropped_data = outcome
    before = {**report(cluster), "given_up": [str(x) for x in dropped_data]}
    back = {one.name: one for one in unknown}
    epochs = Epochs(
        _highest_partition_epoch(cluster) + JUMP,
        bool(missing_brokers(cluster)),
        _seen_controller_epoch(cluster) // JUMP * JUMP,
    )
    writes: list[Write] = [*remembered(cluster, (), by_topic_id(dropped_data))]
    for name, node in cluster.topics.items():
        if name not in back:
            ends = {x: ends_of(cluster, TopicPartition(name, x)) for x in node.partitions}
            history = cluster.topic_histories.get(name)
            writes += topic_of(cluster, name, node, history, ends, RestoredNodes(epochs))
    for one in unknown:
        node, whole = node_of(cluster, one, entropy)
        present = cluster.topics[one.name].partitions if one.is_known else {}
        ends = {
            index: one.ends.get(index, {})
            or (ends_of(cluster, TopicPartition(one.name, index)) if one.is_known else {})
            for index in node.partitions
        }
        if not one.is_known:
            writes += _without_former(cluster, one.name, node)
            writes += configs_writes(cluster, one)
        new = RestoredNodes(epochs, node.partitions.keys() - present.keys())
        writes += topic_of(cluster, one.name, node, whole, ends, new, is_known=one.is_known)
    writes += _jumps(cluster, epochs.last)
    writes += accepted(cluster, _leaderless(writes))
    writes.append(Remove(layout.WENT_BACK))
    return Decision(before, tuple(writes), splits=True)


def _leaderless(writes: Collection[Write]) -> set[TopicPartition]:
    return {
        TopicPartition(*place)
        for write in writes
        if isinstance(write, Put)
        and isinstance(write.record, PartitionState)
        and write.record.leader == NO_LEADER
        and (place := layout.partition_of(write.path)) is not None
    }


def topic_of(
    cluster: ClusterState,
    name: str,
    node: TopicNode,
    history: TopicHistory | None,
    ends: Mapping[int, dict[int, LogEnd]],
    new: RestoredNodes,
    *,
    is_known: bool = True,
) -> list[Write]:
    """Return the writes of one topic; its counts are those of its fences, if it was resized."""
    count = node.initial_partition_count or len(node.partitions)
    resized = restored_resize(
        cluster,
        name,
        node,
        history or TopicHistory(layout.id_text(cluster.topic_id(name)), count),
        ends,
        is_known=is_known,
        gives_up_brokers=new.epochs.gives_up_brokers,
        next_epoch=new.epochs.take,
        jump=JUMP,
    )
    if resized is None:
        return restored_topic(cluster, name, node, history, ends, new)
    own = RestoredNodes(new.epochs, made=resized.partition_nodes)
    writes = restored_topic(cluster, name, resized.node, resized.history, resized.ends, own)
    for index in sorted(node.partitions.keys() - resized.node.partitions.keys()):
        # Removed since the backup: no broker has a replica of it.
        paths = (layout.state(name, index), layout.partition(name, index))
        writes += [Remove(path) for path in paths if path in cluster.versions]
    return writes


@dataclass
class Epochs:
    """The partition epochs that an acceptance gives."""

    last: int
    gives_up_brokers: bool = False
    leader_epochs_above: int = 0
    """What former acceptances gave as leader epochs. No log shows one in which nothing was written,
    and running brokers refuse a lower one."""

    def take(self) -> int:
        """Return the next one."""
        self.last += 1
        return self.last


@dataclass(frozen=True)
class RestoredNodes:
    """The partitions that get a node of their own, because the store does not know them."""

    epochs: Epochs
    new: Collection[int] = ()
    made: Mapping[int, PartitionNode] = field(default_factory=dict)
    """The nodes of a resized topic's partitions."""

    def of(self, tp: TopicPartition, ends: Mapping[int, LogEnd]) -> Iterator[Write]:
        """Yield the node of a partition, if it gets one."""
        if tp.partition in self.made:
            yield Put(layout.partition(*tp), self.made[tp.partition])
        elif tp.partition in self.new:
            reported = max((end.partition_epoch for end in ends.values()), default=-1)
            epoch = reported if reported >= 0 else self.epochs.take()
            yield Put(layout.partition(*tp), PartitionNode(epoch))


def restored_topic(
    cluster: ClusterState,
    name: str,
    node: TopicNode,
    history: TopicHistory | None,
    ends: Mapping[int, dict[int, LogEnd]],
    new: RestoredNodes,
    *,
    jump: int = JUMP,
) -> list[Write]:
    """Return the writes of one topic: the newest replica of each partition of ``ends`` leads it.

    Its other partitions stay as they are; ``jump`` is that of its resize epoch.
    """
    states: list[Write] = []
    assignment = dict(node.partitions)
    debts: dict[int, UncleanDebt] = {}
    standing = set() if history is None else set(history.unclean)
    topic_id = cluster.topic_id(name)
    if history is not None:
        topic_id = layout.parse_id(history.topic_id) or topic_id
    for index in sorted(ends):
        tp = TopicPartition(name, index)
        outside = _outside(cluster, tp, history, ends[index])
        others = sorted(ends[index].keys() - set(assignment[index]) - outside)
        assignment[index] = [*assignment[index], *others]
        least = new.epochs.leader_epochs_above
        state, next_one = _restored_state(
            cluster, topic_id, tp, assignment[index], ends[index], least
        )
        # Also of a member that is not here: when it comes, it leads.
        assignment[index] += [x for x in state.isr if x not in assignment[index]]
        if next_one is not None and state.is_unclean_leader:
            owes = index in standing or len(standing) < most_debts(len(assignment[index]))
            if owes:
                standing.add(index)
            else:
                state = _without_room(state, next_one, ends[index])
        states += new.of(tp, ends[index])
        states.append(put_state(cluster, tp, state))
        if state.is_unclean_leader:
            debts[index] = UncleanDebt(state.leader, state.leader_epoch)
    # The topic before its partitions: an unfinished acceptance finds its topics again.
    topic = msgspec.structs.replace(node, partitions=assignment)
    return [*_topic_writes(cluster, name, topic, history, debts, jump), *states]


def _without_room(
    state: PartitionState, next_one: Successor, ends: Mapping[int, LogEnd]
) -> PartitionState:
    """Return a partition's state where its topic has no room for one more debt record.

    A leader that goes on by its command lost nothing, and leads. Any other is elected when other
    debts are handled: by comparison, as after an unclean return.
    """
    if next_one.is_certain:
        return msgspec.structs.replace(state, is_unclean_leader=False)
    return msgspec.structs.replace(
        state,
        leader=NO_LEADER,
        is_unclean_leader=False,
        unclean_members=[x for x in ends if x in next_one.candidates],
    )


def _outside(
    cluster: ClusterState,
    tp: TopicPartition,
    history: TopicHistory | None,
    ends: Mapping[int, LogEnd],
) -> set[int]:
    """Return the brokers whose replicas do not join the assignment unless they lead.

    Targets of a move, whose copies may be partial, and replicas that owe a stop. One with records
    of a later leader epoch than its stop was assigned again after the backup.
    """
    owed = {} if history is None else history.pending_stops.get(tp.partition, {})
    removed = {x for x, epoch in owed.items() if x in ends and ends[x].leader_epoch <= epoch}
    return removed.union(cluster.moves.get(tp, ()))


def _without_former(cluster: ClusterState, name: str, node: TopicNode) -> Iterator[Write]:
    """Yield the removal of a topic of the same name without any replica.

    Its mark for deletion is removed too: it would delete the topic that comes back.
    """
    if name in cluster.marked:
        yield Remove(layout.deletion_mark(name))
    former = cluster.topics.get(name)
    for index in () if former is None else former.partitions.keys() - node.partitions.keys():
        paths = (layout.state(name, index), layout.partition(name, index))
        yield from (Remove(path) for path in paths if path in cluster.versions)


def configs_writes(cluster: ClusterState, one: Unknown) -> Iterator[Write]:
    """Yield the write of the configurations with which a topic comes back."""
    path = layout.topic_configs(one.name)
    configs = configs_of(cluster, one)
    if configs:
        yield Put(path, ConfigNode(configs))
    elif path in cluster.versions:
        yield Remove(path)


def _why_not(cluster: ClusterState, without: Collection[int]) -> RequestRefusal | None:
    if cluster.went_back is None:
        return RequestRefusal(
            ErrorCode.INVALID_REQUEST, "The metadata store has not gone back in time."
        )
    missing = sorted(missing_brokers(cluster) - set(without))
    if missing:
        named = ", ".join(map(str, missing))
        sentence = (
            f"Brokers {named} have replicas and have not registered: start them, for they may hold "
            f"the newest records, or name them with --without {named} if they are lost."
        )
        return RequestRefusal(ErrorCode.BROKER_NOT_AVAILABLE, sentence)
    damaged = [str(x) for path, x in cluster.damaged.items() if path.startswith(layout.TOPICS)]
    damaged = [x for x in damaged if "/partitions/" not in x]
    if damaged:
        return RequestRefusal(ErrorCode.UNKNOWN_SERVER_ERROR, f"{damaged[0]} Repair it first.")
    epochs = [end.leader_epoch for ends in cluster.inventories.values() for end in ends.values()]
    epochs += [state.leader_epoch for state in cluster.states.values()]
    epochs += [epoch for epoch, _ in cluster.seen.values()]
    epochs += [
        x.leader_epoch for of_broker in cluster.kept.commands.values() for x in of_broker.values()
    ]
    epochs += [x.leader_epoch for x in cluster.kept.newest.values()]
    if max(epochs, default=0) > MAX_EPOCH - 2 * JUMP:
        return RequestRefusal(ErrorCode.UNKNOWN_SERVER_ERROR, "There are no higher epochs left.")
    return None


def _restored_state(
    cluster: ClusterState,
    topic_id: UUID,
    tp: TopicPartition,
    replicas: list[int],
    ends: dict[int, LogEnd],
    least_epoch: int,
) -> tuple[PartitionState, Successor | None]:
    """Return the state of one partition, and the election that it has."""
    stored = cluster.states.get(tp)
    newest = newest_command(cluster, topic_id, tp, ends)
    highest = max((end.leader_epoch for end in ends.values()), default=-1)
    if newest is not None:
        highest = max(highest, newest.command.leader_epoch)
    epoch = max(highest, least_epoch, -1 if stored is None else stored.leader_epoch) + JUMP
    targets = None if stored is None else stored.target_replicas
    new = PartitionState(NO_LEADER, epoch, cluster.controller_epoch, [], target_replicas=targets)
    present = present_brokers(cluster)
    broken = [broker for broker in present if (broker, tp) in cluster.broken]
    minimum = _minimum(cluster, topic_id, tp, len(replicas))
    next_one = successor(newest, ends, present, replicas, minimum, broken)
    if next_one is None:
        # What is missing is not new: an unclean election begins an empty partition, if asked for.
        away = [broker for broker in replicas if broker not in present]
        damaged = [broker for broker in replicas if (broker, tp) in cluster.broken]
        return msgspec.structs.replace(new, isr=away or damaged), None
    state = msgspec.structs.replace(
        new,
        leader=next_one.leader,
        isr=list(next_one.isr),
        is_unclean_leader=next_one.leader != NO_LEADER,
    )
    return state, next_one


def _minimum(cluster: ClusterState, topic_id: UUID, tp: TopicPartition, replicas: int) -> int:
    """Return the ``min.insync.replicas`` of a partition, also of a topic that comes back."""
    kept = None if topic_id in cluster.names else cluster.kept.configs.get(topic_id)
    configs = cluster.resolve(tp.topic, None if kept is None else kept[1]).configs
    return min(configs.min_insync_replicas, replicas)


def _topic_writes(
    cluster: ClusterState,
    name: str,
    node: TopicNode,
    history: TopicHistory | None,
    debts: dict[int, UncleanDebt],
    jump: int,
) -> Iterator[Write]:
    if node != cluster.topics.get(name):
        yield Put(layout.topic(name), node)
    if history is None:
        history = TopicHistory(layout.id_text(cluster.topic_id(name)), len(node.partitions))
    changed = with_debts(history, debts)
    if history.resize_epoch:
        # No broker can have a higher resize epoch of a topic that was never resized.
        changed = msgspec.structs.replace(changed, resize_epoch=history.resize_epoch + jump)
    if history.pending_stops:
        stops = {
            index: left
            for index, owed in history.pending_stops.items()
            if (left := {x: owed[x] for x in owed if x not in node.partitions.get(index, ())})
        }
        epochs = {
            index: left
            for index, noted in history.stop_partition_epochs.items()
            if (left := {x: noted[x] for x in noted if x in stops.get(index, ())})
        }
        changed = msgspec.structs.replace(
            changed, pending_stops=stops, stop_partition_epochs=epochs
        )
    if changed != cluster.topic_histories.get(name):
        yield Put(layout.topic_history(name), changed)


def _highest_partition_epoch(cluster: ClusterState) -> int:
    ends = [end for of_broker in cluster.inventories.values() for end in of_broker.values()]
    return max([cluster.counters.get(layout.PARTITION_EPOCH, 0), *(x[0] for x in ends)])


def _seen_controller_epoch(cluster: ClusterState) -> int:
    return max([cluster.controller_epoch, *(epoch for epoch, _ in cluster.seen.values())])


def _jumps(cluster: ClusterState, partition_epoch: int) -> Iterator[Write]:
    counters = cluster.counters
    controller_epoch = _seen_controller_epoch(cluster) + JUMP
    # Brokers keep the controller epoch on their disks: what is counted from it is not used twice,
    # not even when a store is lost, or restored from the same copy, for a second time.
    broker_epoch = max(counters.get(layout.BROKER_EPOCH, 0) + JUMP, controller_epoch)
    for broker, node in sorted(cluster.brokers.items()):
        broker_epoch += 1
        changed = msgspec.structs.replace(node, broker_epoch=broker_epoch)
        yield Put(layout.broker(broker), changed)
    yield Put(layout.BROKER_EPOCH, Counter(broker_epoch))
    yield Put(layout.PARTITION_EPOCH, Counter(partition_epoch))
    if layout.PRODUCER_IDS not in cluster.damaged:
        # Also without a block in the store: the first may have been allocated since.
        block = cluster.producer_ids
        end = (0 if block is None else int(block.block_end)) + PRODUCER_ID_JUMP
        end = max(end, controller_epoch * (PRODUCER_ID_JUMP // JUMP))
        yield Put(layout.PRODUCER_IDS, ProducerIdBlock(-1, str(end), str(end)))
    yield Put(layout.CONTROLLER_EPOCH, Counter(controller_epoch))
    revision = max([cluster.revision, *(number for _, number in cluster.seen.values())])
    yield Put(layout.REVISION, Counter(revision + JUMP))
