"""Lost leaders in Metadata responses: a response waits before it names one (decision 0013).

Owns the two waits of one response. Not which leaders count as lost: see ``following.followers``.

| the response would name | it waits for |
|---|---|
| a leader whose connection to here broke | another one or its return: ``LOST_SHOWN_MS`` at most |
| a leader that is followed here | its loss or proof of life: ``NOTICED_WITHIN_MS`` at most |
| the same, just after the loss of some leader | no wait: clients ask because of that loss |
| this broker, none, or a leader that is not followed here | no wait |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from tidelog.broker.metadata.cache import MetadataCache
from tidelog.runtime.clock import Clock

NOTICED_WITHIN_MS = 50
"""How much later than clients this broker may notice the death of a leader: the kernel closes the
connections of a dead process one by one, the newest (of clients) first, and on a loaded machine it
may be interrupted meanwhile (measured: 21 ms)."""

PROOF_MS = 5
"""Interval between two checks for a leader's proof of life."""

LONGEST_MS = 1_000
"""Longest wait of one response, also when a connection breaks again and again."""


class Sources(Protocol):
    """The leaders that are followed here: ``following``."""

    def response_proofs(self) -> Callable[[int], bool]:
        """Return a function: whether a broker has responded since this call."""

    def lost_for_ms(self, leader: int, /) -> int:
        """Return how much longer a broker counts as lost; 0: it does not."""

    @property
    def noticed_a_loss(self) -> bool:
        """Whether some broker counts as lost."""


async def until_known(
    metadata: MetadataCache,
    followers: Sources,
    clock: Clock,
    leaders: Callable[[], Iterable[int]],
) -> None:
    """Return when the current ``leaders`` can be named, or a longer wait would not help.

    Calls ``leaders`` once, and again after each change of the metadata.
    """
    began_ms = clock.monotonic_ms()
    is_alive = followers.response_proofs()
    named = set(leaders())
    while True:
        waited_ms = clock.monotonic_ms() - began_ms
        lost_ms = max((followers.lost_for_ms(leader) for leader in named), default=0)
        if lost_ms > 0:
            left_ms = min(lost_ms, LONGEST_MS - waited_ms)
        elif followers.noticed_a_loss or all(map(is_alive, named)):
            return
        else:
            left_ms = min(PROOF_MS, NOTICED_WITHIN_MS - waited_ms)
        if left_ms <= 0:
            return
        changed = metadata.changed()
        await asyncio.wait((changed,), timeout=left_ms / 1000)
        if changed.done():
            named = set(leaders())
        changed.cancel()
