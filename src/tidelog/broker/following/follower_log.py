"""Application of a fetch response to a followed partition: truncate, append, watermark, log start.

Owns the order of these steps. Not the truncation offset: see ``replication.truncation``. A thread
does the slow pieces of a truncation; until all are done, the partition keeps its role and its
leader (``log_work``).

| response | effect |
|---|---|
| a diverging epoch | truncate; watermark and log start do not change; fetch again |
| a diverging epoch, and the cut is not above the leader's log start | an empty log at the cut |
| records | append them unchanged; then take the leader's watermark and log start |
| OFFSET_OUT_OF_RANGE, the leader's log starts after our log end | an empty log at its log start |
| records whose first batch begins before an empty log | the log begins with that batch |
| the same, and all our records are before the leader's log start | the log begins with that batch |
| any other error, a corrupt batch, a disk failure | pause the partition |

A leader whose log starts after an epoch returns its log start as the end of that epoch. The real
end, and with it the part of the epoch that both logs share, is unknown: none of it is kept.

Where a log begins again, the fences below its beginning are the leader's (KIP-253): nothing begins
before they are known.

Before a truncation removes committed records, a note of them is synced; they are reported
(KIP-704), with the committed records that a power loss had taken after them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tidelog.client.errors import error_code
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.records.batch import Buffer, Rejected, walk
from tidelog.replication.truncation import Cut, where_to_cut
from tidelog.storage.log.fences import Fences
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended
from tidelog.storage.log.retention import ROLL_WAITS

if TYPE_CHECKING:
    from tidelog.broker.data_loss.loss_notes import LossNote
    from tidelog.broker.data_loss.loss_reports import LossReports
    from tidelog.broker.partitions.partition import HostedPartition

logger = logging.getLogger(__name__)


def diverges(part: Any) -> bool:
    """Whether a ``FetchResponse.PartitionData`` has a diverging epoch."""
    diverging = part.diverging_epoch
    if part.error_code or diverging is None:
        return False
    return bool(diverging.epoch >= 0 or diverging.end_offset >= 0)


def committed_cut(partition: HostedPartition, part: Any) -> tuple[int, int] | None:
    """Return the committed offsets, first and end, that the truncation of a response removes."""
    cut = _where(partition, part.diverging_epoch.epoch, part.diverging_epoch.end_offset)
    if not cut.below_watermark or cut.offset >= partition.log.end_offset:
        return None
    return max(cut.offset, partition.log.start_offset), _committed_end(partition.log)


def _committed_end(log: PartitionLog) -> int:
    """Return the highest end of committed records that this log had. A power loss took records
    after its end, so a leader that diverges before it lacks them, too (docs/decisions/0047)."""
    return max(log.high_watermark, log.watermark_note.known)


def begins_again(partition: HostedPartition, part: Any) -> bool:
    """Whether the log of a resized partition begins again with a response: then ``take_in`` needs
    the leader's fences below its beginning."""
    log = partition.log
    if partition.state.resize_epoch <= 0:
        return False
    if part.error_code:
        return bool(part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE)
    if diverges(part):
        epoch, end_offset = part.diverging_epoch.epoch, part.diverging_epoch.end_offset
        return _where(partition, epoch, end_offset).offset <= int(part.log_start_offset)
    return bool(part.records) and _beginning(log, part.records, part.log_start_offset) is not None


def take_in(
    partition: HostedPartition,
    part: Any,
    now_ms: int,
    losses: LossReports,
    noted: Collection[LossNote] = (),
    fences: Fences | None = None,
) -> Work[str | None] | str | None:
    """Apply a ``FetchResponse.PartitionData`` to a followed partition, in pieces.

    ``noted``: the loss notes on disk for the truncations of this response. ``fences``: the
    leader's, if the log ``begins_again``. The pieces return why the partition should pause, or
    None; where no thread is needed, as nearly always, that is returned at once. The request must
    have had the present log end and leader epoch.
    """
    log = partition.log
    if (
        part.error_code
        or part.diverging_epoch is not None
        or not part.log_start_offset < log.end_offset
        or log.start_offset == log.end_offset
    ):
        if fences is None and begins_again(partition, part):
            return "the leader's fences are not known yet"
        return _in_pieces(partition, part, now_ms, losses, noted, fences)
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
    fences: Fences | None,
) -> Work[str | None]:
    if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return (yield from _start_over(partition, part.log_start_offset, now_ms, fences))
    if part.error_code:
        return error_code(part.error_code).name
    if diverges(part):
        return (yield from _cut(partition, part, now_ms, losses, noted, fences))
    records = part.records
    result: Appended | Rejected | None = None
    if records:
        refused = None
        begins_at = _beginning(partition.log, records, part.log_start_offset)
        if begins_at is not None:
            refused = yield from partition.log.restart(begins_at, now_ms, fences=fences)
        result = refused or (yield from _append(partition.log, records, now_ms))
    return _taken_over(partition, part, result)


