"""The course of a rebalance: preparation, joins, the new generation, its syncs.

Owns the steps between the states. Not which event takes which step: see `joining`, `syncing`,
`leaving`. Every wait has a deadline: joins the group's rebalance timeout (the initial one
``group.initial.rebalance.delay.ms``, extended while members keep joining, up to that timeout),
syncs the rebalance timeout again, sessions the member's own.
"""

from __future__ import annotations

from tidelog.groups import first_sights, removals
from tidelog.groups.decision import DecisionBuilder
from tidelog.groups.events import JoinResult, SyncResult
from tidelog.groups.group import (
    JOIN_DEADLINE,
    REBALANCEABLE,
    REMOVAL_DEADLINE,
    SYNC_DEADLINE,
    Group,
    GroupState,
    Member,
    session_of,
)
from tidelog.model.effects import Answer
from tidelog.model.errors import ErrorCode


def prepare_or_complete(group: Group, reason: str, now_ms: int, out: DecisionBuilder) -> None:
    """Begin a rebalance, or complete the one that is being prepared if it can be."""
    if group.state in REBALANCEABLE:
        prepare_rebalance(group, reason, now_ms, out)
    else:
        complete_join_if_ready(group, now_ms, out)


def prepare_rebalance(group: Group, reason: str, now_ms: int, out: DecisionBuilder) -> None:
    """Require all members to join again; pending syncs get that response at once."""
    if group.state is GroupState.COMPLETING_REBALANCE:
        drop_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms, out)
    group.pending_syncs.clear()
    group.deadlines.drop(SYNC_DEADLINE)
    initial = group.state is GroupState.EMPTY
    group.enter(GroupState.PREPARING_REBALANCE, now_ms)
    out.note("a rebalance is prepared", reason=reason, generation=group.generation)
    if initial:
        delay_ms = group.rules.settings.group_initial_rebalance_delay_ms
        group.initial_rebalance_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        group.new_member_added = False
        group.deadlines.set(JOIN_DEADLINE, now_ms + delay_ms)
    elif group.all_joined:
        complete_join(group, now_ms, out)
    else:
        group.deadlines.set(JOIN_DEADLINE, now_ms + group.rebalance_timeout_ms)


def complete_join_if_ready(group: Group, now_ms: int, out: DecisionBuilder) -> None:
    """Begin the generation when all members have joined.

    The initial rebalance waits for its delay, for more members are likely to join; only without
    any member it does not.
    """
    if group.state is not GroupState.PREPARING_REBALANCE or not group.all_joined:
        return
    if group.initial_rebalance_left_ms is not None and group.members:
        return
    complete_join(group, now_ms, out)


def join_deadline(group: Group, now_ms: int, out: DecisionBuilder) -> None:
    """The time to join is over: extend the initial rebalance, or continue with the joined
    members."""
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    left_ms = group.initial_rebalance_left_ms
    if left_ms and group.new_member_added:
        group.new_member_added = False
        delay_ms = min(group.rules.settings.group_initial_rebalance_delay_ms, left_ms)
        group.initial_rebalance_left_ms = left_ms - delay_ms
        group.deadlines.set(JOIN_DEADLINE, now_ms + delay_ms)
    else:
        complete_join(group, now_ms, out)


def complete_join(group: Group, now_ms: int, out: DecisionBuilder) -> None:
    """Begin the next generation with the members that have joined.

    Dynamic members that have not are removed; static ones stay until their session ends, so that
    a restart need not move their partitions (KIP-345). When only such are left the wait starts
    again; their sessions end it.
    """
    group.deadlines.drop(JOIN_DEADLINE)
    missing = [
        member.member_id
        for member in group.members.values()
        if member.pending_join is None and member.instance_id is None
    ]
    for member_id in missing:
        group.remove(member_id)
    if missing:
        out.note("members did not join in time and are removed", members=missing)
    if group.members and not _elect_joined_leader(group):
        group.deadlines.set(JOIN_DEADLINE, now_ms + group.rebalance_timeout_ms)
        return
    group.initial_rebalance_left_ms = None
    group.new_member_added = False
    group.generation += 1
    # The reports are of the former owners.
    group.positions = None
    if not group.members:
        _become_empty(group, now_ms, out)
        return
    group.protocol_name = group.select_protocol()
    group.subscribed = group.find_subscribed()
    first_sights.note_join(group, group.subscribed or ())
    group.enter(GroupState.COMPLETING_REBALANCE, now_ms)
    for member in group.members.values():
        result = present_generation(group, member)
        out.answer(group.take_join(member), result)
        member.is_new = False
        group.touch(member, now_ms)
        group.pending_syncs.add(member.member_id)
    group.deadlines.set(SYNC_DEADLINE, now_ms + group.rebalance_timeout_ms)
    out.note(
        "a generation begins",
        generation=group.generation,
        members=len(group.members),
        protocol=group.protocol_name,
        leader=group.leader,
    )


