"""What follows in the parts of a broker when the role of a replica has changed.

Owns the order of the steps; each is the part's own. A step that fails is logged: it keeps neither
the other steps nor another partition's command from being carried out, for the role has changed.

| event | steps, in this order |
|---|---|
| a LeaderAndIsr was applied (``become``) | a leadership ended: the coordinators' table goes |
| | a leadership began: ISR changes, reports of losses and fences, the coordinators' table |
| | in each case: the data-loss handling, the fetcher that follows the leader |
| all new replicas of a request are there (``follow_new``) | their fetchers |
| a fence was written later (``fenced``) | its report |
| a replica serves no longer (``resign``) | its handling, its fetcher; of a leader the table |
| a replica goes (``remove``), after ``resign`` | the notes of what it lost |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVarTuple

from tidelog.broker.control_plane.fence_reports import FenceReports
from tidelog.broker.control_plane.isr_changes import IsrChanges
from tidelog.broker.data_loss.handling import DataLoss
from tidelog.broker.data_loss.loss_reports import LossReports
from tidelog.broker.following.followers import Followers
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.topics import TopicPartition

logger = logging.getLogger(__name__)

Of = TypeVarTuple("Of")


class Coordinates(Protocol):
    """A coordinator, or what decides whether there is one now."""

    def lead(self, hosted: HostedPartition, /) -> None:
        """This broker leads a partition, of any topic, in a new epoch."""

    def resign(self, key: TopicPartition, epoch: int, /) -> None:
        """This broker led a partition up to a leader epoch."""


class RoleSteps:
    """The steps of one broker. ``Partitions`` calls them, after the change of the role."""

    def __init__(
        self,
        isr_changes: IsrChanges,
        loss_reports: LossReports,
        fence_reports: FenceReports,
        coordinators: Sequence[Coordinates],
        data_loss: DataLoss,
        followers: Followers,
    ) -> None:
        self._isr_changes = isr_changes
        self._loss_reports = loss_reports
        self._fence_reports = fence_reports
        self._coordinators = coordinators
        self._data_loss = data_loss
        self._followers = followers

    def become(
        self,
        partition: HostedPartition,
        *,
        led_until: int | None,
        leads_new_epoch: bool,
        is_new: bool,
    ) -> None:
        """A LeaderAndIsr was applied. ``led_until`` is the epoch of a leadership that ended;
        ``leads_new_epoch``: this broker leads in a new epoch, also where it led before.
        ``is_new``: the replica was just created; it fetches from ``follow_new`` on."""
        if led_until is not None:
            self._resign(partition.key, led_until)
        if leads_new_epoch:
            _do(self._isr_changes.began, partition)
            _do(self._loss_reports.began, partition)
            _do(self._fence_reports.began, partition)
            for coordinator in self._coordinators:
                _do(coordinator.lead, partition)
        _do(self._data_loss.applied, partition)
        _do(self._followers.created if is_new else self._followers.applied, partition)

    def follow_new(self) -> None:
        """The commands that create replicas together have been applied."""
        for partition in self._followers.taken_new():
            _do(self._followers.applied, partition)

    def fenced(self, partition: HostedPartition) -> None:
        """A leader has written the fence or seal that it owed, when its disk had room again."""
        _do(self._fence_reports.began, partition)

    def resign(self, key: TopicPartition, led_until: int | None) -> None:
        """A replica serves no longer: it was stopped, or its log or disk failed. ``led_until`` is
        the epoch in which this broker led it, None of a follower."""
        _do(self._data_loss.stopped, key)
        _do(self._followers.stopped, key)
        if led_until is not None:
            self._resign(key, led_until)

    def _resign(self, key: TopicPartition, led_until: int) -> None:
        for coordinator in self._coordinators:
            _do(coordinator.resign, key, led_until)

    def remove(self, key: TopicPartition) -> None:
        """A replica goes: its log will be deleted or quarantined."""
        _do(self._loss_reports.removed, key)


def _do(step: Callable[[*Of], None], *of: *Of) -> None:
    try:
        step(*of)
    except Exception:
        logger.exception("%r failed", step)
