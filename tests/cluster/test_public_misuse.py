"""The public clients in wrong hands: what is wrong is said at once, and the client works on."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest

import tidelog
import tidelog.aio
from tests.support import clients
from tests.support.keyed_records import write
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.target import TARGET
from tidelog import ConsumerRebalanceListener, TopicPartition
from tidelog.errors import (
    IllegalStateError,
    InvalidTopicError,
    KafkaConfigurationError,
    WakeupError,
)

pytestmark = pytest.mark.skipif(TARGET != "tidelog", reason="nothing of it depends on the broker")

Calls = dict[str, Callable[[], Any]]


@pytest.fixture
def topic(bootstrap: str, topic_name: str) -> str:
    clients.create_topic(bootstrap, topic_name, 1)
    write(bootstrap, topic_name, 0)
    return topic_name


@pytest.fixture
def consumer(bootstrap: str, topic: str) -> Iterator[tidelog.Consumer]:
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    with tidelog.Consumer(bootstrap_servers=bootstrap, group_id=f"g-{topic}", **options) as made:
        yield made


def reads(consumer: tidelog.Consumer) -> None:
    wait_until(lambda: bool(consumer.poll(100)), DEADLINE_S, "records", pause_s=0)


def test_a_producer_that_was_misused_works_on(bootstrap: str, topic: str) -> None:
    with tidelog.Producer(bootstrap_servers=bootstrap) as producer:
        send = producer.send
        wrong: list[tuple[type[Exception], Callable[[], Any]]] = [
            (TypeError, lambda: send(topic, b"x", partition="0")),  # type: ignore[arg-type]
            (KafkaConfigurationError, lambda: send(topic, b"x", partition=-1)),
            (TypeError, lambda: send(topic, b"x", timestamp_ms="now")),  # type: ignore[arg-type]
            (KafkaConfigurationError, lambda: send(topic, b"x", timestamp_ms=2**80)),
            (KafkaConfigurationError, lambda: send(topic, b"x", headers=[("\udc80", b"")])),
            # A name that no request can hold must not stay among the topics to ask for.
            (InvalidTopicError, lambda: send("\udc80", b"x")),
            (InvalidTopicError, lambda: send("x" * 40_000, b"x")),
            (TypeError, lambda: producer.partitions_for(3)),  # type: ignore[arg-type]
            (KafkaConfigurationError, lambda: producer.flush(float("nan"))),
            (TypeError, lambda: producer.close("now")),  # type: ignore[arg-type]
        ]
        for kind, call in wrong:
            with pytest.raises(kind):
                call()
        producer._inner._cluster.forget()
        assert send(topic, b"x").get(timeout=DEADLINE_S).offset >= 0
        assert send(topic, b"x").get(timeout=1e300).offset >= 0


def test_a_callback_that_ends_the_program_or_closes_ends_no_loop(
    bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with tidelog.Producer(bootstrap_servers=bootstrap) as producer:
        said: list[str] = []

        def closes(_: object) -> None:
            try:
                producer.close()
            except IllegalStateError as error:
                said.append(str(error))

        for callback in (lambda _: sys.exit(3), closes, lambda _: 1 / 0):
            producer.send(topic, b"x").add_callback(callback).get(timeout=DEADLINE_S)
        assert producer.send(topic, b"x").get(timeout=DEADLINE_S).offset >= 0
        assert said and "close was called in a callback" in said[0]
        assert "SystemExit: 3" in caplog.text and "ZeroDivisionError" in caplog.text


def test_a_closed_client_says_so(bootstrap: str, topic: str) -> None:
    producer = tidelog.Producer(bootstrap_servers=bootstrap)
    consumer = tidelog.Consumer(topic, bootstrap_servers=bootstrap)
    admin = tidelog.Admin(bootstrap_servers=bootstrap)
    where = TopicPartition(topic, 0)
    for each in (producer, consumer, admin):
        each.close()
        each.close()
    calls: list[Callable[[], Any]] = [
        lambda: producer.send(topic, b"x"),
        producer.flush,
        lambda: producer.partitions_for(topic),
        lambda: consumer.poll(10),
        lambda: next(iter(consumer)),
        consumer.commit,
        consumer.assignment,
        consumer.topics,
        lambda: consumer.seek(where, 0),
        lambda: consumer.subscribe([topic]),
        consumer.unsubscribe,
        consumer.wakeup,
        admin.list_topics,
    ]
    for call in calls:
        with pytest.raises(IllegalStateError, match="closed: open another one"):
            call()


class Using(ConsumerRebalanceListener):
    """Calls everything in its callback, and notes what that does."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.found: dict[str, str] = {}

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        for name, call in self.calls.items():
            try:
                call()
                self.found[name] = "done"
            except Exception as error:
                self.found[name] = f"{type(error).__name__}: {error}"


