"""Alive, suspected, dead: what a broker's silence means, by given times.

Owns the session of each registered broker; elections that follow are ``elections``. Not in the
store: a new controller presumes every registered broker alive until its session times out.

| event | condition |
|---|---|
| registered, heartbeat | alive |
| its connection closed, and ``grace_ms`` passed without another | suspected |
| silent for ``timeout_ms`` | dead: it must register again |
| silent for half of it, its connection open | in doubt: nobody is buried until that is settled |

The doubt is for silences with one cause: a controller that heard nobody for a while would bury the
brokers one after another, and each would leave the ISR in favour of the next dead one, down to one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Condition(Enum):
    """What a controller believes of a broker."""

    ALIVE = "alive"
    SUSPECTED = "suspected"
    DEAD = "dead"


@dataclass
class Session:
    """When a broker was heard last, and since when its connection is closed (ms, monotonic)."""

    heard_ms: int
    closed_ms: int | None = None

    def condition(self, now_ms: int, grace_ms: int, timeout_ms: int) -> Condition:
        """Return what to believe now."""
        if now_ms - self.heard_ms >= timeout_ms:
            return Condition.DEAD
        if self.closed_ms is not None and now_ms - self.closed_ms >= grace_ms:
            return Condition.SUSPECTED
        return Condition.ALIVE

    def next_change_ms(self, now_ms: int, grace_ms: int, timeout_ms: int) -> int:
        """Return when the condition may change next if nothing is heard."""
        dies = self.heard_ms + timeout_ms
        if self.closed_ms is None or self.closed_ms + grace_ms <= now_ms:
            return dies
        return min(dies, self.closed_ms + grace_ms)


@dataclass
class Sessions:
    """The sessions of all registered brokers."""

    grace_ms: int
    timeout_ms: int
    by_broker: dict[int, Session] = field(default_factory=dict)

    def heard(self, broker: int, now_ms: int) -> None:
        """A broker registered or sent a heartbeat."""
        self.by_broker[broker] = Session(now_ms)

    def closed(self, broker: int, now_ms: int) -> None:
        """The connection of a broker's session closed."""
        session = self.by_broker.get(broker)
        if session is not None and session.closed_ms is None:
            session.closed_ms = now_ms

    def forget(self, broker: int) -> None:
        """A broker was removed from the store."""
        self.by_broker.pop(broker, None)

    def in_condition(self, wanted: Condition, now_ms: int) -> set[int]:
        """Return the brokers that are in one condition now."""
        grace, timeout = self.grace_ms, self.timeout_ms
        return {
            broker
            for broker, session in self.by_broker.items()
            if session.condition(now_ms, grace, timeout) is wanted
        }

    def to_bury(self, now_ms: int) -> set[int]:
        """Return the dead, all together, once nobody is in doubt: within half a time-out."""
        dead = self.in_condition(Condition.DEAD, now_ms)
        in_doubt = any(
            session.closed_ms is None and now_ms - session.heard_ms >= self.timeout_ms // 2
            for broker, session in self.by_broker.items()
            if broker not in dead
        )
        return set() if in_doubt else dead
