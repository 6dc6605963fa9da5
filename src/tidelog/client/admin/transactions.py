"""Transactions as operators see them: listed, described, found hanging, ended (KIP-98, KIP-664).

Owns the requests, and the rule of which open transactions hang. Not which transaction a reader of
committed records waits for: see ``open_transactions``. Coordinators are looked for by each call: an
operator's command has one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.errors import ClientError, Refused, VersionUnsupported, error_code
from tidelog.client.leaders import ask_leaders
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.protocol import messages

TRANSACTION_COORDINATOR = 1
"""Key type of FindCoordinator for transactional ids."""

LOAD_MS = 3_000
"""How long a list waits for a coordinator that loads."""

ONGOING = "Ongoing"

OPEN_STATES = (ONGOING, "PrepareCommit", "PrepareAbort")
"""States of a transaction that readers of committed records wait for."""

NONE = -1


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One transactional id as its coordinator (a broker's id) lists it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """One transactional id; ``started_ms`` is -1 where nothing is open."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer that a partition remembers; ``open_since`` is the first offset of the transaction
    that it has open, ``coordinator_epoch`` that of its last marker, -1 without one."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_ms: int
    open_since: int


@dataclass(frozen=True, slots=True)
class Hanging:
    """Open transactions that hang, and those that are in doubt: no coordinator that responded has
    them, and not all have responded."""

    hanging: Mapping[TopicPartition, list[ActiveProducer]]
    doubtful: Mapping[TopicPartition, list[ActiveProducer]]


async def list_of(
    cluster: Cluster,
    node_id: int,
    *,
    producers: Collection[int] = (),
    longer_than_ms: int = NONE,
    load_ms: int = LOAD_MS,
) -> list[TransactionListing]:
    """Return the transactional ids that one broker coordinates. Raises ClientError.

    With ``producers`` only those of these producer ids; ``longer_than_ms``: only those with a
    transaction that began longer ago. ``load_ms``: how long it may load.
    """
    # By the duration alone brokers list ids without a transaction, too.
    states = list(OPEN_STATES) if longer_than_ms >= 0 else []
    request = messages.ListTransactionsRequest(states, list(producers), longer_than_ms)

    async def attempt() -> messages.ListTransactionsResponse:
        connection = await cluster.connection(node_id)
        if longer_than_ms >= 0 and connection.version_of(ApiKey.LIST_TRANSACTIONS) < 1:
            raise VersionUnsupported(f"broker {node_id} cannot filter transactions by duration")
        answer: messages.ListTransactionsResponse = await cluster.send(node_id, request)
        if answer.error_code:
            raise Refused(answer.error_code, f"the transactions of broker {node_id}")
        return answer

    answer = await cluster.retry(attempt, load_ms)
    return [
        TransactionListing(one.transactional_id, node_id, one.producer_id, one.transaction_state)
        for one in answer.transaction_states
    ]


async def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    """Describe a transactional id. Raises Refused, with the broker's sentence if it has one."""
    request = messages.DescribeTransactionsRequest([transactional_id])

    async def attempt() -> TransactionDescription:
        node_id = await _coordinator_of(cluster, transactional_id)
        answer: messages.DescribeTransactionsResponse = await cluster.send(node_id, request)
        (one,) = answer.transaction_states
        if one.error_code:
            raise Refused(one.error_code, f"transactional id {transactional_id!r}")
        return _description(node_id, one)

    return await cluster.retry(attempt)


async def open_for_long(
    cluster: Cluster, node_id: int, longer_than_ms: int, most: int
) -> list[TransactionDescription]:
    """Return transactions of one coordinator that began longer ago, ``most`` of them; none of one
    that loads. Raises ClientError."""
    listed = await list_of(cluster, node_id, longer_than_ms=longer_than_ms, load_ms=0)
    if not listed:
        return []
    request = messages.DescribeTransactionsRequest([x.transactional_id for x in listed[:most]])
    answer: messages.DescribeTransactionsResponse = await cluster.send(node_id, request)
    # What ended meanwhile has no partitions.
    return [
        _description(node_id, one)
        for one in answer.transaction_states
        if not one.error_code and one.topics and one.transaction_state in OPEN_STATES
    ]


def _description(node_id: int, one: Any) -> TransactionDescription:
    return TransactionDescription(
        one.transactional_id,
        node_id,
        one.producer_id,
        one.producer_epoch,
        one.transaction_state,
        one.transaction_timeout_ms,
        one.transaction_start_time_ms,
        tuple(
            TopicPartition(topic.topic, index)
            for topic in one.topics
            for index in sorted(topic.partitions)
        ),
    )


