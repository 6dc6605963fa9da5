"""Autoscaling of a controller process: rates in heartbeats, its log, its report, its successor."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.support.controller_process import World, run, topic
from tests.support.lone_broker import until
from tests.support.reporting_brokers import ReportingBroker, counts, reporting
from tidelog.controller import autoscaling
from tidelog.metadata.memory import MemoryTree
from tidelog.protocol import messages

LEVEL = {"inter_broker_protocol_version": "1.5"}
TARGET = 1_000
AUTO = {
    "partitions_auto": "true",
    "partitions_auto_target_bytes_per_second": str(TARGET),
    "partitions_auto_max": "8",
    "partitions_auto_grow_cooldown_ms": "3600000",
    "partitions_auto_shrink_cooldown_ms": "0",
    "retired_purge": "drained",
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscaling, "CHECK_S", 0.02)


def led(topic_id: Any, rates: dict[int, int], unaware_ms: int = -1) -> list[Any]:
    request = messages.BrokerHeartbeatRequest
    rows = [request.ByteRate(index, rate) for index, rate in rates.items()]
    return [request.LedTopic(topic_id, unaware_ms, 0, rows)]


async def take(controller: Any, rate: int, *brokers: ReportingBroker) -> None:
    """Each broker reports this rate of every partition, whether it leads it or not."""
    topic_id = controller.cluster.topic_id("t")
    rates = dict.fromkeys(controller.cluster.topics["t"].partitions, rate)
    for broker in brokers:
        await broker.heartbeat(led_topics=led(topic_id, rates))


async def report(broker: ReportingBroker) -> dict[str, Any]:
    request = messages.DescribeConditionRequest(subjects=["autoscaling"])
    (row,) = json.loads((await broker.forward(request, 0)).condition)["autoscaling"]
    return dict(row)


def said(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [x.args for x in caplog.records if x.name == autoscaling.__name__ and x.args]


def test_a_topic_grows_by_the_rates_of_its_leaders_and_shrinks_without_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(world: World) -> None:
        controller = await world.controller(**LEVEL)
        one, two = await reporting(world, controller, 1, 2)
        await one.forward(topic("t", 2, 1, **AUTO), 7)
        await until(lambda: said(caplog))
        assert (await report(one))["cause"] == "unknown rates"
        await take(controller, TARGET + 1, one, two)
        await until(lambda: (two.shown("t") or (0,))[0] == 4)
        # Rates from before the growth say nothing of the new count.
        await until(lambda: controller.cluster.topic_histories["t"].resize is None)
        row = await report(one)
        assert (row["count"], row["rates"]) == (4, [None] * 4)
        assert row["settings"]["target_bytes_per_second"] == TARGET
        await take(controller, 0, one, two)
        await until(lambda: (two.shown("t") or (0,))[0] == 2)
        lines = said(caplog)
        changes = [(x["count"], x["decided"]) for x in lines if x["count"] != x["decided"]]
        assert changes == [(2, 4), (4, 2)]
        first = json.loads(next(x["observation"] for x in lines if x["decided"] == 4))
        assert (first["rates"], first["reason"]) == (
            [TARGET + 1] * 2,
            "its partitions take 1,001 bytes/s on average, above 1,000 bytes/s",
        )

    run(scenario)


def test_the_next_controller_goes_on_with_the_cool_downs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        controller = await world.controller(tree, **LEVEL)
        (one,) = await reporting(world, controller, 1)
        await one.forward(topic("t", 2, 1, **AUTO), 7)
        await take(controller, 9_000, one)
        await until(lambda: (one.shown("t") or (0,))[0] == 4)
        await until(lambda: controller.cluster.topic_histories["t"].resize is None)
        after_ms = controller.cluster.topic_histories["t"].grow_after_ms
        await controller.stop()
        again = await world.controller(tree, **LEVEL)
        assert (await one.register(again.listener_port)).error_code == 0
        assert again.cluster.topic_histories["t"].grow_after_ms == after_ms > 0
        caplog.clear()
        await take(again, 9_000, one)
        await until(lambda: [x for x in said(caplog) if x["cause"] == "cool-down"])
        assert (one.shown("t") or (0,))[0] == 4

    run(scenario)


def test_heartbeats_with_nonsense_change_nothing_and_do_no_harm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rates that are negative, huge, of other partitions, of other topics, of other leaders."""
    caplog.set_level(logging.INFO)

    async def scenario(world: World) -> None:
        controller = await world.controller(**LEVEL)
        one, two = await reporting(world, controller, 1, 2)
        await one.forward(topic("t", 2, 1, **AUTO), 7)
        topic_id = controller.cluster.topic_id("t")
        leader, other = (one, two) if ("t", 0) in one.led else (two, one)
        wild = dict.fromkeys((-(2**31), -1, 2, 2**31 - 1), 2**63 - 1)
        for rates in (wild, {0: -(2**63), 1: -1}, {0: 2**63 - 1, 1: 2**63 - 1}):
            for broker in (one, two):
                answer = await broker.heartbeat(led_topics=led(topic_id, rates))
                assert answer.error_code == 0
                await broker.heartbeat(led_topics=led(one.directory, rates))
        await other.heartbeat(led_topics=led(topic_id, {0: 5_000}))
        assert set(controller.cluster.byte_rates) == {topic_id}
        assert set(controller.cluster.byte_rates[topic_id]) <= {0, 1}
        row = await report(leader)
        assert (row["decided"], row["cause"]) == (2, "unknown rates")
        assert "is no rate: 9223372036854775807 bytes/s" in row["reason"]

    run(scenario)


def test_a_refused_resize_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(world: World) -> None:
        controller = await world.controller(**LEVEL)
        one, two = await reporting(world, controller, 1, 2)
        await one.forward(topic("t", 2, 2, min_insync_replicas="2", **AUTO), 7)
        await until(lambda: said(caplog))
        controller.cluster.suspected |= {1, 2}
        caplog.clear()
        await take(controller, 5_000, one, two)
        controller.cluster.suspected |= {1, 2}
        await until(lambda: [x for x in said(caplog) if "refusal" in x])
        looked = controller.autoscaling
        for _ in range(5):
            controller.cluster.suspected |= {1, 2}
            await looked.check()
        refused = [x for x in said(caplog) if "refusal" in x]
        assert len(refused) == 1 and "has no live leader" in refused[0]["refusal"]

    run(scenario)


def test_a_topic_that_goes_while_others_are_decided_ends_no_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(**LEVEL)
        (one,) = await reporting(world, controller, 1)
        await one.forward(topic("t", 2, 1, **AUTO), 7)
        monkeypatch.setattr(autoscaling, "autoscaled_names", lambda _: ["gone", "t"])
        await take(controller, 9_000, one)
        await controller.autoscaling.check()
        await until(lambda: (one.shown("t") or (0,))[0] == 4)
        await until(lambda: controller.cluster.topic_histories["t"].resize is None)
        assert (await report(one))["topic"] == "t"

    run(scenario)


def test_a_resize_by_a_tool_begins_the_cool_downs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(world: World) -> None:
        controller = await world.controller(**LEVEL)
        (one,) = await reporting(world, controller, 1)
        await one.forward(topic("t", 2, 1, **AUTO), 7)
        (result,) = (await one.forward(counts("t", 4), 3)).results
        assert result.error_code == 0
        await take(controller, 9_000, one)
        await until(lambda: [x for x in said(caplog) if x["cause"] == "cool-down"])

    run(scenario)
