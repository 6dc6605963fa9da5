"""The requests of the Spark sink's protocol, and what is left of a batch whose driver dies.

Without Spark: `tests/spark/test_spark_sink.py` has that. A driver that dies is a part of the
protocol that ends before a request.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from tests.support.clients import create_topic
from tests.support.committed_values import committed_values
from tidelog.client.producing.transaction import PreparedTransaction
from tidelog.pipeline.errors import BatchLost, LedgerRefused, NotWritten, SinkOvertaken
from tidelog.pipeline.sink import protocol
from tidelog.pipeline.sink.execution import SinkCluster
from tidelog.pipeline.sink.ledger import Ledger
from tidelog.pipeline.sink.options import SinkOptions, parse
from tidelog.pipeline.sink.protocol import OnLost, OnNewQuery, SinkBatch, TaskResult
from tidelog.pipeline.sink.rows import SinkRows, check_columns
from tidelog.pipeline.sink.tasks import TaskRows, connect
from tidelog.records.builder import Columns

COLUMNS = check_columns(StructType([StructField("value", BinaryType())]), "t")


class DriverDies(Exception):
    """The process of a driver ends."""


class Sink:
    """A sink of one topic, as one query writes it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.name, self.topic = f"sink-{topic}", topic
        self.options: SinkOptions = parse(
            {
                "kafka.bootstrap.servers": bootstrap,
                "topic": topic,
                "transactionalId": self.name,
                "kafka.max.block.ms": "20000",
            }
        )
        self.cluster = SinkCluster(self.options)

    def begin(self, on_lost: OnLost = OnLost.FAIL) -> SinkBatch:
        plan: SinkBatch = self.cluster.run(protocol.begin_batch(self.name, on_lost))
        return plan

    def task(self, plan: SinkBatch, batch: int, part: int, value: bytes) -> TaskResult:
        admit = protocol.admit_task(self.name, plan, "q", batch, OnNewQuery.FAIL)
        if not self.cluster.run(admit):
            return TaskResult(plan.driver, "q", None, passed_over=True)
        name = protocol.task_id(self.name, plan.driver, part, 0, 0)
        with self.cluster.transaction(name) as transaction:
            task = TaskRows(connect(self.options), transaction.sender)
            task.send(SinkRows(self.topic, part, Columns([value])))
            task.finish()
            return TaskResult(plan.driver, "q", transaction.prepare())

    def tasks(self, plan: SinkBatch, batch: int) -> list[TaskResult]:
        return [self.task(plan, batch, part, b"%d-%d" % (batch, part)) for part in (0, 1)]

    def commit(self, results: list[TaskResult], batch: int) -> None:
        self.cluster.run(protocol.commit_batch(self.name, results, batch))

    def commit_until(self, kind: type, results: list[TaskResult], batch: int) -> None:
        """Commit a batch; the driver dies before its first request of a kind."""
        with pytest.raises(DriverDies):
            self.cluster.run(dies_before(kind, protocol.commit_batch(self.name, results, batch)))

    def ledger(self) -> Ledger | None:
        def read() -> Generator[Any, Any, Any]:
            return (yield protocol.ReadLedger())

        ledger: Ledger | None = self.cluster.run(read())
        return ledger

    def values(self, *, some_are_open: bool = False) -> list[Any]:
        """What readers of committed records get; none of them waits at an open transaction."""
        return sorted(
            committed_values(
                self.options.bootstrap_servers, self.topic, some_are_open=some_are_open
            )
        )


def dies_before(kind: type, steps: Any) -> Generator[Any, Any, Any]:
    result = None
    while True:
        try:
            request = steps.send(result)
        except StopIteration as stopped:
            return stopped.value
        if isinstance(request, kind):
            raise DriverDies
        result = yield request


@pytest.fixture
def sink(bootstrap: str, topic_name: str) -> Sink:
    create_topic(bootstrap, topic_name, 2)
    return Sink(bootstrap, topic_name)


def test_batches_are_seen_once_they_are_decided(sink: Sink) -> None:
    plan = sink.begin()
    assert plan.ledger is None
    results = sink.tasks(plan, 0)
    assert sink.values(some_are_open=True) == []
    sink.commit(results, 0)
    assert sink.values() == [b"0-0", b"0-1"]
    # Its transactions have ended: the next batch has nothing to end.
    plan = sink.begin()
    assert plan.ledger == Ledger("q", 0)
    assert [one.passed_over for one in sink.tasks(plan, 0)] == [True, True]
    sink.commit(sink.tasks(plan, 0), 0)
    sink.commit(sink.tasks(plan, 1), 1)
    assert sink.values() == [b"0-0", b"0-1", b"1-0", b"1-1"]


