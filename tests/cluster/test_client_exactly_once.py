"""Consume, transform, produce with the public clients: members, blocking calls, prepared ends.

The same tests run on tidelog and on Apache Kafka (KIP-98, KIP-447).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import tidelog.aio
from tests.support import clients
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.transaction_calls import (
    PARTITIONS,
    limited,
    producer_of,
    read,
    until_all_is_stable,
    write,
)
from tests.support.transaction_nodes import MAKES, transaction_node
from tidelog import Consumer, ConsumerGroupMetadata, PreparedTransaction, Producer, TopicPartition
from tidelog.errors import (
    BrokerResponseError,
    IllegalStateError,
    ProducerFencedError,
    TransactionAbortableError,
)

pytestmark = [pytest.mark.java, pytest.mark.long(60)]


@pytest.fixture(scope="module", params=MAKES)
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    with transaction_node(request.param, tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture
def bootstrap(node: Node) -> str:
    return node.bootstrap


@pytest.fixture
def topic(bootstrap: str, topic_name: str) -> str:
    clients.create_topic(bootstrap, topic_name, PARTITIONS, retention_ms=-1)
    return topic_name


def consumer_of(bootstrap: str, *topics: str, **settings: Any) -> Consumer:
    return Consumer(
        *topics,
        **{
            "bootstrap_servers": bootstrap,
            "isolation_level": "read_committed",
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 200,
            **settings,
        },
    )


def taken(consumer: Consumer, count: int) -> list[str]:
    """Poll until so many records have come."""
    values: list[str] = []

    def enough() -> bool:
        for records in consumer.poll(100).values():
            values.extend(record.value.decode() for record in records)
        return len(values) >= count

    wait_until(enough, DEADLINE_S, f"{count} records are read", 0)
    return values


# The consumer


def test_a_reader_skips_what_was_aborted_and_stops_at_what_is_open(
    bootstrap: str, topic: str
) -> None:
    async def run() -> None:
        async with producer_of(bootstrap) as one, producer_of(bootstrap) as other:
            await one.init_transactions()
            await other.init_transactions()
            for number in range(20):
                await one.begin_transaction()
                await other.begin_transaction()
                await write(one, topic, [f"{number:02}-a-{each}" for each in range(PARTITIONS)])
                await write(other, topic, [f"{number:02}-b-{each}" for each in range(PARTITIONS)])
                await asyncio.gather(one.flush(), other.flush())
                await one.abort_transaction()
                await other.commit_transaction()
            await until_all_is_stable(bootstrap, topic)
            await one.begin_transaction()
            await write(one, topic, ["open"] * PARTITIONS)
            await one.flush()
            async with tidelog.aio.Producer(bootstrap_servers=bootstrap) as plain:
                for each in range(PARTITIONS):
                    await plain.send_and_wait(topic, b"beyond", partition=each)
            wanted = sorted(f"{n:02}-b-{each}" for n in range(20) for each in range(PARTITIONS))
            assert await read(bootstrap, topic) == wanted
            assert len(await read(bootstrap, topic, "read_uncommitted")) == 42 * PARTITIONS
            await one.abort_transaction()
            await until_all_is_stable(bootstrap, topic)
            assert await read(bootstrap, topic) == wanted + ["beyond"] * PARTITIONS

    limited(run())


def test_a_member_that_was_replaced_commits_no_offsets(bootstrap: str, topic: str) -> None:
    group = f"g-{topic}"
    place = TopicPartition(topic, 0)
    with (
        blocking(bootstrap) as producer,
        consumer_of(bootstrap, topic, group_id=group) as first,
    ):
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"a", partition=0)
        assert taken(first, 1) == ["a"]
        before = first.group_metadata()
        assert before.group_id == group
        assert before.generation_id > 0
        assert before.member_id
        with consumer_of(bootstrap, topic, group_id=group) as second:

            def is_shared() -> bool:
                first.poll(20)
                second.poll(20)
                return bool(first.assignment()) and bool(second.assignment())

            wait_until(is_shared, DEADLINE_S, "both have partitions", 0)
            assert first.group_metadata().generation_id > before.generation_id
            producer.begin_transaction()
            with pytest.raises(TransactionAbortableError, match="abort_transaction"):
                producer.send_offsets_to_transaction({place: 1}, before)
            producer.abort_transaction()
            with producer.transaction():
                producer.send_offsets_to_transaction({place: 1}, first.group_metadata())
            wait_until(
                lambda: first.committed(place) == 1, DEADLINE_S, "the offset is committed", 0
            )


def test_a_new_member_waits_for_offsets_that_a_transaction_may_commit(
    bootstrap: str, topic: str
) -> None:
    group = f"g-{topic}"
    with blocking(bootstrap) as producer:
        producer.init_transactions()
        with producer.transaction():
            for value in (b"a", b"b"):
                producer.send(topic, value, partition=0)
        producer.begin_transaction()
        producer.send(topic, b"of a", partition=1)
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, group)
        with consumer_of(bootstrap, group_id=group) as reader:
            reader.assign([TopicPartition(topic, 0)])
            assert reader.poll(1_500) == {}, "a is not read again while its outcome is open"
            producer.commit_transaction()
            assert taken(reader, 1) == ["b"]


def test_a_consumer_without_a_group_has_no_metadata(bootstrap: str) -> None:
    with consumer_of(bootstrap) as reader, pytest.raises(IllegalStateError, match="group_id"):
        reader.group_metadata()
    with consumer_of(bootstrap, group_id="g") as reader:
        assert reader.group_metadata() == ConsumerGroupMetadata("g")


# The blocking producer


def blocking(bootstrap: str, name: str = "", **configs: Any) -> Producer:
    return Producer(
        **{
            "bootstrap_servers": bootstrap,
            "transactional_id": name or uuid.uuid4().hex,
            **configs,
        }
    )


def test_blocking_transactions(bootstrap: str, topic: str) -> None:
    with blocking(bootstrap) as producer:
        with pytest.raises(IllegalStateError, match="init_transactions"):
            producer.send(topic, b"x")
        producer.init_transactions()
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            producer.send(topic, b"x")
        for number in range(4):
            producer.begin_transaction()
            for each in range(300):
                producer.send(topic, f"{number}-{each:03}".encode(), partition=each % PARTITIONS)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            producer.send(topic, b"x")
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(topic, b"never")
            raise ZeroDivisionError
        with producer.transaction():
            last = producer.send(topic, b"last")
        assert last.done()
        limited(until_all_is_stable(bootstrap, topic))
    wanted = [f"{number}-{each:03}" for number in (0, 2) for each in range(300)] + ["last"]
    with consumer_of(bootstrap) as reader:
        reader.assign([TopicPartition(topic, each) for each in range(PARTITIONS)])
        assert sorted(taken(reader, len(wanted))) == wanted
        assert reader.poll(200) == {}


def test_a_blocking_record_that_fails_leaves_only_an_abort(bootstrap: str, topic: str) -> None:
    with blocking(bootstrap, max_request_size=2_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"a")
        producer.send(topic, b"x" * 5_000)
        with pytest.raises(TransactionAbortableError, match="max_request_size"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"b")
        limited(until_all_is_stable(bootstrap, topic))
    with consumer_of(bootstrap) as reader:
        reader.assign([TopicPartition(topic, each) for each in range(PARTITIONS)])
        assert taken(reader, 1) == ["b"]


def test_a_blocking_close_aborts_what_is_open(bootstrap: str, topic: str) -> None:
    with blocking(bootstrap) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"a")
        producer.flush()
    limited(until_all_is_stable(bootstrap, topic))
    with pytest.raises(IllegalStateError, match="closed"):
        producer.begin_transaction()


# Prepared transactions


@pytest.mark.parametrize("commits", [True, False])
def test_any_producer_ends_a_prepared_transaction_twice(
    bootstrap: str, topic: str, commits: bool
) -> None:
    with blocking(bootstrap) as producer, blocking(bootstrap) as other:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(30):
            producer.send(topic, f"{number:02}".encode(), partition=number % PARTITIONS)
        prepared = producer.prepare()
        assert prepared is not None
        assert producer.prepare() == prepared
        for call in (producer.begin_transaction, lambda: producer.send(topic, b"x")):
            with pytest.raises(IllegalStateError, match="complete_transaction"):
                call()
        plain = PreparedTransaction(*tuple(prepared))
        for _ in range(2):
            other.complete_transaction(plain, commit=commits)
        with pytest.raises(BrokerResponseError) as refused:
            other.complete_transaction(plain, commit=not commits)
        assert refused.value.code.name == "INVALID_TXN_STATE"
        assert ("aborted" if not commits else "committed") in str(refused.value)
        # Its own producer learns of it, and goes on in another epoch.
        producer.complete_transaction(prepared, commit=commits)
        with producer.transaction():
            producer.send(topic, b"after")
        with pytest.raises(ProducerFencedError, match="gone on"):
            other.complete_transaction(plain, commit=commits)
        limited(until_all_is_stable(bootstrap, topic))
    wanted = [f"{number:02}" for number in range(30)] * commits + ["after"]
    with consumer_of(bootstrap) as reader:
        reader.assign([TopicPartition(topic, each) for each in range(PARTITIONS)])
        assert sorted(taken(reader, len(wanted))) == wanted


@pytest.mark.parametrize("commits", [True, False])
def test_the_verdict_of_a_prepared_transaction_can_be_asked_again_until_the_next_one(
    bootstrap: str, topic: str, commits: bool
) -> None:
    name = uuid.uuid4().hex
    with Producer(bootstrap_servers=bootstrap) as plain:
        with blocking(bootstrap, name) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"a")
            prepared = producer.prepare()
            assert prepared is not None
            for _ in range(2):
                producer.complete_transaction(prepared, commit=commits)
                plain.complete_transaction(prepared, commit=commits)
            with pytest.raises(BrokerResponseError) as refused:
                producer.complete_transaction(prepared, commit=not commits)
            assert refused.value.code.name == "INVALID_TXN_STATE"
        # Its producer is gone: a sink that did not note the verdict asks again.
        plain.complete_transaction(prepared, commit=commits)
        with blocking(bootstrap, name) as later:
            later.init_transactions()
            with pytest.raises(ProducerFencedError, match="cannot tell"):
                plain.complete_transaction(prepared, commit=commits)
            later.begin_transaction()
            later.send(topic, b"b")
            second = later.prepare()
            assert second is not None
            later.complete_transaction(second)
            later.begin_transaction()
            later.send(topic, b"c")
            later.flush()
            for commit in (True, False):
                with pytest.raises(ProducerFencedError, match="gone on"):
                    plain.complete_transaction(second, commit=commit)
            later.commit_transaction()
        limited(until_all_is_stable(bootstrap, topic))
    wanted = ["a"] * commits + ["b", "c"]
    with consumer_of(bootstrap) as reader:
        reader.assign([TopicPartition(topic, each) for each in range(PARTITIONS)])
        assert sorted(taken(reader, len(wanted))) == wanted


def test_a_prepared_transaction_outlives_its_producer(bootstrap: str, topic: str) -> None:
    with blocking(bootstrap) as producer:
        producer.init_transactions()
        with producer.transaction():
            pass
        producer.begin_transaction()
        assert producer.prepare() is None, "nothing was sent"
        producer.complete_transaction(None)
        producer.begin_transaction()
        producer.send(topic, b"a")
        prepared = producer.prepare()
    with Producer(bootstrap_servers=bootstrap) as plain:
        plain.complete_transaction(prepared)
    with consumer_of(bootstrap) as reader:
        reader.assign([TopicPartition(topic, each) for each in range(PARTITIONS)])
        assert taken(reader, 1) == ["a"]


def test_a_prepared_transaction_that_timed_out_is_fenced(bootstrap: str, topic: str) -> None:
    with blocking(bootstrap, transaction_timeout_ms=1_500) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"a")
        prepared = producer.prepare()
        limited(until_all_is_stable(bootstrap, topic))
        with Producer(bootstrap_servers=bootstrap) as plain, pytest.raises(ProducerFencedError):
            plain.complete_transaction(prepared)
