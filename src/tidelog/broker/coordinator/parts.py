"""Commits and removals of very many positions: in parts, while their group does nothing else.

Owns the parts, their results and what waits behind them, and how long a turn of the coordinator
is; ``coordinator_partition`` decides each part as a request of its own. The parts of a removal that
names no positions (of a group, of topics that are gone) are made by ``groups.removals``. What comes
for the group meanwhile is decided when the last part was, in the order in which it came: so a
commit is judged by one state of its group, as in Kafka, which holds the group's lock. A part that
is refused for the group, or by the log, ends the parts: those behind it get the same answer. Parts
are made when they are decided: 50,000 positions at once would be half a million objects for the
collector to look at.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.groups.events import Event, Expire, OffsetsResult, RemoveMore
from tidelog.groups.group import Group
from tidelog.groups.limits import MAX_EXPIRED_AT_ONCE
from tidelog.groups.retention import found_by, look
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.runtime.clock import Clock

PART = 500
"""Positions that are decided in one turn of the loop."""

SLICE_MS = 2
"""How long parts, loading, sweeps and the timer may hold the loop before others have their turn."""

_OF_ONE_POSITION = {
    ErrorCode.NONE,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
}


class TimeSlice:
    """A piece of long work: over after ``SLICE_MS``, then others have their turn."""

    __slots__ = ("_clock", "_end_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end_ms = clock.monotonic_ms() + SLICE_MS

    @property
    def is_over(self) -> bool:
        """Whether others should have their turn now."""
        return self._clock.monotonic_ms() >= self._end_ms

    async def give_way(self) -> None:
        """Let others have their turn, and begin the next."""
        await asyncio.sleep(0)
        self._end_ms = self._clock.monotonic_ms() + SLICE_MS


async def expiry_of(group: Group, now_ms: int, turn: TimeSlice) -> Expire:
    """Return what is to be looked at of the retention of a group's positions: with few all of them,
    else what a look of several turns found. The group goes on meanwhile."""
    if group.offset_count <= PART:
        return Expire()
    looked = look(group, now_ms)
    found: list[TopicPartition | str | None] = []
    while part := list(islice(looked, PART)):
        found += [each for each in part if each is not None]
        if len(found) >= MAX_EXPIRED_AT_ONCE:
            break
        if turn.is_over:
            await turn.give_way()
    return found_by(found)


class OneByOne:
    """Calls what it is given in order, one in a turn of the loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def call(self, work: Callable[[], None]) -> None:
        """Call ``work`` once, in a later turn."""
        self._waiting.append(work)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._next)


class Answers(NamedTuple):
    """What a request of positions is answered."""

    error: ErrorCode
    """NONE, or the error of the group, where the answer has a place for it."""
    errors: dict[TopicPartition, ErrorCode]
    otherwise: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    """The error of a position that is not among ``errors``."""


class InParts:
    """One request of many positions; it gets its ``Answers`` when every part has a result."""

    def __init__(
        self,
        pending_response: PendingResponse,
        positions: Iterator[Any],
        event_of: Callable[[PendingResponse, tuple[Any, ...]], Event],
    ) -> None:
        """``positions`` has None for what does not exist; ``event_of`` makes a part's event."""
        self._pending_response = pending_response
        self._positions: Iterator[Any] | None = positions
        self._event_of = event_of
        self._untold = 0
        self._error = ErrorCode.NONE
        self._refused = ErrorCode.NONE
        self._otherwise = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self._errors: dict[TopicPartition, ErrorCode] = {}
        self.behind: deque[Event | InParts] = deque()
        """What came for the group since, in order."""

    def next_part(self) -> Event | None:
        """Return the next part to decide; None when there is none, or the rest is refused."""
        while self._positions is not None and not self._refused:
            asked = list(islice(self._positions, PART))
            if not asked:
                break
            part = tuple(each for each in asked if each is not None)
            if part:
                self._untold += 1
                return self._event_of(_PartialResponse(self), part)
        self.refuse_rest(self._refused)
        return None

    def refuse_rest(self, error: ErrorCode) -> None:
        """Decide no further part: what is left is answered with ``error``, if it is one."""
        if self._positions is not None:
            self._positions = None
            self._refused = self._refused or error
            self._otherwise = error or self._otherwise
        self._answer()

    def told(self, result: OffsetsResult) -> None:
        """A part has its result."""
        self._untold -= 1
        self._errors.update(result.partitions)
        self._error = self._error or result.error
        self._refused = self._refused or result.error or _of_the_group(result)
        self._answer()

    def fail(self) -> None:
        """Answer at once: a bug."""
        error = ErrorCode.UNKNOWN_SERVER_ERROR
        self._positions = None
        self._pending_response.give(Answers(error, {}, error))

    def _answer(self) -> None:
        if self._untold or self._positions is not None:
            return
        error = self._error or self._refused
        self._pending_response.give(Answers(error, self._errors, self._otherwise))


class RestOfRemoval:
    """What a removal has still to write (``groups.removals``), and what waits behind it."""

    def __init__(self, has_more: Callable[[], bool], interrupt: Callable[[], None]) -> None:
        self._has_more = has_more
        self._interrupt = interrupt
        self.behind: deque[Event | InParts] = deque()
        """As of ``InParts``."""

    def next_part(self) -> Event | None:
        """Return the next part to decide, if there is any."""
        return RemoveMore() if self._has_more() else None

    def refuse_rest(self, error: ErrorCode) -> None:
        """Nothing: when leadership goes, the table answers who waits for its removals."""

    def fail(self) -> None:
        """A bug: who waits is told, and what is left stays."""
        self._interrupt()


def part_of(long: InParts | RestOfRemoval, *, removes: bool) -> Event | None:
    """Return the next part to decide, if there is any. A part of a commit may have begun a removal,
    of what its topic's former life left: while its group ``removes``, that goes first."""
    return RemoveMore() if removes else long.next_part()


class _PartialResponse(PendingResponse):
    """The place of one part."""

    __slots__ = ("_whole",)

    def __init__(self, whole: InParts) -> None:
        super().__init__()
        self._whole = whole

    def give(self, result: Any) -> None:
        if self._result is None:
            self._result = result
            self._whole.told(result)


def _of_the_group(result: OffsetsResult) -> ErrorCode:
    """Return the error that is not one position's, if there is any."""
    found = {error for _, error in result.partitions} - _OF_ONE_POSITION
    return min(found, default=ErrorCode.NONE)