def present_generation(group: Group, member: Member, *, skip: bool = False) -> JoinResult:
    """Return a member's result of the present generation; the leader's has the members."""
    leads = group.leader == member.member_id
    return JoinResult(
        ErrorCode.NONE,
        member.member_id,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        group.leader or "",
        group.described_members() if leads else (),
        skip and leads,
    )


def drop_assignments(group: Group, error: ErrorCode, now_ms: int, out: DecisionBuilder) -> None:
    """Answer every waiting sync with ``error``; no member has an assignment any longer."""
    for member in group.members.values():
        group.assign(member, b"")
        if member.pending_sync is not None:
            out.answer(member.pending_sync, SyncResult(error))
            member.pending_sync = None
            group.touch(member, now_ms)


def remove_waiting(group: Group, member_id: str, out: DecisionBuilder) -> None:
    """Remove a member; its waiting requests get UNKNOWN_MEMBER_ID."""
    member = group.remove(member_id)
    if member is None:
        return
    out.answer(member.pending_join, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID))
    out.answer(member.pending_sync, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))


def member_gone(group: Group, reason: str, now_ms: int, out: DecisionBuilder) -> None:
    """A member was removed: rebalance, or continue a rebalance that it delayed."""
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        prepare_rebalance(group, reason, now_ms, out)
    else:
        complete_join_if_ready(group, now_ms, out)


def sync_deadline(group: Group, now_ms: int, out: DecisionBuilder) -> None:
    """The time to sync is over: members that joined and never synced are removed."""
    late = sorted(group.pending_syncs)
    if not late or group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        return
    for member_id in late:
        remove_waiting(group, member_id, out)
    prepare_rebalance(group, f"{len(late)} members did not sync in time", now_ms, out)


def session_deadline(group: Group, member_id: str, now_ms: int, out: DecisionBuilder) -> None:
    """A session is over: remove the member or the pending id, unless a request of it waits.

    A waiting request keeps a member alive, until its response restarts the session; a new member's
    first join does not (``joining``).
    """
    if member_id in group.pending_joins:
        group.remove(member_id)
        complete_join_if_ready(group, now_ms, out)
        return
    member = group.members.get(member_id)
    if member is None or (member.waits and not member.is_new):
        return
    remove_waiting(group, member_id, out)
    out.note("a member's session is over", member=member_id)
    member_gone(group, "a member's session is over", now_ms, out)


def tick(group: Group, now_ms: int, out: DecisionBuilder, come_ms: int) -> None:
    """Act on every deadline up to ``come_ms``."""
    for name in group.deadlines.due(come_ms):
        # An earlier one may have extended this one.
        if group.deadlines.get(name) is not None:
            continue
        if name == JOIN_DEADLINE:
            join_deadline(group, now_ms, out)
        elif name == SYNC_DEADLINE:
            sync_deadline(group, now_ms, out)
        elif name == REMOVAL_DEADLINE:
            removals.again(group, out)
        else:
            session_deadline(group, name.removeprefix(session_of("")), now_ms, out)


def _become_empty(group: Group, now_ms: int, out: DecisionBuilder) -> None:
    group.protocol_name = None
    group.leader = None
    group.first_joins.clear()
    group.subscribed = group.find_subscribed()
    group.enter(GroupState.EMPTY, now_ms)
    out.note("the group is empty", generation=group.generation)
    # A group without records in the log needs none that says it is empty.
    if group.recorded or group.open_writes or group.offset_count:
        out.write(group.record())


def _elect_joined_leader(group: Group) -> bool:
    leader = group.members.get(group.leader or "")
    if leader is not None and leader.pending_join is not None:
        return True
    joined = next((m for m in group.members.values() if m.pending_join is not None), None)
    if joined is None:
        return False
    group.leader = joined.member_id
    return True


def refuse_waiting(group: Group, error: ErrorCode) -> list[Answer]:
    """Return the refusal of each request that waits in a group: for a removal, to join, to sync."""
    answers: list[Answer] = []
    if group.removal is not None:
        answers += [
            Answer(answer.pending_response, answer.result.refused(error))
            for answer in group.removal.answers
        ]
    for member in group.members.values():
        if member.pending_join is not None:
            answers.append(Answer(member.pending_join, JoinResult(error, member.member_id)))
        if member.pending_sync is not None:
            answers.append(Answer(member.pending_sync, SyncResult(error)))
    return answers
