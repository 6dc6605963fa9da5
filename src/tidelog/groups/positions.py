"""ConsumerGroupPosition: how far the members of a generation have come (KIP-253, promise 7).

Owns which position counts. Not the state, which is of one generation and in memory only: see
`reported_positions`; not the gates that need them: see ``partitioning.gates``.

| the partition | its position |
|---|---|
| of an aware member that has reported it in this generation | its last report, not its highest |
| the same, after an OffsetCommit below that | the committed offset |
| of an aware member that has not reported it | -1: its commit says nothing of its callback |
| of any other member, of no member, or of a group that is Empty | the committed offset |
| its owner is not known: the assignment is too large, or is none | -1 |

Aware members offer their assignors under names with ``AWARE_PREFIX``, too. The log has only the
name that was chosen: after a load, when that one says nothing, a member is known again when it asks
or joins. If its position is needed and it does neither for ``SILENT_MS``, a rebalance lets all
members say what they are. -1 keeps a gate shut, so no doubt opens one.

The memory counts as the members' (decision 0040).
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from tidelog.groups import first_sights, limits
from tidelog.groups.consumer_protocol import assigned_partitions
from tidelog.groups.decision import DecisionBuilder
from tidelog.groups.events import PositionsResult, ReportPositions
from tidelog.groups.group import Group, GroupState, Member
from tidelog.groups.rebalancing import prepare_rebalance
from tidelog.groups.records import NO_TOPIC_ID
from tidelog.groups.reported_positions import UNKNOWN, GenerationPositions, ReportedTopic
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol.record_fields import Malformed

SILENT_MS = 5_000
"""After this time a member that a load has brought, and that has not asked, may be a stock one."""


class KnownPosition(NamedTuple):
    """The position of a group in a partition; ``from_commit``: its committed offset."""

    offset: int = UNKNOWN
    from_commit: bool = False


def report_positions(
    group: Group, event: ReportPositions, now_ms: int, out: DecisionBuilder
) -> None:
    """Decide a ConsumerGroupPosition: take the reports, return the positions asked for."""
    error = _why_not(group, event, now_ms)
    if error is not ErrorCode.NONE:
        out.answer(event.pending_response, PositionsResult(error))
        return
    generation, silent = None, None
    if event.member_id:
        member = group.members[event.member_id]
        # Only an aware member asks.
        member.asks_as_aware = True
        generation = _of_generation(group, out)
        _take(group, generation, event, now_ms)
    positions: dict[TopicPartition, KnownPosition] = {}
    for tp in event.asked:
        positions[tp], owner = _position(group, generation, tp, event)
        if owner is not None and owner.aware is None and _is_silent(owner, now_ms):
            silent = owner
    out.answer(event.pending_response, PositionsResult(ErrorCode.NONE, positions))
    if silent is not None:
        reason = f"it is not known whether member {silent.member_id} is aware of resizes"
        prepare_rebalance(group, reason, now_ms, out)


def of_no_group(event: ReportPositions) -> PositionsResult:
    """Return the result for a group that does not exist: it has committed nothing."""
    return PositionsResult(ErrorCode.NONE, {tp: KnownPosition(UNKNOWN, True) for tp in event.asked})


def grows_by(group: Group, event: ReportPositions) -> int:
    """Return how many bytes more the members of a group may take for a ConsumerGroupPosition."""
    if not event.member_id or group.positions is not None:
        return 0
    # An index takes four bytes in an assignment, a topic six.
    held = min(group.assignment_bytes // 4, limits.MAX_OWNED) * limits.HELD_BY_OWNED
    topics = min(group.assignment_bytes // 6, limits.MAX_OWNED_TOPICS)
    return held + topics * limits.HELD_BY_OWNED_TOPIC


def _why_not(group: Group, event: ReportPositions, now_ms: int) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if event.is_of_no_member:
        # A consumer that assigns itself, or a tool, as in OffsetCommit.
        is_empty = group.state is GroupState.EMPTY
        return ErrorCode.NONE if is_empty else ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_member(event.member_id, None)
    if error is not ErrorCode.NONE:
        return error
    if event.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if not group.consumes:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    group.touch(group.members[event.member_id], now_ms)
    if group.state is not GroupState.STABLE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _of_generation(group: Group, out: DecisionBuilder) -> GenerationPositions:
    """Return the positions of the present generation; the first request begins them."""
    generation = group.positions
    if generation is None:
        generation = group.positions = _owners(group)
        if not generation.is_complete:
            out.note("the owners of partitions are not known", generation=group.generation)
    return generation


def _owners(group: Group) -> GenerationPositions:
    owners: dict[str, dict[int, str]] = {}
    partitions = entries = 0
    is_complete = True
    for member in group.members.values():
        try:
            for topic, given in assigned_partitions(member.assignment):
                entries += 1
                partitions += len(given)
                if partitions > limits.MAX_OWNED or entries > limits.MAX_OWNED_TOPICS:
                    return GenerationPositions({}, False, 0, {})
                owners.setdefault(topic, {}).update(dict.fromkeys(given, member.member_id))
        except Malformed:
            is_complete = False
    held = sum(map(len, owners.values())) * limits.HELD_BY_OWNED
    held += len(owners) * limits.HELD_BY_OWNED_TOPIC
    return GenerationPositions(owners, is_complete, held, {})


def _take(
    group: Group, generation: GenerationPositions, event: ReportPositions, now_ms: int
) -> None:
    """Take the reports of a member's own partitions; a report of another's counts for nothing."""
    for tp, offset in event.reports:
        if generation.owners.get(tp.topic, {}).get(tp.partition) != event.member_id:
            continue
        topic_id = present_id(group, tp.topic)
        topic = generation.reported.get(tp.topic)
        if topic is None or topic.topic_id != topic_id:
            topic = generation.reported[tp.topic] = ReportedTopic(topic_id, {}, {})
        if topic.offsets.get(tp.partition) != offset:
            topic.offsets[tp.partition] = offset
            topic.moved_ms[tp.partition] = now_ms


def _position(
    group: Group, generation: GenerationPositions | None, tp: TopicPartition, event: ReportPositions
) -> tuple[KnownPosition, Member | None]:
    """Return the position of a partition, and its owner."""
    owner = None
    if generation is not None:
        owner = group.members.get(generation.owners.get(tp.topic, {}).get(tp.partition, ""))
        # It may have an owner that is not known: no gate opens by doubt (0071).
        if owner is None and not generation.is_complete:
            return KnownPosition(), None
        if owner is not None and owner.aware is not False:
            topic = generation.reported.get(tp.topic)
            if topic is None or topic.topic_id != present_id(group, tp.topic):
                return KnownPosition(), owner
            return KnownPosition(topic.offsets.get(tp.partition, UNKNOWN)), owner
    sight = group.first_sights.get(tp.topic)
    committed = group.offsets.get(tp.topic, {}).get(tp.partition)
    if committed is None or first_sights.is_former(sight, event.topic_id_of(tp.topic)):
        return KnownPosition(UNKNOWN, True), owner
    return KnownPosition(committed.offset, True), owner


def present_id(group: Group, topic: str) -> UUID:
    """Return the id of the present topic of a name, as it is kept with a report."""
    present = group.rules.topic_of(topic)
    return NO_TOPIC_ID if present is None else present.topic_id


def _is_silent(member: Member, now_ms: int) -> bool:
    return member.restored_ms is not None and now_ms - member.restored_ms >= SILENT_MS
