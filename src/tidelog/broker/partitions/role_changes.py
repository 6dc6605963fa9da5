"""What the registry of partitions calls after a change of a replica's role.

Owns the interface. Not the steps: see ``broker.role_steps``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition


class RoleChanges(Protocol):
    """The steps of the other parts of the broker after a change of a replica's role."""

    def become(
        self,
        partition: HostedPartition,
        /,
        *,
        led_until: int | None,
        leads_new_epoch: bool,
        is_new: bool,
    ) -> None:
        """LeaderAndIsr was applied: ``led_until`` is the epoch of a leadership that ended,
        ``leads_new_epoch`` whether this broker leads in a new epoch, ``is_new`` whether the replica
        was just created: it follows its leader from ``follow_new`` on."""

    def follow_new(self) -> None:
        """Replicas that are created together are all there."""

    def fenced(self, partition: HostedPartition, /) -> None:
        """A leader has written the fence or seal that it owed."""

    def resign(self, key: TopicPartition, led_until: int | None, /) -> None:
        """A replica no longer serves."""

    def remove(self, key: TopicPartition, /) -> None:
        """A replica will be deleted or quarantined; called after ``resign``."""


class NoSteps:
    """No steps: for a broker that is not completely assembled."""

    def become(self, *_: object, **__: object) -> None:
        """Do nothing."""

    def follow_new(self) -> None:
        """Do nothing."""

    def fenced(self, *_: object) -> None:
        """Do nothing."""

    def resign(self, *_: object) -> None:
        """Do nothing."""

    def remove(self, *_: object) -> None:
        """Do nothing."""
