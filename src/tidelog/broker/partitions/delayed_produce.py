"""Produce requests that wait: until their records are committed, or this broker shows a resize.

Owns the waits, their timeouts and their end. Not the responses: see ``handlers.produce``. Nothing
polls: the partition calls each request back once its offset is committed or never will be, and the
metadata once they show a newer resize epoch. Each connection has at most 256 Produce requests here
(``network.limits``).

A request with a batch of an older resize epoch is refused for good, but the response waits, for
``SHOWN_WITHIN_MS`` at most, until this broker's metadata show the newer one: the client asks this
broker next, and without the wait it would ask again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.metadata.shown_epochs import ShownEpochs
    from tidelog.broker.partitions.partition import HostedPartition

SHOWN_WITHIN_MS = 1_000
"""Longest wait of a refused producer for the metadata of this broker."""

MOST_WAIT_TO_SEE = 1_000
"""Most topics of Produce requests that wait so at a time; others are refused at once."""


class DelayedProduce:
    """A Produce request with acks=all whose records are appended and not yet committed, or one that
    was refused for its resize epoch.

    ``future`` is done with ``response`` when each partition of it is committed, or has moved away
    (NOT_LEADER_OR_FOLLOWER), or has too small an ISR (NOT_ENOUGH_REPLICAS_AFTER_APPEND), or the
    time is over: then what is missing says REQUEST_TIMED_OUT.
    """

    __slots__ = (
        "_finishing",
        "_missing",
        "_places",
        "_timer",
        "_unseen",
        "_unseen_timer",
        "future",
        "response",
    )

    def __init__(
        self,
        response: Any,
        waiting: Sequence[tuple[HostedPartition, int, Any]],
        timeout_ms: int,
        finishing: Callable[[Any], Any] | None = None,
        unseen: Sequence[UnseenEpoch] = (),
    ) -> None:
        """``waiting``: partition, last offset appended, the partition's part of ``response``.

        ``finishing`` is given the response before it is answered. ``unseen``: the resize epochs
        that it waits for beside.
        """
        loop = asyncio.get_running_loop()
        self.response = response
        self._finishing = finishing
        self.future: asyncio.Future[Any] = loop.create_future()
        self._missing = {id(answer): answer for _, _, answer in waiting}
        self._unseen = dict.fromkeys(unseen)
        self._unseen_timer: asyncio.TimerHandle | None = None
        self._timer = loop.call_later(max(0, timeout_ms) / 1000, self._time_out)
        self.future.add_done_callback(self._leave)
        self._places = [
            (partition, last_offset, partial(self._committed, answer))
            for partition, last_offset, answer in waiting
        ]
        for partition, last_offset, on_commit in self._places:
            partition.when_committed(last_offset, on_commit, patient=False)
        if unseen:
            self._unseen_timer = loop.call_later(SHOWN_WITHIN_MS / 1000, self._all_seen)
            for epoch in unseen:
                epoch.join(self)

    def _committed(self, answer: Any, error: ErrorCode) -> None:
        if self._missing.pop(id(answer), None) is None:
            return
        if error is not ErrorCode.NONE:
            refuse(answer, error)
        if not self._missing:
            self._places = []
            self._finish_if_done()

    def seen(self, epoch: UnseenEpoch) -> None:
        """The metadata show one of the resize epochs that it waits for."""
        if self._unseen.pop(epoch, False) is None:
            self._finish_if_done()

    def _all_seen(self) -> None:
        for epoch in self._unseen:
            epoch.leave()
        self._unseen.clear()
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if not (self._missing or self._unseen):
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
        # A hanging commit must not collect abandoned requests: each client retries.
        for partition, last_offset, on_commit in self._places:
            partition.waiting.commits.forget(last_offset, on_commit)
        if self._unseen_timer is not None:
            self._unseen_timer.cancel()
            for epoch in self._unseen:
                epoch.leave()


class UnseenEpochs:
    """The resize epochs for which Produce requests of one broker wait."""

    def __init__(self, shown: ShownEpochs) -> None:
        self.shown = shown
        self.waiting = 0

    def of(self, topic: str, resize_epoch: int) -> UnseenEpoch | None:
        """Return an epoch to wait for; None where the metadata show it, or too many wait."""
        if self.shown.of(topic) >= resize_epoch or self.waiting >= MOST_WAIT_TO_SEE:
            return None
        return UnseenEpoch(self, topic, resize_epoch)


class UnseenEpoch:
    """One resize epoch of a topic that a refused Produce request waits for."""

    __slots__ = ("_all", "_epoch", "_place", "_request", "_topic")

    def __init__(self, among: UnseenEpochs, topic: str, resize_epoch: int) -> None:
        self._all = among
        self._topic = topic
        self._epoch = resize_epoch
        self._request: DelayedProduce | None = None
        self._place: dict[Any, None] = {}

    def join(self, request: DelayedProduce) -> None:
        """Begin to wait."""
        self._request = request
        self._all.waiting += 1
        self._stand()

    def _stand(self) -> None:
        self._place = self._all.shown.waiters(self._topic)
        self._place[self] = None

    def more(self, _size: int) -> None:
        """See ``shown_epochs.EpochWaiter``: the metadata show a newer epoch."""
        request = self._request
        if request is None:
            return
        if self._all.shown.of(self._topic) < self._epoch:
            self._stand()
            return
        self.leave()
        request.seen(self)

    def leave(self) -> None:
        """Wait no longer."""
        if self._request is not None:
            self._request = None
            self._all.waiting -= 1
            self._place.pop(self, None)


class DelayedFrame:
    """A plain Produce request of one partition whose records are appended and not yet committed.

    As ``DelayedProduce``, but ``future`` is done with the answer's bytes: most requests of busy
    clusters wait, and their answers are known when they begin to.
    """

    __slots__ = ("_frame", "_offset", "_on_commit", "_partition", "_refused", "_timer", "future")

    def __init__(
        self,
        partition: HostedPartition,
        offset: int,
        timeout_ms: int,
        frame: bytes,
        refused: Callable[[ErrorCode], bytes],
    ) -> None:
        """``frame`` is the response when ``offset`` is committed, otherwise that of ``refused``."""
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[bytes] = loop.create_future()
        self._partition = partition
        self._offset = offset
        self._frame = frame
        self._refused = refused
        self._on_commit: Callable[[ErrorCode], None] | None = self._committed
        self._timer = loop.call_later(max(0, timeout_ms) / 1000, self._time_out)
        self.future.add_done_callback(self._leave)
        partition.when_committed(offset, self._on_commit, patient=False)

    def _committed(self, error: ErrorCode) -> None:
        self._on_commit = None
        if not self.future.done():
            good = error is ErrorCode.NONE
            self.future.set_result(self._frame if good else self._refused(error))

    def _time_out(self) -> None:
        if not self.future.done():
            self.future.set_result(self._refused(ErrorCode.REQUEST_TIMED_OUT))

    def _leave(self, _: asyncio.Future[bytes]) -> None:
        self._timer.cancel()
        if self._on_commit is not None:
            self._partition.waiting.commits.forget(self._offset, self._on_commit)
            self._on_commit = None


class DelayedFrames:
    """A plain Produce request of several partitions, some of which are not yet committed.

    As ``DelayedFrame``: its answer is known when it begins to wait.
    """

    __slots__ = ("_errors", "_frame", "_missing", "_refused", "_timer", "future")

    def __init__(
        self,
        waiting: Iterable[tuple[int, HostedPartition, int]],
        timeout_ms: int,
        frame: bytes,
        refused: Callable[[dict[int, ErrorCode]], bytes],
    ) -> None:
        """``waiting``: place in the request, partition, last offset appended. ``frame`` is the
        response when all are committed, otherwise that of ``refused`` with the errors by place."""
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[bytes] = loop.create_future()
        self._frame = frame
        self._refused = refused
        self._errors: dict[int, ErrorCode] = {}
        self._missing = {
            place: (partition, last_offset, partial(self._committed, place))
            for place, partition, last_offset in waiting
        }
        self._timer = loop.call_later(max(0, timeout_ms) / 1000, self._time_out)
        self.future.add_done_callback(self._leave)
        for partition, last_offset, on_commit in list(self._missing.values()):
            partition.when_committed(last_offset, on_commit, patient=False)

    def _committed(self, place: int, error: ErrorCode) -> None:
        if self._missing.pop(place, None) is None:
            return
        if error is not ErrorCode.NONE:
            self._errors[place] = error
        if not self._missing and not self.future.done():
            errors = self._errors
            self.future.set_result(self._refused(errors) if errors else self._frame)

    def _time_out(self) -> None:
        if not self.future.done():
            late = dict.fromkeys(self._missing, ErrorCode.REQUEST_TIMED_OUT)
            self.future.set_result(self._refused(self._errors | late))

    def _leave(self, _: asyncio.Future[bytes]) -> None:
        self._timer.cancel()
        missing, self._missing = self._missing, {}
        for partition, last_offset, on_commit in missing.values():
            partition.waiting.commits.forget(last_offset, on_commit)


def refuse(answer: Any, error: ErrorCode, reason: str | None = None) -> None:
    """Turn a partition's part of a Produce response into a refusal."""
    answer.error_code = int(error)
    answer.base_offset = -1
    answer.log_append_time_ms = -1
    answer.log_start_offset = -1
    answer.error_message = reason
