"""Positions of the application that reads: after what it has got, not after what was fetched.

Owns them where a consumer returns fetched pieces record by record. Not what is fetched: see
``fetching.fetcher``; not what is not returned yet: see ``fetching.record_queue``.
"""

from __future__ import annotations

from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.groups.reader_hooks import ReaderHooks
from tidelog.model.topics import TopicPartition


class ReaderPositions:
    """The positions of one reader."""

    def __init__(self, fetcher: Fetcher, hooks: ReaderHooks) -> None:
        self._fetcher = fetcher
        self._hooks = hooks

    def all(self) -> dict[TopicPartition, int]:
        """Return the position in each partition that has one."""
        positions = self._fetcher.positions()
        for tp, place in self._hooks.undelivered().items():
            if tp in positions:
                positions[tp] = place.offset
        return positions

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before a position; -1 for any other offset."""
        epoch = self._hooks.epoch_before(partition, offset)
        return epoch if epoch >= 0 else self._fetcher.epoch_before(partition, offset)

    def set(self, partition: TopicPartition, offset: int, epoch: int = -1) -> None:
        """Go on at an offset of a partition that has a position."""
        self._hooks.drop([partition])
        self._fetcher.seek(partition, offset, epoch)

    def take_back(self, *, beyond_gates: bool) -> None:
        """Take back what the application has not got: all, or what a gate that has shut forbids."""
        limits = self._fetcher.gates
        fetched = self._fetcher.positions()
        for tp, place in self._hooks.undelivered().items():
            if tp not in fetched or (
                beyond_gates and not (tp in limits and fetched[tp] > limits[tp])
            ):
                continue
            self.set(tp, place.offset, place.leader_epoch)
