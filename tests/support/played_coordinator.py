"""A coordinator of transactions that a test plays on a real socket, and producers of transactions.

Owns its answers to AddPartitionsToTxn v4, and when they are given. Not the rules of a coordinator:
see `tidelog.transactions`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.lone_broker import LoneBroker, Peer
from tests.support.transactional_logs import transactional
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TRANSACTIONS_TOPIC
from tidelog.network import api_versions
from tidelog.network.limits import Limits
from tidelog.network.router import Handler, Router, Scope
from tidelog.network.server import Server
from tidelog.protocol import messages
from tidelog.records.batch import Rejected
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.control_records import EndMarker, marker_batch

NODE = 2
_Response = messages.AddPartitionsToTxnResponse


class Asked(NamedTuple):
    """A question: whether a partition is in a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    topic: str
    partition: int


@dataclass
class PlayedCoordinator:
    """Confirms what is in ``open``. ``requests``: the questions of each request."""

    open: set[Asked] = field(default_factory=set)
    requests: list[list[Asked]] = field(default_factory=list)
    error: ErrorCode | None = None
    """The answer for every partition, whatever is open."""
    top_error: ErrorCode = ErrorCode.NONE
    leaves_out: bool = False
    """Whether its responses have no partition."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    """Answers wait for it; they are as things were when the request came."""
    offers: bool = True
    """Whether its broker offers transactions; a connection keeps what it was shown."""
    server: Server | None = None
    port: int = 0

    @property
    def asked(self) -> list[Asked]:
        """All questions, in turn."""
        return [question for request in self.requests for question in request]

    async def start(self) -> None:
        """Listen."""
        handler = Handler(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            Scope.BROKER,
            self._handle,
            versions=range(4, 5),
            with_transactions=range(4, 5),
        )
        router = Router([api_versions.HANDLER, handler], lambda: self.offers)
        self.server = Server(router, self, Limits())
        self.port = await self.server.listen("PLAINTEXT", "127.0.0.1", self.port)
        self.may_answer.set()

    async def stop(self) -> None:
        """Close all connections."""
        if self.server is not None:
            self.may_answer.set()
            server, self.server = self.server, None
            await server.stop(grace_s=0)

    async def _handle(self, _: Any, request: Any, __: Any) -> Any:
        questions, results = [], []
        for one in request.transactions:
            assert one.verify_only
            whose = one.transactional_id, one.producer_id, one.producer_epoch
            topics = []
            for topic in one.topics:
                parts = []
                for index in topic.partitions:
                    question = Asked(*whose, topic.name, index)
                    questions.append(question)
                    parts.append(
                        _Response.AddPartitionsToTxnPartitionResult(index, self._error(question))
                    )
                topics.append(_Response.AddPartitionsToTxnTopicResult(topic.name, parts))
            results.append(_Response.AddPartitionsToTxnResult(one.transactional_id, topics))
        self.requests.append(questions)
        response = _Response(
            error_code=self.top_error,
            results_by_transaction=[] if self.leaves_out else results,
        )
        await self.may_answer.wait()
        return response

    def _error(self, question: Asked) -> ErrorCode:
        if self.error is not None:
            return self.error
        is_open = question in self.open
        return ErrorCode.NONE if is_open else ErrorCode.TRANSACTION_ABORTABLE


@dataclass
class TransactionalProducer:
    """A producer of one transactional id, whose transactions are open where the test says so."""

    lone: LoneBroker
    coordinator: PlayedCoordinator
    transactional_id: str = "tx"
    producer_id: int = 7
    epoch: int = 0

    def question(self, partition: int = 0, topic: str = "t") -> Asked:
        return Asked(self.transactional_id, self.producer_id, self.epoch, topic, partition)

    def add(self, partition: int = 0, topic: str = "t") -> None:
        """The partition is in its open transaction from now on."""
        self.coordinator.open.add(self.question(partition, topic))

    def batch(self, sequence: int = 0, *, count: int = 1, codec: int = 0) -> bytes:
        producer = Producer(self.producer_id, self.epoch, sequence)
        now_ms = int(time.time() * 1000)
        records = [NewRecord(now_ms, b"key", b"value") for _ in range(count)]
        return transactional(build_batch(records, producer=producer, codec=codec))

    def request(self, *batches: tuple[int, bytes], acks: int = -1, timeout_ms: int = 20_000) -> Any:
        return produced(
            *batches, acks=acks, timeout_ms=timeout_ms, transactional_id=self.transactional_id
        )

    async def send(
        self, peer: Peer, sequence: int = 0, partition: int = 0, *, version: int = 11, **more: Any
    ) -> Any:
        """Send a batch and return its part of the response."""
        request = self.request((partition, self.batch(sequence)), **more)
        return part_of(await peer.ask(request, version))

    def end(
        self,
        hosted: HostedPartition,
        *,
        committed: bool = True,
        epoch: int = -1,
        coordinator_epoch: int = 0,
    ) -> int:
        """Write the marker, as the coordinator does; return its offset."""
        self.coordinator.open -= {
            question
            for question in self.coordinator.open
            if question.producer_id == self.producer_id
        }
        made = marker_batch(
            EndMarker(committed, coordinator_epoch),
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch < 0 else epoch,
            leader_epoch=0,
            timestamp_ms=int(time.time() * 1000),
        )
        got = hosted.append(made, self.lone.broker.clock.wall_ms(), from_client=False)
        assert not isinstance(got, Rejected), got
        return got.first_offset


def produced(
    *batches: tuple[int, bytes],
    acks: int = -1,
    timeout_ms: int = 20_000,
    transactional_id: str | None = None,
) -> Any:
    """A Produce request for partitions of topic ``t``."""
    request = messages.ProduceRequest
    parts = [request.PartitionProduceData(index=index, records=each) for index, each in batches]
    topic = request.TopicProduceData(name="t", partition_data=parts)
    return request(
        acks=acks, timeout_ms=timeout_ms, topic_data=[topic], transactional_id=transactional_id
    )


def part_of(answer: Any, place: int = 0) -> Any:
    """The response for one partition of the request's only topic."""
    return answer.responses[0].partition_responses[place]


