"""The requests of the protocol against a cluster, and the transaction of a task.

Owns how each request of ``protocol`` is sent, and which errors of a coordinator mean what. Not
their order. Several transactions are asked about at once, within a bound. Each request is repeated
for `kafka.max.block.ms` at most.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tidelog.client.admin.transactions import ONGOING, describe_transaction, list_of
from tidelog.client.blocking import BlockingCluster
from tidelog.client.errors import ClientError, ProducerEnded, Refused
from tidelog.client.groups.committed_offsets import Membership, Position, committed_offsets
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.transaction import PreparedTransaction
from tidelog.client.producing.transaction_requests import TransactionRequests, complete
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.errors import NotWritten, SinkOvertaken
from tidelog.pipeline.sink import protocol
from tidelog.pipeline.sink.ledger import (
    LEDGER_TOPIC,
    MOST_PIECES,
    Ledger,
    decode,
    encode,
    group_of,
    pieces_in,
)
from tidelog.pipeline.sink.options import SinkOptions, settings_of
from tidelog.pipeline.sink.protocol import DriverId, EndOutcome, driver_id, task_prefix
from tidelog.pipeline.sink.tasks import GIVE_UP_S, connect
from tidelog.records.builder import Producer

AT_ONCE = 16
"""How many transactions are asked about at the same time."""

_FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
_LOST = _FENCED | {ErrorCode.INVALID_TXN_STATE}

Item = TypeVar("Item")
Result = TypeVar("Result")


class SinkCluster:
    """The cluster of an exactly-once sink. Methods block; they raise ClientError, and what parts of
    the protocol raise."""

    def __init__(self, options: SinkOptions) -> None:
        assert options.sink is not None, "the sink has no transactional id"
        self._sink = options.sink
        self._options = options
        self._client: BlockingCluster = connect(options)
        self._cluster = self._client.cluster
        _, send = settings_of(options)
        self._timeout_ms = send.max_block_ms
        self._transaction_ms = send.transaction_timeout_ms
        self._driver = TransactionRequests(self._cluster, driver_id(self._sink))

    def run(self, steps: protocol.Steps) -> Any:
        """Run a part of the protocol to its end; return its result."""
        return self._client.call(self._run(steps))

    async def _run(self, steps: protocol.Steps) -> Any:
        result = None
        while True:
            try:
                request = steps.send(result)
            except StopIteration as stopped:
                return stopped.value
            result = await self._answer(request)

    async def _answer(self, request: Any) -> Any:
        match request:
            case protocol.InitDriver():
                made = await self._driver.initialize(None, self._transaction_ms, self._timeout_ms)
                return DriverId(made.producer_id, made.epoch)
            case protocol.ReadLedger():
                return await self._read_ledger()
            case protocol.WriteLedger(driver, ledger):
                return await self._as_driver(self._write_ledger(_producer(driver), ledger))
            case protocol.EndDriver(driver):
                timeout_ms = self._timeout_ms
                end = self._driver.end(_producer(driver), commits=True, timeout_ms=timeout_ms)
                return await self._as_driver(end)
            case protocol.ListOpen():
                return await self._open_ids()
            case protocol.FenceAll(names):
                return await _all(self._fence, names)
            case protocol.AreOpen(transactions):
                return await _all(self._is_open, transactions)
            case protocol.EndAll(transactions, commits):
                return await _all(lambda one: self._end(one, commits), transactions)
        raise AssertionError(f"the protocol has no request {request!r}")

    # The ledger

    async def _read_ledger(self) -> Ledger | None:
        # The request for the first piece creates the topic on a new cluster.
        pieces = await self._pieces(range(1))
        if (count := pieces_in(pieces.get(0, ""))) > 1:
            pieces |= await self._pieces(range(1, count))
        return decode(pieces, self._sink)

    async def _pieces(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return pieces of the ledger, never while a transaction that has them is open.

        They are named: of a group's whole offsets Kafka leaves out the first ones that a
        transaction brings, until it has ended, and a decision would be overlooked.
        """
        places = {TopicPartition(LEDGER_TOPIC, number): number for number in numbers}
        positions = await committed_offsets(
            self._cluster,
            group_of(self._sink),
            places,
            require_stable=True,
            timeout_ms=self._timeout_ms,
        )
        return {places[place]: position.metadata for place, position in positions.items()}

    async def _write_ledger(self, producer: Producer, ledger: Ledger) -> None:
        group, timeout_ms = group_of(self._sink), self._timeout_ms
        described = await self._cluster.topics([LEDGER_TOPIC], timeout_ms=timeout_ms)
        most = min(MOST_PIECES, len(described[LEDGER_TOPIC].partitions))
        pieces = encode(ledger, self._sink, most)
        positions = {
            TopicPartition(LEDGER_TOPIC, number): Position(ledger.batch, -1, piece)
            for number, piece in enumerate(pieces)
        }
        await self._driver.add_group(producer, group, timeout_ms)
        await self._driver.commit_offsets(producer, group, Membership(), positions, timeout_ms)

    async def _as_driver(self, work: Awaitable[None]) -> None:
        """Do something as the driver. Raises SinkOvertaken where a later driver has begun."""
        try:
            await work
        except Refused as error:
            if error.code in _FENCED:
                raise SinkOvertaken(
                    f"sink {self._sink}: another run of this query, or another query with this"
                    " transactionalId, has begun since: only one may run"
                ) from error
            raise

    # Transactions of tasks

    async def _open_ids(self) -> list[str]:
        prefix = task_prefix(self._sink)
        await self._cluster.refresh()
        listed = await _all(
            lambda node_id: list_of(self._cluster, node_id, longer_than_ms=0),
            sorted(self._cluster.view.brokers),
        )
        return [
            one.transactional_id
            for of_broker in listed
            for one in of_broker
            if one.state == ONGOING and one.transactional_id.startswith(prefix)
        ]

    async def _fence(self, name: str) -> None:
        requests = TransactionRequests(self._cluster, name)
        await requests.initialize(None, self._transaction_ms, self._timeout_ms)

    async def _is_open(self, one: PreparedTransaction) -> bool:
        try:
            now = await describe_transaction(self._cluster, one.transactional_id)
        except Refused as error:
            if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return False
            raise
        identity = (now.producer_id, now.producer_epoch)
        return now.state == ONGOING and identity == (one.producer_id, one.epoch)

    async def _end(self, one: PreparedTransaction, commits: bool) -> EndOutcome:
        try:
            await complete(self._cluster, one, commits=commits, timeout_ms=self._timeout_ms)
        except Refused as error:
            if error.code in _LOST:
                return EndOutcome.LOST
            raise
        return EndOutcome.DONE

    @contextlib.contextmanager
    def transaction(self, name: str) -> Iterator[TaskTransaction]:
        """Open the transaction of one attempt of a task; what is not prepared is aborted."""
        _, send = settings_of(self._options)
        settings = replace(send, transactional_id=name)

        async def opened() -> RecordSender:
            sender = RecordSender(self._cluster, settings)
            assert sender.transactions is not None, "it has a transactional id"
            await sender.transactions.init()
            await sender.transactions.begin()
            return sender

        sender = self._client.call(opened())
        try:
            yield TaskTransaction(self._client, sender)
        except BaseException:
            with contextlib.suppress(ClientError, TimeoutError):
                self._client.call(sender.close(), GIVE_UP_S)
            raise
        self._client.call(sender.close())


class TaskTransaction:
    """The transaction of an attempt, which writes through ``sender``."""

    def __init__(self, client: BlockingCluster, sender: RecordSender) -> None:
        self.sender = sender
        self._client = client

    def prepare(self) -> PreparedTransaction | None:
        """Wait until every row is acknowledged; what ends the transaction, None without rows."""
        assert self.sender.transactions is not None, "it has a transactional id"
        try:
            return self._client.call(self.sender.transactions.prepare())
        except ProducerEnded as error:
            raise NotWritten(f"the transaction of a task was aborted: {error}") from error


async def _all(
    work: Callable[[Item], Awaitable[Result]], items: Iterable[Item]
) -> Sequence[Result]:
    """Do something with each item, AT_ONCE at a time; results in their order."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(item: Item) -> Result:
        async with room:
            return await work(item)

    return await asyncio.gather(*(one(item) for item in items))


def _producer(driver: DriverId) -> Producer:
    return Producer(driver.producer_id, driver.epoch)
