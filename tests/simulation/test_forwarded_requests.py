"""Requests that brokers forward while no controller answers, on the simulated cluster.

Each waits for a controller as long as its own time lasts, and is then answered REQUEST_TIMED_OUT
with a sentence, for each thing that it names. No client sees NOT_CONTROLLER.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.simulation.cluster.scripted_run import ScriptedRun, run_script
from tidelog.client.connecting.connection import connect
from tidelog.client.errors import ClientError
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

pytestmark = pytest.mark.usefixtures("quiet")

TIME_MS = 5_000
WITHOUT_A_TIME_MS = 30_000
"""``request.timeout.ms``, for requests that have no time of their own."""

Found = list[tuple[int, str | None]]


def _top(answer: Any) -> Found:
    return [(answer.error_code, answer.error_message)]


def _each(rows: str, parts: str = "") -> Callable[[Any], Found]:
    def errors(answer: Any) -> Found:
        found = getattr(answer, rows)
        if parts:
            found = [part for row in found for part in getattr(row, parts)]
        return [(row.error_code, row.error_message) for row in found]

    return errors


ALTER, LIST = (
    messages.AlterPartitionReassignmentsRequest,
    messages.ListPartitionReassignmentsRequest,
)
ELECT, SET, GROW = (
    messages.ElectLeadersRequest,
    messages.IncrementalAlterConfigsRequest,
    messages.CreatePartitionsRequest,
)


def _move(timeout_ms: int = TIME_MS, targets: list[int] | None = None) -> Any:
    rows = [ALTER.ReassignablePartition(index, targets) for index in (0, 7)]
    return ALTER(timeout_ms=timeout_ms, topics=[ALTER.ReassignableTopic("t", rows)])


REQUESTS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Found], int]] = {
    "move": (_move, _each("responses", "partitions"), 2),
    "cancel all": (lambda: ALTER(timeout_ms=TIME_MS, topics=None), _top, 1),
    "list": (lambda: LIST(timeout_ms=TIME_MS, topics=None), _top, 1),
    "create": (
        lambda: messages.CreateTopicsRequest(
            [messages.CreateTopicsRequest.CreatableTopic("u", 1, 1)], TIME_MS
        ),
        _each("topics"),
        1,
    ),
    "delete": (
        lambda: messages.DeleteTopicsRequest(
            topics=[messages.DeleteTopicsRequest.DeleteTopicState("t")], timeout_ms=TIME_MS
        ),
        _each("responses"),
        1,
    ),
    "grow": (
        lambda: GROW([GROW.CreatePartitionsTopic("t", 2, None)], TIME_MS),
        _each("results"),
        1,
    ),
    "elect": (
        lambda: ELECT(0, [ELECT.TopicPartitions("t", [0])], TIME_MS),
        _each("replica_election_results", "partition_result"),
        1,
    ),
    "configure": (
        lambda: SET([SET.AlterConfigsResource(2, "t", [SET.AlterableConfig("a", 0, "b")])]),
        _each("responses"),
        1,
    ),
}


async def asked(run: ScriptedRun, broker: int, request: Any) -> Any:
    """Send a request to a broker, as a client that closes when the time of its request is over."""
    limit_ms = getattr(request, "timeout_ms", WITHOUT_A_TIME_MS)
    connection = await connect(run.cluster.broker(broker).host, 9092, connect_timeout_ms=2_000)
    try:
        return await connection.send(request, timeout_ms=limit_ms)
    finally:
        connection.close()


async def all_are_timed_out(run: ScriptedRun) -> None:
    async def one(name: str, broker: int) -> None:
        make, errors_of, count = REQUESTS[name]
        found = errors_of(await asked(run, broker, make()))
        assert len(found) == count, (name, found)
        for code, sentence in found:
            assert code == ErrorCode.REQUEST_TIMED_OUT, (name, ErrorCode(code).name, sentence)
            assert sentence and "controller" in sentence, (name, sentence)

    await asyncio.gather(*(one(name, broker) for name in REQUESTS for broker in (1, 2, 3)))


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_each_request_is_answered_in_its_own_time(how: str) -> None:
    """Also right after the controller is gone, when no broker has noticed yet."""

    async def story(run: ScriptedRun) -> None:
        active = run.cluster.active
        assert active is not None and active.process is not None
        if how == "stopped":
            active.process.pause()
        else:
            active.kill()
        await all_are_timed_out(run)
        # Brokers have left the controller by now.
        await all_are_timed_out(run)
        if how == "stopped":
            active.process.resume()
        else:
            active.start()
        await run.until_isr(1, 2, 3)
        await run.write(3)

    run_script(story)


def test_a_request_waits_for_the_controller_that_comes_back_in_its_time() -> None:
    async def story(run: ScriptedRun) -> None:
        active = run.cluster.active
        assert active is not None
        active.kill()
        waiting = [
            asyncio.ensure_future(asked(run, broker, _move(20_000, [2, 1, 3])))
            for broker in (1, 2, 3)
        ]
        await asyncio.sleep(3.0)
        assert not any(each.done() for each in waiting)
        active.start()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        for answer in answers:
            # One that was on its way to the controller when it was killed has no certain outcome.
            assert not isinstance(answer, ClientError), answer
            rows = [(row.error_code) for row in answer.responses[0].partitions]
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert rows in ([ErrorCode.NONE, unknown], [ErrorCode.REQUEST_TIMED_OUT] * 2)
        assert any(answer.responses[0].partitions[0].error_code == 0 for answer in answers)
        await run.until_isr(1, 2, 3)

    run_script(story)
