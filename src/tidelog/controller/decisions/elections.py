"""Who leads a partition: the one rule that every event of a broker's life goes through.

Owns elections and what they do to the ISR, ``eligible_replicas``, the unclean flag and its debt
record. ``settle`` is called for every partition that an event concerns, in this order:

| leader | who is there | outcome |
|---|---|---|
| fit, and no new life of it | | it stays; members that are not fit leave an ISR with a fit one |
| else | a fit member of the ISR | it leads, epoch +1, the flag is cleared |
| else | a fit eligible replica | it leads, epoch +1, the ISR is it alone |
| only suspected or leaving | | it stays: to take its leadership without a successor helps nobody |
| else | a suspected member is left | no leader: the suspect may come back |
| else, unclean allowed | any fit replica | it leads, epoch +1, flagged, with a debt record |
| else | nobody | no leader, epoch +1; the ISR is kept |

Sources: the design, "Who may lead"; KIP-704 (the flag); KIP-966 (eligible replicas).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from tidelog.controller.decisions.cluster import (
    NO_LEADER,
    Cluster,
    Decision,
    LogEnd,
    Put,
    Refusal,
    Write,
)
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState, TopicMemory, UncleanDebt
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


class ElectionType(IntEnum):
    """What ElectLeaders asks for."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class Standing:
    """Who may lead (``fit``) and who is not dead (``registered``), as an event leaves them.

    ``presumed`` brokers keep what they lead and are elected nowhere: they have not registered with
    this controller yet.
    """

    fit: frozenset[int]
    registered: frozenset[int]
    new_life: int | None = None
    presumed: frozenset[int] = frozenset()

    @property
    def electable(self) -> frozenset[int]:
        """Who may be elected."""
        return self.fit - self.presumed

    def without(self, brokers: Collection[int]) -> Standing:
        """Return the standing at a partition whose replicas on some brokers are damaged."""
        out = frozenset(brokers)
        return Standing(self.fit - out, self.registered - out, self.new_life, self.presumed)

    @staticmethod
    def of(cluster: Cluster, gone: Collection[int] = (), new_life: int | None = None) -> Standing:
        """Return how brokers stand, without those that are ``gone`` and with a new life."""
        extra = set() if new_life is None else {new_life}
        fit = (cluster.fit - set(gone)) | extra
        registered = (cluster.brokers.keys() - set(gone)) | extra
        presumed = cluster.presumed - extra
        return Standing(frozenset(fit), frozenset(registered), new_life, frozenset(presumed))


def with_isr(
    state: PartitionState, isr: Sequence[int], min_insync: int, **changes: object
) -> PartitionState:
    """Return ``state`` with another ISR.

    Members that leave while the ISR is below the minimum hold everything committed: they stay
    eligible. The list is cleared in the write in which the ISR reaches the minimum.
    """
    eligible: list[int] = []
    if len(isr) < min_insync:
        known = dict.fromkeys([*state.eligible_replicas, *state.isr])
        eligible = [member for member in known if member not in isr]
    return msgspec.structs.replace(state, isr=list(isr), eligible_replicas=eligible, **changes)


def settle(
    state: PartitionState,
    replicas: Sequence[int],
    standing: Standing,
    min_insync: int,
    unclean_allowed: bool,
) -> PartitionState:
    """Return the state that the partition should have now; ``state`` itself if it is right."""
    isr = [member for member in state.isr if member in standing.fit]
    leads = state.leader in isr and state.leader != standing.new_life
    if leads:
        return state if isr == state.isr else with_isr(state, isr, min_insync)
    epoch = state.leader_epoch + 1
    order = [*replicas, *state.isr]
    for member in order:
        if member in isr and member in standing.electable:
            return with_isr(
                state, isr, min_insync, leader=member, leader_epoch=epoch, is_unclean_leader=False
            )
    for member in order:
        if member in standing.electable and member in state.eligible_replicas:
            return with_isr(
                state,
                [member],
                min_insync,
                leader=member,
                leader_epoch=epoch,
                is_unclean_leader=False,
            )
    if state.leader in standing.registered:
        return state
    waiting = {*state.isr, *state.eligible_replicas} & standing.registered
    if not waiting and unclean_allowed:
        for member in replicas:
            if member in standing.electable:
                return unclean(state, member)
    if state.leader == NO_LEADER:
        return state
    return msgspec.structs.replace(state, leader=NO_LEADER, leader_epoch=epoch)


def unclean(state: PartitionState, leader: int) -> PartitionState:
    """Return the state after an unclean election: one member, a new epoch, the flag."""
    return msgspec.structs.replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        isr=[leader],
        eligible_replicas=[],
        is_unclean_leader=True,
    )


def without_lost(
    state: PartitionState, broker: int, replicas: Sequence[int], ends: dict[int, LogEnd]
) -> PartitionState:
    """Return the state after ``broker`` came back with a replica that may lack committed data.

    It leaves the ISR and the eligible replicas while their union keeps another member. When it was
    the last one, all of them came back so: the replica with the highest (leader epoch, end offset)
    leads at once, flagged, whatever the configuration says. ``ends`` has the known log ends.
    """
    union = {*state.isr, *state.eligible_replicas}
    if broker not in union:
        return state
    if union != {broker}:
        isr = [member for member in state.isr if member != broker]
        eligible = [member for member in state.eligible_replicas if member != broker]
        leaderless = state.leader == broker
        return msgspec.structs.replace(
            state,
            isr=isr,
            eligible_replicas=eligible,
            leader=NO_LEADER if leaderless else state.leader,
            leader_epoch=state.leader_epoch + leaderless,
        )
    best = max(replicas, key=lambda x: (ends[x][1:] if x in ends else (-1, -1), x == broker))
    return unclean(state, best if best in ends else broker)


