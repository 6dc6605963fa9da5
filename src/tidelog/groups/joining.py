"""JoinGroup: which members may join, and the rebalance that a join starts.

Owns the checks and the four kinds of join (new dynamic, new static, an assigned id, a known
member). Not the course of a rebalance: see `rebalancing`. Source: KIP-394 (member id required),
KIP-345 (static members), KIP-814 (skip the assignment), KIP-389 (``group.max.size``), KIP-134
(initial delay).
"""

from __future__ import annotations

from tidelog.groups import first_sights, limits
from tidelog.groups.consumer_protocol import subscribed_topics
from tidelog.groups.decision import DecisionBuilder, ReplaceStaticMember
from tidelog.groups.events import UNKNOWN_MEMBER_ID, Join, JoinResult, SyncResult
from tidelog.groups.group import Group, GroupState, Member, held_by_member, session_of
from tidelog.groups.rebalancing import (
    complete_join_if_ready,
    member_gone,
    prepare_or_complete,
    prepare_rebalance,
    present_generation,
    remove_waiting,
)
from tidelog.model.errors import ErrorCode

MOST_READ_AT_JOIN = 16_384
"""Bytes of a subscription that is read at each join."""


def join(group: Group, event: Join, now_ms: int, out: DecisionBuilder) -> None:
    """Decide a JoinGroup."""
    error = _why_not(group, event)
    if error is not ErrorCode.NONE:
        out.answer(event.pending_response, JoinResult(error, event.member_id))
    elif not _has_room(group, event):
        _turn_away(group, event, now_ms, out)
    elif not group.supports(event.protocol_type, dict(event.protocols)):
        out.answer(
            event.pending_response,
            JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, event.member_id),
        )
    elif event.member_id == UNKNOWN_MEMBER_ID:
        _join_without_id(group, event, now_ms, out)
    elif event.member_id in group.pending_joins:
        # Only dynamic members are sent an id to join with.
        if event.instance_id is not None:
            out.answer(
                event.pending_response, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, event.member_id)
            )
        else:
            _add_member(group, event, event.member_id, now_ms, out)
    else:
        _rejoin(group, event, now_ms, out)


def grows_by(group: Group | None, event: Join) -> int:
    """Return how many bytes more the members of all groups may take for a Join."""
    held = held_by_member(event.client_id, dict(event.protocols[: limits.MAX_PROTOCOLS]))
    if group is None:
        return held + limits.HELD_BY_GROUP
    member = _known(group, event)
    return held if member is None else held - member.held_bytes


def _known(group: Group, event: Join) -> Member | None:
    """Return the member of a request; a static one without its id takes its own place."""
    member_id = event.member_id
    if member_id == UNKNOWN_MEMBER_ID and event.instance_id is not None:
        member_id = group.static_members.get(event.instance_id, UNKNOWN_MEMBER_ID)
    return group.members.get(member_id)


def _why_not(group: Group, event: Join) -> ErrorCode:
    settings = group.rules.settings
    if not (
        settings.group_min_session_timeout_ms
        <= event.session_timeout_ms
        <= settings.group_max_session_timeout_ms
    ):
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if (
        len(event.protocols) > limits.MAX_PROTOCOLS
        or sum(len(metadata) for _, metadata in event.protocols) > limits.MAX_METADATA_BYTES
        or max((len(name) for name, _ in event.protocols), default=0) > limits.MAX_NAME_CHARACTERS
        or len(event.protocol_type) > limits.MAX_NAME_CHARACTERS
        or len(event.instance_id or "") > limits.MAX_NAME_CHARACTERS
        or event.rebalance_timeout_ms < 0
    ):
        return ErrorCode.INVALID_REQUEST
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE


def _has_room(group: Group, event: Join) -> bool:
    """Whether one more member may join, as Kafka counts.

    While a rebalance is prepared only members that wait for it count: those that have not joined
    again may make room for others, and a group that is too large drops its last. A static member
    that joins without its id takes its own place (Kafka refuses it in a full group).
    """
    most = min(group.rules.settings.group_max_size, limits.MAX_MEMBERS)
    member = _known(group, event)
    asked_bytes = sum(len(metadata) for _, metadata in event.protocols)
    others_bytes = group.metadata_bytes - (0 if member is None else member.metadata_bytes)
    if others_bytes + asked_bytes > limits.MAX_GROUP_METADATA_BYTES:
        return False
    if group.state is GroupState.PREPARING_REBALANCE:
        return (member is not None and member.pending_join is not None) or (
            group.awaiting_joins < most
        )
    if group.state is GroupState.EMPTY:
        return True
    return member is not None or len(group.members) < most


def _turn_away(group: Group, event: Join, now_ms: int, out: DecisionBuilder) -> None:
    is_known = event.member_id in group.members or event.member_id in group.pending_joins
    remove_waiting(group, event.member_id, out)
    out.answer(event.pending_response, JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED))
    if is_known:
        member_gone(group, "there is no room for a member", now_ms, out)


