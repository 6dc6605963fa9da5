"""Lost leaders in Metadata responses: a response waits before it names one (decision 0013).

Owns the two waits of one response. Not which leaders count as lost: see ``following.followers``.

| the response would name | it waits for |
|---|---|
| a leader whose connection to here broke | another one or its return: ``LOST_SHOWN_MS`` at most |
| the same, in a response about all topics | the same: ``LONGEST_OF_ALL_MS`` at most |
| a leader that is followed here | its response to a probe or its loss: ``NOTICED_WITHIN_MS`` |
| the same, just after the loss of some leader | no wait: clients ask because of that loss |
| this broker, none, or a leader that is not followed here | no wait |
| a leader of partitions whose ISR has no other member | no wait: no election can replace it |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from tidelog.broker.metadata.cache import MetadataCache
from tidelog.runtime.clock import Clock

NOTICED_WITHIN_MS = 50
"""How much later than clients this broker may notice the death of a leader: the kernel closes the
connections of a dead process one by one, the newest (of clients) first, and on a loaded machine it
may be interrupted meanwhile (measured: 21 ms)."""

LONGEST_MS = 1_000
"""Longest wait of one response, also when a connection breaks again and again."""

LONGEST_OF_ALL_MS = 300
"""Longest wait of a response about all topics. The controller has mostly replaced a killed leader
by then; not on an overloaded machine, nor with a larger ``broker.session.grace.ms``. A frozen one
it replaces after ``broker.silence.suspect.ms``. Few clients that ask for everything need the
partitions of these, and such clients ask again (docs/decisions/0013)."""


class Sources(Protocol):
    """The leaders that are followed here: ``following``."""

    def proofs(self, leaders: Iterable[int], /) -> Mapping[int, asyncio.Future[None]]:
        """Return a future of each leader that is followed: it has responded after this call."""

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
    *,
    of_all: bool = False,
) -> None:
    """Return when the current ``leaders`` can be named, or a longer wait would not help.

    ``leaders``: those of partitions that another replica can lead. It is called once, and again
    after each change of the metadata. ``of_all``: the client asked for all topics.
    """
    longest_ms = LONGEST_OF_ALL_MS if of_all else LONGEST_MS
    began_ms = clock.monotonic_ms()
    named = set(leaders())
    probed = {} if followers.noticed_a_loss else followers.proofs(named)
    while True:
        waited_ms = clock.monotonic_ms() - began_ms
        lost_ms = max((followers.lost_for_ms(leader) for leader in named), default=0)
        unproved = [
            proof for leader, proof in probed.items() if leader in named and not proof.done()
        ]
        if lost_ms > 0:
            left_ms = min(lost_ms, longest_ms - waited_ms)
        elif followers.noticed_a_loss or not unproved:
            return
        else:
            left_ms = NOTICED_WITHIN_MS - waited_ms
        if left_ms <= 0:
            return
        changed = metadata.changed()
        await asyncio.wait(
            (changed, *unproved), timeout=left_ms / 1000, return_when=asyncio.FIRST_COMPLETED
        )
        if changed.done():
            named = set(leaders())
        changed.cancel()
