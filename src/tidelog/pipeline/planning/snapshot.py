"""What the planner knows of the log at one moment.

Owns the model only: metadata is asked before the ends, so that no gate lies beyond an end
(spark.md 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog.pipeline.planning.positions import Pid


@dataclass(frozen=True, slots=True)
class Gate:
    """From `offset` on, only after each of `needs` was read up to its offset (KIP-253)."""

    resize_epoch: int
    offset: int
    needs: tuple[tuple[Pid, int], ...]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition: `start` is the log start, `end` the readable end (exclusive).

    `first` is where this life of the partition began: 0, or the continued offset.
    """

    start: int
    end: int
    first: int = 0
    gates: tuple[Gate, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All partitions that a query reads; `gone` are removed lives with their final offset."""

    topic_ids: Mapping[str, str]
    partitions: Mapping[Pid, PartitionState]
    gone: Mapping[Pid, int] = field(default_factory=dict)

    def first_offset(self, pid: Pid) -> int:
        """Where a partition is read from that was not there before."""
        state = self.partitions.get(pid)
        return state.first if state else 0
