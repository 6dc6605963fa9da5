"""Markers that clients ask for: which of them a leader writes, by what all coordinators say.

Owns the questions for one request, and that each verdict holds for the transaction that was asked
about. Not the verdict: see ``transactions.hanging``; not how coordinators are asked: see
``hanging_checks``; not how a marker is written: see ``marker_writer``.

A marker names a producer and no transaction, and its leader does not know the other partitions. So
one that no coordinator has decided would commit or abort a part of a live transaction.

| what is open in the log of the partition | the marker of a client |
|---|---|
| nothing of this producer | is a success, and is not written: there is nothing to end |
| a transaction of another epoch | gets INVALID_PRODUCER_EPOCH |
| another transaction than before the question | gets CONCURRENT_TRANSACTIONS |
| the same one | ``transactions.hanging.of_client`` |

Source: KIP-664. Kafka's leader writes each marker that comes, also into a live transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog.broker.transactions.hanging_checks import transaction_of
from tidelog.model.errors import ErrorCode
from tidelog.transactions.hanging import OpenInLog, StateOfId, of_client

if TYPE_CHECKING:
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.broker.transactions.hanging_checks import HangingChecks
    from tidelog.model.topics import TopicPartition
    from tidelog.transactions.markers import Marker

MOST_REQUESTS = 16
"""Requests of clients that wait for coordinators at once; more get COORDINATOR_NOT_AVAILABLE."""

MOST_PRODUCERS = 1_000
"""Producers of one request; those of a larger one get INVALID_REQUEST."""

Open = tuple[int, OpenInLog | None]
"""The leadership of a partition, and what is open in its log of a producer."""


class Verdicts:
    """What becomes of the markers of one request."""

    def __init__(
        self,
        partitions: Partitions,
        noted: dict[tuple[TopicPartition, int], Open],
        states: dict[int, list[StateOfId] | None],
        error: ErrorCode = ErrorCode.NONE,
    ) -> None:
        self._partitions = partitions
        self._noted = noted
        self._states = states
        self._error = error

    def of(self, place: TopicPartition, marker: Marker) -> Marker | ErrorCode:
        """Return the answer to a marker, or what is to be written before anything else."""
        if self._error is not ErrorCode.NONE:
            return self._error
        producer_id = marker.producer.producer_id
        now = open_in(self._partitions, place, producer_id)
        if now is None:
            return marker  # The writer names the error.
        before, (_, transaction) = self._noted.get((place, producer_id)), now
        if transaction is None:
            return ErrorCode.NONE
        if transaction.producer != marker.producer:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if before != now:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return of_client(marker, transaction, place, self._states[producer_id])


class AskedMarkers:
    """The requests of clients to one broker."""

    def __init__(self, partitions: Partitions, checks: HangingChecks) -> None:
        self._partitions = partitions
        self._checks = checks
        self._waiting = 0

    async def judged(self, wanted: Iterable[tuple[TopicPartition, int]]) -> Verdicts:
        """Ask all coordinators about producer ids in partitions; return the verdicts."""
        noted = {
            each: now for each in wanted if (now := open_in(self._partitions, *each)) is not None
        }
        producer_ids = {
            producer_id for (_, producer_id), (_, present) in noted.items() if present is not None
        }
        if not producer_ids:
            return Verdicts(self._partitions, noted, {})
        if len(producer_ids) > MOST_PRODUCERS:
            return Verdicts(self._partitions, {}, {}, ErrorCode.INVALID_REQUEST)
        if self._waiting >= MOST_REQUESTS:
            return Verdicts(self._partitions, {}, {}, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._waiting += 1
        try:
            states = await self._checks.states(producer_ids)
        finally:
            self._waiting -= 1
        return Verdicts(self._partitions, noted, states)


def open_in(partitions: Partitions, place: TopicPartition, producer_id: int) -> Open | None:
    """Return what a producer has open in a partition that this broker leads; None elsewhere."""
    hosted = partitions.get(*place)
    if hosted is None or hosted.leadership is None:
        return None
    entry = hosted.log.producers.entries.get(producer_id)
    return hosted.leadership.since, None if entry is None else transaction_of(entry)
