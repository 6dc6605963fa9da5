"""The resize epoch of each topic in this broker's metadata, and the requests that wait for a newer.

Owns the waiters by topic. Not their requests: see `partitions.delayed_produce` and
`fetching.delayed_requests`. A client that was refused for its resize epoch asks this broker for
metadata next, and would be refused again if they still showed the older one.

Each waiter is a request that some connection waits for; a request that stops waiting removes it.
"""

from __future__ import annotations

import logging
from typing import Protocol

from tidelog.broker.metadata.cache import MetadataCache

logger = logging.getLogger(__name__)

UNKNOWN = -1
"""The resize epoch of a topic that the metadata do not have."""

MOST_EMPTY = 1_000
"""So many topics without waiters are kept, and as many as there are topics with some."""


class EpochWaiter(Protocol):
    """A request that waits."""

    def more(self, size: int) -> None:
        """Check again; ``size`` is 0."""


class ShownEpochs:
    """The resize epochs that one broker shows. Used on the event loop only."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._waiters: dict[str, dict[EpochWaiter, None]] = {}
        self._most = MOST_EMPTY

    def of(self, topic: str) -> int:
        """Return the resize epoch of a topic, ``UNKNOWN`` without one."""
        listed = self._metadata.topics.get(topic)
        return UNKNOWN if listed is None else listed.resize_epoch

    def waiters(self, topic: str) -> dict[EpochWaiter, None]:
        """Return the place of the waiters of a topic; it is woken once, and then another one."""
        waiters = self._waiters.get(topic)
        if waiters is None:
            if len(self._waiters) >= self._most:
                self._waiters = {name: place for name, place in self._waiters.items() if place}
                self._most = max(MOST_EMPTY, 2 * len(self._waiters))
            waiters = self._waiters[topic] = {}
        return waiters

    def resized(self, topic: str) -> None:
        """Wake the waiters of a topic: the metadata show a newer resize epoch."""
        for waiter in list(self._waiters.pop(topic, ())):
            try:
                waiter.more(0)
            except Exception:
                logger.exception("%r failed", waiter)
