"""Markers that this broker writes to the partitions that it leads.

Owns the append, the wait for the commit, and which markers are under way. Not which marker a log
takes: see ``transactions.markers``; not where it comes from: see ``handlers.write_txn_markers``.
Order: a marker is a success once the high watermark has passed it. Each partition waits by itself.
A caller may leave before; if all have left, the success is kept for the one that asks next, as long
as this broker leads: otherwise a partition that is slow would get a new marker each time.

| partition | a marker gets |
|---|---|
| not led here, and known | NOT_LEADER_OR_FOLLOWER |
| not led here, and unknown | UNKNOWN_TOPIC_OR_PARTITION |
| its disk has failed, its log is damaged or full, its fence or seal is not written | \
KAFKA_STORAGE_ERROR |
| its ISR is too small for acks=all, or ``MAX_IN_FLIGHT`` markers of it wait | \
NOT_ENOUGH_REPLICAS |
| of ``__consumer_offsets`` | what the groups' coordinator says, its only writer |
| retired, and closed for its removal | NOT_LEADER_OR_FOLLOWER: soon it is unknown |
| any other, sealed or retired too | the rule of ``transactions.markers`` |

A retired partition is closed where the controller is about to remove it, and nothing of any
transaction is open in it: what a marker wrote later would take offsets that its next incarnation
begins at (decision 0144). It opens again by itself, or with the next leader epoch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.broker.partitions.in_sync import is_too_small
from tidelog.groups.events import EndTransaction
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC, TopicPartition
from tidelog.records.batch import Rejected
from tidelog.records.control_records import EndMarker, marker_batch
from tidelog.storage.log.stable import last_stable_offset
from tidelog.transactions import markers
from tidelog.transactions.markers import Marker

if TYPE_CHECKING:
    from tidelog.broker.coordinator.group_coordinator import GroupCoordinator
    from tidelog.broker.metadata.leader_hints import LeaderHints
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.runtime.clock import Clock

MAX_IN_FLIGHT = 10_000
"""Most markers of one partition that wait for its high watermark: the followers lag."""

LATE_MS = 200
"""A partition whose oldest marker waits for so long ``is_late``: no response waits for it."""

MAX_WAITING = 16
"""Most callers that wait for one marker: it is sent again, and again."""

MAX_KEPT = 10_000
"""Most successes that are kept; without one the marker is written again."""

CLOSED_MS = 60_000
"""How long a partition stays closed: the controller removes it within a third of that."""

Done = Callable[[ErrorCode], None]
"""Called once with the outcome: NONE when the marker is committed."""

Leave = Callable[[], None]
"""Wait no longer: the caller was answered with REQUEST_TIMED_OUT, or is gone."""


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A marker that is written and not committed yet, and what waits for it."""

    marker: Marker
    since_ms: int
    leadership: int
    """The epoch in which it began."""
    waiting: dict[Done, None] = field(default_factory=dict)
    was_left: bool = False

    def leave(self, done: Done) -> None:
        self.waiting.pop(done, None)
        self.was_left = True


@dataclass(slots=True, eq=False)
class _Markers:
    """Those of one partition, by the producer id: a later one of the same takes the place."""

    by_producer: dict[int, _UnderWay] = field(default_factory=dict)
    in_order: dict[_UnderWay, None] = field(default_factory=dict)

    def add(self, entry: _UnderWay) -> None:
        self.by_producer[entry.marker.producer.producer_id] = entry
        self.in_order[entry] = None

    def remove(self, entry: _UnderWay) -> None:
        self.in_order.pop(entry, None)
        producer_id = entry.marker.producer.producer_id
        if self.by_producer.get(producer_id) is entry:
            del self.by_producer[producer_id]


