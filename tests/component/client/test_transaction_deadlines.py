"""Calls of a transaction against coordinators that take their time: each call has one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.support.network_server import until
from tests.support.scripted_cluster import Answer, ScriptedCluster, topic, view_of
from tidelog.aio import Producer, TopicPartition
from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.metadata import BrokerAddress
from tidelog.client.producing.transaction import Phase
from tidelog.errors import (
    IllegalStateError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
)
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

BLOCK_MS = 60_000
WRITTEN = {TopicPartition("in", 0): 5}


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test moves on."""

    skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self.skipped_s


class Coordinator(ScriptedCluster):
    """A cluster of one broker, which coordinates all; ``answers`` replace its own."""

    def __init__(self, answers: dict[type[Any], Answer]) -> None:
        found = messages.FindCoordinatorResponse
        ends = messages.EndTxnResponse
        usual: dict[type[Any], Answer] = {
            messages.FindCoordinatorRequest: lambda *_: found(
                coordinators=[found.Coordinator(node_id=0, host="h", port=0)]
            ),
            messages.InitProducerIdRequest: lambda *_: messages.InitProducerIdResponse(
                producer_id=7, producer_epoch=len(self.asked_for(messages.InitProducerIdRequest))
            ),
            messages.EndTxnRequest: lambda *_: ends(),
        }
        super().__init__(view_of(topic("t", [0], ordered=False)), usual | answers)

    async def connection_at(self, broker: BrokerAddress, purpose: str) -> ClientConnection:
        return await self.connection(broker.node_id, purpose)