def know_coordinator(
    lone: LoneBroker, port: int, leader: int = NODE, partitions: int = 1, epoch: int = 0
) -> None:
    """Let the broker's metadata show the leader of ``__transaction_state``."""
    update = messages.UpdateMetadataRequest
    ends = {1: lone.port, NODE: port}
    brokers = [
        update.UpdateMetadataBroker(
            id=node,
            endpoints=[
                update.UpdateMetadataEndpoint(port=each, host="127.0.0.1", listener="PLAINTEXT")
            ],
        )
        for node, each in ends.items()
    ]
    states = [
        update.UpdateMetadataPartitionState(
            partition_index=index, leader=leader, leader_epoch=epoch, replicas=[leader]
        )
        for index in range(partitions)
    ]
    topic = update.UpdateMetadataTopicState(topic_name=TRANSACTIONS_TOPIC, partition_states=states)
    whole = update(controller_id=1, topic_states=[topic], live_brokers=brokers)
    lone.broker.metadata.apply(whole, complete=False)


def become(lone: LoneBroker, hosted: HostedPartition, **changes: Any) -> None:
    """Apply a LeaderAndIsr that changes this of the partition's state; no metadata change."""
    version = hosted.state.isr_version + 1
    state = replace(hosted.state, **{"isr_version": version, **changes})
    lone.broker.partitions.apply(hosted, state)


@asynccontextmanager
async def leading(
    folder: Path, partitions: int = 1, configs: dict[str, str] | None = None, **config: object
) -> AsyncIterator[tuple[LoneBroker, PlayedCoordinator, Peer]]:
    """A broker that leads partitions of topic ``t`` and offers transactions, and their
    coordinator."""
    lone, coordinator = LoneBroker(folder, config), PlayedCoordinator()
    await lone.start()
    await coordinator.start()
    try:
        lone.lead("t", partitions, configs)
        know_coordinator(lone, coordinator.port)
        lone.broker.cluster_level.take("1.6")
        yield lone, coordinator, await Peer.connect(lone.port)
    finally:
        await lone.stop()
        await coordinator.stop()
