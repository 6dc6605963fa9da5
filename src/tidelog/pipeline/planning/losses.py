"""Records that are gone before the query read them, and where it goes on.

Owns what counts as a loss (spark.md 2.4 and 3.2); whether it fails the query is the caller's
(option failOnDataLoss). A partition that was drained before it was removed is no loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.snapshot import Snapshot


class LossKind(Enum):
    """What became of the records."""

    RETENTION = "retention"
    DELETED = "deleted"
    REWOUND = "rewound"


@dataclass(frozen=True, slots=True)
class Loss:
    """`pid` stood at `position`; the log goes on at `resumes_at` (-1: nowhere)."""

    pid: Pid
    kind: LossKind
    position: int
    resumes_at: int

    def __str__(self) -> str:
        """One line, for an error or a warning."""
        if self.kind is LossKind.RETENTION:
            return (
                f"{self.pid}: offsets {self.position} to {self.resumes_at - 1} were removed"
                " before they were read (retention, compaction or DeleteRecords)"
            )
        if self.kind is LossKind.DELETED:
            return (
                f"{self.pid}: the partition is gone, or the query no longer reads it; it had been"
                f" read to {self.position}"
            )
        return (
            f"{self.pid}: the log ends at {self.resumes_at}, before the position {self.position}:"
            " its tail was cut (unclean election or restored disk), or the query began beyond it"
        )


def adjust(start: Positions, snapshot: Snapshot) -> tuple[dict[Pid, int], tuple[Loss, ...]]:
    """The positions to plan from, new partitions included, and every loss that lies behind them."""
    at: dict[Pid, int] = {}
    losses: list[Loss] = []
    for pid, position in start.at.items():
        state = snapshot.partitions.get(pid)
        if state is not None:
            at[pid] = position
        elif pid in snapshot.gone:
            if position < snapshot.gone[pid]:
                losses.append(Loss(pid, LossKind.DELETED, position, -1))
        else:
            losses.append(Loss(pid, LossKind.DELETED, position, -1))
    for pid, state in snapshot.partitions.items():
        position = at.setdefault(pid, state.first)
        if position < state.start:
            losses.append(Loss(pid, LossKind.RETENTION, position, state.start))
            at[pid] = state.start
        elif position > state.end:
            losses.append(Loss(pid, LossKind.REWOUND, position, state.end))
            at[pid] = state.end
    return at, tuple(losses)
