"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete: a group's positions.

Owns these rules. A position counts, and is returned to clients, only once its record is committed,
in a transaction once that commits: see `pending_offsets`.
Source: KIP-211 and KIP-496 (deletion), KIP-320 (leader epochs), KIP-447 (stable offsets).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from tidelog.groups import first_sights, limits, pending_removal, removals
from tidelog.groups.decision import DecisionBuilder, TransactionPart
from tidelog.groups.events import (
    CommitInTransaction,
    CommitOffsets,
    DeleteOffsets,
    OffsetsResult,
    PendingResponse,
    TopicErrors,
    errors_by_topic,
    refuse,
)
from tidelog.groups.group import Group, GroupState
from tidelog.groups.offset_columns import OffsetColumns, OffsetRecords, one_by_one
from tidelog.groups.records import NO_EXPIRY, NO_TOPIC_ID, CommittedOffset, OffsetRecord, Record
from tidelog.model.configs.types import MAX_INT64
from tidelog.model.effects import Answer
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


def commit_offsets(group: Group, event: CommitOffsets, now_ms: int, out: DecisionBuilder) -> None:
    """Decide an OffsetCommit."""
    error = _why_no_commit(group, event)
    if error is not ErrorCode.NONE:
        refusal = refuse(event, error)
        assert isinstance(refusal, OffsetsResult)
        out.answer(event.pending_response, refusal)
        return
    member = group.members.get(event.member_id)
    if member is not None:
        group.touch(member, now_ms)
    wall_ms = group.wall_ms(now_ms)
    expires_ms = NO_EXPIRY
    if event.retention_ms >= 0:
        # A client may name any number, and a record has 64 bits for the moment.
        expires_ms = min(wall_ms + event.retention_ms, MAX_INT64)
    taken = _take(group, event, wall_ms, expires_ms)
    # Positions of former topic ids are removed before commits of the next ones.
    records = chain.from_iterable(chain(before, (record,)) for before, record in taken.steps)
    if taken.former <= pending_removal.PART:
        _answer(event.pending_response, list(records), taken.result, out)
        return
    answer = Answer(event.pending_response, taken.result)
    removals.begin(group, one_by_one(records), out, (answer,), whole=False)


def commit_in_transaction(
    group: Group, event: CommitInTransaction, now_ms: int, out: DecisionBuilder
) -> None:
    """Decide a TxnOffsetCommit whose producer may write.

    What precedes the offsets of a topic, its first sight and the removal of former offsets, holds
    however the transaction ends, and is not part of it. If that is very much, it is written alone,
    and the client tries again.
    """
    error = _why_no_commit_in_transaction(group, event)
    if error is not ErrorCode.NONE:
        _refuse(event, error, out)
        return
    wall_ms = group.wall_ms(now_ms)
    taken = _take(group, event, wall_ms)
    preceding = chain.from_iterable(before for before, _ in taken.steps)
    if taken.former > pending_removal.PART:
        _refuse(event, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, out)
        removals.begin(group, preceding, out, whole=False)
        return
    if not taken.steps:
        out.answer(event.pending_response, taken.result)
        return
    records = tuple(record for _, record in taken.steps)
    out.write(
        *preceding,
        answers=(Answer(event.pending_response, taken.result),),
        transaction=TransactionPart(event.producer_id, event.producer_epoch, records),
    )


class _Taken(NamedTuple):
    """What a group takes of a commit, as records."""

    steps: list[tuple[Iterable[Record], OffsetRecords]]
    """Offsets of one topic, and what precedes them in the log: made lazily."""
    former: int
    """How many positions of former topic ids that may remove."""
    result: OffsetsResult


def _take(
    group: Group,
    event: CommitOffsets | CommitInTransaction,
    wall_ms: int,
    expires_ms: int = NO_EXPIRY,
) -> _Taken:
    steps: list[tuple[Iterable[Record], OffsetRecords]] = []
    former = 0
    results: list[TopicErrors] = []
    begun: set[str] = set()
    judge = _Judge(group, event)
    for asked in event.topics:
        errors = judge.errors_of(asked)
        results.append(TopicErrors(asked.topic, asked.partitions, errors))
        taken = asked
        if not isinstance(errors, ErrorCode):
            taken = asked.only([row for row, one in enumerate(errors) if one is ErrorCode.NONE])
        if not len(taken):
            continue
        before: Iterable[Record] = ()
        if taken.topic not in begun:
            begun.add(taken.topic)
            more, before = first_sights.before_commit(group, taken.topic, taken.topic_id)
            former += more
        steps.append((before, OffsetRecords(group.group_id, taken, wall_ms, expires_ms)))
        if group.positions is not None:
            # It goes back below what it reported: gates have to wait for it again (promise 7).
            for partition, offset in zip(taken.partitions, taken.offsets, strict=True):
                group.positions.lower(TopicPartition(taken.topic, partition), offset)
    return _Taken(steps, former, OffsetsResult(topics=tuple(results)))


