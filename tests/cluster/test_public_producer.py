"""The public producers against a running server: results, errors, memory, time-outs, their end.

Runs against Apache Kafka too (`TIDELOG_TEST_TARGET=kafka`): there no topic has counts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import kafka
import pytest

import tidelog
import tidelog.aio
from tests.support.clients import COMPRESSIONS, create_topic
from tests.support.processes import DEADLINE_S, free_ports
from tests.support.target import new_node
from tidelog.errors import (
    IllegalStateError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NoBrokersAvailable,
    UnknownTopicOrPartitionError,
)
from tidelog.partitioning.hashing import hash_of_key


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; TimeoutError when it hangs."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    asyncio.run(bounded())


def read_all(bootstrap: str, topic: str, count: int) -> list[Any]:
    """The first records of a topic, as a stock client reads them."""
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    try:
        return [record for _, record in zip(range(count), consumer, strict=False)]
    finally:
        consumer.close()


def test_results_say_where_records_are(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name, 4)
    with tidelog.Producer(
        bootstrap_servers=bootstrap, key_serializer=str.encode, value_serializer=str.encode
    ) as producer:
        futures = [
            producer.send(topic_name, f"v{n}", f"k{n % 7}", [("h", b"xyz")], timestamp_ms=1000 + n)
            for n in range(300)
        ]
        tombstone = producer.send(topic_name, key="k1")
        fixed = producer.send(topic_name, "x", partition=3)
        places = [future.get(timeout=DEADLINE_S) for future in futures]
        assert producer.partitions_for(topic_name) == {0, 1, 2, 3}
        assert tombstone.get(DEADLINE_S).serialized_value_size == -1
        assert fixed.result(DEADLINE_S).partition == 3
        figures = producer.metrics()["producer-metrics"]
        assert figures["record-send-total"] == 302
        assert figures["record-error-total"] == 0
        assert figures["buffer-available-bytes"] == figures["buffer-total-bytes"]
    for n, place in enumerate(places):
        assert place.partition == hash_of_key(f"k{n % 7}".encode()) % 4
        assert place.topic_partition == (topic_name, place.partition)
        assert (place.timestamp, place.timestamp_type) == (1000 + n, 0)
        sizes = (place.serialized_key_size, place.serialized_value_size)
        assert sizes == (2, len(f"v{n}"))
        assert place.serialized_header_size == 4
    found = {(r.partition, r.offset): r for r in read_all(bootstrap, topic_name, 302)}
    assert len(found) == 302
    for n, place in enumerate(places):
        record = found[place.partition, place.offset]
        assert (record.key, record.value) == (f"k{n % 7}".encode(), f"v{n}".encode())
        assert list(record.headers) == [("h", b"xyz")]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("acks", ("all", 1, 0))
def test_each_codec_with_each_acks(
    bootstrap: str, topic_name: str, compression: str, acks: int | str
) -> None:
    create_topic(bootstrap, topic_name)

    async def work() -> None:
        async with tidelog.aio.Producer(
            bootstrap_servers=bootstrap, compression_type=compression, acks=acks
        ) as producer:
            futures = [await producer.send(topic_name, b"%d" % n * 50) for n in range(400)]
            await producer.flush()
            offsets = [(await future).offset for future in futures]
            assert offsets == ([-1] * 400 if acks == 0 else list(range(400)))

    run(work())
    found = read_all(bootstrap, topic_name, 400)
    assert [record.value for record in found] == [b"%d" % n * 50 for n in range(400)]


def test_a_record_larger_than_a_batch_and_one_larger_than_a_request(
    bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name)
    with tidelog.Producer(bootstrap_servers=bootstrap, batch_size=100) as producer:
        before = producer.send(topic_name, b"a")
        large = producer.send(topic_name, b"x" * 900_000)
        after = producer.send(topic_name, b"b")
        too_large = producer.send(topic_name, b"x" * 1_100_000)
        offsets = [future.get(DEADLINE_S).offset for future in (before, large, after)]
        assert offsets == [0, 1, 2]
        with pytest.raises(MessageSizeTooLargeError, match="raise max_request_size here"):
            too_large.get(DEADLINE_S)


def test_a_record_that_the_topic_refuses_fails_alone(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name, max_message_bytes=20_000)

    async def work() -> None:
        async with tidelog.aio.Producer(bootstrap_servers=bootstrap) as producer:
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(topic_name, b"x" * 30_000)
            assert (await producer.send_and_wait(topic_name, b"y")).offset == 0
            assert producer.metrics()["producer-metrics"]["record-error-total"] == 1

    run(work())


def test_unknown_topics_and_partitions(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    with tidelog.Producer(
        bootstrap_servers=bootstrap, allow_auto_create_topics=False, max_block_ms=500
    ) as producer:
        with pytest.raises(UnknownTopicOrPartitionError, match="missing"):
            producer.send("missing", b"x")
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.send(topic_name, b"x", partition=1).get(DEADLINE_S)
        with pytest.raises(TypeError, match="give value_serializer"):
            producer.send(topic_name, "text")
        with pytest.raises(TypeError, match="named by a str"):
            producer.send(b"topic", b"x")  # type: ignore[arg-type]


def test_memory_holds_senders_back_until_it_is_free(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    with tidelog.Producer(
        bootstrap_servers=bootstrap, buffer_memory=20_000, linger_ms=60_000, batch_size=1_000_000
    ) as producer:
        # A thousand records of 1 kB: the memory has to be freed fifty times.
        futures = [producer.send(topic_name, b"x" * 900) for _ in range(1000)]
        producer.flush(timeout=DEADLINE_S)
        assert [future.get(0).offset for future in futures] == list(range(1000))


def test_time_outs_of_callers(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    with tidelog.Producer(bootstrap_servers=bootstrap, linger_ms=3_600_000) as producer:
        future = producer.send(topic_name, b"x")
        with pytest.raises(KafkaTimeoutError, match="still being sent"):
            future.get(timeout=0.01)
        assert not future.is_done
        producer.flush(timeout=DEADLINE_S)
        assert future.succeeded()


def test_close_sends_what_was_accepted_and_refuses_the_rest(
    bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name)
    producer = tidelog.Producer(bootstrap_servers=bootstrap, linger_ms=3_600_000)
    futures = [producer.send(topic_name, b"%d" % n) for n in range(100)]
    producer.close()
    producer.close()
    assert [future.get(0).offset for future in futures] == list(range(100))
    with pytest.raises(IllegalStateError, match="closed: open another one"):
        producer.send(topic_name, b"x")


def test_records_without_an_outcome_fail_when_close_times_out(
    tmp_path: Path, topic_name: str
) -> None:
    with new_node(tmp_path) as node:
        create_topic(node.bootstrap, topic_name)
        producer = tidelog.Producer(bootstrap_servers=node.bootstrap)
        producer.send(topic_name, b"x").get(DEADLINE_S)
        pid = node.running_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            future = producer.send(topic_name, b"x")
            with pytest.raises(
                KafkaTimeoutError, match=r"within 0\.1 s: they are still being sent"
            ):
                producer.flush(timeout=0.1)
            producer.close(timeout=0.2)
            with pytest.raises(IllegalStateError, match="before this was acknowledged: it may be"):
                future.get(0)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_callbacks_may_send_but_not_wait(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    with tidelog.Producer(bootstrap_servers=bootstrap) as producer:
        ended = threading.Event()
        seen: list[Any] = []

        def first(metadata: tidelog.RecordMetadata) -> None:
            second = producer.send(topic_name, b"2")
            with pytest.raises(IllegalStateError, match="must not wait"):
                second.get()
            second.add_callback(lambda found: (seen.append(found.offset), ended.set()))

        producer.send(topic_name, b"1").add_callback(first)
        assert ended.wait(DEADLINE_S)
        assert seen == [1]


def test_threads_share_a_producer_and_each_keeps_its_order(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    with tidelog.Producer(bootstrap_servers=bootstrap) as producer:

        def write(name: int) -> None:
            for n in range(500):
                producer.send(topic_name, b"%d" % n, key=b"%d" % name)

        threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    found = read_all(bootstrap, topic_name, 2000)
    for name in range(4):
        mine = [int(record.value) for record in found if record.key == b"%d" % name]
        assert mine == list(range(500))


def test_a_partitioner_of_the_caller_and_one_that_fails(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name, 4)

    def last_or_none(key: bytes | None, everything: Any, led: Any) -> int:
        assert list(everything) == list(led) == [0, 1, 2, 3]
        return everything[-1] if key else 7

    with tidelog.Producer(bootstrap_servers=bootstrap, partitioner=last_or_none) as producer:
        good, bad = producer.send(topic_name, b"x", b"k"), producer.send(topic_name, b"x")
        assert good.get(DEADLINE_S).partition == 3
        assert "must return a partition from 0 to 3" in str(bad.exception(DEADLINE_S))


def test_no_broker_is_one_clear_line() -> None:
    port = free_ports(1)[0]
    with pytest.raises(NoBrokersAvailable, match=f"no broker can be reached: 127.0.0.1:{port}"):
        tidelog.Producer(bootstrap_servers=f"127.0.0.1:{port}", default_api_timeout_ms=300)


def test_an_asyncio_producer_that_is_not_started_says_so() -> None:
    async def work() -> None:
        producer = tidelog.aio.Producer()
        with pytest.raises(IllegalStateError, match=r"not started: call start\(\)"):
            await producer.send("t", b"x")
        await producer.stop()
        with pytest.raises(IllegalStateError, match="closed"):
            await producer.start()

    run(work())
