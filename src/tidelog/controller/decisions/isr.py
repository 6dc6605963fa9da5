"""AlterIsr: a leader proposes another ISR, or reports that its data-loss handling is done.

Owns the checks, in this order: topic and topic id, leader, leader epoch, ISR version, members.
A target of a reassignment that joins the ISR joins the replicas in the same write; a topic's node
is written once for all its joins.
Sources: KIP-497 (compare-and-set), KIP-704 (clearing the flag), KIP-516 (topic id), KIP-455 (the
join), docs/design/who-may-lead.md (broker epochs of the members).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from tidelog.controller.decisions.cluster import NO_ID, ClusterState
from tidelog.controller.decisions.decision import Decision, Put, Write
from tidelog.controller.decisions.elections import with_isr, within
from tidelog.controller.decisions.losses import without_debt
from tidelog.controller.decisions.settlement import put_state
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, with_joined


@dataclass(frozen=True, slots=True)
class Proposal:
    """One partition of an AlterIsr request. ``broker_epochs`` is empty or as long as ``isr``."""

    where: TopicPartition
    topic_id: UUID
    leader_epoch: int
    isr: tuple[int, ...]
    isr_version: int
    broker_epochs: tuple[int, ...] = ()
    unclean_handled: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one partition: an error, and the state after it if there is one.

    With INVALID_UPDATE_VERSION the state lets a leader that missed a response catch up; without a
    state the leader learns it by its control channel.
    """

    error: ErrorCode
    state: PartitionState | None = None
    isr_version: int = -1


def alter_isr(
    cluster: ClusterState, leader: int, proposals: Sequence[Proposal], *, knows_configs: bool = True
) -> Decision[list[Outcome]]:
    """Decide each proposal of the broker ``leader``; its own epoch was checked before.

    A leader without the current configurations may advance its high watermark by a lower
    ``min.insync.replicas`` than the controller uses: a change that leaves its ISR below the minimum
    is refused, and the response has no state with eligible replicas. The leader asks again until it
    has the configurations (docs/decisions/0035).
    """
    writes: list[Write] = []
    handled: dict[str, list[int]] = {}
    joins: dict[str, dict[int, list[int]]] = {}
    outcomes: list[Outcome] = []
    seen: set[TopicPartition] = set()
    for proposal in proposals:
        tp = proposal.where
        error = _why_not(cluster, leader, proposal)
        if error is ErrorCode.NONE and not knows_configs and _is_below(cluster, proposal):
            error = ErrorCode.INELIGIBLE_REPLICA
        if error is ErrorCode.NONE and tp in seen:
            error = ErrorCode.INVALID_REQUEST
        state = cluster.states.get(tp)
        version = cluster.isr_version(tp)
        if error is not ErrorCode.NONE or state is None:
            is_shown = state is not None and (knows_configs or not state.eligible_replicas)
            is_shown = is_shown and cluster.went_back is None
            outcomes.append(Outcome(error, state, version) if is_shown else Outcome(error))
            continue
        seen.add(tp)
        new = _changed(cluster, tp, state, proposal)
        if proposal.unclean_handled:
            history = cluster.topic_histories.get(tp.topic)
            if history is not None and tp.partition in history.unclean:
                handled.setdefault(tp.topic, []).append(tp.partition)
        if new == state:
            # Nothing to write: the version that the leader knows stays current.
            outcomes.append(Outcome(ErrorCode.NONE, state, version))
            continue
        replicas = cluster.replicas(tp)
        grown = list(with_joined(replicas, state.target_replicas, proposal.isr))
        if grown != replicas:
            joins.setdefault(tp.topic, {})[tp.partition] = grown
        writes.append(put_state(cluster, tp, new))
        outcomes.append(Outcome(ErrorCode.NONE, new, version + 1))
    # Each topic's record once for all its partitions: it may be as large as a commit.
    paid = [
        Put(layout.topic_history(topic), without_debt(cluster.topic_histories[topic], *indexes))
        for topic, indexes in handled.items()
    ]
    # Before the states: a replica without ISR membership harms less than the reverse.
    return Decision(outcomes, (*paid, *_assigned(cluster, joins), *writes), splits=True)


