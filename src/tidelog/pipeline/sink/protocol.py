"""The protocol of exactly-once writes: batches in transactions that a ledger decides.

Owns the order of requests and every decision. Pure: each part is a generator that yields requests
and receives their results, so that a model runs it step by step with crashes in between
(`tests/support/sink_model.py`), and ``execution`` runs it against a cluster.

| part | where and when | what |
|---|---|---|
| `begin_batch` | driver, before tasks | fences former drivers, ends the decided, aborts the rest |
| `admit_task` | task, at first | refuses a late attempt; passes over a decided batch |
| `commit_batch` | driver, after tasks | checks that all is open, decides in the ledger, ends all |
| `abort_batch` | driver, on failure | aborts the transactions, unless they are decided |

The ledger is written in a transaction of the driver's own transactional id: that is the one moment
in which a batch is decided. A driver that was replaced has a former epoch, so it decides nothing.
A transaction is ended by its three names (0145), by whichever process knows them.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from tidelog.client.producing.transaction import PreparedTransaction
from tidelog.model.wording import named
from tidelog.pipeline.errors import BatchLost, NotWritten, SinkInUse, SinkOvertaken
from tidelog.pipeline.sink.ledger import Ledger

RING = 200
"""How many numbers the transactional ids of batches have, before they are used again. Ids that are
never used again would fill the coordinators' memory: they keep each for a week."""

STAGES = 8
"""Spark numbers the attempts of a stage that it runs again from 0, and its tasks do not know that
number: the number of a task among all tasks tells them apart, as far as it goes."""


class DriverId(NamedTuple):
    """The identity of the driver's producer: a later driver has another one."""

    producer_id: int
    epoch: int


class OnNewQuery(Enum):
    """What a sink does whose ledger is of another query, or is not there in mid-query."""

    FAIL = "fail"
    RESET = "reset"


class OnLost(Enum):
    """What a sink does when a decided transaction was aborted by its time-out."""

    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """What the tasks of a batch are given."""

    driver: DriverId
    ledger: Ledger | None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task reports. ``transaction``: None without rows; ``passed_over``: it was decided."""

    driver: DriverId
    query: str
    transaction: PreparedTransaction | None
    passed_over: bool = False
    rows: int = 0


class EndOutcome(Enum):
    """What became of a transaction that should end."""

    DONE = auto()
    """It has ended so, now or before."""
    LOST = auto()
    """Its coordinator refuses: it was ended the other way, or is not known any more."""


# Requests; the comment names the result.


class InitDriver(NamedTuple):
    """Take over the driver's id: DriverId. What another one has left open is aborted."""


class ReadLedger(NamedTuple):
    """The committed ledger, or None; never while a transaction with it is open."""


class ListOpen(NamedTuple):
    """The transactional ids of this sink's tasks with an open transaction."""


class FenceAll(NamedTuple):
    """Abort what ids have open, and fence their producers."""

    names: tuple[str, ...]


class EndAll(NamedTuple):
    """End transactions, each by its three names: a list of EndOutcome."""

    transactions: tuple[PreparedTransaction, ...]
    commits: bool


class AreOpen(NamedTuple):
    """Whether each transaction is still open, in this epoch: a list of bool."""

    transactions: tuple[PreparedTransaction, ...]


class WriteLedger(NamedTuple):
    """Write the ledger in a transaction of a driver. Raises SinkOvertaken where it was fenced."""

    driver: DriverId
    ledger: Ledger


class EndDriver(NamedTuple):
    """Commit that transaction. Raises SinkOvertaken where the driver was fenced."""

    driver: DriverId


Steps = Generator[Any, Any, Any]


def driver_id(sink: str) -> str:
    """The transactional id of a sink's driver."""
    return f"{sink}/driver"


def task_prefix(sink: str) -> str:
    """What the transactional ids of a sink's tasks begin with."""
    return f"{sink}/t/"


def task_id(sink: str, driver: DriverId, partition: int, attempt: int, number: int) -> str:
    """The transactional id of one attempt of a task: no other attempt has it for RING batches.

    The epoch of the driver grows with each batch. ``number`` is that of the task in Spark.
    """
    batch = driver.epoch % RING
    return f"{task_prefix(sink)}{batch}/{partition}.{attempt}.{number % STAGES}"


def is_former(name: str, sink: str, driver: DriverId) -> bool:
    """Whether an id is of a batch before a driver's: a driver that was replaced must not abort what
    its successor has open."""
    number = name.removeprefix(task_prefix(sink)).partition("/")[0]
    if not number.isdecimal():
        return False
    return 0 < (driver.epoch - int(number)) % RING <= RING // 2


