"""Lines about followed partitions that pause: one for all with the same reason, and not each time.

Owns what is logged. Not the pauses: see ``source_fetcher``.
"""

from __future__ import annotations

import logging

from tidelog.model.topics import TopicPartition

logger = logging.getLogger(__name__)


class PauseLines:
    """The pauses of the partitions of one leader that are not logged yet."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._unlogged: dict[tuple[str, int], list[TopicPartition]] = {}

    def add(self, key: TopicPartition, why: str, times: int) -> None:
        """Note a pause, the ``times``-th in a row of its partition."""
        if not times & (times - 1):
            # The 1st, 2nd, 4th … failure: a lasting error must not fill the log.
            self._unlogged.setdefault((why, times), []).append(key)

    def log(self) -> None:
        """Log the new pauses: one line for all partitions with the same reason."""
        unlogged, self._unlogged = self._unlogged, {}
        for (why, times), keys in unlogged.items():
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            logger.info(
                "%(partition)s%(more)s from broker %(leader)d: %(why)s (%(times)d)",
                {
                    "partition": keys[0],
                    "more": more,
                    "leader": self._source,
                    "why": why,
                    "times": times,
                    "partitions": len(keys),
                },
            )
