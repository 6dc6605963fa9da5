"""What a follower does with the answer for one partition: cut, append, watermark, log start.

Owns the order of these steps; where to cut is ``replication.truncation``'s. A cut has pieces that a
thread does: until all is done, the partition keeps its role and its leader (``log_work``).

| answer | what follows |
|---|---|
| where the logs part | cut there; watermark and start are not touched; ask again |
| where the logs part, not above where the leader's log begins | an empty log from there on |
| records | appended as they are, then the leader's watermark and log start are taken over |
| OFFSET_OUT_OF_RANGE, the leader's log begins behind our end | an empty log from there on |
| records whose first batch begins before an empty log | the log begins with that batch |
| the same, and all that is here is before the leader's log | the log begins with that batch |
| any other error, a corrupt batch, a failing disk | a setback: tried again after a pause |

A leader whose log begins behind an epoch says that the epoch ended there. Where it did end, and so
what of it is the leader's, nobody knows any more: none of it stays.

Committed records that a cut takes along are noted before, durably, and reported (KIP-704), with
what a power loss had taken behind them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tidelog.client.errors import error_code
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import Buffer, Rejected, walk
from tidelog.replication.truncation import Cut, where_to_cut
from tidelog.runtime.turns import Pieces
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended
from tidelog.storage.log.retention import ROLL_WAITS

if TYPE_CHECKING:
    from tidelog.broker.data_loss.loss_notes import LossNote
    from tidelog.broker.data_loss.loss_reports import LossReports
    from tidelog.broker.partitions.partition import HostedPartition

logger = logging.getLogger(__name__)


def says_where_logs_part(part: Any) -> bool:
    """Whether a ``FetchResponse.PartitionData`` asks for a cut."""
    parting = part.diverging_epoch
    if part.error_code or parting is None:
        return False
    return bool(parting.epoch >= 0 or parting.end_offset >= 0)


def committed_cut(partition: HostedPartition, part: Any) -> tuple[int, int] | None:
    """Return the committed offsets, first and end, that go with the cut that an answer asks for."""
    cut = _where(partition, part.diverging_epoch.epoch, part.diverging_epoch.end_offset)
    if not cut.below_watermark or cut.offset >= partition.log.end_offset:
        return None
    return max(cut.offset, partition.log.start_offset), _committed_end(partition.log)


def _committed_end(log: PartitionLog) -> int:
    """Return how far a log was committed once: what a power loss took of it was after what is here,
    so a leader that parts from it before its end has none of that (docs/decisions/0047)."""
    return max(log.high_watermark, log.watermark_note.known)


def take_in(
    partition: HostedPartition,
    part: Any,
    now_ms: int,
    losses: LossReports,
    noted: Collection[LossNote] = (),
) -> Pieces[str | None] | str | None:
    """Apply a ``FetchResponse.PartitionData`` to a followed partition, in pieces.

    ``noted``: what is on disk already of what the cuts of this answer take. The pieces return why
    the partition should rest for a while, or None; where no thread has a part in it, as nearly
    always, that is returned at once. The answer must be to a question that was asked at the log's
    present end, in the present leader epoch.
    """
    log = partition.log
    if (
        part.error_code
        or part.diverging_epoch is not None
        or not part.log_start_offset < log.end_offset
        or log.start_offset == log.end_offset
    ):
        return _in_pieces(partition, part, now_ms, losses, noted)
    result: Appended | Rejected | None = None
    if part.records:
        result = log.append_as_follower(part.records, now_ms, waits=True)
        if result is ROLL_WAITS:
            return _after_roll(partition, part, now_ms)
    return _taken_over(partition, part, result)


def _in_pieces(
    partition: HostedPartition,
    part: Any,
    now_ms: int,
    losses: LossReports,
    noted: Collection[LossNote],
) -> Pieces[str | None]:
    if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return (yield from _start_over(partition, part.log_start_offset, now_ms))
    if part.error_code:
        return error_code(part.error_code).name
    if says_where_logs_part(part):
        return (yield from _cut(partition, part, now_ms, losses, noted))
    records = part.records
    result: Appended | Rejected | None = None
    if records:
        refused = yield from _begin_with(partition, records, part.log_start_offset, now_ms)
        result = refused or (yield from _append(partition.log, records, now_ms))
    return _taken_over(partition, part, result)


def _after_roll(partition: HostedPartition, part: Any, now_ms: int) -> Pieces[str | None]:
    rest = _append(partition.log, part.records, now_ms, ROLL_WAITS)
    return _taken_over(partition, part, (yield from rest))


def _append(
    log: PartitionLog, records: Buffer, now_ms: int, so_far: Rejected | None = None
) -> Pieces[Appended | Rejected]:
    """Append, or go on where ``so_far`` is ``ROLL_WAITS``: some of it may be in the log."""
    result = so_far or log.append_as_follower(records, now_ms, waits=True)
    while result is ROLL_WAITS:
        refused = yield from log.syncing_before_roll()
        if refused is not None:
            return refused
        end = log.end_offset
        rest = next((at for at, header in walk(records) if header.base_offset >= end), 0)
        result = log.append_as_follower(memoryview(records)[rest:], now_ms, waits=True)
    return result


def _taken_over(
    partition: HostedPartition, part: Any, appended: Appended | Rejected | None
) -> str | None:
    """Take over watermark and log start, if the records (None: there are none) are in the log."""
    if isinstance(appended, Rejected):
        partition.look_at_disk()
        return appended.reason
    log = partition.log
    partition.replicated(0 if appended is None else len(part.records), part.high_watermark)
    if part.log_start_offset > log.start_offset:
        log.advance_start(min(part.log_start_offset, log.high_watermark))
    return None


def _begin_with(
    partition: HostedPartition, records: Buffer, leader_start: int, now_ms: int
) -> Pieces[Rejected | None]:
    """Let an empty log begin where the first batch does: a log start may lie inside of one.

    So does a log that ends inside of it and before the leader's: its last records are another's.
    """
    log = partition.log
    if log.start_offset != log.end_offset and log.end_offset > leader_start:
        return None
    for _, header in walk(records):
        if header.base_offset < log.end_offset <= header.last_offset:
            return (yield from log.restart(header.base_offset, now_ms))
        break
    return None


def _where(partition: HostedPartition, epoch: int, end_offset: int) -> Cut:
    log = partition.log
    return where_to_cut(
        epoch,
        end_offset,
        log.end_offset_for_epoch,
        log.end_offset,
        log.start_offset,
        log.high_watermark,
    )


def _cut(
    partition: HostedPartition,
    part: Any,
    now_ms: int,
    losses: LossReports,
    noted: Collection[LossNote],
) -> Pieces[str | None]:
    log = partition.log
    epoch, end_offset = part.diverging_epoch.epoch, part.diverging_epoch.end_offset
    cut = _where(partition, epoch, end_offset)
    if cut.offset >= log.end_offset:
        return f"the leader's epoch {epoch} ends at {end_offset}, but there is nothing to cut"
    first, end = max(cut.offset, log.start_offset), _committed_end(log)
    if cut.below_watermark:
        why = yield from losses.before_cut(partition, first, end, noted)
        if why is not None:
            return f"what is lost by a cut to {cut.offset} cannot be noted: {why}"
        logger.error(
            "%(partition)s: committed records from offset %(from_offset)d to %(to_offset)d go: "
            "the leader of epoch %(leader_epoch)d lacks them",
            {
                "partition": partition.key,
                "from_offset": first,
                "to_offset": end - 1,
                "leader_epoch": partition.leader_epoch,
            },
        )
    logger.info(
        "%(partition)s: cut from %(from_offset)d to %(to_offset)d",
        {"partition": partition.key, "from_offset": log.end_offset, "to_offset": cut.offset},
    )
    if cut.offset <= part.log_start_offset:
        refused = _refused(partition, (yield from log.restart(cut.offset, now_ms)))
    else:
        refused = _refused(partition, (yield from log.truncation(cut.offset, now_ms)))
    if refused is None and cut.below_watermark:
        losses.after_cut(first, end)
    return refused


def _start_over(partition: HostedPartition, leader_start: int, now_ms: int) -> Pieces[str | None]:
    log = partition.log
    is_empty = log.start_offset == log.end_offset
    if leader_start < 0 or (log.end_offset >= leader_start and not is_empty):
        # What is here lies within the leader's log: it is not thrown away on such a word.
        return f"the leader refuses offset {log.end_offset}, its log begins at {leader_start}"
    if log.end_offset == leader_start:
        return f"the leader refuses offset {leader_start}, where its log begins"
    logger.info(
        "%(partition)s: starting over from %(from_offset)d to %(to_offset)d",
        {"partition": partition.key, "from_offset": log.end_offset, "to_offset": leader_start},
    )
    return _refused(partition, (yield from log.restart(leader_start, now_ms)))


def _refused(partition: HostedPartition, result: Rejected | None) -> str | None:
    if result is None:
        return None
    partition.look_at_disk()
    return result.reason
