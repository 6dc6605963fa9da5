"""What a follower does with the answer for one partition: cut, append, watermark, log start.

Owns the order of these steps; where to cut is ``replication.truncation``'s. Synchronous: nothing
comes between.

| answer | what follows |
|---|---|
| where the logs part | cut there; watermark and start are not touched; ask again |
| records | appended as they are, then the leader's watermark and log start are taken over |
| OFFSET_OUT_OF_RANGE, the leader's log begins behind our end | an empty log from there on |
| any other error, a corrupt batch, a failing disk | a setback: tried again after a pause |
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tidelog.client.errors import error_code
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import Rejected
from tidelog.replication.truncation import where_to_cut

if TYPE_CHECKING:
    from tidelog.broker.partition import HostedPartition

logger = logging.getLogger(__name__)


def take_in(partition: HostedPartition, part: Any, now_ms: int) -> str | None:
    """Apply a ``FetchResponse.PartitionData`` to a followed partition.

    Returns why the partition should rest for a while, or None. The answer must be to a question
    that was asked at the log's present end, in the present leader epoch.
    """
    if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return _start_over(partition, part.log_start_offset, now_ms)
    if part.error_code:
        return error_code(part.error_code).name
    parting = part.diverging_epoch
    if parting is not None and (parting.epoch >= 0 or parting.end_offset >= 0):
        return _cut(partition, parting.epoch, parting.end_offset, now_ms)
    log = partition.log
    records = part.records
    size = 0
    if records:
        result = log.append_as_follower(records, now_ms)
        if isinstance(result, Rejected):
            partition.look_at_disk()
            return result.reason
        size = len(records)
    partition.replicated(size, part.high_watermark)
    if part.log_start_offset > log.start_offset:
        log.advance_start(min(part.log_start_offset, log.high_watermark))
    return None


def _cut(partition: HostedPartition, epoch: int, end_offset: int, now_ms: int) -> str | None:
    log = partition.log
    cut = where_to_cut(
        epoch,
        end_offset,
        log.end_offset_for_epoch,
        log.end_offset,
        log.start_offset,
        log.high_watermark,
    )
    if cut.offset >= log.end_offset:
        return f"the leader's epoch {epoch} ends at {end_offset}, but there is nothing to cut"
    if cut.below_watermark:
        logger.error(
            "%s: committed records from offset %d to %d go: the leader of epoch %d lacks them",
            partition.key,
            cut.offset,
            log.high_watermark,
            partition.leader_epoch,
        )
    logger.info("%s: cut from %d to %d", partition.key, log.end_offset, cut.offset)
    return _refused(partition, log.truncate_to(cut.offset, now_ms))


def _start_over(partition: HostedPartition, leader_start: int, now_ms: int) -> str | None:
    log = partition.log
    is_empty = log.start_offset == log.end_offset
    if leader_start < 0 or (log.end_offset >= leader_start and not is_empty):
        # What is here lies within the leader's log: it is not thrown away on such a word.
        return f"the leader refuses offset {log.end_offset}, its log begins at {leader_start}"
    if log.end_offset == leader_start:
        return f"the leader refuses offset {leader_start}, where its log begins"
    logger.info("%s: starting over from %d to %d", partition.key, log.end_offset, leader_start)
    return _refused(partition, log.restart_at(leader_start, now_ms))


def _refused(partition: HostedPartition, result: Rejected | None) -> str | None:
    if result is None:
        return None
    partition.look_at_disk()
    return result.reason
