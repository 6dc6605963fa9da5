"""A metadata store that has gone back in time: what it does not know, and how it is accepted.

Owns the step from an older copy of the store to one that may command brokers again (the design,
"Who may lead"): everything that counts jumps above what was reported or is possible, no stored ISR
is believed, and nothing that a replica still holds of a known topic is given up:

| a partition | then |
|---|---|
| some replica was reported | the one with the highest (leader epoch, end offset) leads, flagged |
| its holder is not assigned to it | it joins the assignment: the partition moved since the backup |
| nobody reported a replica, some assigned broker is away | no leader: who is away may have it |
| nobody reported a replica, all are here | the first of them leads, empty, flagged |

What replicas hold of topics that the store does not know is listed: after the acceptance it is
stale, for then an operator has seen the list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from tidelog.controller.decisions.cluster import (
    NO_LEADER,
    Cluster,
    Decision,
    LogEnd,
    Put,
    Refusal,
    Remove,
    Write,
)
from tidelog.controller.decisions.elections import put_state
from tidelog.controller.decisions.losses import most_debts, with_debts
from tidelog.metadata import layout
from tidelog.metadata.records import (
    Counter,
    PartitionState,
    ProducerIdBlock,
    TopicMemory,
    UncleanDebt,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

JUMP = 1_000_000
"""How far epochs and counters jump: more than brokers that are away can have seen beyond the rest,
and 2,000 acceptances fit into an epoch's 31 bits."""

PRODUCER_ID_JUMP = 1_000_000_000
"""A million blocks of producer ids."""

MAX_EPOCH = 2**31 - 1


def report(cluster: Cluster) -> dict[str, Any]:
    """Return what an operator should know before accepting, as plain data for JSON."""
    return {
        "went_back": cluster.went_back,
        "brokers_heard": sorted(_present(cluster)),
        "brokers_missing": sorted(_missing(cluster)),
        "unknown": list(_unknown(cluster)),
        "partitions": list(_partitions(cluster)),
    }


def accept(cluster: Cluster, without: Collection[int]) -> Decision[dict[str, Any] | Refusal]:
    """Decide to go on with this store; ``without`` names brokers that are not waited for.

    The answer is the report as it was before. The write that ends the state of having gone back is
    the last one. Walks over all partitions.
    """
    refusal = _why_not(cluster, without)
    if refusal is not None:
        return Decision(refusal)
    before = report(cluster)
    writes: list[Write] = []
    for name, node in cluster.topics.items():
        assignment = dict(node.partitions)
        debts: dict[int, UncleanDebt] = {}
        memory = cluster.memories.get(name)
        standing = set() if memory is None else set(memory.unclean)
        for index in node.partitions:
            where = TopicPartition(name, index)
            ends = _ends(cluster, where)
            others = sorted(ends.keys() - set(assignment[index]))
            assignment[index] = [*assignment[index], *others]
            state = _led_anew(cluster, where, assignment[index], ends)
            if state.leader != NO_LEADER:
                standing.add(index)
                if len(standing) > most_debts(len(assignment[index])):
                    standing.remove(index)
                    # Elected when others are handled: by comparison, as when all came back unclean.
                    state = msgspec.structs.replace(
                        state,
                        leader=NO_LEADER,
                        is_unclean_leader=False,
                        unclean_members=list(ends) or state.isr,
                    )
            writes.append(put_state(cluster, where, state))
            if state.leader != NO_LEADER:
                debts[index] = UncleanDebt(state.leader, state.leader_epoch)
        writes += _topic_writes(cluster, name, assignment, debts)
    writes += _jumps(cluster)
    writes.append(Remove(layout.WENT_BACK))
    return Decision(before, tuple(writes), splits=True)


def _why_not(cluster: Cluster, without: Collection[int]) -> Refusal | None:
    if cluster.went_back is None:
        return Refusal(ErrorCode.INVALID_REQUEST, "The metadata store has not gone back in time.")
    missing = sorted(_missing(cluster) - set(without))
    if missing:
        named = ", ".join(map(str, missing))
        sentence = (
            f"Brokers {named} have replicas and have not registered: start them, for they may hold "
            f"the newest records, or name them with --without {named} if they are lost."
        )
        return Refusal(ErrorCode.BROKER_NOT_AVAILABLE, sentence)
    damaged = [str(x) for path, x in cluster.damaged.items() if path.startswith(layout.TOPICS)]
    damaged = [x for x in damaged if "/partitions/" not in x]
    if damaged:
        return Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, f"{damaged[0]} Repair it first.")
    epochs = [end.leader_epoch for ends in cluster.inventories.values() for end in ends.values()]
    epochs += [state.leader_epoch for state in cluster.states.values()]
    epochs += [epoch for epoch, _ in cluster.seen.values()]
    if max(epochs, default=0) > MAX_EPOCH - 2 * JUMP:
        return Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "There are no higher epochs left.")
    return None


def _missing(cluster: Cluster) -> set[int]:
    """Return the assigned brokers that are not here, or have said nothing of what they hold."""
    assigned = {
        broker
        for node in cluster.topics.values()
        for replicas in node.partitions.values()
        for broker in replicas
    }
    return (assigned | cluster.brokers.keys()) - _present(cluster)


