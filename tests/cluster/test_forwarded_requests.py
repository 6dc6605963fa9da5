"""Stock clients whose requests brokers forward, while the controller is stopped or dead.

A request waits for the controller as long as its own time lasts. Then each client gets its own
error for REQUEST_TIMED_OUT, and none shows NOT_CONTROLLER. One broker, with the controller in a
process of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import NewTopic
from kafka import errors

from tests.support.clients import admin
from tests.support.cluster import TidelogCluster
from tests.support.java import ToolRunner
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP, wait_until
from tests.support.target import TARGET
from tidelog.client.connecting.connection import connect
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

pytestmark = [
    pytest.mark.long(30),
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

TIME_MS = 4_000
ALTER = messages.AlterPartitionReassignmentsRequest


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    with TidelogCluster(tmp_path_factory.mktemp("forwarded"), brokers=1) as started:
        started.create_topic("t", 1, 1)
        yield started


@pytest.fixture(params=["SIGSTOP", "kill -9"])
def without_controller(
    cluster: TidelogCluster, request: pytest.FixtureRequest
) -> Iterator[TidelogCluster]:
    """The controller is gone when the test begins, and there again after it."""
    until_served(cluster)
    if request.param == "SIGSTOP":
        cluster.controller.program.send(SIGSTOP)
        yield cluster
        cluster.controller.program.send(SIGCONT)
    else:
        cluster.controller.kill()
        yield cluster
        cluster.controller.start()
    until_served(cluster)


def move(timeout_ms: int, partition: int = 0) -> Any:
    return ALTER(
        timeout_ms=timeout_ms,
        topics=[ALTER.ReassignableTopic("t", [ALTER.ReassignablePartition(partition, [1])])],
    )


def until_served(cluster: TidelogCluster) -> None:
    wait_until(
        lambda: ask(cluster, move(TIME_MS)).error_code == 0, DEADLINE_S, "moves are served", 0.1
    )


async def sent(cluster: TidelogCluster, request: Any, limit_ms: int) -> Any:
    host, port = cluster.brokers[1].bootstrap.split(":")
    connection = await connect(host, int(port), client_id="test")
    try:
        return await connection.send(request, timeout_ms=limit_ms)
    finally:
        connection.close("asked")


def ask(cluster: TidelogCluster, request: Any) -> Any:
    """Send a request as a client that closes the connection after the time of the request."""
    return asyncio.run(sent(cluster, request, request.timeout_ms))


def test_both_requests_of_moves_are_answered_in_their_own_time(
    without_controller: TidelogCluster,
) -> None:
    for attempt in range(2):
        altered = ask(without_controller, move(TIME_MS))
        (row,) = altered.responses[0].partitions
        listed = ask(
            without_controller, messages.ListPartitionReassignmentsRequest(timeout_ms=TIME_MS)
        )
        for found in (altered, row, listed):
            assert found.error_code == ErrorCode.REQUEST_TIMED_OUT, (attempt, found)
            assert "controller" in found.error_message


def test_stock_clients_show_that_the_time_was_over(without_controller: TidelogCluster) -> None:
    at = without_controller.bootstrap
    python = kafka.KafkaAdminClient(bootstrap_servers=at, request_timeout_ms=TIME_MS)
    try:
        with pytest.raises(errors.RequestTimedOutError, match="controller"):
            python.alter_partition_reassignments(
                {kafka.TopicPartition("t", 0): [1]}, timeout_ms=TIME_MS
            )
    finally:
        python.close()
    # operation_timeout is the time of the request, request_timeout that of the connection.
    librdkafka = admin(at)
    made = librdkafka.create_topics(
        [NewTopic("u", 1, 1)], operation_timeout=TIME_MS / 1000, request_timeout=2 * TIME_MS / 1000
    )
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        made["u"].result(DEADLINE_S)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.REQUEST_TIMED_OUT


@pytest.mark.java
def test_kafkas_tool_waits_for_the_controller(
    cluster: TidelogCluster, tools: ToolRunner, tmp_path: Path
) -> None:
    """It comes back in the time of the request: the tool shows no error."""
    until_served(cluster)
    plan = tmp_path / "plan.json"
    plan.write_text('{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1]}]}')
    # The JVM of the tools starts here, and is no part of the time.
    tools.run(
        "kafka-reassign-partitions", "--bootstrap-server", cluster.bootstrap, "--list"
    ).check()
    cluster.controller.kill()
    said, took_s = asyncio.run(_beside(cluster, tools, plan))
    assert "Successfully started partition reassignment for t-0" in said, said
    assert took_s < 30


async def _beside(cluster: TidelogCluster, tools: ToolRunner, plan: Path) -> tuple[str, float]:
    """What the tool printed, and how many seconds after the start of the controller it ended."""
    at = ("--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(plan))
    running = asyncio.ensure_future(
        asyncio.to_thread(tools.run, "kafka-reassign-partitions", *at, "--execute")
    )
    # The broker answers nothing meanwhile: a request is on its way, or the tool has not begun.
    done, _ = await asyncio.wait({running}, timeout=3.0)
    assert not done
    await asyncio.to_thread(cluster.controller.start)
    started = time.monotonic()
    found = await running
    return found.check().out, time.monotonic() - started