class MarkerWriter:
    """The markers of one broker. Used on its loop."""

    def __init__(
        self,
        partitions: Partitions,
        groups: GroupCoordinator,
        leader_hints: LeaderHints,
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._groups = groups
        self._leader_hints = leader_hints
        self._clock = clock
        self._under_way: dict[HostedPartition, _Markers] = {}
        self._kept: OrderedDict[tuple[HostedPartition, int], tuple[Marker, int]] = OrderedDict()
        """By partition and producer id: the marker, and the leadership that committed it."""
        self._closed: dict[HostedPartition, tuple[int, int]] = {}
        """By partition: in which leader epoch, and until when."""

    def close(self, hosted: HostedPartition) -> int:
        """Refuse markers for a retired partition for ``CLOSED_MS``; return where its log ends for
        good, or -1 if it may grow: then it stays open."""
        log = hosted.log
        if not (hosted.is_leader and hosted.state.sealed) or hosted.fence_unwritten:
            return -1
        # The stable end says nothing of a transaction whose records are deleted.
        if len(log.producers.transactions) or last_stable_offset(log) != log.end_offset:
            return -1
        now_ms = self._clock.monotonic_ms()
        self._closed = {x: end for x, end in self._closed.items() if now_ms < end[1]}
        self._closed[hosted] = hosted.leader_epoch, now_ms + CLOSED_MS
        return log.end_offset

    def _is_closed(self, hosted: HostedPartition) -> bool:
        epoch, until_ms = self._closed.get(hosted, (-1, 0))
        return hosted.leader_epoch == epoch and self._clock.monotonic_ms() < until_ms

    def write(self, place: TopicPartition, marker: Marker, done: Done) -> Leave:
        """Write a marker to a partition; ``done`` is called now or later, unless the caller
        leaves."""
        hosted = self._partitions.get(*place)
        if hosted is None or hosted.leadership is None:
            if hosted is not None and hosted.offline_reason is not None:
                done(ErrorCode.KAFKA_STORAGE_ERROR)
            else:
                done(self._leader_hints.why_not_here(*place))
            return _nothing
        if self._is_closed(hosted):
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return _nothing
        if self._is_kept(hosted, marker):
            done(ErrorCode.NONE)
            return _nothing
        of_partition = self._under_way.get(hosted)
        if of_partition is not None:
            present = of_partition.by_producer.get(marker.producer.producer_id)
            if present is not None and present.marker == marker:
                return _join(present, done)
            if len(of_partition.in_order) >= MAX_IN_FLIGHT:
                done(ErrorCode.NOT_ENOUGH_REPLICAS)
                return _nothing
        now_ms = self._clock.monotonic_ms()
        entry = _UnderWay(marker, now_ms, hosted.leadership.since, {done: None})
        if place.topic == OFFSETS_TOPIC:
            self._write_offsets(hosted, entry)
        elif (error := self._append(hosted, entry)) is not ErrorCode.NONE:
            done(error)
        return partial(entry.leave, done)

    def _is_kept(self, hosted: HostedPartition, marker: Marker) -> bool:
        """Whether this marker is committed, in this leadership, and no caller knows it yet."""
        kept = self._kept.pop((hosted, marker.producer.producer_id), None)
        leadership = hosted.leadership
        return kept is not None and leadership is not None and kept == (marker, leadership.since)

    def is_late(self, place: TopicPartition) -> bool:
        """Whether a partition has a marker that waits for its commit since ``LATE_MS``."""
        hosted = self._partitions.get(*place)
        of_partition = None if hosted is None else self._under_way.get(hosted)
        if of_partition is None:
            return False
        oldest = next(iter(of_partition.in_order))
        return self._clock.monotonic_ms() - oldest.since_ms >= LATE_MS

    def _append(self, hosted: HostedPartition, entry: _UnderWay) -> ErrorCode:
        marker = entry.marker
        error = self._why_not_written(hosted, marker)
        if error is not ErrorCode.NONE:
            return error
        now_ms = self._clock.wall_ms()
        batch = marker_batch(
            EndMarker(marker.committed, marker.coordinator_epoch),
            producer_id=marker.producer.producer_id,
            producer_epoch=marker.producer.epoch,
            leader_epoch=hosted.leader_epoch,
            timestamp_ms=now_ms,
        )
        result = hosted.append(batch, now_ms, from_client=False)
        if isinstance(result, Rejected):
            return result.error
        hosted.when_committed(result.last_offset, self._begun(hosted, entry))
        return ErrorCode.NONE

    def _why_not_written(self, hosted: HostedPartition, marker: Marker) -> ErrorCode:
        if hosted.fence_unwritten:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if is_too_small(hosted):
            return ErrorCode.NOT_ENOUGH_REPLICAS
        entry = hosted.log.producers.entries.get(marker.producer.producer_id)
        if entry is None:
            return markers.why_refused(marker, markers.NONE, markers.NONE)
        return markers.why_refused(marker, entry.epoch, entry.coordinator_epoch)

    def _write_offsets(self, hosted: HostedPartition, entry: _UnderWay) -> None:
        marker, pending = entry.marker, _PendingMarker(self._begun(hosted, entry))
        ended = EndTransaction(
            pending, *marker.producer, marker.committed, marker.coordinator_epoch
        )
        self._groups.end_transaction(hosted.partition, ended)

    def _begun(self, hosted: HostedPartition, entry: _UnderWay) -> Done:
        """Note that a marker is under way; return what ends that."""
        of_partition = self._under_way.setdefault(hosted, _Markers())
        of_partition.add(entry)
        return partial(self._ended, hosted, of_partition, entry)

    def _ended(
        self, hosted: HostedPartition, among: _Markers, entry: _UnderWay, error: ErrorCode
    ) -> None:
        among.remove(entry)
        if not among.in_order and self._under_way.get(hosted) is among:
            del self._under_way[hosted]
        if error is ErrorCode.NONE and entry.was_left and not entry.waiting:
            # Not if any caller receives it: the next such marker may be of the next transaction.
            self._kept[hosted, entry.marker.producer.producer_id] = entry.marker, entry.leadership
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        for done in list(entry.waiting):
            done(error)


def _join(present: _UnderWay, done: Done) -> Leave:
    if len(present.waiting) >= MAX_WAITING:
        present.was_left = True
        done(ErrorCode.REQUEST_TIMED_OUT)
        return _nothing
    present.waiting[done] = None
    return partial(present.leave, done)


def _nothing() -> None:
    pass


class _PendingMarker(PendingResponse):
    """The response of the groups' coordinator to one marker."""

    __slots__ = ("_ended",)

    def __init__(self, ended: Done) -> None:
        super().__init__()
        self._ended = ended

    def give(self, result: Any) -> None:
        if self._result is None:
            self._result = result
            self._ended(result.error)
