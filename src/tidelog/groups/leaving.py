"""Heartbeat and LeaveGroup: the liveness and the departure of members.

Owns these rules. Source: KIP-345 (removal by instance id, batches), KIP-800 (reasons).
"""

from __future__ import annotations

from tidelog.groups import limits
from tidelog.groups.decision import DecisionBuilder
from tidelog.groups.events import (
    UNKNOWN_MEMBER_ID,
    Heartbeat,
    Leave,
    Leaver,
    LeaveResult,
    StatusResult,
)
from tidelog.groups.group import Group, GroupState
from tidelog.groups.rebalancing import complete_join_if_ready, member_gone, remove_waiting
from tidelog.model.errors import ErrorCode


def heartbeat(group: Group, event: Heartbeat, now_ms: int, out: DecisionBuilder) -> None:
    """Decide a Heartbeat: restart the session; the response says when to join again."""
    if group.state is GroupState.DEAD:
        out.answer(event.pending_response, StatusResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    error = group.check_member(event.member_id, event.instance_id)
    if error is ErrorCode.NONE and event.generation != group.generation:
        error = ErrorCode.ILLEGAL_GENERATION
    if error is ErrorCode.NONE:
        group.touch(group.members[event.member_id], now_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
    out.answer(event.pending_response, StatusResult(error))


def leave(group: Group, event: Leave, now_ms: int, out: DecisionBuilder) -> None:
    """Decide a LeaveGroup: known members are removed, then the others rebalance once."""
    if group.state is GroupState.DEAD:
        out.answer(event.pending_response, LeaveResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    answers: list[tuple[Leaver, ErrorCode]] = []
    gone: list[str] = []
    any_member = False
    for leaver in event.members:
        member_id, error = _find(group, leaver)
        if error is ErrorCode.NONE:
            any_member = any_member or member_id in group.members
            remove_waiting(group, member_id, out)
            gone.append(member_id)
        answers.append((leaver, error))
    if gone and not any_member:
        # Member ids that were not used yet: no assignment changes (as in Kafka).
        complete_join_if_ready(group, now_ms, out)
    elif gone:
        client_reason = next((leaver.reason for leaver in event.members if leaver.reason), "")
        reason = f"{len(gone)} members left; the client says: {client_reason or 'nothing'}"
        member_gone(group, reason[: limits.MAX_REASON_CHARACTERS], now_ms, out)
    out.answer_after_writes(event.pending_response, LeaveResult(ErrorCode.NONE, tuple(answers)))


def _find(group: Group, leaver: Leaver) -> tuple[str, ErrorCode]:
    """Return the named member; an administrator names the instance id alone."""
    if leaver.member_id == UNKNOWN_MEMBER_ID and leaver.instance_id is not None:
        member_id = group.static_members.get(leaver.instance_id)
        if member_id is None:
            return UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID
        return member_id, ErrorCode.NONE
    if leaver.member_id in group.pending_joins:
        return leaver.member_id, ErrorCode.NONE
    return leaver.member_id, group.check_member(leaver.member_id, leaver.instance_id)