def _after_roll(partition: HostedPartition, part: Any, now_ms: int) -> Work[str | None]:
    rest = _append(partition.log, part.records, now_ms, ROLL_WAITS)
    return _taken_over(partition, part, (yield from rest))


def _append(
    log: PartitionLog, records: Buffer, now_ms: int, so_far: Rejected | None = None
) -> Work[Appended | Rejected]:
    """Append, or continue an append that returned ``ROLL_WAITS``: part of it may be in the log."""
    result = so_far or log.append_as_follower(records, now_ms, waits=True)
    while result is ROLL_WAITS:
        refused = yield from log.syncing_before_roll()
        if refused is not None:
            return refused
        end = log.end_offset
        # The batches before the roll are in the log: once is enough.
        rest = next((start for start, header in walk(records) if header.base_offset >= end), 0)
        result = log.append_as_follower(memoryview(records)[rest:], now_ms, waits=True)
    return result


def _taken_over(
    partition: HostedPartition, part: Any, appended: Appended | Rejected | None
) -> str | None:
    """Take the leader's watermark and log start, unless the append (None: no records) failed."""
    if isinstance(appended, Rejected):
        partition.check_disk()
        return appended.reason
    log = partition.log
    partition.replicated(0 if appended is None else len(part.records), part.high_watermark)
    if part.log_start_offset > log.start_offset:
        # Its own watermark may lag: the rest comes with the next response.
        log.advance_start(min(part.log_start_offset, log.high_watermark))
    return None


def _beginning(log: PartitionLog, records: Buffer, leader_start: int) -> int | None:
    """Return where an empty log begins again with the first batch: the leader's log start may be
    inside of it. None where it goes on.

    Also a log that ends inside of that batch and before the leader's log start: its last records
    are of another leader.
    """
    if log.start_offset != log.end_offset and log.end_offset > leader_start:
        return None
    for _, header in walk(records):
        if header.base_offset < log.end_offset <= header.last_offset:
            return header.base_offset
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
    fences: Fences | None,
) -> Work[str | None]:
    log = partition.log
    epoch, end_offset = part.diverging_epoch.epoch, part.diverging_epoch.end_offset
    cut = _where(partition, epoch, end_offset)
    if cut.offset >= log.end_offset:
        return f"the leader's epoch {epoch} ends at {end_offset}, but there is nothing to truncate"
    # Read before the cut, which lowers both.
    first, end = max(cut.offset, log.start_offset), _committed_end(log)
    if cut.below_watermark:
        # The note is durable first: a crash in between would make the loss a silent one (KIP-704).
        why = yield from losses.before_cut(partition, first, end, noted)
        if why is not None:
            return f"the records lost by a truncation to {cut.offset} cannot be noted: {why}"
        logger.error(
            "%(partition)s: committed records from offset %(from_offset)d to %(to_offset)d are "
            "lost: the leader of epoch %(leader_epoch)d lacks them",
            {
                "partition": partition.key,
                "from_offset": first,
                "to_offset": end - 1,
                "leader_epoch": partition.leader_epoch,
            },
        )
    logger.info(
        "%(partition)s: truncated from %(from_offset)d to %(to_offset)d",
        {"partition": partition.key, "from_offset": log.end_offset, "to_offset": cut.offset},
    )
    # Nothing that a cut would leave is in the leader's log any more.
    if cut.offset <= part.log_start_offset:
        restarted = yield from log.restart(cut.offset, now_ms, fences=fences)
        refused = _refused(partition, restarted)
    else:
        refused = _refused(partition, (yield from log.truncation(cut.offset, now_ms)))
    if refused is None and cut.below_watermark:
        losses.after_cut(first, end)
    return refused


def _start_over(
    partition: HostedPartition, leader_start: int, now_ms: int, fences: Fences | None
) -> Work[str | None]:
    log = partition.log
    is_empty = log.start_offset == log.end_offset
    if leader_start < 0 or (log.end_offset >= leader_start and not is_empty):
        # The log end is within the leader's log: such an error must not remove records.
        return f"the leader refuses offset {log.end_offset}, its log begins at {leader_start}"
    if log.end_offset == leader_start:
        return f"the leader refuses offset {leader_start}, where its log begins"
    logger.info(
        "%(partition)s: starting over from %(from_offset)d to %(to_offset)d",
        {"partition": partition.key, "from_offset": log.end_offset, "to_offset": leader_start},
    )
    return _refused(partition, (yield from log.restart(leader_start, now_ms, fences=fences)))


def _refused(partition: HostedPartition, result: Rejected | None) -> str | None:
    if result is None:
        return None
    partition.check_disk()
    return result.reason
