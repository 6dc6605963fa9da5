"""Which marker goes to which leader next, and which are durable: the plan of one broker's sender.

Owns what waits, what is in flight, pauses, and the order. Pure: the time and the leaders come from
its caller, ``broker.transactions.marker_sender``, which does the I/O.

| a partition | its markers |
|---|---|
| has a leader | are ready for it, and taken in its next batches |
| answered with an error | wait ``PAUSE_MS`` to ``MOST_PAUSE_MS``, or until it has another leader |
| has another leader now | are ready for that one, also those in flight to the former |
| has no leader | wait until it has one |
| is not known | a question for the caller after each pause: one that does not exist, as the \
controller says after the decision, has nothing that is open |
| refused a marker for its epochs | that one is sent again after ``FENCED_PAUSE_MS``; others go on |

- Each transaction is done when all of its partitions were a success or do not exist, once.
- A batch takes ``SHARE`` partitions of each transaction in turn, so that one of very many holds no
  other up; and a partition that waits holds up nothing but its own markers.
- ``MAX_ENTRIES`` markers of partitions are expanded; later transactions wait in their order.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.transactions.markers import Marker

UNKNOWN, NO_LEADER = -2, -1
"""The leader of a partition that the metadata do not have, and of one without a leader."""

SHARE = 16
"""Partitions of one transaction that a batch takes before the next transaction has its turn."""

MAX_ENTRIES = 200_000
"""Most markers of partitions that are expanded, and those of one transaction more: 40 MB."""

PAUSE_MS, MOST_PAUSE_MS = 20, 1_000
"""After an error. The first is about how long UpdateMetadata comes after LeaderAndIsr."""

FENCED_PAUSE_MS = 10_000
"""A coordinator that is fenced will soon be stopped; if it is not, an operator sees the line."""

MOST_QUESTIONS = 100
"""Partitions that one call asks about."""

_FENCED = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED))


@dataclass(slots=True, eq=False)
class Sending:
    """The markers of one transaction."""

    state_partition: int
    marker: Marker
    partitions: Sequence[TopicPartition]
    token: Any
    """The caller's."""
    left: int = 0


@dataclass(slots=True, eq=False)
class MarkedPartition:
    """One partition, and the transactions that have a marker for it."""

    where: TopicPartition
    leader: int
    since_ms: int
    """When the oldest of its markers came, or its last success."""
    sendings: dict[Sending, MarkerBatch | None] = field(default_factory=dict)
    """In which batch each is in flight; None: it waits."""
    paused_until_ms: int | None = None
    failures: int = 0
    error: ErrorCode = ErrorCode.NONE
    """The last one."""


@dataclass(slots=True, eq=False)
class MarkerBatch:
    """Markers for partitions of one leader, in the order of a request."""

    leader: int
    entries: list[tuple[Sending, MarkedPartition]] = field(default_factory=list)

    def grouped(self) -> list[tuple[Marker, list[tuple[str, list[int]]]]]:
        """Return the partitions by marker and topic, as a request names them. The entries are in
        its order then."""
        by_sending: dict[Sending, dict[str, list[MarkedPartition]]] = {}
        for sending, place in self.entries:
            topics = by_sending.setdefault(sending, {})
            topics.setdefault(place.where.topic, []).append(place)
        self.entries = [
            (sending, place)
            for sending, topics in by_sending.items()
            for places in topics.values()
            for place in places
        ]
        return [
            (sending.marker, [(topic, [x.where.partition for x in ps]) for topic, ps in ts.items()])
            for sending, ts in by_sending.items()
        ]


@dataclass(frozen=True, slots=True)
class Question:
    """Does this partition exist? If not, these transactions have nothing there."""

    where: TopicPartition
    sendings: tuple[Sending, ...]


class MarkerPlan:
    """The markers of all transactions that a broker ends. Times are of a clock that never steps."""

    def __init__(self, leader_of: Callable[[TopicPartition], int]) -> None:
        """``leader_of`` returns the present leader, ``NO_LEADER`` or ``UNKNOWN``."""
        self._leader_of = leader_of
        self._places: dict[TopicPartition, MarkedPartition] = {}
        self._sendings: dict[int, dict[Sending, None]] = {}
        """By the partition of the coordinator."""
        self._later: deque[Sending] = deque()
        """Those that are not expanded yet."""
        self._ready: dict[int, OrderedDict[Sending, deque[MarkedPartition]]] = {}
        """By leader, in turn. What is no longer so is skipped when it is taken."""
        self._due: list[tuple[int, int, MarkedPartition, Sending | None]] = []
        """A heap of pauses, of a whole partition or of one refused marker."""
        self._number = count()
        self.entries = 0
        """Markers of partitions that are not durable, of the transactions that are expanded."""

    def __len__(self) -> int:
        return sum(map(len, self._sendings.values()))

    @property
    def places(self) -> Iterable[MarkedPartition]:
        """The partitions with markers, to be read only."""
        return self._places.values()

    @property
    def next_ms(self) -> int | None:
        """When to call ``due``; None where nothing pauses."""
        return self._due[0][0] if self._due else None

    def leaders(self) -> list[int]:
        """Return the leaders for which something may be ready."""
        return [leader for leader, ring in self._ready.items() if ring]

    # What comes and goes -------------------------------------------------------------------

    def add(
        self,
        state_partition: int,
        marker: Marker,
        partitions: Sequence[TopicPartition],
        token: Any,
        now_ms: int,
    ) -> bool:
        """Add a transaction; return False if it has no partitions: then it is done."""
        named = tuple(dict.fromkeys(partitions))
        if not named:
            return False
        sending = Sending(state_partition, marker, named, token, len(named))
        self._sendings.setdefault(state_partition, {})[sending] = None
        self._later.append(sending)
        self._expand(now_ms)
        return True

    def stop(self, state_partition: int, now_ms: int) -> None:
        """Forget all transactions of one partition of the coordinator."""
        for sending in self._sendings.pop(state_partition, ()):
            self._forget(sending)
            for where in sending.partitions:
                place = self._places.get(where)
                if place is not None and sending in place.sendings:
                    self._remove(place, sending)
        self._later = deque(x for x in self._later if x.state_partition != state_partition)
        self._expand(now_ms)

    def moved(self, now_ms: int) -> None:
        """The metadata have changed: markers go to the present leaders."""
        for place in self._places.values():
            leader = self._leader_of(place.where)
            if leader == place.leader:
                continue
            place.leader, place.failures = leader, 0
            place.sendings = dict.fromkeys(place.sendings)
            self._release(place, now_ms)

    def due(self, now_ms: int) -> list[Question]:
        """Let what has paused for long enough go on; return what the caller is to find out."""
        questions: list[Question] = []
        while self._due and self._due[0][0] <= now_ms and len(questions) < MOST_QUESTIONS:
            until_ms, _, place, sending = heappop(self._due)
            if self._places.get(place.where) is not place:
                continue
            if sending is not None:
                if place.sendings.get(sending, self) is None and place.paused_until_ms is None:
                    self._push(place, sending)
            elif place.paused_until_ms == until_ms:
                place.leader = self._leader_of(place.where)
                if place.leader == UNKNOWN:
                    questions.append(Question(place.where, tuple(place.sendings)))
                self._release(place, now_ms)
        return questions

    # Batches -------------------------------------------------------------------------------

    def take(self, leader: int, most: int) -> MarkerBatch | None:
        """Return a batch of what is ready for a leader, of ``most`` partitions at most."""
        ring = self._ready.get(leader)
        batch = MarkerBatch(leader)
        while ring and len(batch.entries) < most:
            sending, places = ring.popitem(last=False)
            share = min(SHARE, most - len(batch.entries))
            while places and share:
                place = places.popleft()
                is_ready = place.leader == leader and place.paused_until_ms is None
                # None: it is there and waits.
                if is_ready and place.sendings.get(sending, self) is None:
                    place.sendings[sending] = batch
                    batch.entries.append((sending, place))
                    share -= 1
            if places:
                ring[sending] = places
        return batch if batch.entries else None

    def answered(
        self, batch: MarkerBatch, answers: Iterable[tuple[int, ErrorCode]], now_ms: int
    ) -> list[Sending]:
        """Take the errors of entries of a batch, by their places in it; return the transactions
        that are done."""
        done: list[Sending] = []
        for number, error in answers:
            sending, place = batch.entries[number]
            if error is ErrorCode.NONE:
                # Also if it is on its way to another leader by now: it is committed.
                if sending in place.sendings:
                    place.failures, place.since_ms = 0, now_ms
                    done += self._succeed(place, sending)
            elif place.sendings.get(sending) is batch:
                place.sendings[sending] = None
                place.error = error
                if error in _FENCED:
                    self._pause(place, now_ms + FENCED_PAUSE_MS, sending)
                elif place.paused_until_ms is None:
                    self._pause_place(place, now_ms)
        self._expand(now_ms)
        return done

    def lost(self, batch: MarkerBatch, now_ms: int) -> None:
        """A batch has no response: its markers are ready again, or go to the next leader."""
        for sending, place in batch.entries:
            if place.sendings.get(sending) is not batch:
                continue
            place.sendings[sending] = None
            place.error = ErrorCode.NETWORK_EXCEPTION
            if place.paused_until_ms is None:
                self._place_again(place, sending, now_ms)

    def gone(self, question: Question, now_ms: int) -> list[Sending]:
        """A partition does not exist; return the transactions that are done."""
        place = self._places.get(question.where)
        done: list[Sending] = []
        for sending in question.sendings:
            if place is not None and sending in place.sendings:
                done += self._succeed(place, sending)
        self._expand(now_ms)
        return done

    # Steps ---------------------------------------------------------------------------------

    def _expand(self, now_ms: int) -> None:
        while self._later and self.entries < MAX_ENTRIES:
            sending = self._later.popleft()
            self.entries += len(sending.partitions)
            for where in sending.partitions:
                place = self._places.get(where)
                if place is None:
                    leader = self._leader_of(where)
                    place = self._places[where] = MarkedPartition(where, leader, now_ms)
                place.sendings[sending] = None
                if place.paused_until_ms is None:
                    self._place_again(place, sending, now_ms)

    def _place_again(self, place: MarkedPartition, sending: Sending, now_ms: int) -> None:
        if place.leader < 0:
            self._pause_place(place, now_ms)
        else:
            self._push(place, sending)

    def _release(self, place: MarkedPartition, now_ms: int) -> None:
        """Let all waiting markers of a partition go to its leader, if it has one."""
        place.paused_until_ms = None
        for sending in _waiting(place):
            if place.leader < 0:
                self._pause_place(place, now_ms)
                break
            self._push(place, sending)

    def _push(self, place: MarkedPartition, sending: Sending) -> None:
        ring = self._ready.setdefault(place.leader, OrderedDict())
        places = ring.get(sending)
        if places is None:
            places = ring[sending] = deque()
        places.append(place)

    def _pause_place(self, place: MarkedPartition, now_ms: int) -> None:
        pause_ms = min(MOST_PAUSE_MS, PAUSE_MS << min(place.failures, 10))
        place.failures += 1
        place.paused_until_ms = now_ms + pause_ms
        self._pause(place, now_ms + pause_ms, None)

    def _pause(self, place: MarkedPartition, until_ms: int, sending: Sending | None) -> None:
        heappush(self._due, (until_ms, next(self._number), place, sending))

    def _succeed(self, place: MarkedPartition, sending: Sending) -> list[Sending]:
        self._remove(place, sending)
        sending.left -= 1
        if sending.left:
            return []
        self._forget(sending)
        of_partition = self._sendings[sending.state_partition]
        del of_partition[sending]
        if not of_partition:
            del self._sendings[sending.state_partition]
        return [sending]

    def _forget(self, sending: Sending) -> None:
        # The ring of a leader that nothing is taken for would keep it.
        for ring in self._ready.values():
            ring.pop(sending, None)

    def _remove(self, place: MarkedPartition, sending: Sending) -> None:
        self.entries -= 1
        del place.sendings[sending]
        if not place.sendings:
            del self._places[place.where]


def _waiting(place: MarkedPartition) -> Iterator[Sending]:
    return (sending for sending, batch in place.sendings.items() if batch is None)
