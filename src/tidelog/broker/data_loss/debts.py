"""Data-loss debts: the partitions led here that need handling, and the finished ones (KIP-704).

Owns both for the current leader epochs. Not when the handling runs, nor its routines: see
``handling``. Memory grows with the partitions that need handling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.data_loss.loss_notes import LossNote

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition


@dataclass(slots=True)
class Debt:
    """The handling that one partition needs, in one leader epoch."""

    epoch: int
    ends: Sequence[LossNote] = ()
    """Where the log ended when this broker became its unclean leader."""
    due_ms: int = 0
    failures: int = 0
    is_handled: bool = False
    is_deferred: bool = False
    """It waits for the level of the cluster, and is due once that has come."""


class Debts:
    """The data-loss debts of one broker."""

    def __init__(self, *, are_reported: bool) -> None:
        """``are_reported``: whether AlterIsr reports finished handlings (from level 1.3 on)."""
        self._are_reported = are_reported
        self.owed: dict[HostedPartition, Debt] = {}

    def ends(self, partition: HostedPartition) -> Sequence[LossNote]:
        """Return where an unclean leader's log ended; empty for a leader that was in sync."""
        debt = self.owed.get(partition)
        return () if debt is None else debt.ends

    def is_handled(self, partition: HostedPartition) -> bool:
        """Whether the handling is finished in this epoch and not yet confirmed by the controller.

        Below level 1.3 AlterIsr has no field for it: after a restart at a higher level the broker
        handles the loss again and reports it.
        """
        if not self._are_reported:
            return False
        debt = self.owed.get(partition)
        return debt is not None and debt.is_handled and debt.epoch == partition.leader_epoch

    def confirmed(self, partition: HostedPartition) -> None:
        """Drop a partition whose flag and debt the controller has cleared."""
        self.owed.pop(partition, None)
