"""The requests to a transaction coordinator: errors by version, refusals, lists, the shut gate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import Peer, until
from tests.support.transaction_broker import ID, TransactionBroker
from tidelog.broker.handlers import (
    add_partitions_to_txn,
    list_transactions,
)
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tidelog.protocol import messages
from tidelog.transactions import limits

NOT_OPEN = E.TRANSACTION_ABORTABLE


def run(folder: Path, story: Callable[[TransactionBroker], Awaitable[None]]) -> None:
    async def main() -> None:
        broker = TransactionBroker(folder)
        await broker.start()
        try:
            broker.lead("t", 4)
            await story(broker)
        finally:
            await broker.stop()

    asyncio.run(main())


def test_the_first_question_for_a_coordinator_creates_the_topic(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        assert (await broker.ask_init()).error_code == E.NOT_COORDINATOR
        found = await broker.find()
        assert (found.error_code, found.node_id, found.port) == (E.NONE, 1, broker.port)
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "1",
            "segment.bytes": "104857600",
            "unclean.leader.election.enable": "false",
        }
        assert [made[:4] for made in broker.created] == [(TRANSACTIONS_TOPIC, 1, 1, configs)]
        for version in range(1, 7):
            assert (await broker.find(version=version)).node_id == 1
        assert len(broker.created) == 1
        # The metadata here still names this broker, and its leadership is over.
        hosted = broker.broker.partitions.get(TRANSACTIONS_TOPIC, 0)
        assert hosted is not None
        broker.ids.resign(hosted.key, 5)
        assert (await broker.find()).error_code == E.COORDINATOR_NOT_AVAILABLE

    run(tmp_path, story)


def test_a_topic_that_cannot_be_created_is_asked_for_again(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        async def ensure(*_: object) -> E:
            return E.INVALID_REPLICATION_FACTOR

        broker.broker.topic_creation.ensure = ensure  # type: ignore[method-assign]
        found = await broker.find()
        assert found.error_code == E.COORDINATOR_NOT_AVAILABLE
        assert TRANSACTIONS_TOPIC in found.error_message
        assert await broker.add_offsets((1, 0), "g") == E.COORDINATOR_NOT_AVAILABLE

    run(tmp_path, story)


def test_bad_requests_for_a_producer_id(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        await broker.lead_and_load()
        for claimed in ((5, -1), (-1, 5)):
            assert (await broker.ask_init(claimed)).error_code == E.INVALID_REQUEST
        for name in ("", "x" * 100_000):
            assert (await broker.ask_init(transactional_id=name)).error_code == E.INVALID_REQUEST
        for timeout_ms in (-1, 0, 900_001):
            answer = await broker.ask_init(timeout_ms=timeout_ms)
            assert answer.error_code == E.INVALID_TRANSACTION_TIMEOUT
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
        assert len(broker.table()) == 0
        # A claim for an id that is not there gets a new producer id, as in Kafka.
        assert await broker.init(claimed=(7, 3), version=5) == (1000, 0)
        # Without a transactional id any broker gives one.
        answer = await broker.ask_init(transactional_id=None)
        assert (answer.producer_id, answer.producer_epoch) == (1001, 0)

    run(tmp_path, story)


def test_nothing_is_added_where_one_partition_is_unknown(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        hosted = await broker.lead_and_load()
        producer = await broker.init()
        end = hosted.end_offset
        asked = ("t", 0), ("t", 9), ("nowhere", 0), (TRANSACTIONS_TOPIC, 0)
        assert await broker.add(producer, *asked) == [
            E.OPERATION_NOT_ATTEMPTED,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.TOPIC_AUTHORIZATION_FAILED,
        ]
        assert hosted.end_offset == end and await broker.state() == "Empty"
        assert await broker.add((producer[0] + 1, 0), ("t", 0)) == [E.INVALID_PRODUCER_ID_MAPPING]

    run(tmp_path, story)


def test_a_partition_that_is_there_already_is_a_success_after_a_record(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        hosted = await broker.lead_and_load()
        producer = await broker.init()
        for version in range(4):
            assert await broker.add(producer, ("t", 0), ("t", 0), version=version) == [0, 0]
            assert hosted.end_offset == 2 + version
            assert await broker.state() == "Ongoing"

    run(tmp_path, story)


def test_a_transaction_has_a_limit_of_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: TransactionBroker) -> None:
        await broker.lead_and_load()
        producer = await broker.init()
        assert await broker.add(producer, ("t", 0), ("t", 1)) == [E.NONE, E.NONE]
        assert await broker.add(producer, ("t", 2)) == [E.UNKNOWN_SERVER_ERROR]
        assert await broker.add(producer, ("t", 1)) == [E.NONE]
        assert await broker.end(producer) == E.NONE

    monkeypatch.setattr("tidelog.transactions.rules.MAX_PARTITIONS", 2)
    run(tmp_path, story)


def test_the_offsets_of_a_group_add_its_partition(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        await broker.lead_and_load()
        producer = await broker.init()
        assert await broker.add_offsets(producer, "") == E.INVALID_GROUP_ID
        assert broker.broker.metadata.topic(OFFSETS_TOPIC) is None
        assert await broker.add_offsets(producer, "g") == E.NONE
        number = broker.coordinator.partition_of("g")
        (topic,) = (await broker.describe()).topics
        assert (topic.topic, topic.partitions) == (OFFSETS_TOPIC, [number])

    run(tmp_path, story)


def test_leaders_verify_partitions(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        assert await broker.verify((1000, 0), ("t", 0)) == [E.NOT_COORDINATOR]
        hosted = broker.lead_state()
        assert await broker.verify((1000, 0), ("t", 0)) == [E.COORDINATOR_LOAD_IN_PROGRESS]
        assert await broker.ids.reloaded(hosted) is None
        assert await broker.verify((1000, 0), ("t", 0)) == [E.INVALID_PRODUCER_ID_MAPPING]
        assert await broker.verify((1, 0), ("t", 0), transactional_id="") == [E.INVALID_REQUEST]
        former, producer = await broker.init(), await broker.init()
        assert await broker.verify(producer, ("t", 0)) == [NOT_OPEN]
        await broker.add(producer, ("t", 0))
        assert await broker.verify(producer, ("t", 0), ("t", 1)) == [E.NONE, NOT_OPEN]
        assert await broker.verify(former, ("t", 0)) == [E.PRODUCER_FENCED]
        assert await broker.verify((1000, 5), ("t", 0)) == [E.CONCURRENT_TRANSACTIONS]
        await broker.end(producer)
        assert await broker.verify(producer, ("t", 0)) == [E.CONCURRENT_TRANSACTIONS]
        await until(lambda: broker.markers.sent)
        broker.markers.sent[0].written()
        assert await broker.verify(producer, ("t", 0)) == [NOT_OPEN]

    run(tmp_path, story)


def test_a_broker_may_add_partitions_of_several_transactions(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        await broker.lead_and_load()
        producers = [await broker.init(transactional_id=name) for name in ("a", "b", "c")]
        request = messages.AddPartitionsToTxnRequest
        one = request.AddPartitionsToTxnTransaction
        topics = [request.AddPartitionsToTxnTopic("t", [0, 1])]
        unknown = [request.AddPartitionsToTxnTopic("t", [0, 9])]
        asked = request(
            [
                one("a", *producers[0], False, topics),
                one("b", producers[1][0], 7, False, topics),
                one("c", *producers[2], False, unknown),
                one("a", *producers[0], True, topics),
            ]
        )
        answer = await broker.ask(add_partitions_to_txn, asked, 4)
        found = [
            [x.error_code for topic in each.topic_results for x in topic.results_by_partition]
            for each in answer.results_by_transaction
        ]
        assert found == [
            [E.NONE, E.NONE],
            [E.PRODUCER_FENCED] * 2,
            [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION],
            [E.NONE, E.NONE],
        ]
        assert (await broker.describe("a")).transaction_state == "Ongoing"

    run(tmp_path, story)


def test_ids_are_described_and_listed(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        hosted = broker.lead_state()
        loading = E.COORDINATOR_LOAD_IN_PROGRESS
        assert (await broker.describe()).error_code == loading
        assert (await listed(broker)).error_code == loading
        assert await broker.ids.reloaded(hosted) is None
        assert (await broker.describe("")).error_code == E.INVALID_REQUEST
        assert (await broker.describe("x")).error_code == E.TRANSACTIONAL_ID_NOT_FOUND
        producer = await broker.init()
        await broker.init(transactional_id="other")
        await broker.add(producer, ("t", 3), ("t", 1))
        found = await broker.describe()
        assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 60_000)
        assert (found.producer_id, found.producer_epoch) == producer
        assert [(topic.topic, topic.partitions) for topic in found.topics] == [("t", [1, 3])]
        assert 0 <= broker.broker.clock.wall_ms() - found.transaction_start_time_ms < 60_000
        rows = {ID: (1000, "Ongoing"), "other": (1001, "Empty")}
        assert await rows_of(broker) == rows
        assert await rows_of(broker, state_filters=["Ongoing"]) == {ID: rows[ID]}
        assert await rows_of(broker, producer_id_filters=[1001, 7]) == {"other": rows["other"]}
        assert await rows_of(broker, state_filters=["Ongoing"], duration_filter=60_000) == {}
        answer = await listed(broker, state_filters=["Ongoing", "Odd", "Odd", "Dead"])
        assert answer.unknown_state_filters == ["Odd"]

    run(tmp_path, story)


async def listed(broker: TransactionBroker, **filters: Any) -> Any:
    request = messages.ListTransactionsRequest(**filters)
    return await broker.ask(list_transactions, request, 1)


async def rows_of(broker: TransactionBroker, **filters: Any) -> dict[str, tuple[int, str]]:
    answer = await listed(broker, **filters)
    assert answer.error_code == E.NONE
    return {
        each.transactional_id: (each.producer_id, each.transaction_state)
        for each in answer.transaction_states
    }


def test_an_id_without_a_committed_record_is_not_shown(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        broker.state_isr = broker.state_replicas = (1, 2)
        hosted = broker.lead_state()
        assert await broker.ids.reloaded(hosted) is None
        asking = asyncio.create_task(broker.ask_init())
        await until(lambda: hosted.end_offset == 1)
        assert len(broker.table()) == 1
        assert (await broker.describe()).error_code == E.TRANSACTIONAL_ID_NOT_FOUND
        assert await rows_of(broker) == {}
        asking.cancel()

    run(tmp_path, story)


def test_an_id_has_few_waiting_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(broker: TransactionBroker) -> None:
        await broker.lead_and_load()
        producer = await broker.init()
        await broker.add(producer, ("t", 0))
        await broker.end(producer)
        waiting = [asyncio.create_task(broker.add(producer, ("t", 0))) for _ in range(2)]
        await until(lambda: len(broker.table().get(ID).waiting) == 2)  # type: ignore[union-attr]
        assert await broker.add(producer, ("t", 0)) == [E.CONCURRENT_TRANSACTIONS]
        await until(lambda: broker.markers.sent)
        broker.markers.sent[0].written()
        assert [await each for each in waiting] == [[E.NONE], [E.NONE]]

    monkeypatch.setattr(limits, "MAX_WAITING", 2)
    run(tmp_path, story)


# The gate --------------------------------------------------------------------------------------

OF_TRANSACTIONS = {24: (0, 3), 25: (0, 4), 26: (0, 4), 65: (0, 0)}


def test_while_transactions_are_not_offered_all_is_refused_as_before(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        broker.broker.cluster_level.take("1.5")
        hosted = broker.lead_state()
        answer = await broker.ask_init()
        assert (answer.error_code, answer.producer_id) == (E.CLUSTER_AUTHORIZATION_FAILED, -1)
        for version in range(1, 7):
            found = await broker.find(version=version)
            assert found.error_code == E.CLUSTER_AUTHORIZATION_FAILED
            assert "send without a transactional.id" in found.error_message
        assert await rows_of(broker) == {}
        answer = await broker.ask_init(transactional_id=None)
        assert answer.error_code == E.NONE
        peer = await Peer.connect(broker.port)
        assert await shown(peer) == {22: (0, 4), 66: (0, 1)}
        for request in (
            messages.AddPartitionsToTxnRequest(),
            messages.AddOffsetsToTxnRequest(),
            messages.EndTxnRequest(),
            messages.DescribeTransactionsRequest(),
            messages.InitProducerIdRequest(None),
        ):
            with pytest.raises(ConnectionError):
                await (await Peer.connect(broker.port)).ask(
                    request, 5 if isinstance(request, messages.InitProducerIdRequest) else 0
                )
        assert hosted.end_offset == 0 and broker.created == []
        broker.broker.cluster_level.take("1.6")
        assert await broker.ids.reloaded(hosted) is None
        offered = {**OF_TRANSACTIONS, 22: (0, 5), 66: (0, 1)}
        # A lone broker takes every connection for a process of the cluster.
        assert await shown(peer) == {**offered, 24: (0, 4)}
        assert broker.server.router.api_versions(trusted=False)
        visible = {x.api_key: x.max_version for x in broker.server.router.api_versions(False)}
        assert visible[24] == 3
        answer = await peer.ask(messages.InitProducerIdRequest(ID, 1000), 5)
        assert answer.error_code == E.NONE
        answer = await peer.ask(messages.EndTxnRequest(ID, answer.producer_id, 0, True), 4)
        assert answer.error_code == E.INVALID_TXN_STATE
        peer.writer.close()

    run(tmp_path, story)


async def shown(peer: Peer) -> dict[int, tuple[int, int]]:
    answer = await peer.ask(messages.ApiVersionsRequest("peer", "1"), 3)
    found = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    return {key: found[key] for key in (*range(24, 29), 22, 65, 66) if key in found}


class StartedBroker(TransactionBroker):
    """It has started, and no UpdateConfigs has come."""

    level = None


def test_before_the_level_is_known_clients_get_what_they_retry(tmp_path: Path) -> None:
    """A refusal for good ended each producer that came to a broker which had just restarted."""

    async def story(broker: StartedBroker) -> None:
        assert (await broker.ask_init()).error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        for version in range(1, 7):
            found = await broker.find(version=version)
            assert found.error_code == E.COORDINATOR_NOT_AVAILABLE
            assert "does not know the level of the cluster yet" in found.error_message
        producer = (1000, 0)
        assert E.UNKNOWN_TOPIC_OR_PARTITION.retriable
        assert await broker.add(producer, ("t", 0)) == [E.UNKNOWN_TOPIC_OR_PARTITION]
        assert E(await broker.end(producer)).retriable
        assert E((await broker.describe()).error_code).retriable
        asked = messages.ListTransactionsRequest()
        answer = await broker.ask(list_transactions, asked, 1)
        assert answer.error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        peer = await Peer.connect(broker.port)
        produced = messages.ProduceRequest
        data = produced.PartitionProduceData(0, b"")
        topics = [produced.TopicProduceData("t", partition_data=[data])]
        answer = await peer.ask(produced(ID, -1, 1000, topics), 9)
        (part,) = answer.responses[0].partition_responses
        assert part.error_code == E.UNKNOWN_TOPIC_OR_PARTITION
        assert E(await broker.add_offsets(producer, "g")).retriable
        # The connections of this time last longer: they may use what the cluster may offer.
        shown_now = await shown(peer)
        assert shown_now == {**OF_TRANSACTIONS, 24: (0, 4), 22: (0, 4), 66: (0, 1)}
        assert all(name != TRANSACTIONS_TOPIC for name, *_ in broker.created)
        broker.broker.cluster_level.take("1.6")
        await broker.lead_and_load()
        answer = await peer.ask(messages.InitProducerIdRequest(ID, 1000), 4)
        assert answer.error_code == E.NONE
        answer = await peer.ask(messages.EndTxnRequest(ID, answer.producer_id, 0, True), 4)
        assert answer.error_code == E.INVALID_TXN_STATE

    async def main() -> None:
        broker = StartedBroker(tmp_path)
        await broker.start()
        try:
            await story(broker)
        finally:
            await broker.stop()

    asyncio.run(main())
