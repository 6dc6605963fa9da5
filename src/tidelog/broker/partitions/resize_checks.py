"""Counts in Produce, Fetch and ListOffsets requests, checked against a hosted partition (KIP-253).

Owns the look-ups in the partition and its log that the rules need, and the sentences of refusals.
Not the rules: see `replication.resize_rules`. Not the wait of a refused producer: see
`delayed_produce`. Not how far a consumer reads: see `read_limit`.

A topic with ``enable.ordered.delivery=false`` counts as one whose clients send no count, and
``unaware.producers`` has no effect on it. Its sealed partitions take no records all the same: a
retired partition is removed when what came before its seal is gone.

A partition that a growth made takes records without a count only when this broker's metadata show
it: until its publication the growth may be undone, and the partition is removed (decision 0075).
Such a producer may know the partition by the metadata of its former incarnation. One that has the
count of the growth has seen it published.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tidelog.broker.partitions.read_limit import counts_are_checked
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import HEADER_SIZE, Buffer, Rejected, read_header
from tidelog.replication.resize_rules import (
    NOT_NAMED,
    Named,
    ToFetch,
    ToProduce,
    answer_to_fetch,
    answer_to_produce,
)
from tidelog.storage.log.producers import KnownBatch

if TYPE_CHECKING:
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.metadata.shown_epochs import ShownEpochs
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.storage.log.state import LogState

REFUSE = "refuse"
"""The value of ``unaware.producers`` with which a producer must send the count."""

_as_named = tuple.__new__

_ERRORS = {
    ToFetch.INCOMPLETE: ErrorCode.INVALID_REQUEST,
    ToFetch.ELSEWHERE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ToFetch.OLDER: ErrorCode.INVALID_PARTITION_METADATA,
}


def named_by(undeleted_count: int, resize_epoch: int, partition_epoch: int) -> Named:
    """Return the numbers of a request for one partition; always ``NOT_NAMED`` itself for none."""
    if (undeleted_count, resize_epoch, partition_epoch) == NOT_NAMED:
        return NOT_NAMED
    named: Named = _as_named(Named, (undeleted_count, resize_epoch, partition_epoch))
    return named


def why_not_taken(
    partition: HostedPartition, named: Named, records: Buffer, metadata: MetadataCache
) -> Rejected | None:
    """Return why a partition does not take a batch with these numbers, or None: the one question of
    the fast and the general path of Produce. A few comparisons for nearly all batches."""
    state = partition.state
    if state.undeleted_count < 0:
        return None
    refusal = why_not_shown(partition, named, metadata) if state.birth_epoch else None
    return why_not_appended(partition, named, records) if refusal is None else refusal


def why_not_appended(partition: HostedPartition, named: Named, records: Buffer) -> Rejected | None:
    """Return why a batch is refused for its count or for the partition's; None: it may be appended,
    or is known, which the append finds.

    Constant work, a few comparisons for nearly all batches. INVALID_PARTITION_METADATA is the
    refusal of an older resize epoch only.
    """
    state, configs = partition.state, partition.log.configs
    if state.undeleted_count < 0:
        return None
    if not (state.sealed or partition.fence_unwritten):
        if named is NOT_NAMED:
            if configs.unaware_producers != REFUSE:
                return None
        elif named == (state.undeleted_count, state.resize_epoch, state.partition_epoch):
            return None
    refuses_unaware = configs.unaware_producers == REFUSE
    if not configs.enable_ordered_delivery:
        named, refuses_unaware = NOT_NAMED, False
    if not partition.is_leader:
        return None  # the append says so: only a leader refuses for good
    log = partition.log
    fence = log.fences.of(state.resize_epoch)
    answer = answer_to_produce(
        named,
        state,
        known=is_known(log, records),
        fence_unwritten=partition.fence_unwritten,
        fence_committed=fence is not None and fence.offset < log.high_watermark,
        refuses_unaware=refuses_unaware,
    )
    if answer in (ToProduce.APPENDED, ToProduce.KNOWN):
        return None
    return _refusal(answer, partition, named)


def why_not_shown(
    partition: HostedPartition, named: Named, metadata: MetadataCache
) -> Rejected | None:
    """Return why a batch without a count is refused before clients are shown its partition."""
    leadership = partition.leadership
    if not partition.state.birth_epoch or leadership is None or named is not NOT_NAMED:
        return None
    if not leadership.is_shown:
        topic = metadata.topics.get(partition.topic)
        shown = None if topic is None else topic.partitions.get(partition.partition)
        if shown is None or shown.partition_epoch != partition.state.partition_epoch:
            sentence = f"the growth that made {partition.key} is not published here yet"
            return Rejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, sentence)
        leadership.is_shown = True
    return None


def is_aware(partition: HostedPartition, named: Named) -> bool:
    """Return whether a producer's count holds for a partition that was named by its count."""
    state = partition.state
    return counts_are_checked(partition) and named == (
        state.undeleted_count,
        state.resize_epoch,
        state.partition_epoch,
    )


