"""The public producer for asyncio: records in, futures of their places out.

Owns arguments, serializers and the lifecycle of a producer. Not batches, order and retries: see
``tidelog.client.producing``.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import get_running_loop
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Unpack

from tidelog.aio import arguments
from tidelog.aio.arguments import seconds, topic_name
from tidelog.aio.cluster_configs import bootstrap_of
from tidelog.aio.consumer_commits import checked
from tidelog.aio.consumer_types import ConsumerGroupMetadata, OffsetAndMetadata
from tidelog.aio.producer_configs import (
    ProducerConfigs,
    checked_headers,
    group_of,
    prepared_by,
    producer_settings,
    serializer_of,
)
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, GaveUp, WrongState
from tidelog.client.groups.committed_offsets import Membership, Position
from tidelog.client.producing.record_metadata import RecordMetadata
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.transaction import PreparedTransaction
from tidelog.client.producing.transaction_requests import complete
from tidelog.client.producing.transactional import SenderTransactions
from tidelog.model.topics import TopicPartition
from tidelog.records.record import Header
from tidelog.runtime.clock import Clock

Headers = Iterable[tuple[str, bytes | None]]

_NO_HEADERS: list[Header] = []


def check_place(partition: int | None, at_ms: int | None) -> None:
    """Check the partition and the time that a caller gives to a record."""
    if partition is not None:
        arguments.partition_number(partition)
    if at_ms is not None:
        arguments.timestamp_ms(at_ms)


def not_flushed(timeout: float | None) -> GaveUp:
    """Return the error of a flush that takes longer than its time-out."""
    return GaveUp(f"not all records have an outcome within {timeout} s: they are still being sent")


class Producer:
    """Writes records to topics; records of one key stay in order while topics grow and shrink.

    ``async with Producer(bootstrap_servers=…) as producer`` starts and closes it. Its settings are
    Kafka's producer configurations in snake case (``ProducerConfigs``). It belongs to one event
    loop. Raises KafkaConfigurationError for a setting that is unknown or not valid. ``cluster``: a
    view of the cluster that is used instead of an own one, and closed too; ``clock``: for the
    timestamps of records.

    With a ``transactional_id`` it writes in transactions: ``init_transactions`` once, and then
    ``async with producer.transaction()`` around the records of each.
    """

    def __init__(
        self,
        *,
        cluster: Cluster | None = None,
        clock: Clock | None = None,
        **configs: Unpack[ProducerConfigs],
    ) -> None:
        settings = producer_settings(configs, type(self))
        self._key_of = serializer_of(settings.key_serializer, "key")
        self._value_of = serializer_of(settings.value_serializer, "value")
        self._takes_bytes = not (settings.key_serializer or settings.value_serializer)
        self._cluster = cluster or Cluster(bootstrap_of(configs), settings.cluster)
        self._clock = clock
        self._settings = settings.send
        self._sender: RecordSender | None = None
        self._closed = False

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to the cluster. Raises NoBrokersAvailable when no broker responds in time."""
        self._refuse_when_closed()
        if self._sender is not None:
            return
        try:
            await self._cluster.open()
        except BaseException:
            await self._cluster.close()
            raise
        self._sender = RecordSender(self._cluster, self._settings, clock=self._clock)

    async def stop(self) -> None:
        """Send what is accepted, wait for all outcomes, and close; aiokafka's name of ``close``."""
        await self.close()

    async def close(self, timeout: float | None = None) -> None:
        """Send what is accepted, wait for its outcomes, and close; a second call does nothing.

        After ``timeout`` seconds, or when this is cancelled, records without an outcome fail.
        """
        timeout = seconds(timeout)
        self._closed = True
        sender, self._sender = self._sender, None
        try:
            if sender is not None:
                async with asyncio.timeout(timeout):
                    await sender.close()
        except TimeoutError:
            # ``close`` has failed what was left.
            return
        finally:
            await self._cluster.close()

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Accept a record, and return the future of its place in the log.

        Waits for the topic's metadata and for memory, ``max_block_ms`` at most. Without a
        ``partition`` the key's hash chooses it, and the choice follows the topic when it grows or
        shrinks. A ``value`` of None is a tombstone.

        Raises UnknownTopicOrPartitionError, MessageSizeTooLargeError, KafkaTimeoutError when there
        was no memory in time, TypeError for a key or value that is not bytes, IllegalStateError
        when the producer is closed. The future fails with the broker's refusal, or with
        KafkaTimeoutError after ``delivery_timeout_ms``.
        """
        sender = self._sender or self.sender
        encoded, key_bytes, checked = self.encoded(topic, value, key, headers)
        if partition is not None or timestamp_ms is not None:
            check_place(partition, timestamp_ms)
        outcome: asyncio.Future[RecordMetadata] = asyncio.Future(loop=get_running_loop())
        if not sender.accept(topic, encoded, key_bytes, partition, timestamp_ms, checked, outcome):
            await sender.accept_later(
                topic, encoded, key_bytes, partition, timestamp_ms, checked, outcome
            )
        elif sender.delivery.owes_turn:
            await sender.give_turn()
        return outcome

    def encoded(
        self, topic: str, value: Any, key: Any, headers: Headers | None
    ) -> tuple[bytes | None, bytes | None, list[Header]]:
        """Return value, key and headers of a record as bytes. Raises TypeError."""
        is_plain = (value is None or type(value) is bytes) and (key is None or type(key) is bytes)
        if is_plain and self._takes_bytes and not headers and type(topic) is str:
            return value, key, _NO_HEADERS
        topic_name(topic)
        return (
            self._value_of(topic, value),
            self._key_of(topic, key),
            checked_headers(headers) if headers else [],
        )

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Send a record and return its place when it is acknowledged. Raises as ``send``."""
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def flush(self, timeout: float | None = None) -> None:
        """Send all accepted records now, and wait until each has its outcome.

        Raises KafkaTimeoutError after ``timeout`` seconds; the records stay accepted.
        """
        sender = self.sender
        try:
            async with asyncio.timeout(seconds(timeout)):
                await sender.flush()
        except TimeoutError:
            raise not_flushed(timeout) from None

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic that take records. Raises as ``send``."""
        sender = self.sender
        described = await sender.topic(topic_name(topic), for_records=False)
        return set(range(described.count))

    # Transactions

    async def init_transactions(self) -> None:
        """Get this producer its id; call it once, before the first transaction.

        Any other producer of the transactional id is fenced, and what it has left open is aborted.
        Raises ProducerEndedError with the broker's sentence where the cluster offers no
        transactions, KafkaTimeoutError after ``max_block_ms``: then call it again.
        """
        await self._transactions.init()

    async def begin_transaction(self) -> None:
        """Open a transaction. Raises IllegalStateError while another one is open.

        After a prepared transaction it asks for the next epoch first: then it also raises
        ProducerEndedError, and KafkaTimeoutError after ``max_block_ms``: call it again.
        """
        await self._transactions.begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        """Let a group's offsets be committed with the transaction, and never without it (KIP-447).

        ``offsets``: of the next records to read. ``group_metadata``: what the consumer's
        ``group_metadata()`` returns; or the name of the group, which then cannot refuse a member
        that was replaced. Raises TransactionAbortableError, also after ``max_block_ms``, and
        ProducerEndedError.
        """
        given = group_of(group_metadata)
        positions = {
            tp: Position(offset.offset, offset.leader_epoch, offset.metadata or "")
            for tp, offset in checked(offsets).items()
        }
        await self._transactions.send_offsets(given.group_id, Membership(*given[1:]), positions)

    async def commit_transaction(self) -> None:
        """Wait for the outcome of every record, and commit the transaction.

        Raises TransactionAbortableError when a record failed: abort. Raises ProducerEndedError
        when no transaction of this producer can succeed: close it. Raises KafkaTimeoutError after
        ``max_block_ms``: the outcome is open, call it again.
        """
        await self._transactions.commit()

    async def abort_transaction(self) -> None:
        """Abort the transaction: no read_committed consumer gets its records.

        Records without an outcome fail. Raises as ``commit_transaction``, except that nothing is
        left to abort.
        """
        await self._transactions.abort()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """``async with producer.transaction():`` begins, and commits at the end.

        An exception aborts the transaction and goes on. A commit that does not end in time while
        records wait is aborted: TransactionAbortableError. Its KafkaTimeoutError leaves the outcome
        open: ``commit_transaction`` finds it out.
        """
        await self.begin_transaction()
        rules, commits = self._transactions.rules, False
        try:
            yield
            commits = True
            await self.commit_transaction()
        except BaseException as error:
            if rules.can_abort:
                # The first error counts: a later abort says why this one did not succeed.
                with contextlib.suppress(ClientError):
                    await self.abort_transaction()
                if commits and isinstance(error, GaveUp):
                    raise rules.late_commit() from error
            raise

    async def prepare(self) -> PreparedTransaction | None:
        """Wait for the outcome of every record, and return what ends this transaction later.

        Any process may pass it to ``complete_transaction``, within ``transaction_timeout_ms`` of
        its begin. None: nothing was sent, and there is nothing to end. Raises as
        ``commit_transaction``.
        """
        return await self._transactions.prepare()

    async def complete_transaction(
        self, prepared: PreparedTransaction | None, commit: bool = True
    ) -> None:
        """Commit (or abort) a transaction that any producer has prepared.

        The same again, also by another process, is a success until a producer of its id begins
        another transaction or calls ``init_transactions``. This producer may have another
        transactional id, or none, and fences no other one. Raises ProducerFencedError when the
        transaction was aborted by its time-out or by a later producer of its id, or was ended and a
        producer of its id has gone on; BrokerResponseError (INVALID_TXN_STATE) when it was ended
        the other way.
        """
        sender = self.sender
        if prepared is None:
            return
        own, prepared = sender.transactions, prepared_by(prepared)
        if own is not None and own.has_prepared(prepared):
            await (own.commit() if commit else own.abort())
            return
        timeout_ms = self._settings.max_block_ms
        await complete(self._cluster, prepared, commits=commit, timeout_ms=timeout_ms)

    @property
    def _transactions(self) -> SenderTransactions:
        transactions = self.sender.transactions
        if transactions is None:
            raise WrongState("this producer has no transactional_id: give it one")
        return transactions

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the producer's figures as {group: {name: value}}, by Kafka's names."""
        return self.sender.metrics()

    @property
    def sender(self) -> RecordSender:
        """The sender of a started producer. Raises IllegalStateError for any other."""
        if self._sender is None:
            self._refuse_when_closed()
            raise WrongState("this producer is not started: call start(), or use `async with`")
        return self._sender

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise WrongState("this producer is closed: open another one")
