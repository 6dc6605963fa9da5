"""Requests of a producer that are in flight, and those that their broker leaves unanswered.

Owns which batches a request has, when a broker counts as silent, and which batches are given up
because another leader has taken over. Not their way before and after: see ``delivery``.

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

    node_id: int
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
    counts: Counter[int] = field(default_factory=Counter)
    """How many of them each broker has."""
    connecting: dict[int, float] = field(default_factory=dict)
    """When the attempt to connect to a broker began."""
    looks: int = 0
    """How many looks there were since the oldest of them is late."""
    _seen: ClusterMetadata | None = None

    def began(self, flight: Flight) -> None:
        """Count a request that was sent."""
        self.under_way.append(flight)
        self.counts[flight.node_id] += 1

    def ended(self, flight: Flight) -> None:
        """Count a request no longer: it has its response, or none will come."""
        self.under_way.remove(flight)
        self.counts[flight.node_id] -= 1

    def waits_since(self) -> float | None:
        """Return when the oldest request or attempt began that is open; None without one."""
        begun = [flight.sent_at for flight in self.under_way if flight.is_open]
        return min((*begun, *self.connecting.values()), default=None)

    def next_look(self, now: float) -> float | None:
        """Return when to look for silent brokers; None while nothing waits."""
        since = self.waits_since()
        if since is None or since + SILENT_S > now:
            self.looks = 0
            return None if since is None else since + SILENT_S
        self.looks += 1
        return now + pause_s(self.looks)

    def silent(self, now: float) -> set[int]:
        """Return the brokers that have not answered for so long, and send nothing."""
        late = {
            flight.node_id
            for flight in self.under_way
            if flight.is_open
            and flight.sent_at + SILENT_S <= now
            and not flight.connection.is_receiving
        }
        return late | {
            node_id for node_id, begun in self.connecting.items() if begun + SILENT_S <= now
        }

    def taken_over(self, view: ClusterMetadata) -> list[SendQueue]:
        """Return the queues whose batches are with a former leader, once for each metadata."""
        if view is self._seen:
            return []
        self._seen = view
        queues = dict.fromkeys(
            one.queue for flight in self.under_way for one in flight.sent if one.is_open
        )
        return [queue for queue in queues if _is_led_elsewhere(queue, view)]

    def brokers_of(self, queue: SendQueue) -> set[int]:
        """Return the brokers that have open batches of a queue."""
        return {
            flight.node_id
            for flight in self.under_way
            if any(one.queue is queue and one.is_open for one in flight.sent)
        }

    def abandoned(self) -> Iterable[int]:
        """Return the brokers of whose requests in flight no outcome depends on the response."""
        needed = {flight.node_id for flight in self.under_way if flight.is_open}
        return {flight.node_id for flight in self.under_way} - needed


def _is_led_elsewhere(queue: SendQueue, view: ClusterMetadata) -> bool:
    listed = view.partition(queue.partition)
    if listed is None or listed.leader == NO_LEADER or listed.leader not in view.brokers:
        return False
    if queue.partition_epoch not in (-1, listed.partition_epoch):
        return False
    # Without an epoch, metadata may be older than the request.
    return not queue.may_go_to(listed.leader) and listed.leader_epoch > queue.leader_epoch
