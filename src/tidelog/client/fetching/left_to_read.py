"""Whether any committed record is left to read in partitions from an offset on.

Owns the question and what its answer proves. No application gets the records. Not when it is
asked: see ``client.groups.commits_ahead``.

A member that knows no resizes commits the offset after the last record that it was given. After
that one there may be control records, records of aborted transactions, and offsets that compaction
has left empty, and it never commits past them. So its commit alone does not say that it has read
all records before a fence.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused, error_code
from tidelog.client.fetching.fetch_requests import FetchOptions, fetch_request, fetched_of
from tidelog.client.fetching.fetch_sessions import FINAL_EPOCH, PartitionFetch, SessionRequest
from tidelog.client.leaders import ask_leaders
from tidelog.client.offsets import EARLIEST, IsolationLevel, list_offsets
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.records.record import CorruptRecords

FIRST_BYTES = 4 * 1024
"""Of the first answer for a partition, but at least one batch: mostly a record is left there."""

PARTITION_BYTES = 256 * 1024
"""Of each answer after it; the next question goes on after the one before."""

MOST_QUESTIONS = 16
"""Questions for one partition, one after another."""

REQUEST_BYTES = 4 * 1024 * 1024

_COMMITTED = IsolationLevel.READ_COMMITTED
_OPTIONS = FetchOptions(max_wait_ms=0, max_bytes=REQUEST_BYTES)


async def first_readable(
    cluster: Cluster,
    positions: Mapping[TopicPartition, int],
    *,
    timeout_ms: int,
    failed: dict[TopicPartition, ClientError],
    partition_bytes: int = FIRST_BYTES,
    crowded: set[TopicPartition] | None = None,
) -> dict[TopicPartition, int]:
    """Return, for each partition, an offset below which no committed record is left to read from
    its position on: that of the first one, or as far as one answer reaches.

    What is not committed yet, or in a transaction that is open, ends that. Below the log's
    start nothing is left. ``failed`` collects errors of partitions, ``crowded`` those that have
    records in front of them for which the answer had no room.
    """

    async def ask(
        node_id: int, group: list[TopicPartition]
    ) -> dict[TopicPartition, int | ErrorCode]:
        wanted = {tp: positions[tp] for tp in group}
        answer = await cluster.send(node_id, question_of(wanted, partition_bytes))
        if crowded is not None:
            crowded.update(crowded_in(wanted, answer))
        return reached_in(wanted, answer)

    refused: dict[TopicPartition, ClientError] = {}
    reached = await ask_leaders(cluster, positions, ask, timeout_ms=timeout_ms, failed=refused)
    out = [tp for tp, error in refused.items() if _is_out_of_range(error)]
    failed.update({tp: error for tp, error in refused.items() if tp not in out})
    if out:
        starts = await list_offsets(
            cluster, dict.fromkeys(out, EARLIEST), timeout_ms=timeout_ms, failed=failed
        )
        reached.update({tp: max(start.offset, positions[tp]) for tp, start in starts.items()})
    return reached


def question_of(
    positions: Mapping[TopicPartition, int], partition_bytes: int
) -> messages.FetchRequest:
    """Return the request to a leader that asks what is left to read from positions on."""
    wanted = {tp: PartitionFetch(offset, partition_bytes, -1) for tp, offset in positions.items()}
    return fetch_request(SessionRequest(0, FINAL_EPOCH, wanted, []), _COMMITTED, _OPTIONS)


def reached_in(
    positions: Mapping[TopicPartition, int], answer: messages.FetchResponse
) -> dict[TopicPartition, int | ErrorCode]:
    """Return how far no committed record is left to read, or the error of a partition. Raises
    ClientError for bytes that are no batch."""
    if answer.error_code:
        return dict.fromkeys(positions, error_code(answer.error_code))
    return {
        tp: _reached(tp, positions[tp], data)
        for topic in answer.responses
        for data in topic.partitions
        for tp in [TopicPartition(topic.topic, data.partition_index)]
    }


def crowded_in(
    positions: Mapping[TopicPartition, int], answer: messages.FetchResponse
) -> set[TopicPartition]:
    """Return the partitions that have something in front of their positions, and nothing in the
    answer: a leader adds whole batches while they fit, and one that does not fit only alone."""
    return {
        tp
        for topic in answer.responses
        for data in topic.partitions
        for tp in [TopicPartition(topic.topic, data.partition_index)]
        if not data.error_code
        and not data.records
        and tp in positions
        and positions[tp] < data.last_stable_offset
    }


def _reached(
    tp: TopicPartition, position: int, data: messages.FetchResponse.PartitionData
) -> int | ErrorCode:
    if data.error_code:
        return error_code(data.error_code)
    fetched = fetched_of(tp, position, data, _COMMITTED)
    if fetched is None:
        return position
    try:
        first = next(fetched.rows(), None)
    except CorruptRecords:
        return ErrorCode.CORRUPT_MESSAGE
    return fetched.next_offset if first is None else first.offset


def _is_out_of_range(error: ClientError) -> bool:
    return isinstance(error, Refused) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE
