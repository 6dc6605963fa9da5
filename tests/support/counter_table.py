"""A table of counters, the smallest that the coordinator's shell can serve, and its coordinator.

A counter grows by records in the log. A request may wait for a count (``Await``), and a counter may
lapse: its deadline removes it with a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.lone_broker import LoneBroker
from tidelog.broker.coordinator.coordinator import Coordinator
from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.broker.coordinator.table import KeptTopic, NoOwnPart, OwnPart, Shell, TableKind
from tidelog.model.effects import Answer, Effect, Note
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

TOPIC = "__counters"


@dataclass(frozen=True)
class Count:
    """The result of every request."""

    error: ErrorCode
    count: int = 0

    def refused(self, error: ErrorCode) -> Count:
        return Count(error)


@dataclass(frozen=True)
class Add:
    pending_response: PendingResponse
    amount: int
    lapses_after_ms: int | None = None


@dataclass(frozen=True)
class Await:
    """Wait until a counter has reached a count."""

    pending_response: PendingResponse
    count: int


@dataclass(frozen=True)
class Lapse:
    now_ms: int


@dataclass(frozen=True)
class CounterWrite:
    key: str
    records: tuple[tuple[str, int | None], ...]
    answers: tuple[Answer, ...] = ()


@dataclass(frozen=True)
class CounterDecision:
    effects: tuple[Effect, ...] = ()
    writes: tuple[CounterWrite, ...] = ()


class CounterTable:
    """The counters of one partition: a ``Table``."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self.unknown_records = 0
        self.calls: list[str] = []
        """The names of what the shell called, in order."""
        self.counts: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._waiting: dict[str, list[Await]] = {}
        self._deadlines: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.counts)

    def replay(self, key: Any, value: Any, now_ms: int) -> None:
        self.calls.append("replay")
        self._apply(bytes(key).decode(), None if value is None else int(bytes(value)))

    def loaded(self, now_ms: int) -> CounterDecision:
        self.calls.append("loaded")
        self._next = dict(self.counts)
        found = self.counts.items()
        return CounterDecision(
            tuple(Note("restored at %(count)d", {"counter": key, "count": at}) for key, at in found)
        )

    def decide(self, key: str, event: Add | Await | Lapse, now_ms: int) -> CounterDecision:
        self.calls.append("decide")
        if isinstance(event, Await):
            self._waiting.setdefault(key, []).append(event)
            return CounterDecision(self._reached(key))
        if isinstance(event, Lapse):
            self._deadlines.pop(key, None)
            return CounterDecision(writes=(CounterWrite(key, ((key, None),)),))
        if event.lapses_after_ms is not None:
            self._deadlines[key] = now_ms + event.lapses_after_ms
        count = self._next[key] = self._next.get(key, 0) + event.amount
        answer = Answer(event.pending_response, Count(ErrorCode.NONE, count))
        return CounterDecision(writes=(CounterWrite(key, ((key, count),), (answer,)),))

    def stored(self, write: CounterWrite, now_ms: int) -> CounterDecision:
        self.calls.append("stored")
        for key, count in write.records:
            self._apply(key, count)
        return CounterDecision((*write.answers, *self._reached(write.key)))

    def delayed(self, write: CounterWrite, error: ErrorCode, now_ms: int) -> CounterDecision:
        self.calls.append("delayed")
        return _refused(write, error)

    def lost(self, write: CounterWrite, error: ErrorCode, now_ms: int) -> CounterDecision:
        self.calls.append("lost")
        self._next[write.key] = self.counts.get(write.key, 0)
        return _refused(write, error)

    @property
    def next_deadline_ms(self) -> int | None:
        return min(self._deadlines.values(), default=None)

    def due(self, now_ms: int) -> list[str]:
        self.calls.append("due")
        return [key for key, at_ms in self._deadlines.items() if at_ms <= now_ms]

    def unload(self) -> CounterDecision:
        self.calls.append("unload")
        waiting = [each for some in self._waiting.values() for each in some]
        refused = Count(ErrorCode.NOT_COORDINATOR)
        self.counts, self._next, self._waiting, self._deadlines = {}, {}, {}, {}
        return CounterDecision(tuple(Answer(each.pending_response, refused) for each in waiting))

    def _apply(self, key: str, count: int | None) -> None:
        if count is None:
            self.counts.pop(key, None)
        else:
            self.counts[key] = count

    def _reached(self, key: str) -> tuple[Answer, ...]:
        count, waiting = self.counts.get(key, 0), self._waiting.pop(key, [])
        self._waiting[key] = [each for each in waiting if each.count > count]
        return tuple(
            Answer(each.pending_response, Count(ErrorCode.NONE, count))
            for each in waiting
            if each.count <= count
        )


def _refused(write: CounterWrite, error: ErrorCode) -> CounterDecision:
    return CounterDecision(
        tuple(Answer(each.pending_response, each.result.refused(error)) for each in write.answers)
    )


def _encode(record: tuple[str, int | None]) -> tuple[bytes, bytes | None]:
    key, count = record
    return key.encode(), None if count is None else str(count).encode()


def _refuse(event: Add | Await | Lapse, error: ErrorCode) -> None:
    if not isinstance(event, Lapse):
        event.pending_response.give(Count(error))


class Counters:
    """The counters of a lone broker. It leads with ``lead``: no controller does that for it."""

    def __init__(
        self,
        lone: LoneBroker,
        commit_timeout_ms: int = 60_000,
        own_part: Callable[[Shell[CounterTable]], OwnPart] = NoOwnPart,
    ) -> None:
        self._lone = lone
        self.kind = TableKind(
            topic=KeptTopic(TOPIC, 1, 1, {"cleanup.policy": "compact"}, ""),
            noun="counter",
            commit_timeout_ms=commit_timeout_ms,
            new_table=CounterTable,
            place=lambda key, count: len(key) % count,
            encode=_encode,
            refuse=_refuse,
            tick=Lapse,
            own_part=own_part,
        )
        broker = lone.broker
        self.coordinator = Coordinator(
            self.kind, broker.clock, broker.metadata, broker.topic_creation
        )

    def lead(self, epoch: int = 0, isr: tuple[int, ...] = (1,), **changes: Any) -> Any:
        configs = {"cleanup.policy": "compact"} | changes.pop("configs", {})
        hosted = self._lone.lead(TOPIC, 1, configs, epoch=epoch, isr=isr, replicas=isr, **changes)
        if hosted.is_leader:
            self.coordinator.lead(hosted)
        return hosted

    def resign(self, epoch: int) -> None:
        """Another broker leads from ``epoch`` on."""
        self.lead(epoch, leader=2, isr=(1, 2))
        self.coordinator.resign(TopicPartition(TOPIC, 0), epoch - 1)

    @property
    def table(self) -> CounterTable:
        (led,) = self.coordinator.led()
        return led.table

    def add(self, amount: int, key: str = "c", lapses_after_ms: int | None = None) -> Any:
        """Add to a counter; return the pending response."""
        pending_response = PendingResponse()
        self.coordinator.decide(key, Add(pending_response, amount, lapses_after_ms))
        return pending_response

    def wait_for(self, count: int, key: str = "c") -> Any:
        """Wait for a count; return the pending response."""
        pending_response = PendingResponse()
        self.coordinator.decide(key, Await(pending_response, count))
        return pending_response
