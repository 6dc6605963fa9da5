"""A state and the assignment in its topic's node that contradict each other: which one is right.

Owns what a controller takes as proof for either, and which assignment of another program counts as
a correction. Those of other nodes that contradict each other: see ``agreement``.
Source: docs/decisions/0120.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from uuid import UUID

from tidelog.controller.decisions.cluster import NO_ID, NO_LEADER, ClusterState, named_in
from tidelog.metadata import layout
from tidelog.metadata.layout import Damaged
from tidelog.metadata.records import PartitionState, Record, TopicNode
from tidelog.model.topics import TopicPartition


def former_nodes(cluster: ClusterState, topics: Collection[str]) -> dict[str, Record]:
    """Return what counts of topics and their states before a change, by path; of damaged nodes what
    counted before the damage.

    A state that was read while its topic's node could not be is no proof, unless it agrees with
    what that node was before. Walks over all states.
    """
    former: dict[str, Record] = {
        path: damaged.former
        for path, damaged in cluster.damaged.items()
        if damaged.former is not None and layout.topic_of(path) in topics
    }
    former |= {layout.topic(x): cluster.topics[x] for x in topics if x in cluster.topics}
    for tp, state in cluster.states.items():
        topic = former.get(layout.topic(tp.topic))
        if tp.topic not in topics or not isinstance(topic, TopicNode):
            continue
        replicas = topic.partitions.get(tp.partition, [])
        if cluster.replicas(tp) or why_not_of(cluster, tp, state, replicas) is None:
            former[layout.state(*tp)] = state
    return former


def counted_state(cluster: ClusterState, tp: TopicPartition) -> PartitionState | None:
    """Return the state of a partition that counts, or None: one that contradicts what its topic's
    node was before its damage does not, for it was damaged itself until that node could not be read
    either. The repair of such a state may have a lower leader epoch."""
    state, topic = cluster.states.get(tp), cluster.damaged.get(layout.topic(tp.topic))
    if state is None or topic is None or not isinstance(topic.former, TopicNode):
        return state
    before = topic.former.partitions.get(tp.partition, [])
    return state if why_not_of(cluster, tp, state, before) is None else None


def unproved(cluster: ClusterState, former: Mapping[str, Record]) -> Iterator[Damaged]:
    """Yield the states that other programs have written in the place of ``former`` ones, by path,
    where the assignment does not agree with these either: all replicas could become stale by two
    nodes that were written by hand, one after the other."""
    if cluster.went_back is not None:
        return
    for path, newest in sorted(former.items()):
        place = layout.partition_of(path)
        if place is None or not isinstance(newest, PartitionState):
            continue
        tp, topic = TopicPartition(*place), layout.topic(place[0])
        state, replicas = cluster.states.get(tp), cluster.replicas(tp)
        if state is None or state == newest:
            continue
        if replicas and why_not_of(cluster, tp, newest, replicas) is None:
            continue
        if not replicas and tp.topic not in cluster.topics and topic not in cluster.damaged:
            # All of it is gone.
            continue
        why = (
            f"another program has written it, and {topic} "
            f"{f'assigns the partition to {replicas}' if replicas else 'cannot be read'}. The "
            f"controller knows leader epoch {newest.leader_epoch} and ISR {newest.isr}: put a copy "
            f"of that state back first, then {topic}"
        )
        yield Damaged(path, why, state)


def corrected(
    cluster: ClusterState, name: str, present: TopicNode, written: TopicNode, topic_id: str | None
) -> tuple[dict[int, list[int]], list[str]]:
    """Return the replicas that another program has put right in a topic's node, by partition, and
    why others are not.

    The state contradicts those that were known, and agrees with these: see ``_why_not_corrected``.
    ``topic_id`` is that of the replicas: the written node may have none, or another one.
    """
    known_id = (layout.parse_id(topic_id) if topic_id is not None else None) or NO_ID
    right, lines = {}, []
    for index, replicas in written.partitions.items():
        tp, former = TopicPartition(name, index), present.partitions.get(index, replicas)
        damaged = cluster.damaged.get(layout.state(*tp))
        state = None if damaged is None else _stated(damaged)
        if former == replicas or damaged is None or not isinstance(state, PartitionState):
            continue
        is_former_right = why_not_of(cluster, tp, state, former) is None
        if is_former_right or why_not_of(cluster, tp, state, replicas) is not None:
            continue
        why = _why_not_corrected(cluster, tp, damaged, set(former).difference(replicas), known_id)
        if why is None:
            right[index] = replicas
        else:
            lines.append(f"{layout.topic(name)} is not corrected for partition {index}: {why}.")
    return right, lines


def _stated(damaged: Damaged) -> Record | None:
    """Return what a damaged state says; one that cannot be read, or is missing, what it said when
    it counted: the topic's node may be put right first."""
    return damaged.former if damaged.record is None else damaged.record


