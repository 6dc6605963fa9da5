"""The planner's snapshot of the log.

Owns the model only. The ends are those of the metadata's resize epoch: no record after a fence of a
newer one lies before them, so the gates that metadata give are all that matter
(docs/design/pipeline.md). Not the rule of gates: see `partitioning.gates`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from tidelog.partitioning.audit_rules import TopicCounts
from tidelog.partitioning.gates import Gate
from tidelog.pipeline.planning.positions import UNKNOWN_EPOCH, Pid

UNKNOWN_END = -1


@dataclass(frozen=True, slots=True)
class FormerEnd:
    """Where a removed partition ended: its data, and its log; the next incarnation goes on there.

    A reader at or past `data_end` has lost nothing. `resize_epoch` is that of the removal.
    """

    data_end: int
    final_offset: int
    resize_epoch: int = 0


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """One partition: `start` is the log start, `end` the readable end (exclusive).

    `first` is where this incarnation began: 0, or where the one before it had ended. `leader_epoch`
    is that of the leader which named the end. `epoch_end` is where the log of that leader ends the
    epoch of the query's position, or its own epoch when that of the position is not known or not
    older; -1 when it was not asked or cannot say (KIP-320). A partition that `is_retired` takes no
    records.
    """

    start: int
    end: int
    first: int = 0
    leader_epoch: int = UNKNOWN_EPOCH
    epoch_end: int = UNKNOWN_END
    is_retired: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All partitions that a query reads, from one lookup.

    `resize_epochs`: of topics whose keys keep their order over resizes; others have none. `gates`:
    of the partitions of resized topics, by number. `former`: where removed partitions ended, also
    those that have come back since. `silent`: partitions that exist, but whose ends are unknown,
    each with the reason; `unread`: the same for whole topics. `proven`: positions that several
    lookups, through several brokers, report as lost (see `losses`).
    """

    topic_ids: Mapping[str, str]
    partitions: Mapping[Pid, PartitionSnapshot]
    former: Mapping[Pid, FormerEnd] = field(default_factory=dict)
    gates: Mapping[str, Mapping[int, Sequence[Gate]]] = field(default_factory=dict)
    resize_epochs: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, TopicCounts] = field(default_factory=dict)
    silent: Mapping[Pid, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    proven: Set[Pid] = frozenset()

    def is_removed(self, pid: Pid) -> bool:
        """Whether a partition was removed and has not come back."""
        return pid in self.former and pid not in self.partitions and pid not in self.silent

    def first_offset(self, pid: Pid) -> int:
        """Where a partition is read from that was not there before."""
        state = self.partitions.get(pid)
        return state.first if state else 0