def _present(cluster: Cluster) -> set[int]:
    """Return the brokers that have registered, said what they hold, and may lead."""
    return cluster.inventories.keys() & (cluster.fit - cluster.presumed)


def _ends(cluster: Cluster, where: TopicPartition) -> dict[int, LogEnd]:
    """Return the log end of every usable replica of a partition, wherever it is."""
    found = {}
    for broker in cluster.inventories.keys() | cluster.nameless.keys():
        end = cluster.log_end(broker, where)
        if end is not None and broker in cluster.brokers and (broker, where) not in cluster.broken:
            found[broker] = end
    return found


def _led_anew(
    cluster: Cluster, where: TopicPartition, replicas: list[int], ends: dict[int, LogEnd]
) -> PartitionState:
    known = cluster.states.get(where)
    highest = max((end.leader_epoch for end in ends.values()), default=-1)
    epoch = max(highest, -1 if known is None else known.leader_epoch) + JUMP
    targets = None if known is None else known.target_replicas
    new = PartitionState(NO_LEADER, epoch, cluster.controller_epoch, [], target_replicas=targets)
    present = _present(cluster)
    able = [broker for broker in ends if broker in present]
    away = [broker for broker in replicas if broker not in present]
    if able:
        best = max(able, key=lambda x: (ends[x].leader_epoch, ends[x].end_offset, -x))
    elif not away and present.intersection(replicas):
        best = next(broker for broker in replicas if broker in present)
    else:
        return msgspec.structs.replace(new, isr=away or list(replicas))
    return msgspec.structs.replace(new, leader=best, isr=[best], is_unclean_leader=True)


def _topic_writes(
    cluster: Cluster, name: str, assignment: dict[int, list[int]], debts: dict[int, UncleanDebt]
) -> Iterator[Write]:
    node = cluster.topics[name]
    if assignment != node.partitions:
        yield Put(layout.topic(name), msgspec.structs.replace(node, partitions=assignment))
    memory = cluster.memories.get(name)
    if memory is None:
        memory = TopicMemory(layout.id_text(cluster.topic_id(name)), len(assignment))
    changed = with_debts(memory, debts)
    if memory.resize_epoch:
        # Nobody can know a higher resize epoch of a topic that was never resized.
        changed = msgspec.structs.replace(changed, resize_epoch=memory.resize_epoch + JUMP)
    if changed != memory:
        yield Put(layout.memory(name), changed)


def _jumps(cluster: Cluster) -> Iterator[Write]:
    counters = cluster.counters
    broker_epoch = counters.get(layout.BROKER_EPOCH, 0) + JUMP
    for broker, node in sorted(cluster.brokers.items()):
        broker_epoch += 1
        changed = msgspec.structs.replace(node, broker_epoch=broker_epoch)
        yield Put(layout.broker(broker), changed)
    yield Put(layout.BROKER_EPOCH, Counter(broker_epoch))
    ends = [end for found in cluster.inventories.values() for end in found.values()]
    partition_epoch = max([counters.get(layout.PARTITION_EPOCH, 0), *(x[0] for x in ends)])
    yield Put(layout.PARTITION_EPOCH, Counter(partition_epoch + JUMP))
    if layout.PRODUCER_IDS not in cluster.damaged:
        # Also without a block in the store: the first may have been handed out since.
        known = cluster.producer_ids
        end = (0 if known is None else int(known.block_end)) + PRODUCER_ID_JUMP
        yield Put(layout.PRODUCER_IDS, ProducerIdBlock(-1, str(end), str(end)))
    seen = cluster.seen.values()
    controller_epoch = max([cluster.controller_epoch, *(epoch for epoch, _ in seen)])
    yield Put(layout.CONTROLLER_EPOCH, Counter(controller_epoch + JUMP))
    revision = max([cluster.revision, *(number for _, number in seen)])
    yield Put(layout.REVISION, Counter(revision + JUMP))


def _unknown(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """Yield what replicas hold of topics that the store does not know, by topic id."""
    found: dict[str, dict[str, Any]] = {}
    for broker, inventory in sorted(cluster.inventories.items()):
        for (topic_id, partition), end in sorted(inventory.items()):
            if topic_id in cluster.names:
                continue
            text = layout.id_text(topic_id)
            topic = found.setdefault(
                text,
                {
                    "topic": cluster.held.get(topic_id, "?"),
                    "topic_id": text,
                    "is_being_deleted": topic_id in cluster.deletions,
                    "replicas": [],
                },
            )
            topic["replicas"].append(_replica(broker, partition, end))
    yield from found.values()


def _partitions(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """Yield the partitions of which replicas are elsewhere than the store says, or nowhere."""
    for name, node in sorted(cluster.topics.items()):
        for index, replicas in sorted(node.partitions.items()):
            ends = _ends(cluster, TopicPartition(name, index))
            if ends and ends.keys() <= set(replicas):
                continue
            held = [_replica(broker, index, end) for broker, end in sorted(ends.items())]
            yield {"topic": name, "partition": index, "assigned": replicas, "replicas": held}


def _replica(broker: int, partition: int, end: LogEnd) -> dict[str, int]:
    return {
        "broker": broker,
        "partition": partition,
        "leader_epoch": end.leader_epoch,
        "end_offset": end.end_offset,
    }