def _why_not_corrected(
    cluster: ClusterState, tp: TopicPartition, damaged: Damaged, left: set[int], topic_id: UUID
) -> str | None:
    """Return a clause if a correction could make a replica stale, or an empty one leader, should
    the state be the wrong node. ``left`` are the brokers that it leaves out."""
    state, newest = _stated(damaged), damaged.former
    assert isinstance(state, PartitionState)
    if newest not in (None, state):
        # Only what another program has written contradicts the assignment.
        return f"{damaged.path} is the wrong node, put a copy of it back"
    here = cluster.inventories.keys() & cluster.brokers.keys() - cluster.presumed
    # Where the controller counted this very state with another assignment, a broker that it does
    # not name was never given a replica that has records.
    away = sorted(left - here if newest != state else (left - here) & named_in(state))
    if away:
        return (
            f"start broker {away[0]} first, for it may have a replica that this leaves out. If "
            "there is no such broker, put both nodes right while no controller runs"
        )
    for broker in sorted(left):
        is_damaged = broker in cluster.diskless or (broker, tp) in cluster.broken
        if is_damaged or cluster.any_log_end(broker, tp, topic_id) is not None:
            return (
                f"broker {broker}, which it leaves out, has or had a replica. Put {damaged.path} "
                f"back if that is the wrong node, otherwise move the folder off broker {broker}, "
                "and start that again"
            )
    if newest == state:
        # The controller counted this very state: a member that came back empty since is noted.
        return None
    members = {*state.isr, *state.eligible_replicas}
    awaited = sorted(members & cluster.presumed)
    if awaited:
        return f"write it again once broker {awaited[0]} has registered, which {damaged.path} names"
    empty = {x for x in members & here if cluster.any_log_end(x, tp, topic_id) is None}
    noted = cluster.past.uncertain.topics.get(tp.topic, {}).get(tp.partition, ())
    if empty and empty == members:
        # The notes say only that this state names them, which may be the wrong node.
        return (
            f"none of {sorted(members)}, which {damaged.path} names as in sync, has a replica: put "
            "that back if it is the wrong node. If their disks are lost, put both nodes right "
            "while no controller runs"
        )
    # One that is noted leads only if no other member has more.
    unsafe = empty.difference(noted)
    if unsafe:
        return (
            f"broker {min(unsafe)} has no replica, and {damaged.path} names it as in sync: put "
            f"that back, or start broker {min(unsafe)} again if it has one"
        )
    return None


def why_not_of(
    cluster: ClusterState, tp: TopicPartition, state: PartitionState, replicas: list[int]
) -> str | None:
    """Return a clause if a state contradicts an assignment of its partition to ``replicas``."""
    assigned = f"{layout.topic(tp.topic)} assigns the partition to {replicas}"
    if state.leader not in replicas and state.leader != NO_LEADER:
        return f"its leader is {state.leader}, and {assigned}"
    history = cluster.topic_histories.get(tp.topic)
    # A replica that was moved away owes a stop until it has left the ISR (KIP-455). While the
    # history cannot be read either node may be the older one: no replica is given up.
    owing = {} if history is None else history.pending_stops.get(tp.partition, {})
    hosts = {*replicas, *(state.target_replicas or ()), *owing}
    strange = not hosts.issuperset(state.isr)
    if strange:
        return f"its ISR is {state.isr}, and {assigned}"
    members = [*state.isr, *state.eligible_replicas]
    if members and not set(members).intersection(replicas):
        return f"its members are {members}, and {assigned}"
    return None
