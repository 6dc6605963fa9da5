"""The planner's snapshot of the log.

Owns the model only. Metadata is read before the ends, so that no gate is after an end
(docs/design/pipeline.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from tidelog.pipeline.planning.positions import UNKNOWN_EPOCH, Pid

UNKNOWN_END = -1


@dataclass(frozen=True, slots=True)
class Gate:
    """From `offset` on, only after each of `needs` was read up to its offset (KIP-253)."""

    resize_epoch: int
    offset: int
    needs: tuple[tuple[Pid, int], ...]


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """One partition: `start` is the log start, `end` the readable end (exclusive).

    `first` is where this partition began: 0, or the continued offset. `leader_epoch` is that of
    the leader which named the end. `epoch_end` is where the log of that leader ends the epoch of
    the query's position, or its own epoch when that of the position is not known or not older; -1
    when it was not asked or cannot say (KIP-320).
    """

    start: int
    end: int
    first: int = 0
    gates: tuple[Gate, ...] = ()
    leader_epoch: int = UNKNOWN_EPOCH
    epoch_end: int = UNKNOWN_END


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All partitions that a query reads, from one lookup.

    `gone`: removed partitions with their final offsets; `gone_gates`: their gates, from the fences
    of the partitions they need. `silent`: partitions that exist, but whose ends are unknown, each
    with the reason; `unread`: the same for whole topics. `proven`: positions that several lookups,
    through several brokers, report as lost (see `losses`).
    """

    topic_ids: Mapping[str, str]
    partitions: Mapping[Pid, PartitionSnapshot]
    gone: Mapping[Pid, int] = field(default_factory=dict)
    gone_gates: Mapping[Pid, tuple[Gate, ...]] = field(default_factory=dict)
    resize_epochs: Mapping[str, int] = field(default_factory=dict)
    silent: Mapping[Pid, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    proven: Set[Pid] = frozenset()

    def first_offset(self, pid: Pid) -> int:
        """Where a partition is read from that was not there before."""
        state = self.partitions.get(pid)
        return state.first if state else 0