def run(
    answers: Callable[[Loop], dict[type[Any], Answer]],
    work: Callable[[Producer, Coordinator], Coroutine[Any, Any, None]],
    block_ms: int = BLOCK_MS,
) -> None:
    """Run a test with a producer whose id is initialized."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        cluster = Coordinator(answers(loop))
        async with Producer(
            cluster=cluster, transactional_id="x", max_block_ms=block_ms, linger_ms=0
        ) as producer:
            await producer.init_transactions()
            await work(producer, cluster)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("is_silent", [True, False])
def test_offsets_of_a_transaction_have_one_deadline_for_both_requests(is_silent: bool) -> None:
    def answers(loop: Loop) -> dict[type[Any], Answer]:
        def added(*_: Any) -> Any:
            loop.skipped_s += BLOCK_MS / 1000 * 0.7
            return messages.AddOffsetsToTxnResponse()

        def committed(_: int, request: Any) -> Any:
            loop.skipped_s += BLOCK_MS / 1000 * 0.4
            if is_silent:
                return loop.create_future()
            response = messages.TxnOffsetCommitResponse
            code = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            part = response.TxnOffsetCommitResponsePartition(0, code)
            return response(topics=[response.TxnOffsetCommitResponseTopic("in", [part])])

        return {
            messages.AddOffsetsToTxnRequest: added,
            messages.TxnOffsetCommitRequest: committed,
        }

    async def work(producer: Producer, cluster: Coordinator) -> None:
        await producer.begin_transaction()
        with pytest.raises(TransactionAbortableError, match="abort_transaction"):
            async with asyncio.timeout(BLOCK_MS / 1000 * 1.5):
                await producer.send_offsets_to_transaction(WRITTEN, "g")
        assert len(cluster.asked_for(messages.TxnOffsetCommitRequest)) == 1
        await producer.abort_transaction()

    run(answers, work)


def ended_with(code: ErrorCode) -> Callable[[Loop], dict[type[Any], Answer]]:
    """Nothing comes of the partitions that are added; EndTxn is answered with a code."""

    def answers(loop: Loop) -> dict[type[Any], Answer]:
        def end(*_: Any) -> Any:
            if code is ErrorCode.CONCURRENT_TRANSACTIONS:
                loop.skipped_s += BLOCK_MS / 1000 + 1
            return messages.EndTxnResponse(error_code=int(code))

        return {
            messages.AddPartitionsToTxnRequest: lambda *_: loop.create_future(),
            messages.AddOffsetsToTxnRequest: lambda *_: messages.AddOffsetsToTxnResponse(),
            messages.TxnOffsetCommitRequest: lambda *_: messages.TxnOffsetCommitResponse(),
            messages.EndTxnRequest: end,
        }

    return answers


async def skip_when_flushing(producer: Producer) -> None:
    """Let the time of a commit be over while it waits for the outcome of its records."""
    loop, transactions = asyncio.get_running_loop(), producer.sender.transactions
    assert isinstance(loop, Loop)
    assert transactions is not None
    rules = transactions.rules
    await until(lambda: rules.phase is Phase.FLUSHING)
    loop.skipped_s += BLOCK_MS / 1000 + 1


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        (ErrorCode.NONE, TransactionAbortableError, "is aborted: begin another one"),
        (
            ErrorCode.CONCURRENT_TRANSACTIONS,
            TransactionAbortableError,
            r"call abort_transaction\(\) again",
        ),
        (ErrorCode.PRODUCER_FENCED, ProducerFencedError, "close this producer"),
    ],
)
def test_a_commit_that_is_late_with_its_records_says_what_became_of_the_abort(
    code: ErrorCode, error: type[Exception], text: str
) -> None:
    async def work(producer: Producer, cluster: Coordinator) -> None:
        with pytest.raises(error, match=text) as raised:
            async with producer.transaction():
                record = await producer.send("t", b"a")
                skipping = asyncio.create_task(skip_when_flushing(producer))
        await skipping
        with pytest.raises((TransactionAbortableError, ProducerFencedError)):
            await record
        assert isinstance(raised.value.__cause__, KafkaTimeoutError)
        assert all(not each.committed for _, each in cluster.asked_for(messages.EndTxnRequest))
        if error is ProducerFencedError:
            with pytest.raises(ProducerFencedError):
                await producer.begin_transaction()
            return
        if code is not ErrorCode.NONE:
            cluster.answers[messages.EndTxnRequest] = lambda *_: messages.EndTxnResponse()
            await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_offsets_to_transaction(WRITTEN, "g")

    run(ended_with(code), work)


def test_a_sentence_of_the_broker_ends_once() -> None:
    """The line for one broker without transactions had '.:' where two sentences met."""

    def answers(loop: Loop) -> dict[type[Any], Answer]:
        found = messages.FindCoordinatorResponse

        def refuse(*_: Any) -> Any:
            loop.skipped_s += BLOCK_MS / 1000
            code, why = int(ErrorCode.COORDINATOR_NOT_AVAILABLE), "Start more brokers."
            return found(
                coordinators=[found.Coordinator(node_id=-1, error_code=code, error_message=why)]
            )

        return {messages.FindCoordinatorRequest: refuse}

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        async with Producer(cluster=Coordinator(answers(loop)), transactional_id="x") as producer:
            with pytest.raises(KafkaTimeoutError) as raised:
                await producer.init_transactions()
        assert str(raised.value).endswith("Start more brokers: call init_transactions again")

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())


def test_offsets_that_are_refused_name_their_partition() -> None:
    def answers(_: Loop) -> dict[type[Any], Answer]:
        def committed(*_: Any) -> Any:
            response = messages.TxnOffsetCommitResponse
            code = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            parts = [
                response.TxnOffsetCommitResponsePartition(0, 0),
                response.TxnOffsetCommitResponsePartition(1, code),
            ]
            return response(topics=[response.TxnOffsetCommitResponseTopic("in", parts)])

        return {
            messages.AddOffsetsToTxnRequest: lambda *_: messages.AddOffsetsToTxnResponse(),
            messages.TxnOffsetCommitRequest: committed,
        }

    async def work(producer: Producer, _: Coordinator) -> None:
        await producer.begin_transaction()
        with pytest.raises(TransactionAbortableError, match="group 'g', offset of in-1: OFFSET_"):
            await producer.send_offsets_to_transaction(WRITTEN | {TopicPartition("in", 1): 5}, "g")
        await producer.abort_transaction()

    run(answers, work)


def test_a_commit_whose_outcome_is_open_can_be_committed_again() -> None:
    async def work(producer: Producer, cluster: Coordinator) -> None:
        with pytest.raises(KafkaTimeoutError, match="commit_transaction again"):
            async with producer.transaction():
                await producer.send_offsets_to_transaction(WRITTEN, "g")
        with pytest.raises(IllegalStateError, match="outcome of the commit is open"):
            await producer.abort_transaction()
        cluster.answers[messages.EndTxnRequest] = lambda *_: messages.EndTxnResponse()
        await producer.commit_transaction()
        assert all(each.committed for _, each in cluster.asked_for(messages.EndTxnRequest))

    run(ended_with(ErrorCode.CONCURRENT_TRANSACTIONS), work)
