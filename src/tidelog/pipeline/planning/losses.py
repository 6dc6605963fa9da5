"""The meaning of a snapshot for the positions of a query: continue, hold, or records are lost.

Owns what counts as a loss (docs/design/pipeline.md). Not whether a loss fails the query: the caller
decides (option failOnDataLoss). A loss needs a proof:

    a partition, or its topic, is missing     the controller says where it ended (`former`), or
                                              another broker repeats it
    the log was truncated below the position  the leader's log ends the position's epoch before it
                                              (KIP-320); without an epoch, when it is repeated
    retention passed the position             a log start never goes back
    metadata or a leader older than the       no proof: the position is held until newer ones
    position, a partition without a response  respond

A position is kept as long as no other topic has the name. A partition that was read to the end of
its data before it was removed is not a loss; where it comes back, its position goes on where its
log had ended. One that was born and removed between two lookups is a loss if it held data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.snapshot import FormerEnd, PartitionSnapshot, Snapshot

# A partition that a growth brought begins with a control record.
_BIRTH_FENCE = 1


class LossKind(Enum):
    """How the records were lost."""

    RETENTION = "retention"
    DELETED = "deleted"
    REWOUND = "rewound"


@dataclass(frozen=True, slots=True)
class PartitionLoss:
    """`pid` stood at `position`; the log goes on at `resumes_at` (-1: nowhere).

    `replaced_by` is the id of another topic that has the name now, `was_removed` says that the
    partition was removed after a shrink.
    """

    pid: Pid
    kind: LossKind
    position: int
    resumes_at: int
    replaced_by: str = ""
    was_removed: bool = False

    def __str__(self) -> str:
        """One line, for an error or a warning."""
        if self.kind is LossKind.RETENTION:
            return (
                f"{self.pid}: offsets {self.position} to {self.resumes_at - 1} were removed"
                " before they were read (retention, compaction or DeleteRecords)"
            )
        if self.replaced_by:
            return (
                f"{self.pid}: the topic has the id {self.replaced_by}, the checkpoint is of"
                f" {self.pid.topic_id}: it was deleted and created again, or this is another"
                " cluster"
            )
        if self.was_removed:
            return (
                f"{self.pid}: the partition was removed after a shrink of its topic; it had been"
                f" read to {self.position}, and its data ended at {self.resumes_at}"
            )
        if self.kind is LossKind.DELETED:
            return f"{self.pid}: the partition is gone; it had been read to {self.position}"
        return (
            f"{self.pid}: the log ends at {self.resumes_at}, before the position {self.position}:"
            " it was truncated (unclean election or restored disk), or the query began past its end"
        )


@dataclass(slots=True)
class LossVerdict:
    """The meaning of one lookup. `at` has every position that is kept, and the new partitions.

    `readable` may be planned; `held` may not, each with its reason. `doubted` are those in `held`
    that this lookup reports as lost and that need another lookup, `behind` those with metadata
    older than the positions: another broker may have newer. `ended` are lost for good: nothing
    waits for them. `new` has the first offsets of new partitions.
    """

    at: dict[Pid, int] = field(default_factory=dict)
    readable: dict[Pid, PartitionSnapshot] = field(default_factory=dict)
    held: dict[Pid, str] = field(default_factory=dict)
    doubted: set[Pid] = field(default_factory=set)
    behind: set[Pid] = field(default_factory=set)
    ended: set[Pid] = field(default_factory=set)
    new: dict[Pid, int] = field(default_factory=dict)
    losses: list[PartitionLoss] = field(default_factory=list)


def judge(start: Positions, snapshot: Snapshot) -> LossVerdict:
    """The meaning of a snapshot for the positions `start`, and which partitions are new."""
    made = LossVerdict()
    for pid, position in start.at.items():
        made.at[pid] = position
        state = snapshot.partitions.get(pid)
        if (why := _why_unheard(pid, start, snapshot)) is not None:
            made.held[pid] = why
            if _is_older(pid.topic, start, snapshot):
                made.behind.add(pid)
        elif state is None and (former := _last_end(pid, position, snapshot)) is not None:
            _removed(made, pid, former)
        elif state is None:
            _missing(made, pid, snapshot)
        else:
            made.at[pid] = past_former(position, snapshot.former.get(pid))
            _found(made, pid, start.epoch(pid), state, snapshot)
    for pid, state in snapshot.partitions.items():
        if pid not in start.at and _may_join(pid, start, snapshot, made):
            is_known = start.topic_ids.get(pid.topic) == pid.topic_id
            # A new topic begins at its log start; a new partition of a known topic at the first
            # offset of partitions: records that retention has removed since are lost.
            made.new[pid] = made.at[pid] = state.first if is_known else state.start
            _found(made, pid, state.leader_epoch, state, snapshot)
            if pid in made.held:
                # The leader does not have its first offset yet: it joins later.
                made.doubted.discard(pid)
                del made.at[pid], made.new[pid], made.held[pid]
    for pid in snapshot.former:
        if pid not in start.at and start.topic_ids.get(pid.topic) == pid.topic_id:
            _never_seen(made, pid, start, snapshot)
    return made


def past_former(position: int, former: FormerEnd | None) -> int:
    """A position in the next incarnation of a partition: what follows its data is no data."""
    if former is not None and former.data_end <= position < former.final_offset:
        return former.final_offset
    return position


def _last_end(pid: Pid, position: int, snapshot: Snapshot) -> FormerEnd | None:
    """Where a partition that is not listed ended; None when that is not known."""
    former = snapshot.former.get(pid)
    if former is None or position > former.final_offset:
        # The end of an earlier incarnation, of a controller that was deposed.
        return None
    return former


def _removed(made: LossVerdict, pid: Pid, former: FormerEnd) -> None:
    position = made.at[pid]
    if position < former.data_end:
        made.losses.append(
            PartitionLoss(pid, LossKind.DELETED, position, former.data_end, was_removed=True)
        )
        made.at[pid] = former.final_offset


def _never_seen(made: LossVerdict, pid: Pid, start: Positions, snapshot: Snapshot) -> None:
    """A partition that ended without a position: was it born after the positions?"""
    former = snapshot.former[pid]
    missed = former.resize_epoch > start.resize_epochs.get(pid.topic, 0)
    if _why_unheard(pid, start, snapshot) is not None or not missed:
        return
    if former.data_end > _BIRTH_FENCE:
        made.losses.append(
            PartitionLoss(pid, LossKind.DELETED, 0, former.data_end, was_removed=True)
        )
    # With a position it is not reported again; its range begins where the loss does.
    if snapshot.is_removed(pid):
        made.new[pid], made.at[pid] = 0, former.final_offset
    elif pid in made.new:
        made.new[pid] = 0


def _why_unheard(pid: Pid, start: Positions, snapshot: Snapshot) -> str | None:
    """Why this lookup has no result for a partition."""
    if pid.topic in snapshot.unread:
        return snapshot.unread[pid.topic]
    if pid in snapshot.silent:
        return snapshot.silent[pid]
    if _is_older(pid.topic, start, snapshot):
        return (
            f"the metadata is older than the checkpoint: resize epoch"
            f" {snapshot.resize_epochs.get(pid.topic, 0)} after {start.resize_epochs[pid.topic]}"
        )
    return None


def _is_older(topic: str, start: Positions, snapshot: Snapshot) -> bool:
    """Whether the metadata of a topic is from before that of the positions."""
    same = topic in snapshot.topic_ids and snapshot.topic_ids[topic] == start.topic_ids.get(topic)
    known_epoch = start.resize_epochs.get(topic, 0)
    # A topic whose keys are not kept in order any more has no resize epoch.
    return same and snapshot.resize_epochs.get(topic, known_epoch) < known_epoch


def _missing(made: LossVerdict, pid: Pid, snapshot: Snapshot) -> None:
    now = snapshot.topic_ids.get(pid.topic)
    if pid not in snapshot.proven:
        made.doubted.add(pid)
        made.held[pid] = "a broker no longer knows the partition"
        return
    replaced_by = now if now is not None and now != pid.topic_id else ""
    made.losses.append(PartitionLoss(pid, LossKind.DELETED, made.at[pid], -1, replaced_by))
    made.ended.add(pid)
    if replaced_by:
        del made.at[pid]


def _found(
    made: LossVerdict, pid: Pid, epoch: int, state: PartitionSnapshot, snapshot: Snapshot
) -> None:
    position = made.at[pid]
    was_cut = 0 <= state.epoch_end < position
    if 0 <= state.leader_epoch < epoch:
        made.behind.add(pid)
        made.held[pid] = (
            f"its leader is of epoch {state.leader_epoch}, and the position of epoch {epoch}"
        )
    elif was_cut or (position > state.end and state.epoch_end < 0):
        end = state.epoch_end if was_cut else state.end
        if pid in snapshot.proven or (was_cut and 0 <= epoch < state.leader_epoch):
            made.losses.append(PartitionLoss(pid, LossKind.REWOUND, position, end))
            # Not read in this batch: its ranges follow from two offsets, and would begin at a
            # position that the log does not have.
            made.at[pid] = max(end, state.start)
        else:
            made.doubted.add(pid)
            made.held[pid] = f"its log ends at {end}, before the position {position}"
    else:
        if position < state.start:
            made.losses.append(PartitionLoss(pid, LossKind.RETENTION, position, state.start))
            made.at[pid] = state.start
        made.readable[pid] = state


def _may_join(pid: Pid, start: Positions, snapshot: Snapshot, made: LossVerdict) -> bool:
    """Whether a partition without a position may be read."""
    topic = pid.topic
    if topic in snapshot.unread or _is_older(topic, start, snapshot):
        return False
    if start.topic_ids.get(topic) == pid.topic_id:
        return True
    # Another topic than that of the positions, or a topic that joins: as a whole.
    return not any(other.topic == topic for other in (*made.doubted, *snapshot.silent))


def epochs_to_ask(start: Positions, ends: Mapping[Pid, tuple[int, int]]) -> dict[Pid, int]:
    """Whose leaders to ask where an epoch ends (KIP-320), and which.

    `ends` has each partition's readable end and leader epoch. A position of an earlier epoch may
    have been cut by the leader of a later one. One beyond the end is held against the whole log.
    """
    asked = {}
    for pid, (end, leader_epoch) in ends.items():
        if pid not in start.at or leader_epoch < 0:
            continue
        epoch = start.epoch(pid)
        if 0 <= epoch < leader_epoch:
            asked[pid] = epoch
        elif start.at[pid] > end and epoch <= leader_epoch:
            asked[pid] = leader_epoch
    return asked
