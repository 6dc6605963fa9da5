"""Replicas that came back and may lack committed records: a power loss, an empty or damaged disk.

Owns the comparison that elects a leader when all members of an ISR came back so. Which event calls
it for which partitions: see ``settlement``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from tidelog.controller.decisions.cluster import NO_LEADER, LogEnd
from tidelog.controller.decisions.elections import Standing, unclean
from tidelog.metadata.records import PartitionState


def without_lost(
    state: PartitionState,
    broker: int,
    ends: dict[int, LogEnd],
    broken: Collection[int] = (),
    awaited: Collection[int] = (),
) -> PartitionState:
    """Return the state after ``broker`` came back with a replica that may lack committed data.

    It leaves the ISR and the eligible replicas while their union keeps another member. If it is the
    last one, all members came back this way: the one with the highest (leader epoch, end offset)
    leads at once, flagged, whatever the configuration says. ``ends`` has the known log ends;
    ``broken`` replicas never lead. While a member to compare with is ``awaited``, the partition has
    no leader, and the last member stays in both lists: it still shows which broker had the data.
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

    The last member must be electable; a member that came back before it and is dead is left out.
    """
    last = {*state.isr, *state.eligible_replicas}
    members = state.unclean_members
    can = last <= standing.electable and not standing.awaited.intersection(members)
    return _longest(state, members, ends, broken) if can else state


def is_put_off(state: PartitionState) -> bool:
    """Return whether all members may lack committed records and were not compared yet."""
    union = {*state.isr, *state.eligible_replicas}
    return bool(union) and union.issubset(state.unclean_members)


def _longest(
    state: PartitionState,
    members: Sequence[int],
    ends: dict[int, LogEnd],
    broken: Collection[int],
) -> PartitionState:
    # The last one wins among equals, and leads with an empty log if no replica has records.
    known_ends = {x: ends[x][1:] for x in reversed(members) if x in ends and x not in broken}
    if known_ends:
        return unclean(state, max(known_ends, key=lambda member: known_ends[member]))
    return state if members[-1] in broken else unclean(state, members[-1])
