"""A model of exactly-once writes: the sink's protocol, with coordinators and Spark in memory.

A run draws everything from its seed: how batches are split into tasks (again differently when a
batch runs again), attempts that fail, twins, processes that stop for a while or for ever at any
request, responses that do not arrive, tasks and drivers that go on although Spark has given them
up, and a second driver beside the first. At the end the topic must have each row once. The parts of
the protocol can be replaced, so that a test sees which faults each of them prevents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from tidelog.client.producing.transaction import PreparedTransaction
from tidelog.pipeline.errors import BatchLost, PipelineError, SinkOvertaken
from tidelog.pipeline.sink import protocol
from tidelog.pipeline.sink.ledger import Ledger
from tidelog.pipeline.sink.protocol import DriverId, EndOutcome, OnNewQuery, TaskResult

SINK, QUERY = "s", "q"
BATCHES = 4
MOST_STEPS = 20_000
"""A run that is not at its end then is stuck."""
ATTEMPTS = 4
UNSTABLE_TURNS = 100
"""How long a reader of the ledger waits for the transaction that has it."""
EXTRA_DRIVERS = 2

Row = tuple[int, int]
Process = Generator[None, None, Any]


class Died(PipelineError):
    """A process that cannot go on: it was fenced, or waited for too long."""


@dataclass
class Parts:
    """The parts of the protocol, each of which a control replaces."""

    begin: Callable[..., Any] = protocol.begin_batch
    admit: Callable[..., Any] = protocol.admit_task
    commit: Callable[..., Any] = protocol.commit_batch
    abort: Callable[..., Any] = protocol.abort_batch
    task_id: Callable[..., str] = protocol.task_id
    fences: bool = True
    """Whether a former driver is fenced."""


@dataclass
class _Transaction:
    epoch: int = 0
    state: str = "none"
    rows: list[Row] = field(default_factory=list)


class SinkModel:
    """One run: processes that take turns, each of which may die at any request."""

    def __init__(self, seed: int, parts: Parts | None = None, *, time_outs: bool = False) -> None:
        self.random = random.Random(seed)
        self.parts = parts or Parts()
        self.time_outs = time_outs
        self.topic: list[Row] = []
        self.lost: list[str] = []
        """Batches that a driver has named as lost."""
        self._transactions: dict[str, _Transaction] = {}
        self._driver_epoch = 0
        self._pending: Ledger | None = None
        self._ledger: Ledger | None = None
        self._committed = -1
        self._rows = {n: self.random.randrange(1, 6) for n in range(BATCHES)}
        self._alive: dict[int, Process] = {}
        self._frozen: dict[int, int] = {}
        self._results: dict[int, Any] = {}
        self._drivers: set[int] = set()
        self._next = 0
        self._is_wild = False

    # The run

    def run(self) -> str:
        """Run to the end; return what is wrong, "" for nothing."""
        extra, calm = 0, self.random.randrange(100, 900)
        for step in range(MOST_STEPS):
            is_wild = self._is_wild = step < calm
            if not self._drivers & self._alive.keys():
                if self._committed == BATCHES - 1:
                    break
                self._start(self._driver(), is_driver=True)
            elif is_wild and extra < EXTRA_DRIVERS and self.random.random() < 0.01:
                extra += 1
                self._start(self._driver(), is_driver=True)
            ready = [one for one in self._alive if self._frozen.get(one, 0) <= step]
            if not ready:
                continue
            one = self.random.choice(ready)
            if is_wild and self.random.random() < 0.006:
                self._end(one, None)
            elif is_wild and self.random.random() < 0.015:
                self._frozen[one] = step + self.random.randrange(50, 600)
            else:
                self._advance(one)
            if is_wild and self.time_outs and self.random.random() < 0.002:
                self._time_out()
        else:
            return "stuck"
        # What Spark has given up goes on to its end; another run of the query does nothing more.
        while self._alive:
            self._advance(self.random.choice(list(self._alive)))
        self._start(self._answered_all(self.parts.begin(SINK)), is_driver=True)
        while self._alive:
            self._advance(next(iter(self._alive)))
        return self._verdict()

    def _verdict(self) -> str:
        wanted = [(batch, row) for batch in range(BATCHES) for row in range(self._rows[batch])]
        if sorted(self.topic) == wanted:
            return ""
        twice = sorted({row for row in self.topic if self.topic.count(row) > 1})
        missing = sorted(set(wanted) - set(self.topic))
        return f"twice {twice}, missing {missing}"

    def _start(self, process: Process, *, is_driver: bool = False) -> int:
        self._next += 1
        self._alive[self._next] = process
        if is_driver:
            self._drivers.add(self._next)
        return self._next

    def _advance(self, one: int) -> None:
        try:
            next(self._alive[one])
        except StopIteration as stopped:
            self._end(one, stopped.value)
        except PipelineError as error:
            if isinstance(error, BatchLost):
                self.lost.append(str(error))
            self._end(one, None)

    def _end(self, one: int, result: Any) -> None:
        del self._alive[one]
        self._results[one] = result

    # Spark

    def _driver(self) -> Process:
        """One run of the query: batch after batch, until one fails."""
        while self._committed < BATCHES - 1:
            batch = self._committed + 1
            plan = yield from self._answered_all(self.parts.begin(SINK))
            results, is_whole = yield from self._tasks(plan, batch)
            try:
                if not is_whole:
                    raise Died("a task failed for good")
                yield from self._answered_all(self.parts.commit(SINK, results, batch))
            except PipelineError:
                yield from self._answered_all(self.parts.abort(results, batch))
                raise
            yield
            self._committed = max(self._committed, batch)

    def _tasks(self, plan: Any, batch: int) -> Generator[None, None, tuple[list[TaskResult], bool]]:
        """Run the tasks of a batch: one attempt of each counts, and others may go on."""
        rows = [(batch, row) for row in range(self._rows[batch])]
        self.random.shuffle(rows)
        count = self.random.randrange(1, 4)
        parts = [rows[part::count] for part in range(count)]
        attempts: list[list[int]] = [[] for _ in parts]
        results: dict[int, TaskResult] = {}
        while len(results) < count:
            for part, mine in enumerate(attempts):
                if part in results:
                    continue
                done = [self._results[one] for one in mine if self._results.get(one)]
                if done:
                    results[part] = done[0]
                    continue
                lives = any(one in self._alive for one in mine)
                if not lives and len(mine) == ATTEMPTS:
                    return list(results.values()), False
                if not lives or (len(mine) < 2 and self.random.random() < 0.02):
                    task = self._task(plan, batch, part, len(mine), parts[part])
                    mine.append(self._start(task))
            yield
        return list(results.values()), True

    def _task(
        self, plan: Any, batch: int, part: int, attempt: int, rows: list[Row]
    ) -> Generator[None, None, TaskResult]:
        admit = self.parts.admit(SINK, plan, QUERY, batch, OnNewQuery.FAIL)
        if not (yield from self._answered_all(admit)):
            return TaskResult(plan.driver, QUERY, None, passed_over=True)
        if not rows:
            return TaskResult(plan.driver, QUERY, None)
        name = self.parts.task_id(SINK, plan.driver, part, attempt, 0)
        yield
        one = self._transactions.setdefault(name, _Transaction())
        self._fence(one)
        epoch = one.epoch
        for row in rows:
            yield
            if one.epoch != epoch or one.state not in ("none", "open"):
                raise Died(f"{name} is fenced")
            one.state = "open"
            one.rows.append(row)
        yield
        return TaskResult(plan.driver, QUERY, PreparedTransaction(name, 1, epoch))

    # Coordinators

    def _answered_all(self, steps: Any) -> Generator[None, None, Any]:
        """Run a part of the protocol; another process may run, and this one die, at each yield."""
        result = None
        while True:
            try:
                request = steps.send(result)
            except StopIteration as stopped:
                return stopped.value
            yield
            result = yield from self._answer(request)
            yield
            if self._is_wild and self.random.random() < 0.01:
                raise Died("the request was executed, and its response did not arrive")

    def _answer(self, request: Any) -> Generator[None, None, Any]:
        kind = type(request)
        if kind is protocol.InitDriver:
            self._driver_epoch += 1
            self._pending = None
            return DriverId(1, self._driver_epoch)
        if kind is protocol.ReadLedger:
            for _ in range(UNSTABLE_TURNS):
                if self._pending is None:
                    break
                yield
            else:
                raise Died("the ledger is being written, by a driver that may be gone")
            return self._ledger
        if kind is protocol.WriteLedger:
            self._check_driver(request.driver)
            self._pending = request.ledger
            return None
        if kind is protocol.EndDriver:
            self._check_driver(request.driver)
            self._ledger = self._pending or self._ledger
            self._pending = None
            return None
        if kind is protocol.ListOpen:
            return [name for name, one in self._transactions.items() if one.state == "open"]
        results = []
        for item in request[0]:
            results.append(self._answer_one(kind, item, request))
            yield
        return results

    def _answer_one(self, kind: type, item: Any, request: Any) -> Any:
        if kind is protocol.FenceAll:
            return self._fence(self._transactions[item])
        one = self._transactions[item.transactional_id]
        if kind is protocol.AreOpen:
            return one.epoch == item.epoch and one.state == "open"
        assert kind is protocol.EndAll
        wanted = "committed" if request.commits else "aborted"
        if one.epoch != item.epoch or one.state not in ("open", wanted):
            return EndOutcome.LOST
        if one.state == "open" and request.commits:
            self.topic += one.rows
        one.state, one.rows = wanted, []
        return EndOutcome.DONE

    def _fence(self, one: _Transaction) -> None:
        one.epoch += 1
        one.state, one.rows = "none", []

    def _check_driver(self, driver: DriverId) -> None:
        if self.parts.fences and driver.epoch != self._driver_epoch:
            raise SinkOvertaken("a later driver has begun")

    def _time_out(self) -> None:
        """Abort an open transaction, as a coordinator does after its time-out."""
        names = [name for name, one in self._transactions.items() if one.state == "open"]
        if names:
            self._fence(self._transactions[self.random.choice(names)])