@pytest.mark.parametrize(
    ("dies", "is_decided"),
    [
        (protocol.AreOpen, False),
        (protocol.WriteLedger, False),
        (protocol.EndDriver, False),
        (protocol.EndAll, True),
    ],
)
def test_what_a_driver_leaves_is_finished_by_the_next(
    sink: Sink, dies: type, is_decided: bool
) -> None:
    sink.commit_until(dies, sink.tasks(sink.begin(), 0), 0)
    plan = sink.begin()
    assert sink.values() == ([b"0-0", b"0-1"] if is_decided else [])
    assert plan.ledger == (Ledger("q", 0) if is_decided else None)
    sink.commit(sink.tasks(plan, 0), 0)
    sink.commit(sink.tasks(sink.begin(), 1), 1)
    assert sink.values() == [b"0-0", b"0-1", b"1-0", b"1-1"]


def test_a_driver_that_was_replaced_decides_nothing(sink: Sink) -> None:
    former = sink.begin()
    results = sink.tasks(former, 0)
    plan = sink.begin()
    # The beginning of the next driver has aborted what was open.
    with pytest.raises(NotWritten, match="or another run has aborted it"):
        sink.commit(results, 0)
    with pytest.raises(SinkOvertaken, match="only one may run"):
        sink.commit([TaskResult(former.driver, "q", None)], 0)
    sink.commit(sink.tasks(plan, 0), 0)
    with pytest.raises(SinkOvertaken, match="this attempt of a task is too late"):
        sink.task(former, 0, 0, b"late")
    sink.cluster.run(protocol.abort_batch(results, 0))
    assert sink.values() == [b"0-0", b"0-1"]


def test_a_batch_that_failed_is_aborted_unless_it_is_decided(sink: Sink) -> None:
    results = sink.tasks(sink.begin(), 0)
    sink.cluster.run(protocol.abort_batch(results, 0))
    with pytest.raises(NotWritten, match=r"batch 0 took longer than kafka\.transaction\.timeout"):
        sink.commit(results, 0)
    results = sink.tasks(sink.begin(), 0)
    sink.commit_until(protocol.EndAll, results, 0)
    sink.cluster.run(protocol.abort_batch(results, 0))
    sink.begin()
    assert sink.values() == [b"0-0", b"0-1"]


def test_a_decided_batch_that_is_lost_is_said_until_it_is_skipped(sink: Sink) -> None:
    """What a coordinator does after the time-out of a transaction: it aborts and fences."""
    results = sink.tasks(sink.begin(), 0)
    sink.commit_until(protocol.EndAll, results, 0)
    transaction = results[1].transaction
    assert transaction is not None

    def fence() -> Generator[Any, Any, None]:
        yield protocol.FenceAll((transaction.transactional_id,))

    sink.cluster.run(fence())
    for _ in range(2):
        with pytest.raises(BatchLost, match=r"batch 0 was decided, but 1 of its 2 transactions"):
            sink.begin()
    plan = sink.begin(OnLost.SKIP)
    assert sink.values() == [b"0-0"]
    assert [one.passed_over for one in sink.tasks(plan, 0)] == [True, True]
    sink.commit(sink.tasks(sink.begin(), 1), 1)
    assert sink.values() == [b"0-0", b"1-0", b"1-1"]


def test_a_ledger_of_many_tasks(sink: Sink) -> None:
    driver = sink.begin().driver

    def write(ledger: Ledger) -> Generator[Any, Any, None]:
        yield protocol.WriteLedger(driver, ledger)
        yield protocol.EndDriver(driver)

    def of(count: int) -> Ledger:
        ids = [protocol.task_id(sink.name, driver, part, 0, part) for part in range(count)]
        named = (PreparedTransaction(one, 2**40 + part, 3) for part, one in enumerate(ids))
        return Ledger("86323192-4f2c-4a1e", 4, tuple(named))

    for count in (300, 2):
        sink.cluster.run(write(of(count)))
        assert sink.ledger() == of(count)
    with pytest.raises(LedgerRefused, match="100000 tasks with rows, more than the ledger has"):
        sink.cluster.run(write(of(100_000)))
