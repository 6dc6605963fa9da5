"""Lag of groups: how many records lie between their positions and the ends of the logs.

Owns the rule that a control record is no record to read (KIP-253): a fence and a seal of each
resize, and the tombstones of keys that a growth has moved. A group that has read all data has lag
0, although a member that knows no resizes commits no further than the data. Not the positions, and
not the ends.

Fences anywhere in the unread part are left out, by DescribeFences. Of the other control records
only those at its beginning are, because they are found by reading: what is read ends at the first
batch with data. So a lag above 0 may count some in between, and one of 0 is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, error_code
from tidelog.client.fences import DescribedFences, describe_fences
from tidelog.client.leaders import ask_leaders
from tidelog.client.metadata import Topic
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.partitioning.lineage import first_child_of
from tidelog.protocol import messages
from tidelog.records.batch import Buffer, walk

READ_BYTES = 65_536
"""The most bytes of one partition in one Fetch, unless its first batch is larger."""

MOST_READS = 64
"""How many Fetches look for data at most: more than 30,000 tombstones in a row count as lag."""

NO_SESSION = -1
CONSUMER = -1
PURPOSE = "lag"

Span = tuple[int, int]
"""The position of a group, and the end of the log."""


async def lags_of(
    cluster: Cluster,
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the lag of each partition that both mappings have.

    Of topics that were never resized, the difference. A partition whose leader does not respond has
    the difference too.
    """
    spans = {
        tp: (min(position, ends[tp]), ends[tp]) for tp, position in positions.items() if tp in ends
    }
    lags = {tp: end - start for tp, (start, end) in spans.items()}
    unread = [tp for tp, lag in lags.items() if lag and _is_resized(cluster, tp)]
    if not unread:
        return lags
    failed: dict[TopicPartition, ClientError] = {}
    fences = await describe_fences(cluster, unread, failed=failed)
    for tp, described in fences.items():
        lags[tp] = lag_without(spans[tp], fence_offsets(described))
    searched = {
        tp: spans[tp]
        for tp in fences
        if lags[tp] and has_children(cluster.view.topics[tp.topic], tp.partition)
    }
    fronts = await _data_begins(cluster, searched)
    for tp, begin in fronts.items():
        lags[tp] = lag_without((begin, spans[tp][1]), fence_offsets(fences[tp]))
    return lags


def fence_offsets(described: DescribedFences) -> list[int]:
    """Return the offsets of the fences and seals of a partition."""
    return [one.fence.offset for one in described.fences]


def lag_without(span: Span, controls: Iterable[int]) -> int:
    """Return how many offsets of a span are not among those of control records."""
    start, end = span
    return max(0, end - start - sum(start <= offset < end for offset in controls))


def has_children(topic: Topic, partition: int) -> bool:
    """Return whether a partition was split: only then a producer sends it tombstones."""
    initial = topic.initial_partition_count
    return initial > 0 and first_child_of(partition, initial) <= max(topic.partitions, default=-1)


def data_begin(batches: Buffer, start: int) -> tuple[int, bool]:
    """Return where the control records at ``start`` end, and whether data follow in these bytes."""
    begin = start
    for _, header in walk(batches):
        if not header.control:
            return max(begin, header.base_offset), True
        begin = max(begin, header.next_offset)
    return begin, False


def _is_resized(cluster: Cluster, partition: TopicPartition) -> bool:
    topic = cluster.view.topics.get(partition.topic)
    return topic is not None and topic.resize_epoch > 0


async def _data_begins(
    cluster: Cluster, spans: Mapping[TopicPartition, Span]
) -> dict[TopicPartition, int]:
    """Return the offset of the first data in each span, or its end."""
    begins = {tp: start for tp, (start, _) in spans.items()}
    left = list(spans)
    for _ in range(MOST_READS):
        if not left:
            break
        failed: dict[TopicPartition, ClientError] = {}
        wanted = {tp: begins[tp] for tp in left}
        read = await _read(cluster, wanted, failed)
        left = []
        for tp, batches in read.items():
            begin, is_data = data_begin(batches, begins[tp])
            is_further = begin > begins[tp]
            begins[tp] = min(begin, spans[tp][1])
            if is_further and not is_data and begins[tp] < spans[tp][1]:
                left.append(tp)
    return begins


async def _read(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    failed: dict[TopicPartition, ClientError],
) -> dict[TopicPartition, Buffer]:
    """Read some batches of each partition from an offset on, at its leader."""
    fetch = messages.FetchRequest

    async def ask(
        node_id: int, group: list[TopicPartition]
    ) -> dict[TopicPartition, Buffer | ErrorCode]:
        topics = topics_field(
            group,
            lambda name, parts: fetch.FetchTopic(name, partitions=parts),
            lambda tp: fetch.FetchPartition(
                partition=tp.partition,
                fetch_offset=wanted[tp],
                partition_max_bytes=READ_BYTES,
            ),
        )
        request = fetch(
            replica_id=CONSUMER, max_wait_ms=0, min_bytes=0, session_epoch=NO_SESSION, topics=topics
        )
        answer: messages.FetchResponse = await cluster.send(node_id, request, purpose=PURPOSE)
        return {
            TopicPartition(topic.topic, item.partition_index): error_code(item.error_code)
            if item.error_code
            else _buffer(item.records)
            for topic in answer.responses
            for item in topic.partitions
        }

    return await ask_leaders(cluster, wanted, ask, failed=failed)


def _buffer(records: object) -> Buffer:
    assert records is None or isinstance(records, bytes | bytearray | memoryview), (
        "responses have one contiguous buffer"
    )
    return records or b""