async def fence(cluster: Cluster, described: TransactionDescription) -> int:
    """End what an id has open, and fence its producers; return the epoch below which they are.

    An id that its coordinator does not know would be created: so the caller describes it first.
    """
    name = described.transactional_id
    request = messages.InitProducerIdRequest(name, max(1, described.timeout_ms), NONE, NONE)

    async def attempt() -> int:
        node_id = await _coordinator_of(cluster, name)
        answer: messages.InitProducerIdResponse = await cluster.send(node_id, request)
        if answer.error_code:
            raise Refused(answer.error_code, f"transactional id {name!r}")
        return int(answer.producer_epoch)

    return await cluster.retry(attempt)


async def describe_producers(
    cluster: Cluster,
    places: Iterable[TopicPartition],
    *,
    node_id: int | None = None,
    timeout_ms: int | None = None,
    failed: dict[TopicPartition, ClientError] | None = None,
) -> dict[TopicPartition, list[ActiveProducer]]:
    """Return the producers that partitions remember, by their leaders or by one broker.

    ``failed`` collects the errors of partitions; without it the first one is raised.
    """

    async def ask(
        asked: int, group: list[TopicPartition]
    ) -> dict[TopicPartition, list[ActiveProducer] | ErrorCode]:
        request = messages.DescribeProducersRequest
        topics = topics_field(group, request.TopicRequest, lambda tp: tp.partition)
        answer: messages.DescribeProducersResponse = await cluster.send(asked, request(topics))
        return {
            TopicPartition(topic.name, part.partition_index): error_code(part.error_code)
            if part.error_code
            else [_producer(one) for one in part.active_producers]
            for topic in answer.topics
            for part in topic.partitions
        }

    if node_id is None:
        return await ask_leaders(cluster, places, ask, timeout_ms=timeout_ms, failed=failed)
    states = {}
    for tp, answer in (await ask(node_id, list(places))).items():
        if isinstance(answer, ErrorCode):
            raise Refused(answer, f"{tp} at broker {node_id}")
        states[tp] = answer
    return states


def _producer(one: Any) -> ActiveProducer:
    return ActiveProducer(
        one.producer_id,
        one.producer_epoch,
        one.coordinator_epoch,
        one.last_sequence,
        one.last_timestamp,
        one.current_txn_start_offset,
    )


def open_since(
    producers: Mapping[TopicPartition, Iterable[ActiveProducer]], before_ms: int
) -> dict[TopicPartition, list[ActiveProducer]]:
    """Return the transactions that are open and got their last batch before a time of day."""
    chosen = {
        tp: [one for one in some if one.open_since >= 0 and one.last_ms < before_ms]
        for tp, some in producers.items()
    }
    return {tp: some for tp, some in chosen.items() if some}


def judge(
    candidates: Mapping[TopicPartition, list[ActiveProducer]],
    described: Iterable[TransactionDescription],
    *,
    all_answered: bool,
) -> Hanging:
    """Return which open transactions hang.

    | the coordinators | the transaction |
    |---|---|
    | one has the producer id, and the partition in its transaction | is its business |
    | one has the producer id, without the partition | hangs |
    | none has it, and all have answered | hangs |
    | none has it, and some have not answered | is in doubt |
    """
    partitions: dict[int, set[TopicPartition]] = {}
    for one in described:
        partitions.setdefault(one.producer_id, set()).update(one.partitions)
    hanging: dict[TopicPartition, list[ActiveProducer]] = {}
    doubtful: dict[TopicPartition, list[ActiveProducer]] = {}
    for tp, producers in candidates.items():
        for producer in producers:
            its = partitions.get(producer.producer_id)
            if its is None and not all_answered:
                doubtful.setdefault(tp, []).append(producer)
            elif its is None or tp not in its:
                hanging.setdefault(tp, []).append(producer)
    return Hanging(hanging, doubtful)


async def _coordinator_of(cluster: Cluster, transactional_id: str) -> int:
    async def ask(connection: ClientConnection) -> Any:
        version = connection.version_of(ApiKey.FIND_COORDINATOR)
        request = messages.FindCoordinatorRequest(
            key=transactional_id,
            key_type=TRANSACTION_COORDINATOR,
            coordinator_keys=[transactional_id],
        )
        timeout_ms = cluster.settings.request_timeout_ms
        answer = await connection.send(request, version, timeout_ms)
        return answer.coordinators[0] if version >= 4 else answer

    named = await cluster.ask_any(ask)
    if named.error_code:
        subject = f"transactional id {transactional_id!r}"
        raise Refused(named.error_code, subject, named.error_message)
    if named.node_id not in cluster.view.brokers:
        await cluster.refresh()
    return int(named.node_id)
