"""The election of a partition's leader: one rule for every change of a broker's condition.

Owns the rule for one partition: the leader, the ISR, ``eligible_replicas`` and the unclean flag.
For which partitions an event calls it, and the debt records: see ``settlement``. ``settle`` takes
the first row that holds:

| the leader | other replicas | outcome |
|---|---|---|
| fit, its broker did not restart | | it stays; unfit members leave an ISR with a fit one |
| the same | no fit member has registered with this controller | all stay: they may be dead |
| any other | a fit member of the ISR | it leads, epoch +1, the flag is cleared |
| any other | a fit eligible replica, the ISR below the minimum | it leads, epoch +1, as the ISR |
| suspected or leaving | none of these | it stays: the partition has no successor |
| any other | a suspected member is left | no leader: that broker may come back |
| any other, unclean allowed | a fit replica | it leads, epoch +1, flagged, with a debt record |
| the same, the topic has ``most_debts`` | | no leader until debts are handled |
| any other | none | no leader, epoch +1; the ISR stays |

Sources: docs/design/who-may-lead.md; KIP-704 (the flag); KIP-966 (eligible replicas).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState
from tidelog.metadata.records import PartitionState


@dataclass(frozen=True, slots=True)
class Standing:
    """The brokers that may lead (``fit``) and those that are not dead (``registered``), after an
    event.

    ``presumed`` brokers keep their leadership and are not elected: they have not registered with
    this controller yet. ``new_incarnation`` is a broker that restarted.
    """

    fit: frozenset[int]
    registered: frozenset[int]
    new_incarnation: int | None = None
    presumed: frozenset[int] = frozenset()

    @property
    def electable(self) -> frozenset[int]:
        """The brokers that may be elected."""
        return self.fit - self.presumed

    @property
    def awaited(self) -> frozenset[int]:
        """The brokers that are neither electable nor dead: each registers again or expires."""
        return self.registered - self.electable

    def without(self, brokers: Collection[int]) -> Standing:
        """Return the standing at a partition whose replicas on some brokers are damaged."""
        out = frozenset(brokers)
        return Standing(self.fit - out, self.registered - out, self.new_incarnation, self.presumed)

    @staticmethod
    def of(
        cluster: ClusterState, gone: Collection[int] = (), new_incarnation: int | None = None
    ) -> Standing:
        """Return it for all brokers, without those that are ``gone``, with one that restarted."""
        extra = set() if new_incarnation is None else {new_incarnation}
        fit = (cluster.fit - set(gone)) | extra
        registered = (cluster.brokers.keys() - set(gone)) | extra
        presumed = cluster.presumed - extra
        return Standing(frozenset(fit), frozenset(registered), new_incarnation, frozenset(presumed))


def with_isr(
    state: PartitionState, isr: Sequence[int], min_insync: int, **changes: object
) -> PartitionState:
    """Return ``state`` with another ISR.

    Members that leave while the ISR is below the minimum hold everything committed: they stay
    eligible. The list is cleared in the write in which the ISR reaches the minimum.
    """
    eligible: list[int] = []
    if len(isr) < min_insync:
        members = dict.fromkeys([*eligible_now(state, min_insync), *state.isr])
        eligible = [member for member in members if member not in isr]
    return msgspec.structs.replace(state, isr=list(isr), eligible_replicas=eligible, **changes)


def eligible_now(state: PartitionState, min_insync: int) -> list[int]:
    """Return the eligible replicas that count.

    None count if the ISR has the minimum: its leader acknowledges without them. The state still
    has them if the minimum was lowered while no controller was active
    (``config_effects.of_a_start``).
    """
    return [] if len(state.isr) >= min_insync else state.eligible_replicas


def within(state: PartitionState, replicas: Collection[int]) -> PartitionState:
    """Return the state without members outside of the replicas, which a move left in the ISR.

    Such a replica is about to be stopped, and may be gone: it is neither elected nor waited for
    (KIP-455). A state in which no replica is left stays.
    """
    isr = [member for member in state.isr if member in replicas]
    eligible = [member for member in state.eligible_replicas if member in replicas]
    returned = [member for member in state.unclean_members if member in replicas]
    before = (state.isr, state.eligible_replicas, state.unclean_members)
    if (isr, eligible, returned) == before or not (isr or eligible):
        return state
    return msgspec.structs.replace(
        state, isr=isr, eligible_replicas=eligible, unclean_members=returned
    )


def settle(
    state: PartitionState,
    replicas: Sequence[int],
    standing: Standing,
    min_insync: int,
    unclean_allowed: bool,
) -> PartitionState:
    """Return the state that the partition should have now; ``state`` itself if nothing changes.

    The members of ``state`` are among the ``replicas`` (``within``).
    """
    isr = [member for member in state.isr if member in standing.fit]
    leads = state.leader in isr and state.leader != standing.new_incarnation
    if leads and (isr == state.isr or not standing.electable.intersection(isr)):
        # No member leaves in favour of members that this controller had no sign of life from.
        return state
    if leads:
        return with_isr(state, isr, min_insync)
    epoch = state.leader_epoch + 1
    # A replica that may lack committed records leads only after a comparison (``returns``).
    certain = standing.electable.difference(state.unclean_members)
    for member in replicas:
        if member in isr and member in certain:
            return with_isr(
                state, isr, min_insync, leader=member, leader_epoch=epoch, is_unclean_leader=False
            )
    for member in replicas:
        if member in certain and member in eligible_now(state, min_insync):
            return with_isr(
                state,
                [member],
                min_insync,
                leader=member,
                leader_epoch=epoch,
                is_unclean_leader=False,
            )
    # No other replica can lead, and this one is not dead: it goes on, or comes back.
    if state.leader in standing.registered:
        return state
    # As long as a replica that holds everything may come back, nothing is given up (promise 17).
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

    The election of a replica in sync clears the flag; the loss of the leader keeps it.
    """
    has_new_epoch = before is None or before.leader_epoch < after.leader_epoch
    return after.is_unclean_leader and has_new_epoch and after.leader != NO_LEADER


def without_broken(state: PartitionState, broken: Collection[int]) -> PartitionState:
    """Return the state without damaged replicas among the eligible ones.

    They have no usable records; the last member of both lists stays, for it had the data.
    """
    eligible = [member for member in state.eligible_replicas if member not in broken]
    if eligible == state.eligible_replicas or not {*state.isr, *eligible}:
        return state
    return msgspec.structs.replace(state, eligible_replicas=eligible)
