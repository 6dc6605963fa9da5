"""The Fetch request to one leader, from the state of its fetch session; the end of a session.

Owns the request and the batches in its response. Not which partitions are fetched: see ``fetcher``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from tidelog.client.cluster import Cluster
from tidelog.client.connecting.first_answer import SILENT_S
from tidelog.client.connecting.giving_up import unless_taken_over
from tidelog.client.errors import ClientError, TakenOver
from tidelog.client.fetching.batches import Fetched, no_batch, whole_batches, whole_frames
from tidelog.client.fetching.fetch_sessions import (
    FINAL_EPOCH,
    FetchSession,
    PartitionFetch,
    SessionRequest,
)
from tidelog.client.leaders import led_elsewhere
from tidelog.client.offsets import IsolationLevel
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.protocol import messages

logger = logging.getLogger(__name__)

PURPOSE = "fetch"
"""Fetches wait long: they have their own connections."""

SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Top-level errors after which a new session is started at once."""

END_TIMEOUT_MS = 1000
"""The timeout of ending a session, which is optional."""


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """Kafka's fetch.max.wait.ms, fetch.min.bytes, fetch.max.bytes, max.partition.fetch.bytes.

    `former_formats`: the caller takes messages of before Kafka 0.11 as the raw bytes that they are;
    otherwise they are an error.
    """

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 52_428_800
    partition_bytes: int = 1_048_576
    former_formats: bool = False


async def ask_leader(
    cluster: Cluster,
    node_id: int,
    session: FetchSession,
    wanted: Mapping[TopicPartition, PartitionFetch],
    isolation: IsolationLevel,
    options: FetchOptions,
) -> messages.FetchResponse:
    """Send one Fetch and return its response. Raises ClientError.

    TakenOver when it stays unanswered while metadata show another leader of one of the partitions,
    or a later leader epoch: what was fetched up to the positions stays, so nothing is lost.
    """

    async def sent() -> messages.FetchResponse:
        connection = await cluster.connection(node_id, PURPOSE)
        request = fetch_request(session.ask(wanted), isolation, options)
        timeout_ms = cluster.settings.request_timeout_ms + options.max_wait_ms
        answer: messages.FetchResponse = await connection.send(request, None, timeout_ms)
        return answer

    epochs = {tp: item.leader_epoch for tp, item in wanted.items()}
    search = partial(led_elsewhere, cluster, node_id, epochs, PURPOSE)
    try:
        return await unless_taken_over(
            sent(), search, after_s=SILENT_S + options.max_wait_ms / 1000
        )
    except TakenOver as error:
        # Its response would be read by no request, and could be large.
        cluster.close_connection(node_id, PURPOSE, str(error))
        raise


async def ask_for_newer(cluster: Cluster, node_id: int, topic: str) -> None:
    """Ask a broker that refused a resize epoch for metadata: it knows a newer one.

    Another one is asked, too, when it is silent.
    """
    try:
        await cluster.describe([topic], first=node_id)
    except ClientError as error:
        logger.debug("broker %d does not describe %s: %s", node_id, topic, error)


async def end_session(
    cluster: Cluster, node_id: int, session_id: int, options: FetchOptions
) -> None:
    """End a session at a broker; without a connection the broker will evict it."""
    question = SessionRequest(session_id, FINAL_EPOCH, {}, [])
    request = fetch_request(question, IsolationLevel.READ_UNCOMMITTED, options)
    request.max_wait_ms = 0
    try:
        await cluster.send(node_id, request, timeout_ms=END_TIMEOUT_MS, purpose=PURPOSE)
    except ClientError:
        return


def fetched_of(
    partition: TopicPartition,
    offset: int,
    data: messages.FetchResponse.PartitionData,
    isolation: IsolationLevel,
    *,
    former_formats: bool = False,
) -> Fetched | None:
    """Return the batches of one partition in a response, from ``offset`` on; None: there are none.

    Raises ClientError for bytes without a whole batch, or, with ``former_formats``, message.
    """
    records = data.records
    if records is None or not len(records):
        return None
    assert isinstance(records, memoryview)
    cut = whole_frames if former_formats else whole_batches
    batches, next_offset, epoch = cut(records, offset)
    if not len(batches):
        raise no_batch(partition, offset, records)
    aborted = data.aborted_transactions
    return Fetched(
        partition=partition,
        offset=offset,
        next_offset=next_offset,
        records=batches,
        high_watermark=data.high_watermark,
        last_stable_offset=data.last_stable_offset,
        log_start_offset=data.log_start_offset,
        aborted=None
        if isolation is IsolationLevel.READ_UNCOMMITTED
        else [(item.producer_id, item.first_offset) for item in aborted or ()],
        leader_epoch=epoch,
    )


def fetch_request(
    question: SessionRequest, isolation: IsolationLevel, options: FetchOptions
) -> messages.FetchRequest:
    """Return the request that asks for what a session's broker does not have yet, or for all."""
    fetch = messages.FetchRequest
    return fetch(
        replica_id=-1,
        max_wait_ms=options.max_wait_ms,
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
        isolation_level=isolation,
        session_id=question.session_id,
        session_epoch=question.epoch,
        topics=topics_of(question.wanted),
        forgotten_topics_data=topics_field(
            question.forgotten,
            lambda name, indexes: fetch.ForgottenTopic(name, partitions=indexes),
            lambda tp: tp.partition,
        ),
    )


def topics_of(
    wanted: Mapping[TopicPartition, PartitionFetch],
) -> list[messages.FetchRequest.FetchTopic]:
    """Return one entry per topic, count and resize epoch: the last two are fields of a topic, and
    two partitions may stand on different sides of a resize."""
    fetch = messages.FetchRequest
    topics: dict[tuple[str, int, int], messages.FetchRequest.FetchTopic] = {}
    for tp, item in wanted.items():
        count, epoch, partition_epoch = item.named
        key = (tp.topic, count, epoch)
        if (topic := topics.get(key)) is None:
            topic = topics[key] = fetch.FetchTopic(
                topic=tp.topic, undeleted_partition_count=count, resize_epoch=epoch
            )
        topic.partitions.append(
            fetch.FetchPartition(
                partition=tp.partition,
                current_leader_epoch=item.leader_epoch,
                fetch_offset=item.offset,
                partition_max_bytes=item.max_bytes,
                partition_epoch=partition_epoch,
            )
        )
    return list(topics.values())