def _refuse(event: CommitInTransaction, error: ErrorCode, out: DecisionBuilder) -> None:
    refusal = refuse(event, error)
    assert isinstance(refusal, OffsetsResult)
    out.answer(event.pending_response, refusal)


class _Judge:
    """Which offsets of one commit a group takes, as far as each is judged alone."""

    __slots__ = ("_group", "_most_metadata", "_producer_id", "_room")

    def __init__(self, group: Group, event: CommitOffsets | CommitInTransaction) -> None:
        self._group = group
        self._producer_id: int | None = None
        if isinstance(event, CommitInTransaction):
            self._producer_id = event.producer_id
        self._most_metadata = min(
            group.rules.settings.offset_metadata_max_bytes, limits.MAX_METADATA_OF_OFFSET_BYTES
        )
        self._room: int | None = None
        """For offsets of new partitions; None: for all that the commit has."""
        asked, pending = sum(map(len, event.topics)), group.flying.pending
        held = group.offset_count if pending is None else group.offset_count + pending.count
        if held + group.flying.count + asked > limits.MAX_OFFSETS:
            flying = group.flying.count if pending else len(group.in_flight)
            self._room = limits.MAX_OFFSETS - held - flying

    def errors_of(self, asked: OffsetColumns) -> ErrorCode | list[ErrorCode]:
        """Return the error of each offset; NONE for all if none has any."""
        if asked.metadata is None and self._room is None:
            return ErrorCode.NONE
        return list(self._one_by_one(asked))

    def _one_by_one(self, asked: OffsetColumns) -> Iterator[ErrorCode]:
        group, metadata = self._group, asked.metadata
        stored = group.offsets.get(asked.topic, {})
        for row, partition in enumerate(asked.partitions):
            text = "" if metadata is None else metadata[row]
            if text and len(text.encode()) > self._most_metadata:
                yield ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            if self._room is not None and not self._has(asked.topic, partition, stored):
                if self._room <= 0:
                    yield ErrorCode.INVALID_COMMIT_OFFSET_SIZE
                    continue
                self._room -= 1
            yield ErrorCode.NONE

    def _has(self, topic: str, partition: int, stored: Collection[int]) -> bool:
        """Whether an offset of a partition takes the place of one that the group has."""
        if self._producer_id is not None:
            pending = self._group.flying.pending
            return pending is not None and pending.has(self._producer_id, topic, partition)
        return partition in stored or TopicPartition(topic, partition) in self._group.in_flight


def _why_no_commit_in_transaction(group: Group, event: CommitInTransaction) -> ErrorCode:
    """Return NONE or the error of a TxnOffsetCommit, as Kafka has it.

    Clients before v3 name no member, whatever the group does. A member that has joined may commit
    before it has its assignment: whoever reads its partitions next waits for the transaction.
    """
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if event.generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if event.generation < 0 and not event.member_id and event.instance_id is None:
        return ErrorCode.NONE
    error = group.check_member(event.member_id, event.instance_id)
    if error is ErrorCode.NONE and event.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error


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


def unstable_partitions(
    group: Group | None,
    topic: str,
    topic_id_of: Callable[[str], UUID],
    partitions: Iterable[int] | None,
) -> Collection[int]:
    """Return those of the partitions, None for all of the topic, whose offsets depend on open
    transactions (KIP-447); a topic of another ``topic_id_of`` has none."""
    if group is None or group.flying.pending is None or group.state is GroupState.DEAD:
        return ()
    unstable, present = group.flying.unstable(topic, partitions), topic_id_of(topic)
    if present == NO_TOPIC_ID:
        return unstable.keys()
    return {index for index, its_id in unstable.items() if its_id in (NO_TOPIC_ID, present)}


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
    _answer(event.pending_response, records, OffsetsResult(topics=errors_by_topic(results)), out)


def _answer(
    pending_response: PendingResponse,
    records: Sequence[Record | OffsetRecords],
    result: OffsetsResult,
    out: DecisionBuilder,
) -> None:
    """Answer each partition: once the records are committed, or now when there are none."""
    if records:
        out.write(*records, answers=(Answer(pending_response, result),))
    else:
        out.answer(pending_response, result)
