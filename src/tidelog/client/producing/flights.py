"""Requests of a producer that are in flight, and those that their broker leaves unanswered.

Owns which batches a request has, when a broker counts as silent, and which batches are given up
because another leader has taken over, or because they wait for others. Not their way before and
after: see ``delivery``; not how a broker's partitions are divided: see ``lanes``.

With idempotence a batch that is given up goes to the new leader at once, under its numbers: if the
former leader has replicated it, the new one answers with its offset. What the former one appended
alone is truncated, and its late response is not read. Without idempotence a second copy could be
written, so the producer waits for the response, as long as ``request.timeout.ms``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.connecting.first_answer import SILENT_S
from tidelog.client.connecting.giving_up import pause_s
from tidelog.client.metadata import NO_LEADER, ClusterMetadata
from tidelog.client.producing.lanes import LATE_S, Lane, Lanes, is_mixed
from tidelog.client.producing.send_queue import ProducerBatch, SendQueue


class SentBatch(NamedTuple):
    """A batch in a request, and its attempt: a later one is in another request."""

    queue: SendQueue
    batch: ProducerBatch
    attempt: int

    @property
    def is_open(self) -> bool:
        """Whether the outcome of the batch depends on the response to this request."""
        return self.batch.attempts == self.attempt and self.batch in self.queue.in_flight


@dataclass(slots=True, eq=False)
class Flight:
    """A request that has no response yet."""

    lane: Lane
    connection: ClientConnection
    sent_at: float
    sent: list[SentBatch]

    @property
    def is_open(self) -> bool:
        """Whether any outcome depends on the response."""
        return any(one.is_open for one in self.sent)


@dataclass(slots=True)
class Flights:
    """The requests in flight of one producer, and its attempts to connect."""

    under_way: list[Flight] = field(default_factory=list)
    counts: Counter[Lane] = field(default_factory=Counter)
    """How many of them each connection has."""
    connecting: dict[Lane, float] = field(default_factory=dict)
    """When the attempt to connect to a broker began."""
    lanes: Lanes = field(default_factory=Lanes)
    searches: int = 0
    """How many searches there were since the oldest of them is late."""
    _seen: ClusterMetadata | None = None

    def began(self, flight: Flight) -> None:
        """Count a request that was sent."""
        self.under_way.append(flight)
        self.counts[flight.lane] += 1

    def ended(self, flight: Flight) -> None:
        """Count a request no longer: it has its response, or none will come."""
        self.under_way.remove(flight)
        self.counts[flight.lane] -= 1

    def waits_since(self) -> float | None:
        """Return when the oldest request or attempt began that is open; None without one."""
        begun = [flight.sent_at for flight in self.under_way if flight.is_open]
        return min((*begun, *self.connecting.values()), default=None)

    def next_search(self, now: float) -> float | None:
        """Return when to look for silent brokers; None while nothing waits."""
        since = self.waits_since()
        if since is None or since + SILENT_S > now:
            self.searches = 0
            return None if since is None else since + SILENT_S
        self.searches += 1
        return now + pause_s(self.searches)

    def next_late(self, now: float) -> float:
        """Return when to search next because of a response that is late."""
        soon = [f.sent_at for f in self.under_way if f.sent_at + LATE_S > now and f.is_open]
        return max(min(soon, default=now) + LATE_S, now + LATE_S / 8)

    def silent(self, now: float) -> set[int]:
        """Return the brokers that have not answered for so long, and send nothing."""
        late = {flight.lane.node_id for flight in self._late(now - SILENT_S)}
        return late | {
            lane.node_id for lane, begun in self.connecting.items() if begun + SILENT_S <= now
        }

    def late(self, now: float) -> set[int]:
        """Return the brokers with a response that is late on any of their connections."""
        return {flight.lane.node_id for flight in self._late(now - LATE_S)}

    def held_up(self, node_id: int, view: ClusterMetadata) -> list[SendQueue]:
        """Return the queues of which a batch may wait for other partitions of a broker only; none
        where all are on the same brokers."""
        queues = dict.fromkeys(
            one.queue
            for flight in self.under_way
            if flight.lane == Lane(node_id)
            for one in flight.sent
            if one.is_open
        )
        return list(queues) if is_mixed((queue.partition for queue in queues), view) else []

    def _late(self, since: float) -> Iterable[Flight]:
        return (
            flight
            for flight in self.under_way
            if flight.sent_at <= since and flight.is_open and not flight.connection.is_receiving
        )

    def taken_over(self, view: ClusterMetadata) -> list[SendQueue]:
        """Return the queues whose batches are with a former leader, once for each metadata."""
        if view is self._seen:
            return []
        self._seen = view
        queues = dict.fromkeys(
            one.queue for flight in self.under_way for one in flight.sent if one.is_open
        )
        return [queue for queue in queues if _is_led_elsewhere(queue, view)]

    def lanes_of(self, queue: SendQueue) -> set[Lane]:
        """Return the connections that have open batches of a queue."""
        return {
            flight.lane
            for flight in self.under_way
            if any(one.queue is queue and one.is_open for one in flight.sent)
        }

    def abandoned(self) -> Iterable[Lane]:
        """Return the connections with requests in flight on whose responses no outcome depends."""
        needed = {flight.lane for flight in self.under_way if flight.is_open}
        return {flight.lane for flight in self.under_way} - needed


def _is_led_elsewhere(queue: SendQueue, view: ClusterMetadata) -> bool:
    listed = view.partition(queue.partition)
    if listed is None or listed.leader == NO_LEADER or listed.leader not in view.brokers:
        return False
    if queue.partition_epoch not in (-1, listed.partition_epoch):
        return False
    # Without an epoch, metadata may be older than the request.
    return queue.is_with_another(listed.leader) and listed.leader_epoch > queue.leader_epoch
