"""Requests of a transactional producer: to the coordinator of its id, and to that of a group.

Owns their fields, retries and errors. Not when they are sent: see ``transactional``. They have a
connection of their own: a coordinator may answer EndTxn or InitProducerId only after a while, and
must not hold up the heartbeats of a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.coordinators import ask_coordinator
from tidelog.client.errors import ClientError, Refused, error_code
from tidelog.client.found_coordinators import (
    LATE_MS,
    TRANSACTION_COORDINATOR,
    FoundCoordinators,
)
from tidelog.client.groups.committed_offsets import Membership, Position
from tidelog.client.producing.transaction import PreparedTransaction
from tidelog.client.retries import retrying
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.protocol import messages
from tidelog.records.builder import Producer
from tidelog.runtime.backoff import Backoff

PURPOSE = "transactions"

FIRST_PAUSE_MS = 20
"""The first pause before a request is repeated: a coordinator of Kafka answers
CONCURRENT_TRANSACTIONS until its markers are written, which takes some milliseconds."""

ADD_VERSIONS = range(4)
"""Later versions of AddPartitionsToTxn are for brokers only (KIP-890)."""

RAISING_VERSIONS = range(3, 6)
"""With these versions of InitProducerId a producer can go on in its next epoch (KIP-360)."""

_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})

_CAUSE = frozenset({ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED})
"""Results of partitions that are not the cause of a refusal."""


class TransactionRequests:
    """The requests about one transactional id. Each is repeated until its time is over; raises
    Refused for a code that is final, and the last error at the end."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._coordinators = FoundCoordinators(cluster, TRANSACTION_COORDINATOR)
        usual = cluster.settings.backoff
        first_ms = min(FIRST_PAUSE_MS, usual.first_ms)
        self._backoff = Backoff(first_ms, usual.max_ms, usual.random, usual.jitter)

    async def initialize(
        self, former: Producer | None, transaction_timeout_ms: int, timeout_ms: int
    ) -> Producer:
        """Return a producer id and epoch. Other producers of the transactional id are fenced.

        ``former``: the identity of this producer, which gets the one after it. None: it is new, and
        what another one has left open is aborted.
        """
        request = messages.InitProducerIdRequest(
            transactional_id=self._id, transaction_timeout_ms=transaction_timeout_ms
        )
        if former is not None:
            request.producer_id, request.producer_epoch = former.producer_id, former.epoch
        versions = None if former is None else RAISING_VERSIONS
        answer = await self._ask(
            request, lambda answer: int(answer.error_code), timeout_ms, versions=versions
        )
        return Producer(answer.producer_id, answer.producer_epoch)

    async def add_partitions(
        self, producer: Producer, partitions: Sequence[TopicPartition], timeout_ms: int
    ) -> None:
        """Add partitions to the transaction, all or none of them."""
        add = messages.AddPartitionsToTxnRequest
        request = add(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=topics_field(
                partitions, add.AddPartitionsToTxnTopic, lambda tp: tp.partition
            ),
        )

        def error_of(answer: messages.AddPartitionsToTxnResponse) -> int:
            codes = [
                item.error_code
                for topic in answer.results_by_topic_v3_and_below
                for item in topic.results_by_partition
            ]
            return next((int(code) for code in codes if code not in _CAUSE), 0)

        await self._ask(request, error_of, timeout_ms, versions=ADD_VERSIONS)

    async def add_group(self, producer: Producer, group: str, timeout_ms: int) -> None:
        """Add the offsets of a group to the transaction."""
        request = messages.AddOffsetsToTxnRequest(
            transactional_id=self._id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id=group,
        )
        await self._ask(request, lambda answer: int(answer.error_code), timeout_ms)

    async def commit_offsets(
        self,
        producer: Producer,
        group: str,
        member: Membership,
        positions: Mapping[TopicPartition, Position],
        timeout_ms: int,
    ) -> None:
        """Let the group's coordinator keep offsets, which are visible after the commit (KIP-447).

        Raises Refused also for one partition: then the transaction cannot be committed.
        """
        commit = messages.TxnOffsetCommitRequest
        request = commit(
            transactional_id=self._id,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            topics=topics_field(
                positions,
                lambda name, parts: commit.TxnOffsetCommitRequestTopic(name, partitions=parts),
                lambda tp: commit.TxnOffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=positions[tp].offset,
                    committed_leader_epoch=positions[tp].leader_epoch,
                    committed_metadata=positions[tp].metadata,
                ),
            ),
        )

        subject = f"group {group!r}"

        def error_of(answer: messages.TxnOffsetCommitResponse) -> int:
            nonlocal subject
            refused = [
                (error_code(item.error_code), f"{topic.name}-{item.partition_index}")
                for topic in answer.topics
                for item in topic.partitions
                if item.error_code
            ]
            # What no retry mends comes first.
            code, place = min(
                refused, key=lambda one: one[0].retriable, default=(ErrorCode.NONE, "")
            )
            subject = f"group {group!r}, offset of {place}" if place else f"group {group!r}"
            return int(code)

        try:
            await ask_coordinator(
                self._cluster, group, request, error_of, timeout_ms=timeout_ms, purpose=PURPOSE
            )
        except Refused as error:
            raise Refused(error.code, subject, error.reason) from error.__cause__

    async def end(self, producer: Producer, *, commits: bool, timeout_ms: int) -> None:
        """Commit or abort the transaction; the same again is a success."""
        request = messages.EndTxnRequest(
            transactional_id=self._id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commits,
        )
        await self._ask(request, lambda answer: int(answer.error_code), timeout_ms)

    async def _ask(
        self,
        request: Any,
        error_of: Callable[[Any], int],
        timeout_ms: int,
        *,
        versions: range | None = None,
    ) -> Any:
        """Send a request to the coordinator of the id, and again after what can be retried."""
        request_ms = self._cluster.settings.request_timeout_ms
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000

        async def attempt() -> Any:
            left_ms = max(1, int((deadline - loop.time()) * 1000))
            times_ms = (min(request_ms, left_ms), min(request_ms, left_ms), LATE_MS)
            answer = await self._coordinators.send(
                self._id, request, PURPOSE, *times_ms, versions=versions
            )
            code = error_of(answer)
            if code:
                raise Refused(code, f"transactional id {self._id!r}")
            return answer

        def failed(error: ClientError) -> None:
            if isinstance(error, Refused) and error.code in _MOVED:
                self._coordinators.forget(self._id)

        return await retrying(attempt, timeout_ms=timeout_ms, backoff=self._backoff, failed=failed)


async def complete(
    cluster: Cluster, prepared: PreparedTransaction, *, commits: bool, timeout_ms: int
) -> None:
    """End a transaction that any process has prepared; the same again is a success.

    No producer of its id is fenced by it. Raises ProducerFenced when its time-out or a later
    producer of its id has aborted it, or when it was ended and a producer of its id has gone on:
    the coordinator cannot tell which. INVALID_TXN_STATE when it was ended the other way.
    """
    subject = f"transactional id {prepared.transactional_id!r}"
    producer = Producer(prepared.producer_id, prepared.epoch)
    try:
        await TransactionRequests(cluster, prepared.transactional_id).end(
            producer, commits=commits, timeout_ms=timeout_ms
        )
    except Refused as error:
        if error.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
            why = (
                "its time-out or a later producer of its id has aborted this transaction; or it "
                "has ended, a producer of its id has gone on, and the coordinator cannot tell how"
            )
            raise Refused(ErrorCode.PRODUCER_FENCED, subject, why) from error
        if error.code == ErrorCode.INVALID_TXN_STATE:
            other = "aborted" if commits else "committed"
            raise Refused(error.code, subject, f"this transaction was {other} before") from error
        raise