def is_known(log: LogState, records: Buffer) -> bool:
    """Return whether a payload's batch is one of its producer's last ones."""
    if len(records) < HEADER_SIZE:
        return False
    try:
        header = read_header(records)
    except struct.error:
        return False
    return header.producer_id >= 0 and isinstance(log.producers.judge(header), KnownBatch)


def _refusal(answer: ToProduce, partition: HostedPartition, named: Named) -> Rejected:
    key, state = partition.key, partition.state
    epoch, count = state.resize_epoch, state.undeleted_count
    if answer is ToProduce.INCOMPLETE:
        sentence = "a request has a count, a resize epoch and a partition epoch, or none of them"
        return Rejected(ErrorCode.INVALID_REQUEST, f"{sentence}: {key}")
    if answer is ToProduce.FENCE_UNWRITTEN:
        sentence = f"{key} takes no records before its fence of resize epoch {epoch} is written"
        return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, sentence)
    if answer is ToProduce.OLDER:
        sentence = (
            f"{key} is in resize epoch {epoch}: hash the records of {named.resize_epoch} again"
        )
        return Rejected(ErrorCode.INVALID_PARTITION_METADATA, sentence)
    if answer is ToProduce.UNDETERMINED:
        sentence = f"the fence of resize epoch {epoch} of {key} is not committed yet"
        return Rejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, sentence)
    if answer is ToProduce.SEALED:
        sentence = f"{key} is retired since resize epoch {epoch} and takes no records"
        return Rejected(ErrorCode.POLICY_VIOLATION, sentence)
    if answer is ToProduce.OTHER_COUNT:
        sentence = (
            f"the records for {key} were hashed for {named.undeleted_count} partitions; "
            f"in resize epoch {epoch} there are {count}"
        )
        return Rejected(ErrorCode.POLICY_VIOLATION, sentence)
    if answer is ToProduce.UNAWARE:
        sentence = f"{key.topic} takes records only with a partition count (unaware.producers)"
        return Rejected(ErrorCode.POLICY_VIOLATION, sentence)
    sentence = (
        f"this broker does not lead {key} in resize epoch {named.resize_epoch} "
        f"and partition epoch {named.partition_epoch}"
    )
    return Rejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, sentence)


def why_not_read(partition: HostedPartition, named: Named, shown: ShownEpochs) -> ErrorCode:
    """Return why a consumer is refused for its count, or NONE. O(1)."""
    if named is NOT_NAMED:
        return ErrorCode.NONE
    state = partition.state
    if named == (state.undeleted_count, state.resize_epoch, state.partition_epoch):
        return ErrorCode.NONE
    if not counts_are_checked(partition):
        return ErrorCode.NONE
    answer = answer_to_fetch(named, state, shown.of(partition.topic))
    return _ERRORS.get(answer, ErrorCode.NONE)