def begin_batch(sink: str, on_lost: OnLost = OnLost.FAIL) -> Steps:
    """Make this driver the only one, and finish what former ones have decided; a SinkBatch.

    Raises BatchLost for a decided transaction that was aborted.
    """
    driver = yield InitDriver()
    ledger = yield ReadLedger()
    if ledger is not None and ledger.unended:
        yield from _end_decided(sink, ledger, on_lost)
        ledger = ledger.ended()
        yield WriteLedger(driver, ledger)
        yield EndDriver(driver)
    names = yield ListOpen()
    former = tuple(name for name in names if is_former(name, sink, driver))
    if former:
        yield FenceAll(former)
    return SinkBatch(driver, ledger)


def _end_decided(sink: str, ledger: Ledger, on_lost: OnLost) -> Steps:
    """Commit the transactions of a decided batch. Raises BatchLost, or SinkOvertaken."""
    outcomes = yield EndAll(ledger.unended, True)
    lost = [
        one.transactional_id
        for one, outcome in zip(ledger.unended, outcomes, strict=True)
        if outcome is EndOutcome.LOST
    ]
    if not lost:
        return
    # A later driver may have ended them, and let their ids go on.
    if (yield ReadLedger()) != ledger:
        raise SinkOvertaken(f"sink {sink}: another run has gone on with it: only one may run")
    if on_lost is OnLost.FAIL:
        raise BatchLost(
            f"sink {sink}: batch {ledger.batch} was decided, but {len(lost)} of its"
            f" {len(ledger.unended)} transactions were aborted before they were committed"
            f" ({named(lost)}), and only the rows of these are not in the topic: the batch and the"
            " time without a driver took longer than kafka.transaction.timeout.ms (at most"
            " transaction.max.timeout.ms of the brokers); compare the topic with the source, write"
            " what lacks, and set onLostBatch=skip to go on"
        )


def admit_task(
    sink: str, plan: SinkBatch, query: str, batch: int, on_new_query: OnNewQuery
) -> Steps:
    """Whether a task is to write: False where its batch is decided.

    Raises SinkOvertaken for an attempt that comes too late, SinkInUse for another query's sink, and
    for a query whose checkpoint is older than what is decided: its batch may have other rows now.
    """
    ledger = plan.ledger
    if (yield ReadLedger()) != ledger:
        raise SinkOvertaken(
            f"sink {sink}: batch {batch} was decided meanwhile: this attempt of a task is too late"
        )
    if ledger is not None and ledger.holds(query, batch):
        if ledger.batch > batch:
            raise SinkInUse(
                f"sink {sink}: query {query} is at batch {batch}, and batch {ledger.batch} of it is"
                " written: its checkpoint is older than the sink; put the newer checkpoint back, or"
                " begin with another transactionalId, which writes the rows since then again"
            )
        return False
    if on_new_query is OnNewQuery.RESET:
        return True
    if ledger is None and batch > 0:
        raise SinkInUse(
            f"sink {sink}: query {query} is at batch {batch}, and the sink has no ledger: it is new"
            " for this query, or it has expired (offsets.retention.minutes); if batch"
            f" {batch} was never written, set onNewQuery=reset"
        )
    if ledger is not None and ledger.query != query:
        raise SinkInUse(
            f"sink {sink} belongs to query {ledger.query}, which is at batch {ledger.batch}: name"
            " another transactionalId, or set onNewQuery=reset if that query has ended for ever"
        )
    return True


def commit_batch(sink: str, results: Collection[TaskResult], batch: int) -> Steps:
    """Decide a batch, and end its transactions.

    An exception before the ledger is written means that the batch is not decided; after it, that
    the next `begin_batch` ends what is left.
    """
    if not results or all(result.passed_over for result in results):
        return
    first = next(iter(results))
    same = {(result.driver, result.query, result.passed_over) for result in results}
    if len(same) > 1:
        raise NotWritten(f"sink {sink}: batch {batch} has tasks of several runs")
    transactions = _of(results)
    if not all((yield AreOpen(transactions))):
        raise NotWritten(
            f"sink {sink}: batch {batch} took longer than kafka.transaction.timeout.ms, or another"
            " run has aborted it: nothing of it is written; use smaller batches, or a longer one"
        )
    ledger = Ledger(first.query, batch, transactions)
    yield WriteLedger(first.driver, ledger)
    yield EndDriver(first.driver)
    if not transactions:
        return
    yield from _end_decided(sink, ledger, OnLost.FAIL)
    yield WriteLedger(first.driver, ledger.ended())
    yield EndDriver(first.driver)


def abort_batch(results: Collection[TaskResult], batch: int) -> Steps:
    """Abort the transactions of a batch that failed, unless the ledger holds it after all."""
    transactions = _of(results)
    if not transactions:
        return
    ledger = yield ReadLedger()
    query = next(iter(results)).query
    if ledger is not None and ledger.holds(query, batch):
        return
    yield EndAll(transactions, False)


def _of(results: Collection[TaskResult]) -> tuple[PreparedTransaction, ...]:
    return tuple(result.transaction for result in results if result.transaction is not None)
