"""Which partitions led here owe a data-loss handling, and which handlings are finished (KIP-704).

Owns the record of both, for the present leader epochs. Not when a handling is tried and what it
consists of: see ``handling``. Grows with the partitions that owe one.
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
    """One handling that is owed, in one leader epoch."""

    epoch: int
    ends: Sequence[LossNote] = ()
    """Where the log ended when this broker became an unclean leader."""
    due_ms: int = 0
    failures: int = 0
    is_handled: bool = False


class Debts:
    """The handlings that this broker owes."""

    def __init__(self, *, are_told: bool) -> None:
        """``are_told``: whether AlterIsr says when a handling is finished (from level 1.3 on)."""
        self._are_told = are_told
        self.owed: dict[HostedPartition, Debt] = {}

    def ends(self, partition: HostedPartition) -> Sequence[LossNote]:
        """Return where an unclean leader's log ended; nothing for a leader in sync."""
        debt = self.owed.get(partition)
        return () if debt is None else debt.ends

    def is_handled(self, partition: HostedPartition) -> bool:
        """Whether the handling is finished in this epoch, and the controller may not know yet.

        Below level 1.3 AlterIsr does not carry it: the next life at a higher level handles it anew.
        """
        if not self._are_told:
            return False
        debt = self.owed.get(partition)
        return debt is not None and debt.is_handled and debt.epoch == partition.leader_epoch

    def confirmed(self, partition: HostedPartition) -> None:
        """The controller has cleared flag and debt."""
        self.owed.pop(partition, None)