def settle_all(
    cluster: Cluster,
    places: Iterable[TopicPartition],
    standing: Standing,
    lost: Collection[TopicPartition] = (),
    allow_unclean: bool | None = None,
) -> list[Write]:
    """Return the writes that settle each partition.

    ``lost``: partitions whose replica on the broker with a new life may lack committed data.
    ``allow_unclean`` overrules the topics' configuration. Partitions whose nodes are damaged are
    left as they are.
    """
    writes: list[Write] = []
    debts: dict[str, dict[int, UncleanDebt]] = {}
    rules: dict[str, tuple[bool, int]] = {}
    for where in places:
        state = cluster.states.get(where)
        replicas = cluster.replicas(where)
        if state is None or not replicas or layout.state(*where) in cluster.damaged:
            continue
        topic = where.topic
        if topic not in rules:
            configs = cluster.resolve(topic).configs
            wanted = configs.unclean_leader_election_enable
            allowed = wanted if allow_unclean is None else allow_unclean
            rules[topic] = allowed, configs.min_insync_replicas
        allowed, minimum = rules[topic]
        new = state
        if where in lost and standing.new_life is not None:
            ends = _known_ends(cluster, where, replicas, standing)
            new = without_lost(new, standing.new_life, replicas, ends)
        fresh = new.is_unclean_leader and new is not state and not state.is_unclean_leader
        if not (fresh or (new.leader_epoch > state.leader_epoch and new.leader != NO_LEADER)):
            here = standing
            if cluster.broken:
                here = standing.without([x for x in replicas if (x, where) in cluster.broken])
            new = settle(new, replicas, here, min(minimum, len(replicas)), allowed)
        if new == state:
            continue
        writes.append(put_state(cluster, where, new))
        if new.is_unclean_leader and new.leader_epoch > state.leader_epoch:
            debt = UncleanDebt(new.leader, new.leader_epoch)
            debts.setdefault(topic, {})[where.partition] = debt
    writes.extend(_put_debts(cluster, debts))
    return writes


def put_state(cluster: Cluster, where: TopicPartition, state: PartitionState) -> Put:
    """Return the write of a partition's state by this controller."""
    signed = msgspec.structs.replace(state, controller_epoch=cluster.controller_epoch)
    return Put(layout.state(*where), signed)


def _put_debts(cluster: Cluster, debts: dict[str, dict[int, UncleanDebt]]) -> list[Write]:
    writes: list[Write] = []
    for topic, new in debts.items():
        memory = cluster.memories.get(topic)
        if memory is None:
            count = len(cluster.topics[topic].partitions)
            memory = TopicMemory(layout.id_text(cluster.topic_id(topic)), count)
        changed = msgspec.structs.replace(memory, unclean={**memory.unclean, **new})
        writes.append(Put(layout.memory(topic), changed))
    return writes


def _known_ends(
    cluster: Cluster, where: TopicPartition, replicas: Sequence[int], standing: Standing
) -> dict[int, LogEnd]:
    key = (cluster.topic_id(where.topic), where.partition)
    found = {}
    for broker in replicas:
        end = cluster.inventories.get(broker, {}).get(key)
        if end is not None and broker in standing.fit:
            found[broker] = end
    return found


Result = dict[TopicPartition, Refusal | None]


def elect_on_request(
    cluster: Cluster, kind: ElectionType, asked: Sequence[TopicPartition] | None
) -> Decision[Result]:
    """Decide ElectLeaders: preferred or unclean, for the partitions asked or (None) for all.

    With None, partitions where no election is needed are left out of the answer, as Kafka does.
    """
    everything = asked is None
    places = list(cluster.states) if asked is None else list(dict.fromkeys(asked))
    answer: Result = {}
    moved: list[TopicPartition] = []
    writes: list[Write] = []
    for where in places:
        refusal = _why_not_elected(cluster, kind, where)
        if refusal is not None:
            if not (everything and refusal.error is ErrorCode.ELECTION_NOT_NEEDED):
                answer[where] = refusal
            continue
        answer[where] = None
        if kind is ElectionType.UNCLEAN:
            moved.append(where)
            continue
        state = cluster.states[where]
        preferred = cluster.topics[where.topic].partitions[where.partition][0]
        new = msgspec.structs.replace(
            state,
            leader=preferred,
            leader_epoch=state.leader_epoch + 1,
            is_unclean_leader=False,
        )
        writes.append(put_state(cluster, where, new))
    writes.extend(settle_all(cluster, moved, Standing.of(cluster), allow_unclean=True))
    return Decision(answer, tuple(writes))


def _why_not_elected(cluster: Cluster, kind: ElectionType, where: TopicPartition) -> Refusal | None:
    node = cluster.topics.get(where.topic)
    state = cluster.states.get(where)
    if node is None or state is None or where.partition not in node.partitions:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {where}.")
    replicas = node.partitions[where.partition]
    if kind is ElectionType.PREFERRED:
        if state.leader == replicas[0]:
            sentence = f"The preferred replica {replicas[0]} leads {where} already."
            return Refusal(ErrorCode.ELECTION_NOT_NEEDED, sentence)
        if replicas[0] not in state.isr or replicas[0] not in cluster.fit:
            sentence = f"The preferred replica {replicas[0]} of {where} is not in sync and alive."
            return Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, sentence)
        return None
    if state.leader != NO_LEADER:
        return Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"{where} has the leader {state.leader}.")
    if not cluster.fit & set(replicas):
        sentence = f"No replica of {where} is alive."
        return Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, sentence)
    return None
