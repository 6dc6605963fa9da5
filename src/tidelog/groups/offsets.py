"""OffsetCommit, OffsetFetch and OffsetDelete: a group's positions.

Owns these rules. A position counts, and is returned to clients, only once its record is committed.
Source: KIP-211 and KIP-496 (deletion), KIP-320 (leader epochs), KIP-447 (stable offsets).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from uuid import UUID

from tidelog.groups import first_sights, limits, pending_removal, removals
from tidelog.groups.decision import DecisionBuilder
from tidelog.groups.events import CommitOffsets, DeleteOffsets, OffsetsResult, PendingResponse
from tidelog.groups.group import Group, GroupState
from tidelog.groups.records import NO_EXPIRY, NO_TOPIC_ID, CommittedOffset, OffsetRecord, Record
from tidelog.model.configs.types import MAX_INT64
from tidelog.model.effects import Answer
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


def commit_offsets(group: Group, event: CommitOffsets, now_ms: int, out: DecisionBuilder) -> None:
    """Decide an OffsetCommit."""
    error = _why_no_commit(group, event)
    if error is not ErrorCode.NONE:
        answers = tuple((tp, error) for tp, _ in event.offsets)
        out.answer(event.pending_response, OffsetsResult(partitions=answers))
        return
    member = group.members.get(event.member_id)
    if member is not None:
        group.touch(member, now_ms)
    wall_ms = group.wall_ms(now_ms)
    expires_ms = NO_EXPIRY
    if event.retention_ms >= 0:
        # A client may name any number, and a record has 64 bits for the moment.
        expires_ms = min(wall_ms + event.retention_ms, MAX_INT64)
    most_metadata = min(
        group.rules.settings.offset_metadata_max_bytes, limits.MAX_METADATA_OF_OFFSET_BYTES
    )
    records: list[Iterable[Record]] = []
    plain: list[Record] = []
    # Positions of former topic ids are removed before commits of the next ones.
    former = 0
    results: list[tuple[TopicPartition, ErrorCode]] = []
    begun: set[str] = set()
    room = limits.MAX_OFFSETS - group.offset_count - len(group.in_flight)
    for tp, offset in event.offsets:
        is_known = tp.partition in group.offsets.get(tp.topic, ()) or tp in group.in_flight
        if offset.metadata and len(offset.metadata.encode()) > most_metadata:
            results.append((tp, ErrorCode.OFFSET_METADATA_TOO_LARGE))
        elif not is_known and room <= 0:
            results.append((tp, ErrorCode.INVALID_COMMIT_OFFSET_SIZE))
        else:
            room -= 0 if is_known else 1
            if tp.topic not in begun:
                begun.add(tp.topic)
                more, before = first_sights.before_commit(group, tp.topic, offset.topic_id)
                plain = []
                records += (before, plain)
                former += more
            value = CommittedOffset(
                offset.offset,
                offset.leader_epoch,
                offset.metadata,
                wall_ms,
                expires_ms,
                offset.topic_id,
            )
            plain.append(OffsetRecord(group.group_id, tp.topic, tp.partition, value))
            if group.positions is not None:
                # It goes back below what it reported: gates have to wait for it again (promise 7).
                group.positions.lower(tp, offset.offset)
            results.append((tp, ErrorCode.NONE))
    written = chain.from_iterable(records)
    if former <= pending_removal.PART:
        _answer(event.pending_response, list(written), results, out)
        return
    answer = Answer(event.pending_response, OffsetsResult(partitions=tuple(results)))
    removals.begin(group, written, out, (answer,), whole=False)


def _why_no_commit(group: Group, event: CommitOffsets) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if event.generation < 0 and group.state is GroupState.EMPTY:
        # A consumer that assigns itself, or a tool: allowed while there are no members.
        return ErrorCode.NONE
    if event.generation < 0 and not event.member_id and event.instance_id is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_member(event.member_id, event.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if event.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE:
        # Its partitions of the former generation may belong to another member already.
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def fetch_offsets(
    group: Group | None,
    topics: Iterable[tuple[str, Iterable[int]]] | None,
    topic_id_of: Callable[[str], UUID] = lambda _: NO_TOPIC_ID,
) -> list[tuple[str, list[tuple[int, CommittedOffset | None]]]]:
    """Return the committed offsets of the given partitions, in order; None where there is none.

    ``topics`` None means all. An unknown group, or one that is being removed, has none; nor has a
    topic whose ``topic_id_of`` (``NO_TOPIC_ID``: not known) differs from the id of the group's last
    first sight.
    """
    if group is None or group.state is GroupState.DEAD:
        return (
            []
            if topics is None
            else [(name, [(partition, None) for partition in ats]) for name, ats in topics]
        )

    def known(topic: str) -> dict[int, CommittedOffset]:
        if first_sights.is_former(group.first_sights.get(topic), topic_id_of(topic)):
            return {}
        return group.offsets.get(topic, {})

    if topics is None:
        return [
            (topic, list(positions.items()))
            for topic in group.offsets
            if (positions := known(topic))
        ]
    return [
        (topic, [(partition, positions.get(partition)) for partition in partitions])
        for topic, partitions in topics
        for positions in (known(topic),)
    ]


def delete_offsets(group: Group, event: DeleteOffsets, out: DecisionBuilder) -> None:
    """Decide an OffsetDelete: allowed for topics that no member reads."""
    if group.state is GroupState.DEAD:
        out.answer(event.pending_response, OffsetsResult(ErrorCode.GROUP_ID_NOT_FOUND))
        return
    if group.state is not GroupState.EMPTY and not group.consumes:
        out.answer(event.pending_response, OffsetsResult(ErrorCode.NON_EMPTY_GROUP))
        return
    records: list[Record] = []
    removed: set[TopicPartition] = set()
    results: list[tuple[TopicPartition, ErrorCode]] = []
    for tp in event.partitions:
        if group.state is not GroupState.EMPTY and group.is_subscribed(tp.topic):
            results.append((tp, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC))
            continue
        if tp.partition in group.offsets.get(tp.topic, ()) or tp in group.in_flight:
            records.append(OffsetRecord(group.group_id, tp.topic, tp.partition, None))
            removed.add(tp)
        results.append((tp, ErrorCode.NONE))
    records += first_sights.without_offsets(group, {tp.topic for tp in removed}, removed)
    _answer(event.pending_response, records, results, out)


def _answer(
    pending_response: PendingResponse,
    records: list[Record],
    results: list[tuple[TopicPartition, ErrorCode]],
    out: DecisionBuilder,
) -> None:
    """Answer each partition: once the records are committed, or now when there are none."""
    result = OffsetsResult(partitions=tuple(results))
    if records:
        out.write(*records, answers=(Answer(pending_response, result),))
    else:
        out.answer(pending_response, result)
