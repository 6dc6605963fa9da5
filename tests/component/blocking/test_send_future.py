"""Tests of the future of a record: waiting threads, callbacks, and their races."""

from __future__ import annotations

import threading
import time

import pytest

from tidelog.blocking.send_future import FutureRecordMetadata
from tidelog.client.errors import ClientError
from tidelog.client.producing.record_metadata import RecordMetadata
from tidelog.errors import IllegalStateError, KafkaTimeoutError
from tidelog.model.topics import TopicPartition

WRITTEN = RecordMetadata("t", 1, TopicPartition("t", 1), 7, 1000)
DEADLINE_S = 60


def new() -> FutureRecordMetadata:
    return FutureRecordMetadata(lambda: False)


def test_a_written_record() -> None:
    future = new()
    seen: list[object] = []
    assert future.add_callback(seen.append) is future
    future.add_errback(seen.append)
    assert not future.done() and not future.succeeded() and not future.failed()
    future.set_result(WRITTEN)
    assert future.get() == future.result(0) == WRITTEN
    assert future.succeeded() and future.is_done and not future.failed()
    assert future.exception() is None
    future.add_callback(lambda tag, metadata: seen.append((tag, metadata.offset)), "later")
    assert seen == [WRITTEN, ("later", 7)]


def test_a_record_that_failed() -> None:
    future, error = new(), ClientError("no")
    seen: list[object] = []
    future.add_callback(seen.append)
    future.add_errback(seen.append)
    future.set_exception(error)
    with pytest.raises(ClientError, match="no"):
        future.get()
    assert future.failed() and not future.succeeded() and future.exception() is error
    assert seen == [error]


def test_a_callback_that_raises_stops_no_other() -> None:
    future = new()
    seen: list[RecordMetadata] = []
    future.add_callback(lambda metadata: 1 / 0)
    future.add_callback(seen.append)
    future.set_result(WRITTEN)
    assert seen == [WRITTEN]


def test_the_end_of_the_program_in_a_callback_ends_only_the_callers_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On the loop it would end the clients of all others."""

    def leave(_: RecordMetadata) -> None:
        raise SystemExit

    for is_on_loop in (True, False):
        future = FutureRecordMetadata(lambda is_on_loop=is_on_loop: is_on_loop)  # type: ignore[misc]
        seen: list[RecordMetadata] = []
        future.add_callback(leave)
        future.add_callback(seen.append)
        if is_on_loop:
            future.set_result(WRITTEN)
            assert seen == [WRITTEN] and "a callback of a producer's future failed" in caplog.text
        else:
            with pytest.raises(SystemExit):
                future.set_result(WRITTEN)
    without = new()
    without.set_result(WRITTEN)
    assert without.get() == WRITTEN


def test_all_threads_that_wait_are_woken() -> None:
    future, got = new(), []
    threads = [threading.Thread(target=lambda: got.append(future.get(DEADLINE_S)))]
    threads[0].start()
    while future._waiter is None and threads[0].is_alive():
        time.sleep(0)
    threads.append(threading.Thread(target=lambda: got.append(future.get(DEADLINE_S))))
    threads[1].start()
    future.set_result(WRITTEN)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert got == [WRITTEN, WRITTEN]


def test_waiting_ends_with_its_timeout_and_is_refused_on_the_loop() -> None:
    with pytest.raises(KafkaTimeoutError, match=r"no outcome within 0\.01 s"):
        new().get(timeout=0.01)
    with pytest.raises(KafkaTimeoutError, match=r"no outcome within 0\.01 s"):
        new().exception(timeout=0.01)
    with pytest.raises(TypeError, match="a number of seconds, not '1'"):
        new().get(timeout="1")  # type: ignore[arg-type]
    on_loop = FutureRecordMetadata(lambda: True)
    for ask in (on_loop.get, on_loop.exception):
        with pytest.raises(IllegalStateError, match="a callback must not wait"):
            ask()
    on_loop.set_result(WRITTEN)
    assert on_loop.get() == WRITTEN and on_loop.exception() is None, "nothing has to be waited for"


def test_no_wake_up_and_no_callback_is_lost_in_a_race() -> None:
    for _ in range(2000):
        future = new()
        called: list[RecordMetadata] = []
        start = threading.Barrier(3)

        def give(future: FutureRecordMetadata = future, start: threading.Barrier = start) -> None:
            start.wait(DEADLINE_S)
            future.set_result(WRITTEN)

        def ask(
            future: FutureRecordMetadata = future,
            called: list[RecordMetadata] = called,
            start: threading.Barrier = start,
        ) -> None:
            start.wait(DEADLINE_S)
            future.add_callback(called.append)

        threads = [threading.Thread(target=work) for work in (give, ask)]
        for thread in threads:
            thread.start()
        start.wait(DEADLINE_S)
        assert future.get(DEADLINE_S) == WRITTEN
        for thread in threads:
            thread.join(DEADLINE_S)
        assert called == [WRITTEN]
