"""Exactly-once writes of the Spark sink: the protocol in a model, its controls, and its ledger."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any

import pytest

from tests.support.drawn_seed import drawn_seed
from tests.support.sink_model import Parts, SinkModel
from tidelog.client.producing.transaction import PreparedTransaction
from tidelog.pipeline.errors import LedgerRefused, NotWritten, SinkInUse, SinkOvertaken
from tidelog.pipeline.sink import protocol
from tidelog.pipeline.sink.ledger import PIECE_BYTES, Ledger, decode, encode
from tidelog.pipeline.sink.protocol import (
    RING,
    DriverId,
    OnNewQuery,
    SinkBatch,
    TaskResult,
    admit_task,
    commit_batch,
    is_former,
    task_id,
)

RUNS = 3_000
CONTROL_RUNS = 4_000
DRIVER = DriverId(1, 7)


def wrong_runs(runs: int, parts: Callable[[], Parts] = Parts, most: int = 3) -> dict[int, str]:
    """What went wrong in random runs, by their seeds; ends with ``most`` of them."""
    seeds = random.Random(drawn_seed())
    found: dict[int, str] = {}
    for _ in range(runs):
        seed = seeds.getrandbits(32)
        model = SinkModel(seed, parts())
        wrong = model.run() or "".join(model.lost)
        if wrong:
            found[seed] = wrong
            if len(found) == most:
                break
    return found


def test_each_row_is_written_once() -> None:
    assert wrong_runs(RUNS) == {}


def test_a_time_out_is_said_or_harmless() -> None:
    """A coordinator may abort what is open at any moment: rows are missing only where a driver
    has said so, and none is there twice."""
    seeds = random.Random(drawn_seed())
    said = 0
    for _ in range(600):
        seed = seeds.getrandbits(32)
        model = SinkModel(seed, time_outs=True)
        wrong = model.run()
        assert "twice [(" not in wrong, f"seed {seed}: {wrong}"
        assert not wrong or model.lost, f"seed {seed}: {wrong}"
        said += bool(model.lost)
    print(f"{said} runs lost a decided batch, and said so")


def without_fencing() -> Parts:
    return Parts(fences=False)


def without_ledger() -> Parts:
    def begin(sink: str) -> Generator[Any, Any, SinkBatch]:
        driver = yield protocol.InitDriver()
        names = yield protocol.ListOpen()
        yield protocol.FenceAll(tuple(name for name in names if is_former(name, sink, driver)))
        return SinkBatch(driver, None)

    def commit(sink: str, results: list[TaskResult], batch: int) -> Generator[Any, Any, None]:
        yield protocol.EndAll(tuple(one.transaction for one in results if one.transaction), True)

    return Parts(begin=begin, commit=commit, admit=always)


def always(*_: object) -> Generator[Any, Any, bool]:
    yield protocol.ReadLedger()
    return True


def without_passing_over() -> Parts:
    return Parts(admit=always)


def with_one_id_per_task() -> Parts:
    """A twin, or an attempt of a former driver, fences the attempt that counts."""
    return Parts(task_id=lambda sink, driver, part, attempt, number: f"{sink}/t/0/{part}")


def with_ids_of_all_drivers_aborted() -> Parts:
    """A driver that was replaced aborts what its successor has open, which may be decided."""

    def begin(sink: str) -> Generator[Any, Any, SinkBatch]:
        steps = protocol.begin_batch(sink)
        request = next(steps)
        while True:
            try:
                result = yield request
                names = result if isinstance(request, protocol.ListOpen) else None
                if names:
                    yield protocol.FenceAll(tuple(names))
                    result = []
                request = steps.send(result)
            except StopIteration as stopped:
                plan: SinkBatch = stopped.value
                return plan

    return Parts(begin=begin)


@pytest.mark.parametrize(
    "control",
    [
        without_fencing,
        without_ledger,
        without_passing_over,
        with_one_id_per_task,
        with_ids_of_all_drivers_aborted,
    ],
)
def test_each_part_is_needed(control: Callable[[], Parts]) -> None:
    found = wrong_runs(CONTROL_RUNS, control, most=1)
    print(f"{control.__name__}: {found}")
    assert found, "the model does not see this fault"


def answered(steps: Any, *results: Any) -> Any:
    """Run a part of the protocol with these results of its requests."""
    given = iter([None, *results])
    while True:
        try:
            steps.send(next(given))
        except StopIteration as stopped:
            return stopped.value


@pytest.mark.parametrize(
    ("ledger", "batch", "admitted"),
    [
        (None, 0, True),
        (Ledger("q", 4), 5, True),
        (Ledger("q", 5), 5, False),
    ],
)
def test_a_decided_batch_is_passed_over(ledger: Ledger, batch: int, admitted: bool) -> None:
    plan = SinkBatch(DRIVER, ledger)
    assert answered(admit_task("s", plan, "q", batch, OnNewQuery.FAIL), ledger) is admitted
    assert answered(admit_task("s", plan, "q", batch, OnNewQuery.RESET), ledger) is admitted


@pytest.mark.parametrize(
    ("ledger", "batch", "line"),
    [
        (None, 3, "query q is at batch 3, and the sink has no ledger"),
        (Ledger("other", 8), 0, "belongs to query other, which is at batch 8"),
    ],
)
def test_a_sink_of_another_query_is_refused(ledger: Ledger, batch: int, line: str) -> None:
    plan = SinkBatch(DRIVER, ledger)
    with pytest.raises(SinkInUse, match=line):
        answered(admit_task("s", plan, "q", batch, OnNewQuery.FAIL), ledger)
    assert answered(admit_task("s", plan, "q", batch, OnNewQuery.RESET), ledger)


@pytest.mark.parametrize("on_new_query", OnNewQuery)
def test_a_checkpoint_that_is_older_than_the_sink_is_refused(on_new_query: OnNewQuery) -> None:
    """Its batch has other rows than the one that is written: passed over, they would be lost."""
    ledger = Ledger("q", 9)
    with pytest.raises(SinkInUse, match="at batch 8, and batch 9 of it is written"):
        answered(admit_task("s", SinkBatch(DRIVER, ledger), "q", 8, on_new_query), ledger)


def test_an_attempt_that_comes_too_late_is_refused() -> None:
    with pytest.raises(SinkOvertaken, match="too late"):
        answered(admit_task("s", SinkBatch(DRIVER, None), "q", 0, OnNewQuery.FAIL), Ledger("q", 0))


def test_a_batch_with_a_transaction_that_timed_out_is_not_decided() -> None:
    results = [TaskResult(DRIVER, "q", PreparedTransaction(f"s/t/7/{n}", n, 0)) for n in range(2)]
    steps = commit_batch("s", results, 3)
    assert isinstance(next(steps), protocol.AreOpen)
    with pytest.raises(NotWritten, match=r"batch 3 took longer than kafka.transaction.timeout"):
        steps.send([True, False])


def test_a_batch_is_decided_by_the_driver_of_all_its_tasks() -> None:
    one = TaskResult(DRIVER, "q", None)
    with pytest.raises(NotWritten, match="several runs"):
        next(commit_batch("s", [one, TaskResult(DriverId(1, 8), "q", None)], 3))
    with pytest.raises(StopIteration):
        next(commit_batch("s", [TaskResult(DRIVER, "q", None, passed_over=True)], 3))


def test_transactional_ids_of_former_batches() -> None:
    epochs = (0, 6, 7, 8, 106, 107, 199, 207)
    ids = {epoch: task_id("s", DriverId(1, epoch), 2, 1, 35) for epoch in epochs}
    assert ids[7] == "s/t/7/2.1.3" and ids[7 + RING] == ids[7]
    former = {epoch for epoch, name in ids.items() if is_former(name, "s", DRIVER)}
    assert former == {0, 6, 107, 199}
    assert not is_former("s/t/x/2.1.0", "s", DRIVER)
    # After the last epoch of a producer id comes epoch 0 of another one.
    assert is_former(task_id("s", DriverId(1, 32_766), 0, 0, 0), "s", DriverId(2, 0))


def test_the_ledger_in_pieces() -> None:
    drawn = random.Random(drawn_seed())
    for count in (0, 1, 2, 150, 900):
        unended = tuple(
            PreparedTransaction(f"the/sink/t/{n % 7}/{n}.0.0", drawn.getrandbits(40), n)
            for n in range(count)
        )
        ledger = Ledger("86323192-ab", drawn.getrandbits(31), unended)
        pieces = encode(ledger, "the/sink", 50)
        assert all(len(piece.encode()) <= PIECE_BYTES for piece in pieces)
        # Pieces of a former batch that had more of them stay.
        kept = {**dict.fromkeys(range(50), "of before"), **dict(enumerate(pieces))}
        assert decode(kept, "the/sink") == ledger
        assert decode(dict(enumerate(pieces)), "the/sink") == ledger
    with pytest.raises(LedgerRefused, match="900 tasks with rows, more than the ledger has room"):
        encode(ledger, "the/sink", 2)


@pytest.mark.parametrize(
    ("pieces", "line"),
    [
        ({0: ""}, "its ledger cannot be read"),
        ({1: "{}"}, "the first piece of its ledger is missing"),
        ({0: "[]"}, "its ledger cannot be read"),
        ({0: '{"version":2,"query":"q","batch":1}'}, "of version 2, this one reads 1"),
        (
            {0: '{"version":1,"query":"q","batch":1,"pieces":2,"transactions":[]}'},
            "its ledger cannot be read",
        ),
        (
            {
                0: '{"version":1,"query":"q","batch":1,"pieces":2,"transactions":[]}',
                1: '{"batch":0,"transactions":[]}',
            },
            "piece 1 is of batch 0",
        ),
        (
            {0: '{"version":1,"query":"q","batch":1,"pieces":1,"transactions":[["a"]]}'},
            "its ledger cannot be read",
        ),
    ],
)
def test_a_ledger_that_no_sink_has_written(pieces: dict[int, str], line: str) -> None:
    assert decode({}, "s") is None
    with pytest.raises(LedgerRefused) as refused:
        decode(pieces, "s")
    assert line in str(refused.value) and "\n" not in str(refused.value)
