"""SyncGroup and the end of a rebalance: the leader's assignment is committed, then sent.

Owns these rules. Order: no member gets its assignment before the generation's record is committed,
so no later coordinator can know less of it than a member does.
Source: KIP-559 (protocol type and name), KIP-345, KIP-814.
"""

from __future__ import annotations

from tidelog.groups import first_sights, pending_removal, removals
from tidelog.groups.decision import DecisionBuilder, ReplaceStaticMember, StoreAssignment
from tidelog.groups.events import JoinResult, Sync, SyncResult
from tidelog.groups.group import SYNC_DEADLINE, Group, GroupState, Member
from tidelog.groups.rebalancing import drop_assignments, prepare_rebalance, present_generation
from tidelog.model.errors import ErrorCode


def sync(group: Group, event: Sync, now_ms: int, out: DecisionBuilder) -> None:
    """Decide a SyncGroup."""
    error = _why_not(group, event)
    if error is not ErrorCode.NONE:
        out.answer(event.pending_response, SyncResult(error))
        return
    member = group.members[event.member_id]
    group.pending_syncs.discard(member.member_id)
    if not group.pending_syncs:
        group.deadlines.drop(SYNC_DEADLINE)
    if group.state is GroupState.STABLE:
        group.touch(member, now_ms)
        out.answer(event.pending_response, _share(group, member))
        return
    former, member.pending_sync = member.pending_sync, event.pending_response
    out.answer(former, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
    if group.leader != member.member_id or group.storing_generation == group.generation:
        return
    assignments = dict(event.assignments)
    shares = {name: assignments.get(name, b"") for name in group.members}
    former, begun = first_sights.before_assignment(group, shares.values())
    if former > pending_removal.PART:
        # Positions of deleted topics go first, in parts: by the next sync they are gone.
        member.pending_sync = None
        out.answer(event.pending_response, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        gone = first_sights.former_topics_gone(group, first_sights.former_of(group, begun))
        removals.begin(group, gone, out, whole=False)
        return
    group.storing_generation = group.generation
    # First, so that no member has an assignment of a topic without its first sight.
    sights = first_sights.records_of(group, begun)
    out.write(*sights, group.record(shares), purpose=StoreAssignment(group.generation))


def grows_by(group: Group, event: Sync) -> int:
    """Return how many bytes more the group's members may take for a Sync."""
    if group.leader != event.member_id:
        return 0
    return sum(len(share) for _, share in event.assignments) - group.assignment_bytes


def assignment_stored(
    group: Group, generation: int, shares: dict[str, bytes], now_ms: int, out: DecisionBuilder
) -> None:
    """The record of a generation is committed: every waiting member gets its assignment.

    When the group has a later generation by now, the record has no effect.
    """
    if group.storing_generation != generation:
        return
    group.storing_generation = None
    if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
        return
    group.enter(GroupState.STABLE, now_ms)
    for member in group.members.values():
        group.assign(member, shares.get(member.member_id, b""))
        if member.pending_sync is not None:
            out.answer(member.pending_sync, _share(group, member))
            member.pending_sync = None
            group.touch(member, now_ms)
    out.note("the generation is stable", generation=generation, members=len(group.members))


def assignment_not_stored(
    group: Group, generation: int, error: ErrorCode, now_ms: int, out: DecisionBuilder
) -> None:
    """The record of a generation could not be committed: waiting members get an error and
    rejoin."""
    if group.storing_generation != generation:
        return
    group.storing_generation = None
    if group.state is GroupState.COMPLETING_REBALANCE and group.generation == generation:
        drop_assignments(group, error, now_ms, out)
        prepare_rebalance(group, f"the assignment was not stored: {error.name}", now_ms, out)


def static_member_stored(
    group: Group, purpose: ReplaceStaticMember, now_ms: int, out: DecisionBuilder
) -> None:
    """The new id of a static member is committed: it stays in the present generation.

    A rebalance that began meanwhile counts it as joined and answers it. Before v9 its response must
    not say that it leads: it would assign, and a stable group takes no assignment (KIP-814).
    """
    member = group.members.get(purpose.member_id)
    if member is None or member.pending_join is not purpose.pending_response:
        return
    if group.state is not GroupState.STABLE:
        return
    group.take_join(member)
    group.touch(member, now_ms)
    result = present_generation(group, member, skip=True)
    if result.skip_assignment and not purpose.can_skip_assignment:
        result = JoinResult(
            ErrorCode.NONE,
            member.member_id,
            group.generation,
            group.protocol_type,
            group.protocol_name,
            _another_member(group, member),
        )
    out.answer(purpose.pending_response, result)


def static_member_not_stored(
    group: Group, purpose: ReplaceStaticMember, error: ErrorCode, out: DecisionBuilder
) -> None:
    """The new id of a static member could not be committed: it gets an error and joins again."""
    member = group.members.get(purpose.member_id)
    if member is not None and member.pending_join is purpose.pending_response:
        group.take_join(member)
    out.answer(purpose.pending_response, JoinResult(error))


def _another_member(group: Group, member: Member) -> str:
    # Any id other than the member's own works; a real one reads better in the client's log.
    others = (name for name in group.members if name != member.member_id)
    return next(others, f"{member.member_id}-before")


def _why_not(group: Group, event: Sync) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = group.check_member(event.member_id, event.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if event.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if (event.protocol_type is not None and event.protocol_type != group.protocol_type) or (
        event.protocol_name is not None and event.protocol_name != group.protocol_name
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _share(group: Group, member: Member) -> SyncResult:
    return SyncResult(ErrorCode.NONE, member.assignment, group.protocol_type, group.protocol_name)
