"""ElectLeaders: preferred and unclean elections that a request asks for.

Owns the refusals and the result per partition. The unclean election itself is ``settlement``'s; the
timer that moves leadership back to preferred replicas calls this too (``rebalance``).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState
from tidelog.controller.decisions.decision import Decision, Put, RequestRefusal, Write
from tidelog.controller.decisions.elections import Standing
from tidelog.controller.decisions.losses import most_debts
from tidelog.controller.decisions.resizes_condition import is_unborn
from tidelog.controller.decisions.settlement import put_state, settle_all
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState, Record, TopicHistory
from tidelog.model.admin_requests import ElectionType
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

Result = dict[TopicPartition, RequestRefusal | None]

LEFT_OUT = (ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""The refusals that a response about all partitions leaves out."""


def elect_on_request(
    cluster: ClusterState,
    kind: ElectionType,
    asked: Sequence[TopicPartition] | None,
    everything: bool = False,
) -> Decision[Result]:
    """Decide ElectLeaders: preferred or unclean, for the partitions asked or (None) for all.

    With None the answer leaves out partitions that need no election, as Kafka does, and those that
    no client has been shown; so it does with ``everything``, which says that ``asked`` is a slice
    of all partitions.
    """
    everything = everything or asked is None
    places = list(cluster.states) if asked is None else list(dict.fromkeys(asked))
    answer: Result = {}
    moved: list[TopicPartition] = []
    writes: list[Write] = []
    for tp in places:
        refusal = _why_not_elected(cluster, kind, tp)
        if refusal is not None:
            if not (everything and refusal.error in LEFT_OUT):
                answer[tp] = refusal
            continue
        answer[tp] = None
        if kind is ElectionType.UNCLEAN:
            moved.append(tp)
            continue
        state = cluster.states[tp]
        preferred = cluster.topics[tp.topic].partitions[tp.partition][0]
        new = msgspec.structs.replace(
            state,
            leader=preferred,
            leader_epoch=state.leader_epoch + 1,
            is_unclean_leader=False,
        )
        writes.append(put_state(cluster, tp, new))
    elected = settle_all(cluster, moved, Standing.of(cluster), allow_unclean=True)
    changed = {write.path: write.record for write in elected if isinstance(write, Put)}
    for tp in moved:
        record = changed.get(layout.state(*tp))
        if not isinstance(record, PartitionState) or record.leader == NO_LEADER:
            answer[tp] = _why_nobody(cluster, tp, changed.get(layout.topic_history(tp.topic)))
    return Decision(answer, (*writes, *elected), splits=True)


def _why_nobody(
    cluster: ClusterState, tp: TopicPartition, written: Record | None
) -> RequestRefusal:
    """Say why no replica can lead: an unclean election waits for every replica that is not dead."""
    state = cluster.states[tp]
    holders = sorted({*state.isr, *state.eligible_replicas} & cluster.brokers.keys())
    sentence = f"No replica can lead {tp} now."
    history = cluster.topic_histories.get(tp.topic) if written is None else written
    debts = len(history.unclean) if isinstance(history, TopicHistory) else 0
    if debts >= most_debts(len(cluster.replicas(tp))):
        sentence = (
            f"{debts} unclean elections of {tp.topic} are not handled yet: its record has no "
            f"room for more. Ask for {tp} again when they are."
        )
    elif holders:
        names = ", ".join(map(str, holders))
        sentence = f"Broker {names} may still come back with all of {tp}: it is not dead yet."
    return RequestRefusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, sentence)


def _why_not_elected(
    cluster: ClusterState, kind: ElectionType, tp: TopicPartition
) -> RequestRefusal | None:
    node = cluster.topics.get(tp.topic)
    state = cluster.states.get(tp)
    is_there = node is not None and state is not None and tp.partition in node.partitions
    if node is None or state is None or not is_there or is_unborn(cluster, tp):
        return RequestRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {tp}.")
    replicas = node.partitions[tp.partition]
    if kind is ElectionType.PREFERRED:
        if state.leader == replicas[0]:
            sentence = f"The preferred replica {replicas[0]} leads {tp} already."
            return RequestRefusal(ErrorCode.ELECTION_NOT_NEEDED, sentence)
        electable = replicas[0] in cluster.fit - cluster.presumed
        electable = electable and replicas[0] not in state.unclean_members
        if not electable or replicas[0] not in state.isr or (replicas[0], tp) in cluster.broken:
            sentence = f"The preferred replica {replicas[0]} of {tp} is not in sync and alive."
            return RequestRefusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, sentence)
        return None
    if state.leader != NO_LEADER:
        return RequestRefusal(ErrorCode.ELECTION_NOT_NEEDED, f"{tp} has the leader {state.leader}.")
    if not cluster.fit & set(replicas):
        sentence = f"No replica of {tp} is alive."
        return RequestRefusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, sentence)
    return None
