"""The newest command of a partition, as its brokers have it: which leads after an acceptance.

Owns what brokers report of the newest leader and ISR that a controller has given them, and which
replica leads by it when a restored store is accepted (``restoration``). Pure. A leader goes on
acknowledging while the store waits, and no leader changes its ISR by a waiting store: so the
members of its ISR have all that was acknowledged, and no log end of a registration shows that.

| the newest command of a partition | the leader | the ISR |
|---|---|---|
| its leader is here, and has it | that leader | the members that it counts and that |
| | | are here, and have it |
| otherwise: members are here that have it | the newest log of these | that one |
| otherwise: its ISR is below the minimum, and | the newest log of all | that one |
| fewer replicas than the minimum are not here | | |
| otherwise: members are here | the newest log of these | that one |
| otherwise: members are away, or damaged | none, until one comes, or unclean | these |
| otherwise, or a log has a later leader epoch | the newest log of all | that one |

"Here" is a broker that is registered, fit, and reported a sound replica. A broker that restarted
has no command: no disk keeps it. One that has the command and is a member has all that was
acknowledged, however old the end is that it reported. A member that is registered without a replica
has lost it, and is not waited for. Below the minimum the high watermark stood still: members that
had left hold all below it, and a longer log of the same epochs contains it.
Source: docs/decisions/0125.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from tidelog.controller.decisions.cluster import NO_ID, NO_LEADER, ClusterState, LogEnd
from tidelog.controller.decisions.reported_command import ReportedCommand
from tidelog.model.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class NewestCommand:
    """The newest command of one partition, and the own commands of the brokers that have one of its
    epoch."""

    command: ReportedCommand
    own: Mapping[int, ReportedCommand]


@dataclass(frozen=True, slots=True)
class Successor:
    """The leader and ISR of a partition after an acceptance; without a leader, those in the ISR may
    have it all.

    The leader is the newest of the ``candidates``. ``is_certain``: each member has all that was
    acknowledged, and no comparison decided.
    """

    leader: int
    isr: tuple[int, ...]
    candidates: frozenset[int] = frozenset()
    is_certain: bool = False


def newest_command(
    cluster: ClusterState, topic_id: UUID, tp: TopicPartition, ends: Mapping[int, LogEnd]
) -> NewestCommand | None:
    """Return the newest command of an incarnation of a partition, or None.

    ``ends`` are the logs of that incarnation. One of a later leader epoch shows that there was a
    newer command, which no broker has any more: then none counts. Nor does any once the store was
    accepted: it has newer ones.
    """
    if cluster.went_back is None:
        return None
    reported, remembered = _reported(cluster, topic_id, tp, ends)
    newest = max(
        (*reported.values(), *remembered),
        key=lambda x: (x.leader_epoch, x.isr_version),
        default=None,
    )
    if newest is None:
        return None
    if any(end.leader_epoch > newest.leader_epoch for end in ends.values()):
        return None
    epoch = newest.leader_epoch
    return NewestCommand(newest, {x: y for x, y in reported.items() if y.leader_epoch == epoch})


def _reported(
    cluster: ClusterState, topic_id: UUID, tp: TopicPartition, ends: Mapping[int, LogEnd]
) -> tuple[dict[int, ReportedCommand], list[ReportedCommand]]:
    """Return the command of each broker that is of the newest incarnation, and the newest ones that
    were ever reported: their brokers may have restarted since."""
    keys = [(topic_id, tp)]
    if topic_id != NO_ID and cluster.takes_nameless(tp.topic):
        keys.append((NO_ID, tp))
    reported = {
        broker: of_broker[key]
        for broker, of_broker in cluster.kept.commands.items()
        for key in keys
        if key in of_broker
    }
    remembered = [cluster.kept.newest[key] for key in keys if key in cluster.kept.newest]
    held = ends.values() if ends else (*reported.values(), *remembered)
    newest = max((x.partition_epoch for x in held), default=-1)
    return (
        {x: y for x, y in reported.items() if y.partition_epoch in (newest, -1)},
        [x for x in remembered if x.partition_epoch in (newest, -1)],
    )


def successor(
    newest: NewestCommand | None,
    ends: Mapping[int, LogEnd],
    present: Collection[int],
    replicas: Collection[int],
    minimum: int = 1,
    damaged: Collection[int] = (),
) -> Successor | None:
    """Return the leader by the table above; None if nothing is known of the partition.

    ``ends`` are the logs of sound replicas, ``present`` the brokers that may lead, ``minimum`` is
    ``min.insync.replicas``; ``damaged`` are brokers whose replica an operator may repair.
    """
    able = {broker for broker in ends if broker in present}
    own = {} if newest is None else newest.own
    among = able
    if newest is not None:
        command = newest.command
        if command.leader in able & own.keys():
            # What this leader itself counts: it has not learnt of a larger ISR.
            others = (x for x in own[command.leader].isr if x in able & own.keys())
            isr = (command.leader, *(x for x in others if x != command.leader))
            return Successor(command.leader, isr, frozenset(isr), is_certain=True)
        members = able & set(command.isr)
        away = {*replicas, *command.isr} - able
        among = members & own.keys()
        if not among:
            all_count = len(command.isr) < minimum and len(away) < minimum
            among = able if all_count else members
        # A broker that has the command still runs: its replica is not lost, but damaged.
        damaged = {*damaged, *own}
        waited = tuple(x for x in command.isr if x not in present or x in damaged)
        if not among and waited:
            # What a member may have, and no other replica: an unclean election is for an operator.
            return Successor(NO_LEADER, waited)
        among = among or able
    if not among:
        return None

    def newness(broker: int) -> tuple[int, int, bool, bool, int]:
        # Among equals one that has the command, then a replica: a target of a move would have to
        # join the assignment.
        end = ends[broker]
        return end.leader_epoch, end.end_offset, broker in own, broker in replicas, -broker

    best = max(among, key=newness)
    return Successor(best, (best,), frozenset(among))


def named_brokers(cluster: ClusterState) -> set[int]:
    """Return the brokers that may have what others lack, as far as commands say: the members of
    each newest ISR, and the brokers that reported commands. O(replicas)."""
    if cluster.went_back is None:
        return set()
    newest: dict[tuple[UUID, TopicPartition], ReportedCommand] = {}
    for key, command in _all(cluster):
        former = newest.get(key)
        if former is None or former.order < command.order:
            newest[key] = command
    named = {broker for broker, of_broker in cluster.kept.commands.items() if of_broker}
    return named.union(*(command.isr for command in newest.values()))


def _all(cluster: ClusterState) -> Iterator[tuple[tuple[UUID, TopicPartition], ReportedCommand]]:
    yield from cluster.kept.newest.items()
    for of_broker in cluster.kept.commands.values():
        yield from of_broker.items()
