"""The partitions that an event concerns, each settled by the rules of ``elections``.

Owns the order over many partitions: what came back uncertain is compared first (``returns``), then
a leader is elected, and every unclean election gets its debt record in the topic's node, as long as
that has room (KIP-704).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from types import MappingProxyType

import msgspec

from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState, LogEnd
from tidelog.controller.decisions.decision import Decision, Put, Write
from tidelog.controller.decisions.elections import (
    Standing,
    is_unclean_election,
    settle,
    within,
    without_broken,
)
from tidelog.controller.decisions.losses import most_debts, with_debts
from tidelog.controller.decisions.returns import compared, is_put_off, without_lost
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState, TopicHistory, UncleanDebt
from tidelog.model.topics import TopicPartition


def settle_all(
    cluster: ClusterState,
    places: Iterable[TopicPartition],
    standing: Standing,
    lost: Collection[TopicPartition] = (),
    allow_unclean: bool | None = None,
    only_with_room: bool = False,
    new_epochs: Collection[TopicPartition] = (),
    uncertain: Mapping[TopicPartition, Collection[int]] = MappingProxyType({}),
) -> list[Write]:
    """Return the writes that settle each partition; none while the store is an older copy.

    ``lost``: partitions whose replica on the restarted broker may lack committed records.
    ``allow_unclean`` overrides the topics' configuration. With ``only_with_room`` partitions are
    skipped whose topic has no room for another debt record. Partitions in ``new_epochs`` get a new
    leader epoch even under the same leader. ``uncertain`` has brokers whose replicas may lack
    committed records since before this event. Partitions with damaged nodes stay unchanged; in a
    topic that cannot be read a ``lost`` replica leaves the ISR, or is noted as the last of it.
    """
    if cluster.went_back is not None:
        # Its ISRs may have members that left them since: the acceptance elects, by what brokers
        # report, and whatever their replicas may lack shows there.
        return []
    writes: list[Write] = []
    debts: dict[str, dict[int, UncleanDebt]] = {}
    standing_debts: dict[str, int] = {}
    rules: dict[str, tuple[bool, int]] = {}
    for tp in places:
        state = cluster.states.get(tp)
        replicas = cluster.replicas(tp)
        if state is None:
            continue
        if not replicas:
            if tp in lost and layout.topic(tp.topic) in cluster.damaged:
                writes += _without_lost_unread(cluster, tp, standing)
            continue
        if cluster.damaged and layout.state(*tp) in cluster.damaged:
            continue
        topic = tp.topic
        if topic not in rules:
            configs = cluster.resolve(topic).configs
            wanted = configs.unclean_leader_election_enable
            allowed = wanted if allow_unclean is None else allow_unclean
            rules[topic] = allowed, configs.min_insync_replicas
        is_lost = tp in lost
        history = cluster.topic_histories.get(topic)
        unclean = {} if history is None else history.unclean
        owed = standing_debts.setdefault(topic, len(unclean))
        owes_already = tp.partition in unclean
        may_owe = owes_already or owed < most_debts(len(replicas))
        if only_with_room and not may_owe:
            continue
        returned = _without(cluster, tp, uncertain.get(tp, ()))
        new = _settled(cluster, tp, returned, standing, rules[topic], is_lost, may_owe=may_owe)
        if tp in new_epochs and new.leader != NO_LEADER and new.leader_epoch == state.leader_epoch:
            new = msgspec.structs.replace(new, leader_epoch=state.leader_epoch + 1)
        owes = is_unclean_election(state, new)
        if owes and not owes_already:
            # This one takes room, too: the record of a topic has those of all its partitions.
            standing_debts[topic] = owed + 1
        if new == state:
            continue
        writes.append(put_state(cluster, tp, new))
        if owes:
            debt = UncleanDebt(new.leader, new.leader_epoch)
            debts.setdefault(topic, {})[tp.partition] = debt
    # Before the elections: every unclean election has its debt record.
    return [*_put_debts(cluster, debts), *writes]


def _without_lost_unread(
    cluster: ClusterState, tp: TopicPartition, standing: Standing
) -> list[Write]:
    """Return the write that notes a lost replica while the topic's replicas cannot be read.

    A leader is elected, and the last member compared, when they can be.
    """
    state, broker = cluster.states[tp], standing.new_incarnation
    if broker is None or layout.state(*tp) in cluster.damaged:
        return []
    new = without_lost(state, broker, {}, awaited=[broker])
    return [] if new == state else [put_state(cluster, tp, new)]


def _settled(
    cluster: ClusterState,
    tp: TopicPartition,
    present: PartitionState,
    standing: Standing,
    rule: tuple[bool, int],
    is_lost: bool,
    *,
    may_owe: bool,
) -> PartitionState:
    """Return the state that a partition should have after ``present``; without ``may_owe`` no
    unclean leader."""
    replicas = cluster.replicas(tp)
    state = within(present, replicas)
    allowed, minimum = rule
    new = state
    broken: list[int] = []
    if cluster.broken:
        broken = [x for x in replicas if (x, tp) in cluster.broken]
    if is_lost and standing.new_incarnation is not None:
        ends = _known_ends(cluster, tp, replicas, standing)
        awaited = standing.awaited if may_owe else {standing.new_incarnation}
        new = without_lost(new, standing.new_incarnation, ends, broken, awaited)
    if may_owe and is_put_off(new):
        ends = _known_ends(cluster, tp, replicas, standing)
        new = compared(new, standing, ends, broken)
    # What the comparison has elected leads already, and needs no election.
    fresh = new.is_unclean_leader and new is not state and not state.is_unclean_leader
    if not (fresh or (new.leader_epoch > state.leader_epoch and new.leader != NO_LEADER)):
        here = standing.without(broken) if broken else standing
        new = settle(new, replicas, here, min(minimum, len(replicas)), allowed and may_owe)
    if broken:
        new = without_broken(new, broken)
    # The leader drops members outside of the replicas: an event that changes nothing else does not.
    return present if new == state else new


def _without(
    cluster: ClusterState, tp: TopicPartition, uncertain: Collection[int]
) -> PartitionState:
    """Return a partition's state without replicas that may lack committed records; the last one
    waits for the comparison."""
    state = cluster.states[tp]
    for broker in uncertain:
        state = without_lost(state, broker, {}, awaited=[broker])
    return state


def elect_put_off(cluster: ClusterState, topics: Set[str]) -> Decision[None]:
    """Settle the leaderless partitions of topics whose debts have been handled.

    As many as their records have room for: a topic with twenty times as many takes twenty rounds,
    and a round skips the partitions that it cannot elect.
    """
    places = [
        tp
        for topic in sorted(cluster.topics.keys() & topics)
        for tp in (TopicPartition(topic, index) for index in cluster.topics[topic].partitions)
        if tp in cluster.states and cluster.states[tp].leader == NO_LEADER
    ]
    settled = settle_all(cluster, places, Standing.of(cluster), only_with_room=True)
    return Decision(None, tuple(settled), splits=True)


def elect_awaited(cluster: ClusterState, broker: int) -> Decision[None]:
    """Settle the leaderless partitions that wait for a broker, now that it can be elected.

    The registration of another broker may have been decided between the registration of this one
    and the beginning of its session: that decision still awaited this broker, and put the
    comparison off.
    """
    places = [
        tp
        for tp, state in cluster.states.items()
        if state.leader == NO_LEADER and broker in (*state.unclean_members, *state.isr)
    ]
    return Decision(None, tuple(settle_all(cluster, places, Standing.of(cluster))), splits=True)


def put_state(cluster: ClusterState, tp: TopicPartition, state: PartitionState) -> Put:
    """Return the write of a partition's state by this controller."""
    signed = msgspec.structs.replace(state, controller_epoch=cluster.controller_epoch)
    return Put(layout.state(*tp), signed)


def _put_debts(cluster: ClusterState, debts: dict[str, dict[int, UncleanDebt]]) -> list[Write]:
    writes: list[Write] = []
    for topic, new in debts.items():
        history = cluster.topic_histories.get(topic)
        if history is None:
            count = len(cluster.topics[topic].partitions)
            history = TopicHistory(layout.id_text(cluster.topic_id(topic)), count)
        writes.append(Put(layout.topic_history(topic), with_debts(history, new)))
    return writes


def _known_ends(
    cluster: ClusterState, tp: TopicPartition, replicas: Sequence[int], standing: Standing
) -> dict[int, LogEnd]:
    ends = {}
    for broker in replicas:
        end = cluster.log_end(broker, tp)
        if end is not None and broker in standing.fit:
            ends[broker] = end
    return ends
