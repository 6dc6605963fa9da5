"""Broker sessions: alive, suspected or dead, by the time since the last sign of life.

Owns the session of each registered broker. The elections that follow: see ``elections``. Sessions
are not in the store: a new controller presumes every registered broker alive until its session
times out.

| event | condition |
|---|---|
| registered, heartbeat | alive |
| its connection closed, and ``grace_ms`` passed without another | suspected |
| silent for ``silence_ms`` on an open connection, no other broker in doubt | suspected |
| so are all brokers in doubt, of one machine, and heartbeats of another arrive | suspected |
| silent for ``HURRIED`` of ``silence_ms``, without a response that others just gave | suspected |
| silent for half of ``silence_ms`` on an open connection, not suspected | in doubt |
| known from an earlier controller, not registered here yet | alive, and not in doubt |
| registered, without a response yet | the same |
| silent for ``timeout_ms`` | dead: it must register again |
| silent for half of it, its connection open | no session expires until that is settled |
| the controller's own loop was blocked | every suspicion counts from that moment |
| the store did not answer, and does again | the same; without a connection: ``seek_ms`` later |

Doubts are for silences with one cause (decisions 0010, 0033, 0121): a controller that received
nothing for a while would suspect, or expire, the brokers one after another, and each would leave
the ISR in favour of the next one, until one is left.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

CHECKS = 8
"""The number of checks of the event loop in ``silence_ms``."""

HURRIED = 3 / 8
"""The share of ``silence_ms`` after which a broker is suspected for which a closed resize waits, if
it has not responded to a request that the others have responded to (docs/decisions/0136). More than
the longest interval of heartbeats, a third."""

STILL_PARTS = 4
"""A loop without a check for this part of ``silence_ms`` was blocked: a heartbeat of that time may
be unread."""


DUE_PARTS = 3
"""A heartbeat comes each part of this number of ``silence_ms``, or sooner."""


class Proofs(NamedTuple):
    """What the responses of brokers to the controller's requests show.

    ``missing`` are all live brokers that have not responded to the request in question. ``ages_ms``
    has how long ago the newest request was sent that each broker responded to.
    """

    missing: Set[int]
    ages_ms: Mapping[int, float]


class Condition(Enum):
    """What a controller believes of a broker."""

    ALIVE = "alive"
    SUSPECTED = "suspected"
    DEAD = "dead"


class BrokerPlace(NamedTuple):
    """The machine of a broker: brokers of the same ``broker.rack`` and the same host share one.

    The text alone may name a zone of many machines, and the host alone an address translator.
    """

    rack: str
    host: str


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a controller waits, in ms. Unless ``silence_ms < timeout_ms`` no broker is suspected
    for its silence: its session expires first."""

    grace_ms: int
    silence_ms: int
    timeout_ms: int

    @property
    def check_ms(self) -> int:
        """The pause between two checks of the event loop."""
        return max(1, self.silence_ms // CHECKS)


@dataclass
class BrokerSession:
    """The last sign of life of a broker, and when its connection closed (ms, monotonic).

    A suspicion counts the silence after ``counted_ms``. A ``presumed`` broker has no connection to
    this controller yet, or waits for its registration response: it sends no heartbeats. A
    ``suspected`` one stays so until its next sign of life.
    """

    received_ms: int
    closed_ms: int | None = None
    counted_ms: int = -1
    presumed: bool = False
    suspected: bool = False

    def __post_init__(self) -> None:
        self.counted_ms = max(self.counted_ms, self.received_ms)

    def condition(self, now_ms: int, patience: Patience) -> Condition:
        """Return the condition now."""
        if now_ms - self.received_ms >= patience.timeout_ms:
            return Condition.DEAD
        closed = self.closed_ms is not None and now_ms - self.closed_ms >= patience.grace_ms
        return Condition.SUSPECTED if closed or self.suspected else Condition.ALIVE

    def silent_ms(self, now_ms: int) -> int:
        """Return how long it is silent on an open connection, as far as a suspicion counts that; 0
        for a broker that cannot be suspected for its silence."""
        if self.closed_ms is not None or self.presumed or self.suspected:
            return 0
        return now_ms - self.counted_ms

    def is_in_doubt(self, now_ms: int, patience: Patience) -> bool:
        """Return whether its silence may become a suspicion."""
        if self.condition(now_ms, patience) is not Condition.ALIVE:
            return False
        return self.silent_ms(now_ms) >= patience.silence_ms // 2

    def next_change_ms(self, judged_ms: int, patience: Patience) -> int:
        """Return when to judge it again after ``judged_ms`` without a sign of life."""
        dies = self.received_ms + patience.timeout_ms
        if self.closed_ms is not None:
            suspected = self.closed_ms + patience.grace_ms
            return min(dies, suspected) if suspected > judged_ms else dies
        if self.presumed or self.suspected or patience.silence_ms >= patience.timeout_ms:
            return dies
        doubted = self.counted_ms + patience.silence_ms // 2
        suspected = self.counted_ms + patience.silence_ms
        if doubted > judged_ms:
            return min(dies, doubted)
        # After that only the doubt about another broker holds the suspicion back.
        return min(dies, suspected if suspected > judged_ms else judged_ms + patience.check_ms)


@dataclass
class Sessions:
    """The sessions of all registered brokers."""

    patience: Patience
    by_broker: dict[int, BrokerSession] = field(default_factory=dict)
    settled_ms: int | None = None
    """When the last doubt ended: other brokers in doubt, if alive, give a sign a moment later."""

    checked_ms: int | None = None
    """The last check of the event loop."""

    def presume(self, broker: int, now_ms: int) -> None:
        """Begin the session of a broker that registered with an earlier controller."""
        self.by_broker[broker] = BrokerSession(now_ms, presumed=True)

    def received(self, broker: int, now_ms: int, *, is_answered: bool = True) -> None:
        """Note a heartbeat or a registration; until that ``is_answered`` a broker sends none."""
        self._settle(broker, now_ms)
        self.by_broker[broker] = BrokerSession(now_ms, presumed=not is_answered)

    def closed(self, broker: int, now_ms: int) -> None:
        """Note that the connection of a broker's session closed."""
        session = self.by_broker.get(broker)
        if session is not None and session.closed_ms is None:
            self._settle(broker, now_ms)
            session.closed_ms = now_ms

    def forget(self, broker: int) -> None:
        """End the session of a broker that was removed from the store."""
        self.by_broker.pop(broker, None)

    def clear(self) -> None:
        """End all sessions: this controller is no longer active."""
        self.by_broker.clear()
        self.settled_ms = self.checked_ms = None

    def check(self, now_ms: int) -> int:
        """Check the event loop. Return how long it was blocked, in ms; 0 if it was not.

        Heartbeats of that time may be unread: every suspicion counts from now, and every session
        lasts that much longer.
        """
        before, self.checked_ms = self.checked_ms, now_ms
        stood_ms = 0 if before is None else now_ms - before
        if stood_ms < max(1, self.patience.silence_ms // STILL_PARTS):
            return 0
        for broker, session in self.by_broker.items():
            self.by_broker[broker] = replace(
                session,
                received_ms=min(now_ms, session.received_ms + stood_ms),
                counted_ms=now_ms,
                closed_ms=None if session.closed_ms is None else now_ms,
            )
        return stood_ms

    def excuse(self, now_ms: int, seek_ms: int) -> None:
        """Count every silence from now: until now this controller refused heartbeats.

        A broker without a connection has ``seek_ms`` to come back before its grace begins.
        """
        for broker, session in self.by_broker.items():
            self.by_broker[broker] = replace(
                session,
                received_ms=now_ms,
                counted_ms=now_ms,
                closed_ms=None if session.closed_ms is None else now_ms + seek_ms,
            )

    def in_condition(self, wanted: Condition, now_ms: int) -> set[int]:
        """Return the brokers that are in one condition now."""
        return {
            broker
            for broker, session in self.by_broker.items()
            if session.condition(now_ms, self.patience) is wanted
        }

    def without_connection(self, now_ms: int) -> set[int]:
        """Return the brokers that are suspected now because their connection is closed."""
        suspected = self.in_condition(Condition.SUSPECTED, now_ms)
        return {x for x in suspected if not self.by_broker[x].suspected}

    def in_doubt(self, now_ms: int) -> set[int]:
        """Return the brokers with an open connection that are silent for half of ``silence_ms``."""
        return {
            broker
            for broker, session in self.by_broker.items()
            if session.is_in_doubt(now_ms, self.patience)
        }

    def silent(
        self, now_ms: int, places: Mapping[int, BrokerPlace], own: BrokerPlace | None = None
    ) -> set[int]:
        """Return the brokers to suspect now for their silence: one, all silent ones of one machine,
        or none.

        While a broker elsewhere is in doubt the controller itself may be the cause. When a doubt
        has ended, other brokers that were in doubt have half of ``silence_ms`` for a sign of life.
        ``places`` has the machine of each broker with a rack, ``own`` is that of this controller
        if it is known.
        """
        silence_ms = self.patience.silence_ms
        if silence_ms >= self.patience.timeout_ms:
            return set()
        doubted = self.in_doubt(now_ms)
        if len(doubted) != 1 and not self._is_of_one_machine(doubted, now_ms, places, own):
            return set()
        if self.settled_ms is not None and now_ms - self.settled_ms < silence_ms // 2:
            return set()
        # Together: one after another would leave an ISR in favour of the next.
        is_over = all(self.by_broker[x].silent_ms(now_ms) >= silence_ms for x in doubted)
        return doubted if is_over else set()

    def silent_to_requests(
        self,
        now_ms: int,
        proofs: Proofs,
        places: Mapping[int, BrokerPlace],
        own: BrokerPlace | None = None,
    ) -> set[int]:
        """Return the brokers to suspect now for their silence to heartbeats and to a request.

        Signs of life of all others show that the cause is not the controller, if they are from
        after the time at which the heartbeat was due that did not come.
        """
        patience, unproved = self.patience, proofs.missing
        alive = self.in_condition(Condition.ALIVE, now_ms)
        if patience.silence_ms >= patience.timeout_ms or not unproved or not alive - unproved:
            return set()
        if not unproved <= alive:
            return set()
        if len(unproved) != 1 and not self._is_of_one_machine(unproved, now_ms, places, own):
            return set()
        shortest_ms = min(self.by_broker[x].silent_ms(now_ms) for x in unproved)
        if shortest_ms < patience.silence_ms * HURRIED:
            return set()
        due_ms = shortest_ms - patience.silence_ms / DUE_PARTS
        for other in alive - unproved:
            heartbeat_ms = now_ms - self.by_broker[other].received_ms
            if min(heartbeat_ms, proofs.ages_ms.get(other, math.inf)) > due_ms:
                return set()
        return set(unproved)

    def suspect(self, brokers: Collection[int]) -> None:
        """Mark brokers as suspected until their next sign of life; they hold back no suspicion."""
        for broker in brokers:
            self.by_broker[broker].suspected = True

    def to_expire(self, now_ms: int) -> set[int]:
        """Return all dead brokers once no broker is in doubt: within half a session time-out."""
        dead = self.in_condition(Condition.DEAD, now_ms)
        in_doubt = any(
            session.closed_ms is None
            and now_ms - session.received_ms >= self.patience.timeout_ms // 2
            for broker, session in self.by_broker.items()
            if broker not in dead
        )
        return set() if in_doubt else dead

    def _is_of_one_machine(
        self,
        doubted: Set[int],
        now_ms: int,
        places: Mapping[int, BrokerPlace],
        own: BrokerPlace | None,
    ) -> bool:
        """Return whether all these brokers share a machine, and heartbeats of another rack arrive.

        Those from the controller's own machine prove nothing about its network.
        """
        machines = {places.get(broker) for broker in doubted}
        shared = machines.pop() if len(machines) == 1 else None
        if shared is None:
            return False
        return any(
            session.closed_ms is None
            and not session.presumed
            and not session.suspected
            and (place := places.get(broker)) is not None
            and place.rack != shared.rack
            and place != own
            and session.condition(now_ms, self.patience) is Condition.ALIVE
            for broker, session in self.by_broker.items()
        )

    def _settle(self, broker: int, now_ms: int) -> None:
        session = self.by_broker.get(broker)
        if session is not None and session.is_in_doubt(now_ms, self.patience):
            self.settled_ms = now_ms
