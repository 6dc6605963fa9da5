"""The queue of one broker's copies: how many targets of reassignments fetch at once, and which.

Owns the order as a plain rule; times are given by the caller. Not the fetches: see
`broker.following.copies`. Without a limit a plan of a thousand partitions would take the disks and
the network from the partitions that serve.

| event | effect |
|---|---|
| a target is assigned | it waits; the smallest of those that wait begin while there is a place |
| it had no progress for ``STALLED_MS`` | its place goes to the next; it waits after all others |
| it has caught up | its place is free; it is fetched on, without one |
| a target is assigned no longer, or has joined the ISR | it leaves the queue |

A copy without progress keeps its place while no other waits. Each event costs O(log waiting).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

STALLED_MS = 10_000


@dataclass(slots=True)
class _Waiting:
    """A copy that waits: in its round, smaller ones come first, then those that came first."""

    rounds: int
    size: int
    number: int


@dataclass(slots=True)
class CopyTurn(Generic[Key]):
    """What changes now: copies that begin, and copies that lose their place."""

    begin: list[Key] = field(default_factory=list)
    end: list[Key] = field(default_factory=list)


class CopyQueue(Generic[Key]):
    """The copies of one broker."""

    def __init__(self) -> None:
        self._waiting: dict[Key, _Waiting] = {}
        self._order: list[tuple[int, int, int, Key]] = []
        """A heap; entries that are not in ``_waiting`` as they are here are void."""
        self._running: dict[Key, int] = {}
        """When each copy had progress last."""
        self._rounds: dict[Key, int] = {}
        """How often a copy that is known has lost its place."""
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def waiting(self) -> int:
        """How many copies have no place."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many copies have a place."""
        return len(self._running)

    def __contains__(self, key: Key) -> bool:
        return key in self._waiting or key in self._running

    def has_place(self, key: Key) -> bool:
        """Whether a copy may fetch."""
        return key in self._running

    def add(self, key: Key, size: int) -> None:
        """Let a copy of ``size`` bytes wait; one that is known stays as it is."""
        if key not in self:
            self._wait(key, size)

    def _wait(self, key: Key, size: int) -> None:
        self._numbers += 1
        rounds = self._rounds.get(key, 0)
        self._waiting[key] = _Waiting(rounds, size, self._numbers)
        heappush(self._order, (rounds, size, self._numbers, key))

    def remove(self, key: Key) -> None:
        """Forget a copy: it has caught up, or is a target no longer."""
        self._waiting.pop(key, None)
        self._running.pop(key, None)
        self._rounds.pop(key, None)

    def progressed(self, key: Key, now_ms: int) -> None:
        """Note that a copy has received records."""
        if key in self._running:
            self._running[key] = now_ms

    def turn(self, limit: int, now_ms: int) -> CopyTurn[Key]:
        """Give places to those that wait, at most ``limit`` in all. O(running), and O(log waiting)
        for each that begins."""
        turn: CopyTurn[Key] = CopyTurn()
        stalled = sorted(
            (since_ms, position, key)
            for position, (key, since_ms) in enumerate(self._running.items())
            if now_ms - since_ms >= STALLED_MS
        )
        free = max(0, limit - len(self._running))
        for _, _, key in stalled[: max(0, len(self._waiting) - free)]:
            del self._running[key]
            # One more than any copy that waits now: after all of them.
            highest = max(waiting.rounds for waiting in self._waiting.values())
            self._rounds[key] = max(highest, self._rounds.get(key, 0)) + 1
            turn.end.append(key)
        while self._waiting and len(self._running) < limit:
            rounds, size, number, key = heappop(self._order)
            if self._waiting.get(key) == _Waiting(rounds, size, number):
                del self._waiting[key]
                self._running[key] = now_ms
                turn.begin.append(key)
        for key in turn.end:
            self._wait(key, 0)
        return turn
