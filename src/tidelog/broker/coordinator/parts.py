"""Large offset commits and removals, decided in parts while their group handles nothing else.

Owns the parts, their results and the queue of later events. Not when a part is decided: see
``group_partition``. The parts of a removal without named positions (of a group, of deleted topics)
come from ``groups.removals``.
Events that arrive for the group meanwhile are decided after the last part, in order of arrival. So
one state of the group decides a whole commit, as in Kafka, which holds the group's lock. When the
group or the log refuses a part, the remaining parts get the same error. A part is built right
before it is decided: 50,000 positions at once would be half a million objects for the garbage
collector.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.groups.events import Event, Expire, OffsetsResult, RemoveMore
from tidelog.groups.group import Group
from tidelog.groups.limits import MAX_EXPIRED_AT_ONCE
from tidelog.groups.retention import check, found_by
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work

PART = 500
"""Positions decided in one turn of the loop."""

_OF_ONE_POSITION = {
    ErrorCode.NONE,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
}


def expiry_of(group: Group, now_ms: int) -> Work[Expire]:
    """Return the event that expires a group's positions by their retention.

    For more than ``PART`` positions it names the expired ones, found over several turns; the group
    continues meanwhile.
    """
    if group.offset_count <= PART:
        return Expire()
    checked = check(group, now_ms)
    found: list[TopicPartition | str | None] = []
    while part := list(islice(checked, PART)):
        found += [each for each in part if each is not None]
        if len(found) >= MAX_EXPIRED_AT_ONCE:
            break
        yield None
    return found_by(found)


class Answers(NamedTuple):
    """The result of a request for positions."""

    error: ErrorCode
    """NONE, or the error of the group, if the response has a field for it."""
    errors: Mapping[Any, ErrorCode]
    """By topic and partition."""
    otherwise: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    """The error of a position that ``errors`` does not have."""


class InParts:
    """One request of many positions; it gets its ``Answers`` when every part has a result."""

    def __init__(
        self,
        pending_response: PendingResponse,
        positions: Iterator[Any],
        event_of: Callable[[PendingResponse, tuple[Any, ...]], Event],
    ) -> None:
        """``positions`` has None for unknown partitions; ``event_of`` makes the event of a part."""
        self._pending_response = pending_response
        self._positions: Iterator[Any] | None = positions
        self._event_of = event_of
        self._undecided = 0
        self._error = ErrorCode.NONE
        self._refused = ErrorCode.NONE
        self._otherwise = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self._errors: dict[TopicPartition, ErrorCode] = {}
        self.later: deque[Event | InParts] = deque()
        """Later events of the group, in order of arrival."""

    def next_part(self) -> Event | None:
        """Return the next part to decide; None after the last one, or when the rest is refused."""
        while self._positions is not None and not self._refused:
            asked = list(islice(self._positions, PART))
            if not asked:
                break
            part = tuple(each for each in asked if each is not None)
            if part:
                self._undecided += 1
                return self._event_of(_PartialResponse(self), part)
        self.refuse_rest(self._refused)
        return None

    def refuse_rest(self, error: ErrorCode) -> None:
        """Decide no further part: the remaining positions get ``error``, unless it is NONE."""
        if self._positions is not None:
            self._positions = None
            self._refused = self._refused or error
            self._otherwise = error or self._otherwise
        self._answer()

    def part_done(self, result: OffsetsResult) -> None:
        """Take the result of one part."""
        self._undecided -= 1
        self._errors.update(result.partitions)
        self._error = self._error or result.error
        self._refused = self._refused or result.error or _of_the_group(result)
        self._answer()

    def fail(self) -> None:
        """Respond with UNKNOWN_SERVER_ERROR at once, after a bug."""
        error = ErrorCode.UNKNOWN_SERVER_ERROR
        self._positions = None
        self._pending_response.give(Answers(error, {}, error))

    def _answer(self) -> None:
        if self._undecided or self._positions is not None:
            return
        error = self._error or self._refused
        self._pending_response.give(Answers(error, self._errors, self._otherwise))


class RestOfRemoval:
    """The unwritten rest of a removal (``groups.removals``), and the queue of later events."""

    def __init__(self, has_more: Callable[[], bool], interrupt: Callable[[], None]) -> None:
        self._has_more = has_more
        self._interrupt = interrupt
        self.later: deque[Event | InParts] = deque()
        """Later events of the group, as in ``InParts``."""

    def next_part(self) -> Event | None:
        """Return the next part to decide, if any."""
        return RemoveMore() if self._has_more() else None

    def refuse_rest(self, error: ErrorCode) -> None:
        """Do nothing: when leadership ends, the table refuses requests that wait for removals."""

    def fail(self) -> None:
        """Refuse the waiting requests after a bug; the remaining positions stay."""
        self._interrupt()


def part_of(long: InParts | RestOfRemoval, *, removes: bool) -> Event | None:
    """Return the next part to decide, if any.

    A part of a commit may have started a removal: of the offsets that a deleted topic of the same
    name left. While the group ``removes``, the parts of that removal come first.
    """
    return RemoveMore() if removes else long.next_part()


class _PartialResponse(PendingResponse):
    """The pending response of one part."""

    __slots__ = ("_whole",)

    def __init__(self, whole: InParts) -> None:
        super().__init__()
        self._whole = whole

    def give(self, result: Any) -> None:
        if self._result is None:
            self._result = result
            self._whole.part_done(result)


def _of_the_group(result: OffsetsResult) -> ErrorCode:
    """Return the error that concerns the whole group, or NONE."""
    found = {error for _, error in result.partitions} - _OF_ONE_POSITION
    return min(found, default=ErrorCode.NONE)
