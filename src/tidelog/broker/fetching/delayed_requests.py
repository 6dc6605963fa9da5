"""Requests that wait: Produce for the high watermark, Fetch for more to read.

Owns the waiting, its time-outs and its ends; what is answered is the handlers'. Nothing polls: a
partition tells those who wait for it. What waits is bounded by the connections: 256 Produce
requests each (``network.limits``) and one Fetch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.model.errors import ErrorCode
from tidelog.runtime.turns import TURN_MS, Turn

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.waiters import Waiter
    from tidelog.runtime.clock import Clock

    Places = dict[Waiter, None]

AT_ONCE = 100
"""Places that a fetch leaves in one step."""

MOST_STEPS = 500
"""Steps in one turn, should the clock stand still."""


class DelayedProduce:
    """A Produce request with acks=all whose records are appended and not yet committed.

    ``future`` is done with ``response`` when each partition of it is committed, or has moved away
    (NOT_LEADER_OR_FOLLOWER), or has too small an ISR (NOT_ENOUGH_REPLICAS_AFTER_APPEND), or the
    time is over: then what is missing says REQUEST_TIMED_OUT.
    """

    __slots__ = ("_finishing", "_missing", "_places", "_timer", "future", "response")

    def __init__(
        self,
        response: Any,
        waiting: Sequence[tuple[HostedPartition, int, Any]],
        timeout_ms: int,
        finishing: Callable[[Any], Any] | None = None,
    ) -> None:
        """``waiting``: partition, last offset appended, the partition's part of ``response``.

        ``finishing`` is given the response before it is answered.
        """
        loop = asyncio.get_running_loop()
        self.response = response
        self._finishing = finishing
        self.future: asyncio.Future[Any] = loop.create_future()
        self._missing = {id(answer): answer for _, _, answer in waiting}
        self._timer = loop.call_later(max(0, timeout_ms) / 1000, self._time_out)
        self.future.add_done_callback(self._leave)
        self._places = [
            (partition, last_offset, partial(self._committed, answer))
            for partition, last_offset, answer in waiting
        ]
        for partition, last_offset, told in self._places:
            partition.when_committed(last_offset, told, patient=False)

    def _committed(self, answer: Any, error: ErrorCode) -> None:
        if self._missing.pop(id(answer), None) is None:
            return
        if error is not ErrorCode.NONE:
            refuse(answer, error)
        if not self._missing:
            self._places = []
            self._finish()

    def _time_out(self) -> None:
        missing, self._missing = self._missing, {}
        for answer in missing.values():
            refuse(answer, ErrorCode.REQUEST_TIMED_OUT)
        self._finish()

    def _finish(self) -> None:
        if not self.future.done():
            if self._finishing is not None:
                self._finishing(self.response)
            self.future.set_result(self.response)

    def _leave(self, _: asyncio.Future[Any]) -> None:
        self._timer.cancel()
        # A commit that hangs must not gather those who wait no longer: each has its retries.
        for partition, last_offset, told in self._places:
            partition.waiting.commits.forget(last_offset, told)


class DelayedFrame:
    """A plain Produce request of one partition whose records are appended and not yet committed.

    As ``DelayedProduce``, but ``future`` is done with the answer's bytes: most requests of busy
    clusters wait, and their answers are known when they begin to.
    """

    __slots__ = ("_frame", "_offset", "_partition", "_refused", "_timer", "_told", "future")

    def __init__(
        self,
        partition: HostedPartition,
        offset: int,
        timeout_ms: int,
        frame: bytes,
        refused: Callable[[ErrorCode], bytes],
    ) -> None:
        """``frame`` is answered when ``offset`` is committed, else what ``refused`` makes."""
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[bytes] = loop.create_future()
        self._partition = partition
        self._offset = offset
        self._frame = frame
        self._refused = refused
        self._told: Callable[[ErrorCode], None] | None = self._committed
        self._timer = loop.call_later(max(0, timeout_ms) / 1000, self._time_out)
        self.future.add_done_callback(self._leave)
        partition.when_committed(offset, self._told, patient=False)

    def _committed(self, error: ErrorCode) -> None:
        self._told = None
        if not self.future.done():
            good = error is ErrorCode.NONE
            self.future.set_result(self._frame if good else self._refused(error))

    def _time_out(self) -> None:
        if not self.future.done():
            self.future.set_result(self._refused(ErrorCode.REQUEST_TIMED_OUT))

    def _leave(self, _: asyncio.Future[bytes]) -> None:
        self._timer.cancel()
        if self._told is not None:
            self._partition.waiting.commits.forget(self._offset, self._told)
            self._told = None


def why_too_few(partition: HostedPartition) -> str:
    """Return the sentence of NOT_ENOUGH_REPLICAS."""
    return (
        f"{partition.key} has {len(partition.state.isr)} replicas in sync; "
        f"min.insync.replicas asks for {partition.required_in_sync}"
    )


def refuse(answer: Any, error: ErrorCode, reason: str | None = None) -> None:
    """Turn a partition's Produce answer into a refusal."""
    answer.error_code = int(error)
    answer.base_offset = -1
    answer.log_append_time_ms = -1
    answer.log_start_offset = -1
    answer.error_message = reason


