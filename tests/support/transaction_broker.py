"""A lone broker that coordinates transactions, on real files; markers are written by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.group_broker import GroupBroker
from tidelog.broker.control_plane.session import ControllerUnreachable
from tidelog.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    list_transactions,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from tidelog.network.router import Handler, Router
from tidelog.protocol import messages
from tidelog.transactions.decision import SendMarkers
from tidelog.transactions.table import TransactionTable

HANDLERS = [
    module.HANDLER
    for module in (
        add_offsets_to_txn,
        add_partitions_to_txn,
        describe_transactions,
        end_txn,
        init_producer_id,
        list_transactions,
    )
]

ID = "id"
"""The transactional id of most tests."""

CONFIGS = {
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}


@dataclass
class Sent:
    """Markers that a coordinator has let be written."""

    state_partition: int
    coordinator_epoch: int
    markers: SendMarkers
    written: Callable[[], None]


@dataclass
class Recorder:
    """The sender of markers in tests: it has the form of ``SendsMarkers``."""

    sent: list[Sent] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    at_once: bool = False
    """Whether markers are durable as soon as they are sent."""

    def send(
        self,
        state_partition: int,
        coordinator_epoch: int,
        markers: SendMarkers,
        written: Callable[[], None],
    ) -> None:
        self.sent.append(Sent(state_partition, coordinator_epoch, markers, written))
        if self.at_once:
            written()

    def stop(self, state_partition: int) -> None:
        self.stopped.append(state_partition)


class Session:
    """A session with a controller that allocates blocks of producer ids."""

    broker_epoch = 1

    def __init__(self) -> None:
        self.next_block = 1000
        self.answers = asyncio.Event()
        self.answers.set()
        self.is_reachable = True
        self.asked = 0
        self.block_length = 10

    async def request(self, request: messages.AllocateProducerIdsRequest) -> Any:
        self.asked += 1
        await self.answers.wait()
        if not self.is_reachable:
            raise ControllerUnreachable("planted")
        first, length = self.next_block, self.block_length
        self.next_block += length
        return messages.AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=length)


class TransactionBroker(GroupBroker):
    """``await start()`` it; the topic of transactions comes when asked for."""

    level: str | None = "1.6"

    def __init__(self, folder: Path, config: Mapping[str, object] | None = None) -> None:
        super().__init__(folder, {**CONFIGS, **(config or {})})
        self.state_partitions = 1
        self.state_isr: tuple[int, ...] = (1,)
        self.state_replicas: tuple[int, ...] = (1,)
        self.markers = Recorder()
        self.created: list[tuple[object, ...]] = []

    def router(self, extra: Iterable[Handler] = ()) -> Router:
        return super().router([*HANDLERS, *extra])

    async def start(self) -> None:
        await super().start()
        self.session = Session()
        self.broker.transactions.send_with(self.markers)

    @property
    def ids(self) -> Any:
        """The coordinator of transactional ids."""
        return self.broker.transactions.coordinator

    async def _create(self, name: str, partitions: int, *more: object) -> ErrorCode:
        self.created.append((name, partitions, *more))
        if name == OFFSETS_TOPIC:
            return await super()._create(name, partitions)
        assert name == TRANSACTIONS_TOPIC
        self.lead_state()
        return ErrorCode.NONE

    def lead_state(self, epoch: int = 0, leader: int = 1) -> Any:
        """Lead the topic of transactions (or let broker 2 do so)."""
        return self.lead(
            TRANSACTIONS_TOPIC,
            self.state_partitions,
            {"cleanup.policy": "compact", "min.insync.replicas": "2"},
            epoch=epoch,
            leader=leader,
            isr=self.state_isr,
            replicas=self.state_replicas,
        )

    async def lead_and_load(self, epoch: int = 0) -> Any:
        """Lead the topic of transactions, and wait until its ids are loaded."""
        hosted = self.lead_state(epoch)
        assert await self.ids.reloaded(hosted) is None
        return hosted

    def table(self, number: int = 0) -> TransactionTable:
        """The ids of a led partition."""
        found: TransactionTable = self.ids.leading(number).table
        return found

    # Requests, each as a client sends it -------------------------------------------------------

    def ask_init(
        self,
        claimed: tuple[int, int] = (-1, -1),
        *,
        version: int = 4,
        timeout_ms: int = 60_000,
        transactional_id: str | None = ID,
    ) -> Any:
        request = messages.InitProducerIdRequest(transactional_id, timeout_ms, *claimed)
        return self.ask(init_producer_id, request, version)

    async def init(self, **of: Any) -> tuple[int, int]:
        """Return a producer's id and epoch."""
        answer = await self.ask_init(**of)
        assert answer.error_code == ErrorCode.NONE
        return answer.producer_id, answer.producer_epoch

    async def add(
        self,
        producer: tuple[int, int],
        *partitions: tuple[str, int],
        version: int = 3,
        transactional_id: str = ID,
    ) -> list[int]:
        """Return the errors of partitions that a producer adds."""
        request = messages.AddPartitionsToTxnRequest
        topics = [request.AddPartitionsToTxnTopic(name, [index]) for name, index in partitions]
        asked = request([], transactional_id, *producer, topics)
        answer = await self.ask(add_partitions_to_txn, asked, version)
        results = answer.results_by_topic_v3_and_below
        assert [each.name for each in results] == [name for name, _ in partitions]
        return [part.error_code for each in results for part in each.results_by_partition]

    async def add_offsets(self, producer: tuple[int, int], group: str, version: int = 3) -> int:
        request = messages.AddOffsetsToTxnRequest(ID, *producer, group)
        code: int = (await self.ask(add_offsets_to_txn, request, version)).error_code
        return code

    async def end(
        self, producer: tuple[int, int], *, committed: bool = True, version: int = 3
    ) -> int:
        request = messages.EndTxnRequest(ID, *producer, committed)
        code: int = (await self.ask(end_txn, request, version)).error_code
        return code

    async def verify(
        self, producer: tuple[int, int], *partitions: tuple[str, int], transactional_id: str = ID
    ) -> list[int]:
        """Return what a leader learns about a producer's partitions."""
        request = messages.AddPartitionsToTxnRequest
        topics = [request.AddPartitionsToTxnTopic(name, [index]) for name, index in partitions]
        one = request.AddPartitionsToTxnTransaction(transactional_id, *producer, True, topics)
        answer = await self.ask(add_partitions_to_txn, request([one, one]), 4)
        first, second = answer.results_by_transaction
        assert first == second and first.transactional_id == transactional_id
        return [x.error_code for each in first.topic_results for x in each.results_by_partition]

    async def describe(self, transactional_id: str = ID) -> Any:
        request = messages.DescribeTransactionsRequest([transactional_id, transactional_id])
        (state,) = (await self.ask(describe_transactions, request, 0)).transaction_states
        return state

    async def state(self) -> str:
        found: str = (await self.describe()).transaction_state
        return found

    async def find(self, key: str = ID, version: int = 4) -> Any:
        request = messages.FindCoordinatorRequest(key, 1, [key])
        answer = await self.ask(find_coordinator, request, version)
        return answer if version < 4 else answer.coordinators[0]

    async def stop(self) -> None:
        await self.ids.close()
        await super().stop()


def partitions(*of: tuple[str, int]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(*each) for each in of)
