"""Transactions of the public clients: the same tests on tidelog and on Apache Kafka (KIP-98)."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tidelog
from tests.support import clients
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import TidelogNode
from tests.support.transaction_calls import (
    PARTITIONS,
    limited,
    producer_of,
    read,
    until_all_is_stable,
    write,
)
from tests.support.transaction_nodes import MAKES, transaction_node
from tidelog.aio import Admin, Producer, TopicPartition
from tidelog.errors import (
    ClusterAuthorizationFailedError,
    IllegalStateError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerEndedError,
    ProducerFencedError,
    TransactionAbortableError,
)

pytestmark = [pytest.mark.java, pytest.mark.long(90)]

SHORT_MS = 1_500


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


@contextmanager
def frozen(node: Node) -> Iterator[None]:
    """Stop the process of a node for a while."""
    os.kill(node.program.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.program.pid, signal.SIGCONT)


async def committed(bootstrap: str, group: str) -> dict[TopicPartition, int]:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        return {
            place: found.offset for place, found in (await admin.list_group_offsets(group)).items()
        }


def test_what_is_committed_is_read_and_what_is_aborted_never(bootstrap: str, topic: str) -> None:
    async def run() -> None:
        async with producer_of(bootstrap) as producer:
            await producer.init_transactions()
            for number in range(6):
                await producer.begin_transaction()
                await write(producer, topic, [f"{number}-{each}" for each in range(5)])
                if number % 2:
                    await producer.flush()
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
            await until_all_is_stable(bootstrap, topic)
        wanted = sorted(f"{number}-{each}" for number in (0, 2, 4) for each in range(5))
        assert await read(bootstrap, topic) == wanted
        assert len(await read(bootstrap, topic, "read_uncommitted")) == 30

    limited(run())


def test_a_transaction_is_visible_only_when_it_has_ended(bootstrap: str, topic: str) -> None:
    async def run() -> None:
        async with producer_of(bootstrap) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await write(producer, topic, ["a", "b", "c"])
            await producer.flush()
            assert await read(bootstrap, topic) == []
            assert await read(bootstrap, topic, "read_uncommitted") == ["a", "b", "c"]
            await producer.commit_transaction()
            await until_all_is_stable(bootstrap, topic)
            assert await read(bootstrap, topic) == ["a", "b", "c"]

    limited(run())


def test_offsets_are_visible_only_after_the_commit(bootstrap: str, topic: str) -> None:
    async def run() -> None:
        group = f"g-{topic}"
        place = TopicPartition(topic, 0)
        async with producer_of(bootstrap) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await write(producer, topic, ["a"])
            await producer.send_offsets_to_transaction({place: 5}, group)
            await producer.abort_transaction()
            assert await committed(bootstrap, group) == {}
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({place: 7}, group)
            assert await committed(bootstrap, group) == {}
            await producer.commit_transaction()
            async with asyncio.timeout(DEADLINE_S):
                while await committed(bootstrap, group) != {place: 7}:
                    pass

    limited(run())


def test_a_second_producer_of_an_id_fences_the_first(bootstrap: str, topic: str) -> None:
    async def run() -> None:
        name = uuid.uuid4().hex
        async with producer_of(bootstrap, name) as first, producer_of(bootstrap, name) as second:
            await first.init_transactions()
            await first.begin_transaction()
            await write(first, topic, ["first"])
            await first.flush()
            await second.init_transactions()
            await second.begin_transaction()
            await write(second, topic, ["second"])
            await second.commit_transaction()
            with pytest.raises(ProducerFencedError, match="close this producer"):
                await first.commit_transaction()
            for call in (first.abort_transaction, first.begin_transaction, first.init_transactions):
                with pytest.raises(ProducerEndedError):
                    await call()
            with pytest.raises(ProducerFencedError):
                await first.send(topic, b"late")
            await until_all_is_stable(bootstrap, topic)
        assert await read(bootstrap, topic) == ["second"]

    limited(run())


def test_a_producer_that_sleeps_through_its_time_out_is_fenced(bootstrap: str, topic: str) -> None:
    async def run() -> None:
        async with producer_of(bootstrap, transaction_timeout_ms=SHORT_MS) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await write(producer, topic, ["a", "b", "c"])
            await producer.flush()
            # The coordinator aborts it.
            await until_all_is_stable(bootstrap, topic)
            with pytest.raises((ProducerFencedError, TransactionAbortableError)) as raised:
                await write(producer, topic, ["d", "e", "f"])
                await producer.commit_transaction()
            assert "close this producer" in str(raised.value)
        async with producer_of(bootstrap) as other:
            await other.init_transactions()
            async with other.transaction():
                await write(other, topic, ["after"])
        await until_all_is_stable(bootstrap, topic)
        assert await read(bootstrap, topic) == ["after"]

    limited(run())


def test_a_record_that_fails_leaves_only_an_abort(bootstrap: str, topic_name: str) -> None:
    clients.create_topic(bootstrap, topic_name, PARTITIONS, max_message_bytes=1_000)

    async def run() -> None:
        async with producer_of(bootstrap) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await write(producer, topic_name, ["a", "b", "c"])
            await producer.flush()
            failed = await producer.send(topic_name, b"x" * 5_000, partition=0)
            with pytest.raises(TransactionAbortableError, match="abort_transaction") as raised:
                await producer.commit_transaction()
            assert isinstance(raised.value.__cause__, MessageSizeTooLargeError)
            with pytest.raises(MessageSizeTooLargeError):
                await failed
            with pytest.raises(TransactionAbortableError):
                await producer.send(topic_name, b"later")
            await producer.abort_transaction()
            async with producer.transaction():
                await write(producer, topic_name, ["d", "e", "f"])
            await until_all_is_stable(bootstrap, topic_name)
        assert await read(bootstrap, topic_name) == ["d", "e", "f"]

    limited(run())


def test_a_full_buffer_inside_leaves_only_an_abort(node: Node, bootstrap: str, topic: str) -> None:
    async def run() -> None:
        async with producer_of(bootstrap, buffer_memory=4_000, max_block_ms=3_000) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await write(producer, topic, ["a", "b", "c"])
            await producer.flush()
            with frozen(node):
                with pytest.raises(KafkaTimeoutError, match="no memory"):
                    for _ in range(20):
                        await producer.send(topic, b"x" * 1_000, partition=0)
                with pytest.raises(TransactionAbortableError, match="no memory"):
                    await producer.commit_transaction()
            await aborted_at_last(producer)
            async with producer.transaction():
                await write(producer, topic, ["d"])
            await until_all_is_stable(bootstrap, topic)
        assert await read(bootstrap, topic) == ["d"]

    limited(run())


async def aborted_at_last(producer: Producer) -> None:
    """Abort, and again while the time of one call does not suffice."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await producer.abort_transaction()
            except KafkaTimeoutError:
                continue