def joins_of(cluster: ClusterState, tp: TopicPartition, isr: Sequence[int]) -> bool:
    """Return whether an ISR has a target that is not among the replicas yet."""
    targets = cluster.moves.get(tp)
    return targets is not None and any(x in targets and x not in cluster.replicas(tp) for x in isr)


def _assigned(
    cluster: ClusterState, joins: Mapping[str, Mapping[int, list[int]]]
) -> Iterator[Write]:
    for topic, grown in joins.items():
        node = cluster.topics[topic]
        assigned = {**node.partitions, **grown}
        yield Put(layout.topic(topic), msgspec.structs.replace(node, partitions=assigned))


def _why_not(cluster: ClusterState, leader: int, proposal: Proposal) -> ErrorCode:
    if cluster.went_back is not None:
        # An older store cannot say which ISR is the present one, and the acceptance goes by that:
        # the change stays in flight, and the leader counts its former members.
        return ErrorCode.OPERATION_NOT_ATTEMPTED
    tp = proposal.where
    state = cluster.states.get(tp)
    if state is None or not cluster.replicas(tp):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if proposal.topic_id != NO_ID and proposal.topic_id != cluster.topic_id(tp.topic):
        return ErrorCode.INCONSISTENT_TOPIC_ID
    if proposal.leader_epoch != state.leader_epoch or state.leader != leader:
        return ErrorCode.FENCED_LEADER_EPOCH
    if proposal.isr_version != cluster.isr_version(tp):
        return ErrorCode.INVALID_UPDATE_VERSION
    if proposal.broker_epochs and len(proposal.broker_epochs) != len(proposal.isr):
        return ErrorCode.INVALID_REQUEST
    if leader not in proposal.isr or len(set(proposal.isr)) != len(proposal.isr):
        return ErrorCode.INVALID_REQUEST
    allowed = {*cluster.hosts(tp), *state.isr}
    if not allowed.issuperset(proposal.isr):
        return ErrorCode.INVALID_REQUEST
    return _why_not_members(cluster, state, proposal)


def _is_below(cluster: ClusterState, proposal: Proposal) -> bool:
    """Return whether a change leaves an ISR below the minimum that the controller uses."""
    tp = proposal.where
    minimum = cluster.min_insync(tp.topic, len(cluster.replicas(tp)))
    return len(proposal.isr) < minimum and list(proposal.isr) != cluster.states[tp].isr


def _why_not_members(cluster: ClusterState, state: PartitionState, proposal: Proposal) -> ErrorCode:
    for position, member in enumerate(proposal.isr):
        node = cluster.brokers.get(member)
        is_known_damaged = (member, proposal.where) in cluster.broken
        is_new = member not in state.isr
        if is_new and (node is None or member not in cluster.fit or is_known_damaged):
            # A rebuilt replica joins after a heartbeat of its broker has reported it as healed.
            return ErrorCode.INELIGIBLE_REPLICA
        if proposal.broker_epochs and node is not None:
            proposed = proposal.broker_epochs[position]
            # -1: the leader has not seen this member fetch, so it cannot vouch for a new member.
            if proposed != node.broker_epoch and not (proposed == -1 and member in state.isr):
                return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _changed(
    cluster: ClusterState, tp: TopicPartition, state: PartitionState, proposal: Proposal
) -> PartitionState:
    new = state
    if list(proposal.isr) != state.isr:
        replicas = cluster.replicas(tp)
        # Without targets that join now: the leader acknowledges by the minimum of those it knows.
        minimum = cluster.min_insync(tp.topic, len(replicas))
        # A leader acts: replicas that came back before it are no longer compared.
        bounded = within(state, replicas)
        new = with_isr(bounded, proposal.isr, minimum, unclean_members=[])
    if proposal.unclean_handled and new.is_unclean_leader:
        new = msgspec.structs.replace(new, is_unclean_leader=False)
    return new
