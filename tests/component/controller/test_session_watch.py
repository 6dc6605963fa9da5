"""The watch of broker sessions: the time at which silence is judged."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from tidelog.controller.session_watch import SessionWatch


class Asked:
    """Sessions of which one broker is silent; what time they are asked about."""

    def __init__(self, *, dead: bool) -> None:
        self.dead = dead
        self.at_ms: list[int] = []

    def without_connection(self, now_ms: int) -> set[int]:
        return set()

    def silent(self, now_ms: int, _places: object, _own: object) -> set[int]:
        return set() if self.dead else self._asked(now_ms)

    def to_expire(self, now_ms: int) -> set[int]:
        return self._asked(now_ms) if self.dead else set()

    def suspect(self, brokers: set[int]) -> None:
        assert not brokers

    def _asked(self, now_ms: int) -> set[int]:
        # The controller handles what arrived while it listened as of that time.
        self.at_ms.append(now_ms)
        return {1} if len(self.at_ms) == 1 else set()


@pytest.mark.parametrize("dead", [False, True], ids=["silent", "dead"])
def test_after_listening_the_sessions_are_judged_as_of_then(dead: bool) -> None:
    """Section 4: judged by the time before, a broker silent since then would not be in doubt."""
    sessions, clock = Asked(dead=dead), [1_000]
    watch = SessionWatch.__new__(SessionWatch)
    watch.sessions = sessions  # type: ignore[assignment]
    watch._controller = SimpleNamespace(  # type: ignore[assignment]
        cluster=SimpleNamespace(suspected=set(), brokers={}),
        store=SimpleNamespace(reachable=True),
        channels=SimpleNamespace(sender=SimpleNamespace(inter_broker_listener="PLAINTEXT")),
        configs=SimpleNamespace(is_broker=False),
    )
    watch._without_store = False
    watch._check = lambda: None  # type: ignore[method-assign]
    watch._now_ms = lambda: clock[0]  # type: ignore[method-assign]

    async def listen() -> None:
        clock[0] += 300

    watch._listen = listen  # type: ignore[method-assign]
    asyncio.run(watch.judge())
    assert sessions.at_ms == [1_000, 1_300]