def _join_without_id(group: Group, event: Join, now_ms: int, out: DecisionBuilder) -> None:
    prefix = event.instance_id
    if prefix is None:
        prefix = event.client_id[: limits.MAX_CLIENT_ID_CHARACTERS]
    member_id = f"{prefix}-{group.rules.new_id()}"
    if event.instance_id is not None:
        former = group.static_members.get(event.instance_id)
        if former is None:
            _add_member(group, event, member_id, now_ms, out)
        else:
            _replace_static(group, event, former, member_id, now_ms, out)
    elif not event.member_id_required:
        _add_member(group, event, member_id, now_ms, out)
    elif len(group.pending_joins) >= limits.MAX_PENDING_MEMBERS:
        out.answer(event.pending_response, JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED))
    else:
        # No member yet: a client whose response is lost asks again, and no member of it must be
        # left (KIP-394).
        group.pending_joins.add(member_id)
        group.deadlines.set(session_of(member_id), now_ms + event.session_timeout_ms)
        out.answer(event.pending_response, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))


def _add_member(
    group: Group, event: Join, member_id: str, now_ms: int, out: DecisionBuilder
) -> None:
    if not group.members:
        group.protocol_type = event.protocol_type
    member = _member_of(event, member_id)
    member.is_new = True
    if group.initial_rebalance_left_ms is not None:
        group.new_member_added = True
    group.add(member)
    _note_topics(group, event)
    group.delay_join(member, event.pending_response)
    # A new member has no id to send heartbeats with until its response. If it disconnects
    # meanwhile, this deadline keeps its entry from delaying rebalances for ever.
    timeout_ms = group.rules.settings.group_new_member_join_timeout_ms
    group.deadlines.set(session_of(member_id), now_ms + timeout_ms)
    prepare_or_complete(group, _reason("a member joined", event), now_ms, out)


def _rejoin(group: Group, event: Join, now_ms: int, out: DecisionBuilder) -> None:
    error = group.check_member(event.member_id, event.instance_id)
    if error is not ErrorCode.NONE:
        out.answer(event.pending_response, JoinResult(error, event.member_id))
        return
    member = group.members[event.member_id]
    protocols = dict(event.protocols)
    same = member.offers(protocols)
    member.restored_ms = None
    leads = group.leader == member.member_id
    # The leader's join always starts a rebalance of a stable group: that is how it asks for one
    # when something other than the subscriptions has changed.
    if same and (
        group.state is GroupState.COMPLETING_REBALANCE
        or (group.state is GroupState.STABLE and not leads)
    ):
        group.touch(member, now_ms)
        out.answer(event.pending_response, present_generation(group, member))
        return
    group.update(member, protocols, event.rebalance_timeout_ms, event.session_timeout_ms)
    _note_topics(group, event)
    former = group.delay_join(member, event.pending_response)
    out.answer(former, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
    what = "its leader joined again" if same else "a member's subscription changed"
    prepare_or_complete(group, _reason(what, event), now_ms, out)


def _replace_static(
    group: Group, event: Join, former_id: str, member_id: str, now_ms: int, out: DecisionBuilder
) -> None:
    """A static member joins again without its id: it takes its former place under a new one.

    While the group is stable and the protocol stays, no other member is concerned: the generation
    continues. Between join and sync a rebalance must begin, for the leader assigns to the former
    id.
    """
    position = list(group.members)
    led = group.leader == former_id
    former = group.remove(former_id)
    assert former is not None, "static_members names members only"
    out.answer(former.pending_join, JoinResult(ErrorCode.FENCED_INSTANCE_ID, former_id))
    out.answer(former.pending_sync, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
    member = _member_of(event, member_id)
    member.assignment = former.assignment
    group.add(member)
    group.positions = None  # they name its former id
    _restore_order(group, position, former_id, member_id)
    _note_topics(group, event)
    if led:
        group.leader = member_id
    group.delay_join(member, event.pending_response)
    group.touch(member, now_ms)
    out.note("a static member came back", instance=event.instance_id, member=member_id)
    if group.state is GroupState.STABLE:
        if group.select_protocol() == group.protocol_name:
            group.subscribed = group.find_subscribed()
            purpose = ReplaceStaticMember(
                member_id, event.pending_response, event.can_skip_assignment
            )
            out.write(group.record(), purpose=purpose)
            return
        prepare_rebalance(group, _reason("the protocol changes", event), now_ms, out)
    elif group.state is GroupState.COMPLETING_REBALANCE:
        prepare_rebalance(group, _reason("a static member came back", event), now_ms, out)
    else:
        complete_join_if_ready(group, now_ms, out)


def _restore_order(group: Group, position: list[str], former_id: str, member_id: str) -> None:
    # The order of the members decides votes and the next leader; a restart must not change it.
    order = [member_id if name == former_id else name for name in position]
    group.members = {name: group.members[name] for name in order}


def _note_topics(group: Group, event: Join) -> None:
    """Note the topics of a subscription at its join: a topic may grow before the generation begins.

    Those of a long one are noted then.
    """
    subscription = event.protocols[0][1] if group.consumes else b""
    if len(subscription) <= MOST_READ_AT_JOIN:
        first_sights.note_join(group, subscribed_topics(subscription) or ())


def _member_of(event: Join, member_id: str) -> Member:
    return Member(
        member_id,
        event.instance_id,
        event.client_id,
        event.client_host,
        event.rebalance_timeout_ms,
        event.session_timeout_ms,
        dict(event.protocols),
    )


def _reason(what: str, event: Join) -> str:
    if not event.reason:
        return what
    return f"{what}; the client says: {event.reason[: limits.MAX_REASON_CHARACTERS]}"
