"""Removals of any number of positions, in parts (`pending_removal`), one decision each.

Owns the parts. Between two of them the group decides no other event: the shell decides
``RemoveMore`` for as long as ``GroupTable.removes`` says so, and events for the group after that
(decision 0041). The group's own tombstone, or that of a first sight, follows those of its
positions. So a coordinator that crashes between two parts leaves fewer positions, never positions
without their group, nor positions of one topic id for the next one; the same request again
completes it.

When the log refuses a part:

| of | the first part | a later one |
|---|---|---|
| the group | it is Empty, as before | it stays Dead; the rest is tried again |
| positions of deleted topics | they stay | the rest stays, with its first sight |
| positions of a former topic id, and a commit after them | it is refused | as the first |

The next try is after ``AGAIN_MS``, or with the next DeleteGroups: no client sees half of a group.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.groups.decision import DecisionBuilder, RemoveGroup, RemovePart, error_for
from tidelog.groups.events import PendingResponse, StatusResult
from tidelog.groups.group import REMOVAL_DEADLINE, Group, GroupState
from tidelog.groups.pending_removal import PendingRemoval
from tidelog.groups.records import Record
from tidelog.model.effects import Answer
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

AGAIN_MS = 1_000
"""Pause after the log refused a part, before the rest of a group's removal is tried again."""


def begin(
    group: Group,
    records: Iterator[Record],
    out: DecisionBuilder,
    answers: tuple[Answer, ...] = (),
    *,
    whole: bool,
) -> None:
    """Write the first part, which may be all. ``records`` is read part by part: until the last one
    the group loses positions, and gets only those in flight now."""
    group.removal = PendingRemoval(records, answers, whole=whole)
    go_on(group, out)


def go_on(group: Group, out: DecisionBuilder) -> None:
    """Write the next part of a removal that is under way."""
    removal = group.removal
    if removal is None or removal.is_refused:
        return
    removal.parts += 1
    part = removal.take()
    if removal.has_more:
        out.write(*part, purpose=RemovePart())
        return
    answers, removal.answers = removal.answers, ()
    if removal.whole:
        out.write(*part, answers=answers, purpose=RemoveGroup())
        return
    group.removal = None
    if part:
        out.write(*part, answers=answers)


def again(
    group: Group, out: DecisionBuilder, pending_response: PendingResponse | None = None
) -> None:
    """Go on with the removal of a group of which the log refused a part; with a request for it."""
    removal = group.removal
    if removal is None or not removal.is_refused:
        return
    removal.is_refused = False
    group.deadlines.drop(REMOVAL_DEADLINE)
    if pending_response is not None:
        removal.answers += (Answer(pending_response, StatusResult(ErrorCode.NONE)),)
    go_on(group, out)


def refused(
    group: Group, records: tuple[Record, ...], error: ErrorCode, now_ms: int, out: DecisionBuilder
) -> None:
    """The log refused a part with an error: no record of ``records`` was appended."""
    removal = group.removal
    if removal is None:
        return
    if not removal.whole or removal.parts == 1:
        give_up(group, error, out)
        return
    _refuse_waiting(removal, error, out)
    removal.parts -= 1
    removal.put_back(records)
    removal.is_refused = True
    group.deadlines.set(REMOVAL_DEADLINE, now_ms + AGAIN_MS)


def give_up(group: Group, error: ErrorCode, out: DecisionBuilder) -> None:
    """Stop a removal: the group is as before, without the positions that were removed."""
    removal, group.removal = group.removal, None
    if removal is not None:
        _refuse_waiting(removal, error, out)
        if removal.whole:
            group.state = GroupState.EMPTY


def _refuse_waiting(removal: PendingRemoval, error: ErrorCode, out: DecisionBuilder) -> None:
    answers, removal.answers = removal.answers, ()
    for answer in answers:
        out.answer(answer.pending_response, answer.result.refused(error_for(answer.result, error)))


def all_positions(group: Group) -> Iterator[TopicPartition]:
    """Yield every position, also those that do not count yet when the turn of their topic comes:
    their records come first in the log. It takes one topic after the other, so that the first part
    does not grow with all that is pending."""
    for topic in dict.fromkeys([*group.offsets, *group.flying.topics()]):
        uncounted = group.flying.partitions_of(topic)
        for partition in dict.fromkeys([*group.offsets.get(topic, ()), *uncounted]):
            yield TopicPartition(topic, partition)