def test_close_aborts_what_is_open(bootstrap: str, topic: str) -> None:
    async def run() -> None:
        async with producer_of(bootstrap) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await write(producer, topic, ["a", "b", "c"])
            await producer.flush()
            never = await producer.send(topic, b"d")
        # Not by its time-out, which is a minute.
        await until_all_is_stable(bootstrap, topic)
        assert await read(bootstrap, topic) == []
        with pytest.raises(TransactionAbortableError):
            await never

    limited(run())


def test_the_epoch_is_raised_after_an_abort_and_not_after_a_commit(
    bootstrap: str, topic: str
) -> None:
    async def run() -> None:
        async with producer_of(bootstrap) as producer:
            epochs = []

            def note() -> None:
                identity = producer.sender.delivery.identity
                assert identity is not None
                epochs.append(identity.epoch)

            await producer.init_transactions()
            note()
            for ends in ("commit", "abort", "empty abort", "commit", "abort"):
                await producer.begin_transaction()
                if ends != "empty abort":
                    await write(producer, topic, [ends] * PARTITIONS)
                    await producer.flush()
                await (
                    producer.commit_transaction()
                    if ends == "commit"
                    else producer.abort_transaction()
                )
                note()
            first = epochs[0]
            assert epochs == [first, first, first + 1, first + 1, first + 1, first + 2]
            await until_all_is_stable(bootstrap, topic)
        assert await read(bootstrap, topic) == ["commit"] * 2 * PARTITIONS

    limited(run())


