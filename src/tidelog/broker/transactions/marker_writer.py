"""Markers that this broker writes to the partitions that it leads.

Owns the append, the wait for the commit, and which markers are under way. Not which marker a log
takes: see ``transactions.markers``; not where it comes from: see ``handlers.write_txn_markers``.
Order: a marker is a success once the high watermark has passed it. Each partition waits by itself.

| partition | a marker gets |
|---|---|
| not led here, and known | NOT_LEADER_OR_FOLLOWER |
| not led here, and unknown | UNKNOWN_TOPIC_OR_PARTITION |
| its disk has failed, its log is damaged or full, its fence or seal is not written | \
KAFKA_STORAGE_ERROR |
| its ISR is below ``min.insync.replicas``, or ``MAX_IN_FLIGHT`` markers of it wait | \
NOT_ENOUGH_REPLICAS |
| of ``__consumer_offsets`` | what the groups' coordinator says, its only writer |
| any other, sealed or retired too | the rule of ``transactions.markers`` |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.groups.events import EndTransaction
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC, TopicPartition
from tidelog.records.batch import Rejected
from tidelog.records.control_records import EndMarker, marker_batch
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

Done = Callable[[ErrorCode], None]
"""Called once with the outcome: NONE when the marker is committed."""


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A marker that is written and not committed yet, and what waits for it."""

    marker: Marker
    since_ms: int
    waiting: list[Done] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Markers:
    """Those of one partition, by the producer id: a later one of the same takes the place."""

    by_producer: dict[int, _UnderWay] = field(default_factory=dict)
    in_order: dict[_UnderWay, None] = field(default_factory=dict)

    def add(self, marker: Marker, now_ms: int) -> _UnderWay:
        entry = self.by_producer[marker.producer.producer_id] = _UnderWay(marker, now_ms)
        self.in_order[entry] = None
        return entry

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

    def write(self, place: TopicPartition, marker: Marker, done: Done) -> None:
        """Write a marker to a partition; ``done`` is called now or later."""
        hosted = self._partitions.get(*place)
        if hosted is None or not hosted.is_leader:
            if hosted is not None and hosted.offline_reason is not None:
                done(ErrorCode.KAFKA_STORAGE_ERROR)
            else:
                done(self._leader_hints.why_not_here(*place))
            return
        of_partition = self._under_way.get(hosted)
        if of_partition is not None:
            present = of_partition.by_producer.get(marker.producer.producer_id)
            if present is not None and present.marker == marker:
                if len(present.waiting) < MAX_WAITING:
                    present.waiting.append(done)
                else:
                    done(ErrorCode.REQUEST_TIMED_OUT)
                return
            if len(of_partition.in_order) >= MAX_IN_FLIGHT:
                done(ErrorCode.NOT_ENOUGH_REPLICAS)
                return
        if place.topic == OFFSETS_TOPIC:
            self._write_offsets(hosted, marker, done)
        else:
            self._append(hosted, marker, done)

    def is_late(self, place: TopicPartition) -> bool:
        """Whether a partition has a marker that waits for its commit since ``LATE_MS``."""
        hosted = self._partitions.get(*place)
        of_partition = None if hosted is None else self._under_way.get(hosted)
        if of_partition is None:
            return False
        oldest = next(iter(of_partition.in_order))
        return self._clock.monotonic_ms() - oldest.since_ms >= LATE_MS

    def _append(self, hosted: HostedPartition, marker: Marker, done: Done) -> None:
        error = self._why_not_written(hosted, marker)
        if error is not ErrorCode.NONE:
            done(error)
            return
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
            done(result.error)
            return
        hosted.when_committed(result.last_offset, self._begun(hosted, marker, done))

    def _why_not_written(self, hosted: HostedPartition, marker: Marker) -> ErrorCode:
        if hosted.fence_unwritten:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if len(hosted.isr) < hosted.required_in_sync:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        entry = hosted.log.producers.entries.get(marker.producer.producer_id)
        if entry is None:
            return markers.why_refused(marker, markers.NONE, markers.NONE)
        return markers.why_refused(marker, entry.epoch, entry.coordinator_epoch)

    def _write_offsets(self, hosted: HostedPartition, marker: Marker, done: Done) -> None:
        pending = _PendingMarker(self._begun(hosted, marker, done))
        ended = EndTransaction(
            pending, *marker.producer, marker.committed, marker.coordinator_epoch
        )
        self._groups.end_transaction(hosted.partition, ended)

    def _begun(self, hosted: HostedPartition, marker: Marker, done: Done) -> Done:
        """Note that a marker is under way; return what ends that."""
        of_partition = self._under_way.setdefault(hosted, _Markers())
        entry = of_partition.add(marker, self._clock.monotonic_ms())
        entry.waiting.append(done)

        def ended(error: ErrorCode) -> None:
            of_partition.remove(entry)
            if not of_partition.in_order and self._under_way.get(hosted) is of_partition:
                del self._under_way[hosted]
            for one in entry.waiting:
                one(error)

        return ended


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
