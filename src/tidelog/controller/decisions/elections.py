"""Who leads a partition: the one rule that every event of a broker's life goes through.

Owns elections and what they do to the ISR, ``eligible_replicas``, the unclean flag and its debt
record. ``settle`` is called for every partition that an event concerns, in this order:

| leader | who is there | outcome |
|---|---|---|
| fit, and no new life of it | | it stays; members that are not fit leave an ISR with a fit one |
| the same, nobody fit has registered here | | all stay: nobody knows who of them lives |
| else | a fit member of the ISR | it leads, epoch +1, the flag is cleared |
| else | a fit eligible replica | it leads, epoch +1, the ISR is it alone |
| the same, the ISR had the minimum | | nobody is eligible: a leader may have acknowledged without |
| only suspected or leaving | | it stays: to take its leadership without a successor helps nobody |
| else | a suspected member is left | no leader: the suspect may come back |
| else, unclean allowed | any fit replica | it leads, epoch +1, flagged, with a debt record |
| the same, with ``most_debts`` of the topic | | no leader until debts are handled |
| else | nobody | no leader, epoch +1; the ISR is kept |

Sources: docs/design/who-may-lead.md; KIP-704 (the flag); KIP-966 (eligible replicas).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass

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
from tidelog.controller.decisions.losses import most_debts, with_debts
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState, Record, TopicMemory, UncleanDebt
from tidelog.model.admin_requests import ElectionType
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


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

    @property
    def awaited(self) -> frozenset[int]:
        """Who is neither here nor dead: each registers again or dies."""
        return self.registered - self.electable

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
        known = dict.fromkeys([*eligible_now(state, min_insync), *state.isr])
        eligible = [member for member in known if member not in isr]
    return msgspec.structs.replace(state, isr=list(isr), eligible_replicas=eligible, **changes)


def eligible_now(state: PartitionState, min_insync: int) -> list[int]:
    """Return the eligible replicas that count.

    None where the ISR has the minimum: its leader acknowledges without them. They are still named
    where the minimum was lowered while no controller was active (``config_effects.of_a_start``).
    """
    return [] if len(state.isr) >= min_insync else state.eligible_replicas


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
    if leads and (isr == state.isr or not standing.electable.intersection(isr)):
        # Nobody leaves in favour of members that nobody has heard: they may be dead.
        return state
    if leads:
        return with_isr(state, isr, min_insync)
    epoch = state.leader_epoch + 1
    # Who came back without certainty leads only after a comparison (``without_lost``).
    certain = standing.electable.difference(state.unclean_members)
    order = [*replicas, *state.isr]
    for member in order:
        if member in isr and member in certain:
            return with_isr(
                state, isr, min_insync, leader=member, leader_epoch=epoch, is_unclean_leader=False
            )
    for member in order:
        if member in certain and member in eligible_now(state, min_insync):
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
    waiting = {*state.isr, *eligible_now(state, min_insync)} & standing.registered
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
        unclean_members=[],
        is_unclean_leader=True,
    )


def is_unclean_election(before: PartitionState | None, after: PartitionState) -> bool:
    """Return whether a change of the state elected an unclean leader.

    Electing one in sync clears the flag, and a partition that loses its leader keeps it.
    """
    has_new_epoch = before is None or before.leader_epoch < after.leader_epoch
    return after.is_unclean_leader and has_new_epoch and after.leader != NO_LEADER


def without_lost(
    state: PartitionState,
    broker: int,
    ends: dict[int, LogEnd],
    broken: Collection[int] = (),
    awaited: Collection[int] = (),
) -> PartitionState:
    """Return the state after ``broker`` came back with a replica that may lack committed data.

    It leaves the ISR and the eligible replicas while their union keeps another member. When it was
    the last one, all members came back so: the one with the highest (leader epoch, end offset)
    leads at once, flagged, whatever the configuration says. ``ends`` has the known log ends;
    ``broken`` replicas lead never. While one to compare with is ``awaited``, nobody leads, and the
    last member stands in both lists: it still names who had the data.
    """
    union = {*state.isr, *state.eligible_replicas}
    if broker not in union:
        return state
    members = [*(x for x in state.unclean_members if x != broker), broker]
    is_last = union == {broker}
    if is_last and not set(members).intersection(awaited):
        return _longest(state, members, ends, broken)
    isr, eligible = state.isr, state.eligible_replicas
    if not is_last:
        isr = [member for member in isr if member != broker]
        eligible = [member for member in eligible if member != broker]
    leaderless = state.leader == broker
    return msgspec.structs.replace(
        state,
        isr=isr,
        eligible_replicas=eligible,
        unclean_members=members,
        leader=NO_LEADER if leaderless else state.leader,
        leader_epoch=state.leader_epoch + leaderless,
    )


def compared(
    state: PartitionState, standing: Standing, ends: dict[int, LogEnd], broken: Collection[int]
) -> PartitionState:
    """Return the state after the comparison that ``without_lost`` put off, if it can be made now.

    The last member must be there; who came back before it and died since does not count.
    """
    last = {*state.isr, *state.eligible_replicas}
    members = state.unclean_members
    can = last <= standing.electable and not standing.awaited.intersection(members)
    return _longest(state, members, ends, broken) if can else state


def is_put_off(state: PartitionState) -> bool:
    """Return whether all members came back without certainty, and were not compared yet."""
    union = {*state.isr, *state.eligible_replicas}
    return bool(union) and union.issubset(state.unclean_members)


def _longest(
    state: PartitionState,
    members: Sequence[int],
    ends: dict[int, LogEnd],
    broken: Collection[int],
) -> PartitionState:
    # The last that came back wins among equals, and leads with nothing if nobody has anything.
    found = {x: ends[x][1:] for x in reversed(members) if x in ends and x not in broken}
    if found:
        return unclean(state, max(found, key=lambda member: found[member]))
    return state if members[-1] in broken else unclean(state, members[-1])


def without_broken(state: PartitionState, broken: Collection[int]) -> PartitionState:
    """Return the state without damaged replicas among the eligible ones.

    They hold nothing any more; the last member of both lists stays, for it names who had the data.
    """
    eligible = [member for member in state.eligible_replicas if member not in broken]
    if eligible == state.eligible_replicas or not {*state.isr, *eligible}:
        return state
    return msgspec.structs.replace(state, eligible_replicas=eligible)


def settle_all(
    cluster: Cluster,
    places: Iterable[TopicPartition],
    standing: Standing,
    lost: Collection[TopicPartition] = (),
    allow_unclean: bool | None = None,
    only_with_room: bool = False,
    anew: Collection[TopicPartition] = (),
) -> list[Write]:
    """Return the writes that settle each partition.

    ``lost``: partitions whose replica on the broker with a new life may lack committed data.
    ``allow_unclean`` overrules the topics' configuration. With ``only_with_room`` those that the
    topic's record has no room for are not looked at. Those in ``anew`` are led in a new epoch, be
    it by the same leader. Partitions whose nodes are damaged are left as they are.
    """
    writes: list[Write] = []
    debts: dict[str, dict[int, UncleanDebt]] = {}
    standing_debts: dict[str, int] = {}
    rules: dict[str, tuple[bool, int]] = {}
    for where in places:
        state = cluster.states.get(where)
        replicas = cluster.replicas(where)
        if state is None or not replicas:
            continue
        if cluster.damaged and layout.state(*where) in cluster.damaged:
            continue
        topic = where.topic
        if topic not in rules:
            configs = cluster.resolve(topic).configs
            wanted = configs.unclean_leader_election_enable
            allowed = wanted if allow_unclean is None else allow_unclean
            rules[topic] = allowed, configs.min_insync_replicas
        is_lost = where in lost
        memory = cluster.memories.get(topic)
        known = {} if memory is None else memory.unclean
        owed = standing_debts.setdefault(topic, len(known))
        owes_already = where.partition in known
        may_owe = owes_already or owed < most_debts(len(replicas))
        if only_with_room and not may_owe:
            continue
        new = _settled(cluster, where, standing, rules[topic], is_lost, may_owe=may_owe)
        if where in anew and new.leader != NO_LEADER and new.leader_epoch == state.leader_epoch:
            new = msgspec.structs.replace(new, leader_epoch=state.leader_epoch + 1)
        owes = is_unclean_election(state, new)
        if owes and not owes_already:
            standing_debts[topic] = owed + 1
        if new == state:
            continue
        writes.append(put_state(cluster, where, new))
        if owes:
            debt = UncleanDebt(new.leader, new.leader_epoch)
            debts.setdefault(topic, {})[where.partition] = debt
    # Before the elections: no unclean one is ever without its record.
    return [*_put_debts(cluster, debts), *writes]


def _settled(
    cluster: Cluster,
    where: TopicPartition,
    standing: Standing,
    rule: tuple[bool, int],
    is_lost: bool,
    *,
    may_owe: bool,
) -> PartitionState:
    """Return what a partition should be; unless it ``may_owe``, no unclean election is made."""
    state, replicas = cluster.states[where], cluster.replicas(where)
    allowed, minimum = rule
    new = state
    broken: list[int] = []
    if cluster.broken:
        broken = [x for x in replicas if (x, where) in cluster.broken]
    if is_lost and standing.new_life is not None:
        ends = _known_ends(cluster, where, replicas, standing)
        awaited = standing.awaited if may_owe else {standing.new_life}
        new = without_lost(new, standing.new_life, ends, broken, awaited)
    if may_owe and is_put_off(new):
        ends = _known_ends(cluster, where, replicas, standing)
        new = compared(new, standing, ends, broken)
    fresh = new.is_unclean_leader and new is not state and not state.is_unclean_leader
    if not (fresh or (new.leader_epoch > state.leader_epoch and new.leader != NO_LEADER)):
        here = standing.without(broken) if broken else standing
        new = settle(new, replicas, here, min(minimum, len(replicas)), allowed and may_owe)
    return without_broken(new, broken) if broken else new


def elect_put_off(cluster: Cluster, topics: Set[str]) -> Decision[None]:
    """Settle partitions of topics that nobody leads, now that debts were handled.

    As many as there is room for: a topic with twenty times that many has twenty such rounds, and
    what a round cannot elect it only passes over.
    """
    places = [
        where
        for topic in sorted(cluster.topics.keys() & topics)
        for where in (TopicPartition(topic, index) for index in cluster.topics[topic].partitions)
        if where in cluster.states and cluster.states[where].leader == NO_LEADER
    ]
    settled = settle_all(cluster, places, Standing.of(cluster), only_with_room=True)
    return Decision(None, tuple(settled), splits=True)


def elect_awaited(cluster: Cluster, broker: int) -> Decision[None]:
    """Settle what nobody leads and a broker may end the wait for, now that it can be elected.

    Another's registration may have been decided between this one's and the beginning of its
    session: it saw this broker awaited still, and put the comparison off.
    """
    places = [
        where
        for where, state in cluster.states.items()
        if state.leader == NO_LEADER and broker in (*state.unclean_members, *state.isr)
    ]
    return Decision(None, tuple(settle_all(cluster, places, Standing.of(cluster))), splits=True)


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
        writes.append(Put(layout.memory(topic), with_debts(memory, new)))
    return writes


def _known_ends(
    cluster: Cluster, where: TopicPartition, replicas: Sequence[int], standing: Standing
) -> dict[int, LogEnd]:
    found = {}
    for broker in replicas:
        end = cluster.log_end(broker, where)
        if end is not None and broker in standing.fit:
            found[broker] = end
    return found


Result = dict[TopicPartition, Refusal | None]


def elect_on_request(
    cluster: Cluster,
    kind: ElectionType,
    asked: Sequence[TopicPartition] | None,
    everything: bool = False,
) -> Decision[Result]:
    """Decide ElectLeaders: preferred or unclean, for the partitions asked or (None) for all.

    With None, partitions where no election is needed are left out of the answer, as Kafka does:
    also with ``everything``, which says that those asked are a slice of all.
    """
    everything = everything or asked is None
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
    elected = settle_all(cluster, moved, Standing.of(cluster), allow_unclean=True)
    changed = {write.path: write.record for write in elected if isinstance(write, Put)}
    for where in moved:
        record = changed.get(layout.state(*where))
        if not isinstance(record, PartitionState) or record.leader == NO_LEADER:
            answer[where] = _why_nobody(cluster, where, changed.get(layout.memory(where.topic)))
    return Decision(answer, (*writes, *elected), splits=True)


def _why_nobody(cluster: Cluster, where: TopicPartition, written: Record | None) -> Refusal:
    """Only death allows an unclean election: who may still have everything is waited for."""
    state = cluster.states[where]
    holders = sorted({*state.isr, *state.eligible_replicas} & cluster.brokers.keys())
    sentence = f"Nobody can lead {where} now."
    memory = cluster.memories.get(where.topic) if written is None else written
    debts = len(memory.unclean) if isinstance(memory, TopicMemory) else 0
    if debts >= most_debts(len(cluster.replicas(where))):
        sentence = (
            f"{debts} unclean elections of {where.topic} are not handled yet: its record has no "
            f"room for more. Ask for {where} again when they are."
        )
    elif holders:
        names = ", ".join(map(str, holders))
        sentence = f"Broker {names} may still come back with all of {where}: it is not dead yet."
    return Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, sentence)


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
        electable = replicas[0] in cluster.fit - cluster.presumed
        electable = electable and replicas[0] not in state.unclean_members
        if not electable or replicas[0] not in state.isr or (replicas[0], where) in cluster.broken:
            sentence = f"The preferred replica {replicas[0]} of {where} is not in sync and alive."
            return Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, sentence)
        return None
    if state.leader != NO_LEADER:
        return Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"{where} has the leader {state.leader}.")
    if not cluster.fit & set(replicas):
        sentence = f"No replica of {where} is alive."
        return Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, sentence)
    return None
