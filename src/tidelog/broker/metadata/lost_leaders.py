"""When a Metadata answer may name its leaders: a lost one is waited out first (decision 0013).

Owns the two waits of one answer; what counts as lost is ``follower_fetcher``'s, who leads is the
controller's.

| the answer would name | it waits for |
|---|---|
| a leader whose connection to here broke | another or its return: ``LOST_SHOWN_MS`` at most |
| a leader that is followed here | its loss or proof that it lives: ``NOTICED_WITHIN_MS`` at most |
| that, when some loss was noticed a moment ago | nothing: it is what clients ask about |
| this broker, none, or one that is not followed here | nothing |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

NOTICED_WITHIN_MS = 50
"""How much later than its clients this broker may notice that a leader was killed: the kernel
closes a dead process's connections one by one, the newest (clients') first, and on a loaded machine
the process loses its turn on the way (21 ms were seen)."""

PROOF_MS = 5
"""How often one looks whether a leader has proved that it lives."""

LONGEST_MS = 1_000
"""Longest wait of one answer, also when a connection breaks again and again."""


async def until_known(broker: Broker, leaders: Callable[[], Iterable[int]]) -> None:
    """Return when the ``leaders`` of now can be named, or when waiting longer would not help.

    They are asked for once, and once more for each change meanwhile.
    """
    clock, followers = broker.clock, broker.followers
    began_ms = clock.monotonic_ms()
    lives = followers.proofs_of_life()
    named = set(leaders())
    while True:
        waited_ms = clock.monotonic_ms() - began_ms
        lost_ms = max((followers.lost_for_ms(leader) for leader in named), default=0)
        if lost_ms > 0:
            left_ms = min(lost_ms, LONGEST_MS - waited_ms)
        elif followers.noticed_a_loss or all(map(lives, named)):
            return
        else:
            left_ms = min(PROOF_MS, NOTICED_WITHIN_MS - waited_ms)
        if left_ms <= 0:
            return
        changed = broker.metadata.changed()
        await asyncio.wait((changed,), timeout=left_ms / 1000)
        if changed.done():
            named = set(leaders())
        changed.cancel()