class Departures:
    """Takes fetches that wait no longer off their partitions; very many in turns of the loop.

    One turn at a time for all of them, however many end at once. A fetch is here for no longer than
    it took to begin to wait, so partitions to which nothing comes gather none.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._leaving: deque[tuple[Waiter, list[Places]]] = deque()

    def __len__(self) -> int:
        return len(self._leaving)

    def take_off(self, waiter: Waiter, places: list[Places]) -> None:
        """Take one off all its places: few at once, of more it is told until then."""
        if len(places) <= AT_ONCE:
            for each in places:
                each.pop(waiter, None)
            return
        self._leaving.append((waiter, places))
        if len(self._leaving) == 1:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        leaving = self._leaving
        turn = Turn(self._clock, MOST_STEPS, TURN_MS)
        while leaving:
            waiter, places = leaving[0]
            for each in places[-AT_ONCE:]:
                each.pop(waiter, None)
            del places[-AT_ONCE:]
            if not places:
                leaving.popleft()
            if turn.is_over():
                break
        if leaving:
            asyncio.get_running_loop().call_soon(self._go_on)


class DelayedFetch:
    """A Fetch request that found less than ``min_bytes``; it waits where it was told to (``join``).

    ``future`` is done with what ``read`` then returns, when enough has come, something else
    happened to one of its partitions, or the time is over.
    """

    __slots__ = ("_departures", "_missing", "_places", "_read", "_timer", "future", "is_woken")

    def __init__(
        self,
        missing_bytes: int,
        max_wait_ms: int,
        read: Callable[[], Any],
        departures: Departures,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = loop.create_future()
        self._places: list[Places] = []
        self._missing = missing_bytes
        self._read = read
        self._departures = departures
        self.is_woken = False
        """Whether it waits no longer, or will not after this turn: then it is to join nothing."""
        self._timer = loop.call_later(max_wait_ms / 1000, self._finish)
        self.future.add_done_callback(self._leave)

    def join(self, places: list[Places]) -> None:
        """Wait in these places, too: of a partition those that wait for its watermark, or for its
        end. Only while it is not woken."""
        self._places += places
        for each in places:
            each[self] = None

    def more(self, size: int) -> None:
        """Called by a partition; see ``partition_waiting.Waiter``."""
        self._missing -= size
        if (self._missing <= 0 or not size) and not self.is_woken:
            self.is_woken = True
            # In the next turn: the appends of this turn come first, and their answers.
            asyncio.get_running_loop().call_soon(self._finish)

    def moved(self) -> None:
        """Nothing to wake for; see ``partition_waiting.FollowerWaiter``."""

    def _finish(self) -> None:
        if not self.future.done():
            try:
                answer = self._read()
            except Exception as error:
                self.future.set_exception(error)
            else:
                self.future.set_result(answer)

    def _leave(self, _: asyncio.Future[Any]) -> None:
        self._timer.cancel()
        self.is_woken = True
        places, self._places = self._places, []
        self._departures.take_off(self, places)