def test_calls_in_the_wrong_order_say_what_comes_first(bootstrap: str, topic: str) -> None:
    async def run() -> None:
        async with producer_of(bootstrap) as producer:
            with pytest.raises(IllegalStateError, match=r"init_transactions\(\) first"):
                await producer.begin_transaction()
            with pytest.raises(IllegalStateError, match=r"init_transactions\(\) first"):
                await producer.send(topic, b"x")
            await producer.init_transactions()
            with pytest.raises(IllegalStateError, match="was called already"):
                await producer.init_transactions()
            for call in (
                producer.commit_transaction,
                producer.abort_transaction,
                producer.prepare,
            ):
                with pytest.raises(IllegalStateError, match=r"begin_transaction\(\) first"):
                    await call()
            with pytest.raises(IllegalStateError, match=r"begin_transaction\(\) first"):
                await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, "g")
            assert await producer.partitions_for(topic) == set(range(PARTITIONS))
            async with producer.transaction():
                with pytest.raises(IllegalStateError, match="commit or abort it first"):
                    await producer.begin_transaction()
        async with Producer(bootstrap_servers=bootstrap) as plain:
            with pytest.raises(IllegalStateError, match="no transactional_id"):
                await plain.begin_transaction()

    limited(run())


def test_the_context_aborts_when_it_raises(bootstrap: str, topic: str) -> None:
    async def run() -> None:
        async with producer_of(bootstrap) as producer:
            await producer.init_transactions()
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await write(producer, topic, ["a", "b", "c"])
                    raise ZeroDivisionError
            async with producer.transaction():
                await write(producer, topic, ["d"])
            await until_all_is_stable(bootstrap, topic)
        assert await read(bootstrap, topic) == ["d"]

    limited(run())


def test_a_commit_that_is_late_with_its_records_is_aborted(
    node: Node, bootstrap: str, topic: str
) -> None:
    with tidelog.Producer(
        bootstrap_servers=bootstrap, transactional_id=uuid.uuid4().hex, max_block_ms=3_000
    ) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"a", partition=0)
        with (
            pytest.raises(
                TransactionAbortableError, match=r"abort_transaction\(\) again"
            ) as raised,
            frozen(node),
            producer.transaction(),
        ):
            producer.send(topic, b"b", partition=0)
        assert isinstance(raised.value.__cause__, KafkaTimeoutError)
        wait_until(lambda: is_aborted(producer), DEADLINE_S, "it is aborted", 0)
        with producer.transaction():
            producer.send(topic, b"c", partition=0)
        limited(until_all_is_stable(bootstrap, topic))

    async def check() -> None:
        assert await read(bootstrap, topic) == ["a", "c"]

    limited(check())


def is_aborted(producer: tidelog.Producer) -> bool:
    """Abort; False when the time of the call did not suffice."""
    try:
        producer.abort_transaction()
    except KafkaTimeoutError:
        return False
    return True


def test_a_cluster_without_transactions_says_so_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with producer_of(plain.bootstrap) as producer:
            with pytest.raises(ProducerEndedError, match="transaction") as raised:
                await producer.init_transactions()
            assert isinstance(raised.value.__cause__, ClusterAuthorizationFailedError)
            assert raised.value.__cause__.reason in str(raised.value), "the server's sentence"
            assert "close this producer" in str(raised.value)
            with pytest.raises(ProducerEndedError):
                await producer.begin_transaction()

    with TidelogNode(tmp_path / "plain", {"inter.broker.protocol.version": "1.5"}) as plain:
        limited(run())