def test_what_a_listener_may_do_in_its_callback(
    consumer: tidelog.Consumer, bootstrap: str, topic: str
) -> None:
    where = TopicPartition(topic, 0)
    refused: Calls = {
        "poll": lambda: consumer.poll(1),
        "close": consumer.close,
        "subscribe": lambda: consumer.subscribe([topic]),
        "unsubscribe": consumer.unsubscribe,
    }
    allowed: Calls = {
        "commit": consumer.commit,
        "position": lambda: consumer.position(where),
        "committed": lambda: consumer.committed(where),
        "seek_to_end": consumer.seek_to_end,
        "seek_to_beginning": consumer.seek_to_beginning,
        "pause": lambda: consumer.pause(where),
        "resume": lambda: consumer.resume(where),
        "assignment": consumer.assignment,
        "metrics": consumer.metrics,
        "topics": consumer.topics,
    }
    listener = Using(refused | allowed)
    consumer.subscribe([topic], listener=listener)
    reads(consumer)
    for name in refused:
        expected = f"WrongState: {name} was called in a callback: call it when poll has returned"
        assert listener.found[name] == expected
    assert {name: listener.found[name] for name in allowed} == dict.fromkeys(allowed, "done")


def test_a_consumer_that_was_misused_works_on(consumer: tidelog.Consumer, topic: str) -> None:
    wrong: list[tuple[type[Exception], Callable[[], Any]]] = [
        (TypeError, lambda: consumer.subscribe(topic)),
        (InvalidTopicError, lambda: consumer.subscribe(["\udc80"])),
        (KafkaConfigurationError, lambda: consumer.subscribe(pattern="(")),
        (TypeError, lambda: consumer.subscribe([topic], listener=5)),
        (TypeError, lambda: consumer.assign([topic])),  # type: ignore[list-item]
        (TypeError, lambda: consumer.partitions_for_topic(5)),  # type: ignore[arg-type]
        (InvalidTopicError, lambda: consumer.partitions_for_topic("\udc80")),
        (IllegalStateError, lambda: consumer.poll(10)),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()
    consumer.subscribe([topic])
    where = TopicPartition(topic, 0)
    reads(consumer)
    wrong = [
        (TypeError, lambda: consumer.poll("x")),  # type: ignore[arg-type]
        (TypeError, lambda: consumer.poll(1, "5")),  # type: ignore[arg-type]
        (TypeError, lambda: consumer.seek(where, 1.5)),  # type: ignore[arg-type]
        (IllegalStateError, lambda: consumer.seek(TopicPartition(topic, 9), 0)),
        (KafkaConfigurationError, lambda: consumer.commit({where: -5})),
        (TypeError, lambda: consumer.commit({where: "5"})),  # type: ignore[dict-item]
        (TypeError, lambda: consumer.commit_async({where: "5"})),  # type: ignore[dict-item]
        (TypeError, lambda: consumer.pause(5)),  # type: ignore[arg-type]
        (TypeError, lambda: consumer.offsets_for_times({where: "x"})),  # type: ignore[dict-item]
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()
    consumer.seek(where, 0)
    assert consumer.poll(float("inf")) and consumer.poll(-1) == {}
    consumer.commit()
    assert consumer.committed(where) == consumer.position(where)


def test_two_threads_may_not_poll_and_one_may_end_the_other(
    consumer: tidelog.Consumer, topic: str
) -> None:
    where = TopicPartition(topic, 0)
    consumer.assign([where])
    reads(consumer)
    woken = threading.Event()

    def waits() -> None:
        with pytest.raises(WakeupError):
            consumer.poll(1e300)
        woken.set()

    thread = threading.Thread(target=waits)
    thread.start()
    wait_until(lambda: consumer._consumer._is_polling, DEADLINE_S, "the thread polls")
    with pytest.raises(IllegalStateError, match="by another task"):
        consumer.poll(10)
    consumer.wakeup()
    thread.join(DEADLINE_S)
    assert woken.is_set()


def test_a_string_of_topics_is_not_taken_for_its_letters(bootstrap: str) -> None:
    clients.create_topic(bootstrap, "q")
    with tidelog.Admin(bootstrap_servers=bootstrap) as admin:
        for call in (admin.delete_topics, admin.create_topics, admin.describe_topics):
            with pytest.raises(TypeError, match="a list of names"):
                call("q")
        for group_call in (admin.describe_groups, admin.delete_groups):
            with pytest.raises(TypeError, match="a list of ids"):
                group_call("q")
        with pytest.raises(TypeError, match="must be an int"):
            admin.set_partition_count("q", "5")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a number of milliseconds"):
            admin.delete_topics(["q"], timeout_ms="x")  # type: ignore[arg-type]
        assert "q" in admin.list_topics()
        admin.delete_topics(["q"])


async def cancelled(bootstrap: str, topic: str, steps: int) -> None:
    """Cancel ``poll`` after so many turns of the loop, then ``close`` likewise; then close."""
    options: dict[str, Any] = {"group_id": f"g-{topic}-{steps}", "auto_offset_reset": "earliest"}
    consumer = tidelog.aio.Consumer(topic, bootstrap_servers=bootstrap, **options)
    for call in (consumer.poll(5_000), consumer.close()):
        task = asyncio.create_task(call)
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    # A task that was cancelled before its first step has done nothing.
    await consumer.close()
    producer = tidelog.aio.Producer(bootstrap_servers=bootstrap, linger_ms=60_000)
    await producer.start()
    futures = [await producer.send(topic, b"x") for _ in range(3)]
    futures[0].cancel()
    task = asyncio.create_task(producer.close())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await producer.close()
    assert all(future.done() for future in futures)


def test_a_call_that_is_cancelled_anywhere_leaves_no_task(bootstrap: str, topic: str) -> None:
    async def story() -> None:
        for steps in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55):
            await cancelled(bootstrap, topic, steps)
        async with asyncio.timeout(DEADLINE_S):
            while left := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(left)

    asyncio.run(story())


def test_closing_waits_for_the_callback_of_another_task(bootstrap: str, topic: str) -> None:
    calls: list[str] = []
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    class Slow(ConsumerRebalanceListener):
        async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
            calls.append("begins")
            has_begun.set()
            await may_end.wait()
            calls.append("ends")

        async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
            calls.append("revoked")

    async def story() -> None:
        consumer = tidelog.aio.Consumer(bootstrap_servers=bootstrap, group_id=f"g-{topic}")
        consumer.subscribe([topic], listener=Slow())
        polling = asyncio.create_task(consumer.poll(60_000))
        async with asyncio.timeout(DEADLINE_S):
            await has_begun.wait()
            closing = asyncio.create_task(consumer.close())
            for _ in range(20):
                await asyncio.sleep(0)
            assert calls == ["begins"]
            may_end.set()
            await asyncio.wait([closing, polling])
        assert calls == ["begins", "ends", "revoked"]
        assert closing.exception() is None
        assert isinstance(polling.exception(), IllegalStateError)

    asyncio.run(story())
