"""The newest command of a partition, as its brokers have it: which leads after an acceptance.

Owns what brokers report of the newest leader and ISR that a controller has given them, and which
replica leads by it when a restored store is accepted (``restoration``). Pure. A leader goes on
acknowledging while the store waits, and no leader changes its ISR by a waiting store: so the
members of its ISR have all that was acknowledged, and no log end of a registration shows that.

| the newest command of a partition | the leader | the ISR |
|---|---|---|
| its leader is here, and has it | that leader | its members that are here, and have it |
| its leader is not here, or has restarted | the newest log of its members | that one |
| no member of its ISR is here | none, until one comes, or unclean | its ISR |
| none is known, or a log has a later leader epoch | the newest log of all | that one |

"Here" is a broker that is registered, fit, and reported a sound replica. A broker that restarted
has no command: no disk keeps it. Source: docs/decisions/0125.
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
    """The newest command of one partition, and the brokers that have a command of its epoch."""

    command: ReportedCommand
    holders: frozenset[int]


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
    reported = _reported(cluster, topic_id, tp, ends)
    newest = max(reported.values(), key=lambda x: (x.leader_epoch, x.isr_version), default=None)
    if newest is None:
        return None
    if any(end.leader_epoch > newest.leader_epoch for end in ends.values()):
        return None
    epoch = newest.leader_epoch
    return NewestCommand(
        newest, frozenset(x for x in reported if reported[x].leader_epoch == epoch)
    )


def _reported(
    cluster: ClusterState, topic_id: UUID, tp: TopicPartition, ends: Mapping[int, LogEnd]
) -> dict[int, ReportedCommand]:
    """Return the command of each broker that is of the newest incarnation."""
    keys = [(topic_id, tp)]
    if topic_id != NO_ID and cluster.takes_nameless(tp.topic):
        keys.append((NO_ID, tp))
    reported = {
        broker: of_broker[key]
        for broker, of_broker in cluster.kept.commands.items()
        for key in keys
        if key in of_broker
    }
    held = ends.values() if ends else reported.values()
    newest = max((x.partition_epoch for x in held), default=-1)
    return {x: y for x, y in reported.items() if y.partition_epoch in (newest, -1)}


def successor(
    newest: NewestCommand | None,
    ends: Mapping[int, LogEnd],
    present: Collection[int],
    replicas: Collection[int],
) -> Successor | None:
    """Return the leader by the table above; None if nothing is known of the partition.

    ``ends`` are the logs of sound replicas, ``present`` the brokers that may lead.
    """
    able = {broker for broker in ends if broker in present}
    holders: frozenset[int] = frozenset()
    if newest is not None:
        command, holders = newest.command, newest.holders
        if command.leader in able & holders:
            others = (x for x in command.isr if x in able & holders and x != command.leader)
            isr = (command.leader, *others)
            return Successor(command.leader, isr, frozenset(isr), is_certain=True)
        able &= set(command.isr)
        if not able and command.isr:
            # What a member may have, and no other replica: an unclean election is for an operator.
            return Successor(NO_LEADER, command.isr)
    if not able:
        return None

    def newness(broker: int) -> tuple[int, int, bool, bool, int]:
        # Among equals one that has the command, then a replica: a target of a move would have to
        # join the assignment.
        end = ends[broker]
        return end.leader_epoch, end.end_offset, broker in holders, broker in replicas, -broker

    best = max(able, key=newness)
    return Successor(best, (best,), frozenset(able))


def named_brokers(cluster: ClusterState) -> set[int]:
    """Return the brokers that may have what others lack, as far as commands say: the members of
    each newest ISR, and the brokers that reported commands. O(replicas)."""
    if cluster.went_back is None:
        return set()
    newest: dict[tuple[UUID, TopicPartition], ReportedCommand] = {}
    for key, command in _all(cluster):
        former = newest.get(key)
        if former is None or _order(former) < _order(command):
            newest[key] = command
    named = {broker for broker, of_broker in cluster.kept.commands.items() if of_broker}
    return named.union(*(command.isr for command in newest.values()))


def _all(cluster: ClusterState) -> Iterator[tuple[tuple[UUID, TopicPartition], ReportedCommand]]:
    for of_broker in cluster.kept.commands.values():
        yield from of_broker.items()


def _order(command: ReportedCommand) -> tuple[int, int, int]:
    return command.partition_epoch, command.leader_epoch, command.isr_version
