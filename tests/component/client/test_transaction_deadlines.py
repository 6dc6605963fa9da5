"""Calls of a transaction against coordinators that take their time: each call has one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.support.scripted_cluster import Answer, ScriptedCluster, topic, view_of
from tidelog.aio import Producer, TopicPartition
from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.metadata import BrokerAddress
from tidelog.errors import TransactionAbortableError
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
