"""Resizes of a controller process with brokers that report their fences, over the wire."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from typing import Any

import pytest

from tests.support.controller_process import World, run, topic
from tests.support.lone_broker import until
from tests.support.processes import DEADLINE_S
from tests.support.reporting_brokers import ReportingBroker, counts, reporting
from tidelog.client.connecting.connection import connect
from tidelog.controller import outbox, resizes, serving
from tidelog.controller.consequences import ControllerEvent
from tidelog.controller.decisions import resizing
from tidelog.controller.decisions.resize_beginnings import is_unbegun
from tidelog.metadata.memory import MemoryTree
from tidelog.metadata.store import WriteTooLarge
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

LEVEL = {"inter_broker_protocol_version": "1.5"}


async def resized(broker: ReportingBroker, request: Any) -> tuple[ErrorCode, str]:
    answer = await broker.forward(request, 3)
    (result,) = answer.results
    return ErrorCode(result.error_code), result.error_message or ""


def is_at(controller: Any, name: str, step: str) -> bool:
    plan = controller.cluster.topic_histories[name].resize
    return plan is not None and plan.step == step


def test_create_partitions_responds_when_every_broker_shows_the_new_count() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(**LEVEL)
        one, two = await reporting(world, controller, 1, 2)
        await one.forward(topic("t", 2, 2), 7)
        for count, force, shown in (
            (5, False, (5, 1, [0, 1, 2, 3, 4], [])),
            (3, True, (3, 2, [0, 1, 2, 3, 4], [3, 4])),
            (2, True, (2, 3, [0, 1, 2, 3, 4], [2, 3, 4])),
        ):
            answer = await resized(one, counts("t", count, force=force))
            assert answer == (ErrorCode.NONE, "")
            assert [broker.shown("t") for broker in (one, two)] == [shown] * 2
        assert one.sealed == two.sealed == {("t", 2), ("t", 3), ("t", 4)}
        # Leaders and followers are sent their new epoch; the publication is for clients alone.
        sent = [
            part.leader_epoch
            for request in one.requests
            if isinstance(request, messages.LeaderAndIsrRequest)
            for of_topic in request.topic_states
            for part in of_topic.partition_states
            if part.partition_index == 0 and request.type != 2
        ]
        assert sent == [0, 1, 2, 3]
        # 3 and 4 keep the epoch of their own shrink.
        held = {**one.led, **two.led}
        assert [held["t", index][1] for index in range(5)] == [3, 3, 3, 2, 2]
        assert controller.cluster.topic_histories["t"].resize is None
        assert not controller.cluster.fences
        assert set(one.errors + two.errors) == {ErrorCode.NONE}

    run(scenario)


def test_each_step_of_a_resize_follows_from_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without what comes by time: a check of what changes in memory, and a late revision."""
    monkeypatch.setattr(resizes, "CHECK_S", 2 * DEADLINE_S)
    monkeypatch.setattr(outbox, "REVISION_EVERY_S", 2 * DEADLINE_S)

    async def scenario(world: World) -> None:
        controller = await world.controller(**LEVEL)
        one, two = await reporting(world, controller, 1, 2)
        await one.forward(topic("t", 2, 2), 7)
        assert await resized(one, counts("t", 5)) == (ErrorCode.NONE, "")
        assert await resized(one, counts("t", 3, force=True)) == (ErrorCode.NONE, "")
        # Reports that come alone, when every commit is made and every broker has responded.
        one.reports = two.reports = False
        await one.forward(topic("u", 2, 2), 7)
        growth = asyncio.create_task(resized(one, counts("u", 4)))
        for step in ("fence", "birth"):
            await until(partial(is_at, controller, "u", step), DEADLINE_S)
            await until(lambda: bool(one.owed or two.owed), DEADLINE_S)
            await until(
                lambda: controller.channels.all_reached(controller.cluster.revision), DEADLINE_S
            )
            one.report_owed()
            two.report_owed()
        assert await growth == (ErrorCode.NONE, "")

    run(scenario)


def test_a_resize_is_undone_when_a_leader_does_not_report(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(world: World) -> None:
        controller = await world.controller(resize_timeout_ms="200", **LEVEL)
        one, two = await reporting(world, controller, 1, 2)
        await one.forward(topic("t", 2, 1), 7)
        two.reports = False
        code, why = await resized(one, counts("t", 4))
        assert code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert why.startswith("The resize of the topic t to 4 partitions was undone: no leader has")
        assert "It has 2 partitions as before" in why
        assert one.shown("t") == (2, 2, [0, 1], [])
        assert sorted(controller.cluster.topics["t"].partitions) == [0, 1]
        # No broker was sent a child.
        assert {index for _, index in (*one.led, *two.led)} == {0, 1}
        two.reports = True
        assert (await resized(one, counts("t", 4)))[0] is ErrorCode.NONE
        assert two.shown("t") == (4, 3, [0, 1, 2, 3], [])

    run(scenario)
    said = [record.getMessage() for record in caplog.records if record.name == "tidelog.audit"]
    assert "resize of topic t done: it has 4 partitions, after 2, resize epoch 3" in said


@pytest.mark.parametrize("count", [4, 1])
def test_no_partition_is_closed_before_all_brokers_have_responded(count: int) -> None:
    """One that was just frozen, and is not suspected yet, closed the whole topic (0108)."""

    async def scenario(world: World) -> None:
        controller = await world.controller(**LEVEL)
        one, two = await reporting(world, controller, 1, 2)
        await one.forward(topic("t", 1, 2), 7)
        assert (await resized(one, counts("t", 2)))[0] is ErrorCode.NONE
        histories, resizes = controller.cluster.topic_histories, controller.resizes
        await until(lambda: histories["t"].resize is None, DEADLINE_S)
        led = {**one.led, **two.led}
        two.holds = asyncio.Event()
        asked = len(one.requests), len(two.requests)
        resize = asyncio.create_task(resized(one, counts("t", count, force=True)))
        await until(lambda: len(one.requests) > asked[0], DEADLINE_S)
        await until(lambda: len(two.requests) > asked[1], DEADLINE_S)
        await until(lambda: "t" in resizes.waited_ms(), DEADLINE_S)
        plan = histories["t"].resize
        assert plan is not None
        assert is_unbegun(plan)
        assert {**one.led, **two.led} == led
        two.holds.set()
        assert await resize == (ErrorCode.NONE, "")
        assert one.shown("t") == two.shown("t")
        assert {**one.led, **two.led} != led

    run(scenario)


def test_a_growth_is_undone_when_a_child_has_no_room_for_its_fence() -> None:
    """The children that were born are stopped; meanwhile the doctor and --describe name the one."""

    async def scenario(world: World) -> None:
        controller = await world.controller(resize_timeout_ms="500", **LEVEL)
        one, two = await reporting(world, controller, 1, 2)
        await one.forward(topic("t", 2, 1), 7)
        two.silent.add(("t", 3))
        one.silent.add(("t", 3))
        growth = asyncio.create_task(resized(one, counts("t", 4)))
        await until(lambda: ("t", 3) in {**one.led, **two.led}, DEADLINE_S)
        # Sent again, as after a lost connection: it waits for the same resize.
        again = asyncio.create_task(resized(two, counts("t", 4)))
        assert (await resized(two, counts("t", 5)))[0] is ErrorCode.REASSIGNMENT_IN_PROGRESS
        asked = messages.DescribeConditionRequest(subjects=["resizes"])
        (row,) = json.loads((await one.forward(asked, 0)).condition)["resizes"]
        assert (row["step"], row["unpublished"]) == ("birth", [2, 4])
        leader = 1 if ("t", 3) in one.led else 2
        assert 3 in row["waits_for_partitions"]
        assert leader in row["waits_for_brokers"]
        code, why = await growth
        assert await again == (code, why)
        assert code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert "no leader has reported a committed fence of partition 3 within" in why
        assert one.shown("t") == (2, 2, [0, 1], [])
        # The children are stopped with their partition epochs, on the brokers that have them.
        histories = controller.cluster.topic_histories
        await until(lambda: not histories["t"].pending_stops, DEADLINE_S)
        stopped = {
            (state.partition_index, state.partition_epoch)
            for broker in (one, two)
            for request in broker.requests
            if isinstance(request, messages.StopReplicaRequest)
            for of_topic in request.topic_states
            for state in of_topic.partition_states
        }
        former = controller.cluster.topic_histories["t"].former
        assert stopped == {(x, former[x].partition_epoch) for x in (2, 3)}
        one.silent.clear()
        two.silent.clear()
        assert (await resized(one, counts("t", 4)))[0] is ErrorCode.NONE
        assert two.shown("t") == (4, 3, [0, 1, 2, 3], [])

    run(scenario)


def test_a_full_disk_refuses_a_resize_and_undoes_a_running_one_at_once() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(resize_timeout_ms="60000", **LEVEL)
        one, two = await reporting(world, controller, 1, 2)
        await one.forward(topic("t", 2, 1), 7)
        led = [index for _, index in two.led]
        topic_id = controller.cluster.topic_id("t")
        beat = messages.BrokerHeartbeatRequest
        short = beat.Shortage("/data", "the disk is full", [beat.ShortTopic(topic_id, led)])
        failures = beat.Failures([], [], [short])
        words = f"broker 2 cannot write t-{led[0]} (/data: the disk is full)"
        two.reports = False
        growth = asyncio.create_task(resized(one, counts("t", 4)))
        await until(lambda: two.led["t", led[0]][1] == 1, DEADLINE_S)
        await two.heartbeat(failures=failures)
        code, why = await growth
        assert code is ErrorCode.KAFKA_STORAGE_ERROR
        assert f"was undone, because {words}. It has 2 partitions as before: make room" in why
        two.reports = True
        code, why = await resized(one, counts("t", 4))
        assert code is ErrorCode.KAFKA_STORAGE_ERROR
        assert why.startswith(f"{words}, so a resize could not finish: make room there")
        # A heartbeat without it: there is room.
        await two.heartbeat()
        assert await resized(one, counts("t", 4)) == (ErrorCode.NONE, "")

    run(scenario)


def test_a_resize_is_undone_at_once_when_a_leader_is_gone() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(resize_timeout_ms="60000", **LEVEL)
        one, two = await reporting(world, controller, 1, 2)
        await one.forward(topic("t", 2, 1), 7)
        led = next(index for _, index in two.led)
        two.reports = False
        growth = asyncio.create_task(resized(one, counts("t", 4)))
        await until(lambda: two.led["t", led][1] == 1, DEADLINE_S)
        await two.close()
        code, why = await growth
        assert code is ErrorCode.LEADER_NOT_AVAILABLE
        assert f"was undone, because t-{led} has no live leader (broker 2," in why

    run(scenario)


def test_a_forwarded_resize_waits_as_long_as_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers forward on connections of their own; only one with heartbeats has to be answered
    sooner, because responses leave in order."""
    monkeypatch.setattr(serving, "MAX_WAIT_FOR_BROKERS_MS", 50)

    async def scenario(world: World) -> None:
        controller = await world.controller(resize_timeout_ms="300", **LEVEL)
        (one,) = await reporting(world, controller, 1)
        await one.forward(topic("t", 2, 1), 7)
        one.reports = False
        assert (await resized(one, counts("t", 4)))[0] is ErrorCode.REQUEST_TIMED_OUT
        await until(lambda: not controller.cluster.resizing, DEADLINE_S)
        apart = await connect("127.0.0.1", controller.listener_port)
        session, one.session = one.session, apart
        assert (await resized(one, counts("t", 4)))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        one.session = session
        apart.close()

    run(scenario)


def test_the_next_controller_goes_on_when_the_leaders_report_to_it() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        controller = await world.controller(tree, **LEVEL)
        brokers = await reporting(world, controller, 1, 2)
        await brokers[0].forward(topic("t", 2, 2), 7)
        for broker in brokers:
            broker.reports = False
        code, why = await resized(brokers[0], counts("t", 4, timeout_ms=50))
        assert code is ErrorCode.REQUEST_TIMED_OUT
        assert "has begun and goes on" in why
        await controller.stop()
        again = await world.controller(tree, **LEVEL)
        for broker in brokers:
            broker.reports = True
            assert (await broker.register(again.listener_port)).error_code == 0
        await until(lambda: not again.cluster.resizing, DEADLINE_S)
        for broker in brokers:
            await broker.told(lambda _, broker=broker: broker.shown("t") is not None)  # type: ignore[misc]
            assert broker.shown("t") == (4, 1, [0, 1, 2, 3], [])

    run(scenario)


def test_a_report_of_a_former_life_is_stale_and_an_unknown_one_is_dropped() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(**LEVEL)
        (one,) = await reporting(world, controller, 1)
        request = messages.ReportFencesRequest
        fence = request.Fence(one.directory, 0, 1, 1, 1)
        assert one.session is not None
        for epoch, error in (
            (one.epoch, ErrorCode.NONE),
            (one.epoch - 1, ErrorCode.STALE_BROKER_EPOCH),
        ):
            answer = await one.session.send(request(1, epoch, [fence]), 0)
            assert answer.error_code == error
        assert not controller.cluster.fences

    run(scenario)


def test_a_request_that_only_checks_waits_for_nothing() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(**LEVEL)
        (one,) = await reporting(world, controller, 1)
        await one.forward(topic("t", 2, 1), 7)
        assert await resized(one, counts("t", 4, validate_only=True)) == (ErrorCode.NONE, "")
        assert controller.cluster.topic_histories["t"].resize is None
        code, why = await resized(one, counts("t", 1))
        assert (code, "smallest count is 2" in why) == (ErrorCode.INVALID_PARTITIONS, True)

    run(scenario)


def test_a_shrink_waits_until_every_leader_says_that_no_unaware_writer_is_there() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(**LEVEL)
        one, two = await reporting(world, controller, 1, 2)
        await one.forward(topic("t", 2, 1), 7)
        await resized(one, counts("t", 4))
        topic_id = controller.cluster.topic_id("t")
        led = messages.BrokerHeartbeatRequest.LedTopic
        now_ms = controller.seams.clock.wall_ms()

        async def refused() -> str:
            code, why = await resized(one, counts("t", 2))
            assert code in (ErrorCode.POLICY_VIOLATION, ErrorCode.NONE)
            return why

        await one.heartbeat(led_topics=[led(topic_id, -1)])
        assert "broker 2 has not said" in await refused()
        # A leader says it in the first heartbeat after it has learnt of the topic: that is awaited.
        await one.forward(topic("u", 2, 1), 7)
        await resized(one, counts("u", 4))
        new = controller.cluster.topic_id("u")
        shrinks = asyncio.get_running_loop().create_task(resized(one, counts("u", 2)))
        heard = asyncio.get_running_loop().create_task(one.heartbeat(led_topics=[led(new, -1)]))
        await until(lambda: 1 in controller.cluster.unaware.get(new, {}), DEADLINE_S)
        await two.heartbeat(led_topics=[led(new, -1)])
        assert await shrinks == (ErrorCode.NONE, "")
        await heard
        writer = led(topic_id, now_ms, 3, client_ids=["rdkafka"])
        await two.heartbeat(led_topics=[writer, led(one.directory, now_ms, 4)])
        asked = messages.DescribeConditionRequest(subjects=["resizes"])
        found = json.loads((await one.forward(asked, 0)).condition)["unaware_writers"]
        numbers = {"last_write_ms": now_ms, "broker": 2, "misplaced_records": 3}
        assert found == [{"topic": "t", **numbers, "client_ids": ["rdkafka"]}]
        assert "wrote to it 0 minutes ago (client ids: rdkafka)" in await refused()
        assert controller.cluster.unaware.keys() == {topic_id, new}
        # What a broker saw stays known when it forgets it.
        await two.heartbeat(led_topics=[led(topic_id, -1)])
        assert "wrote to it 0 minutes ago" in await refused()
        controller.cluster.unaware[topic_id][2] = now_ms - 3_600_000
        assert await refused() == ""
        assert two.shown("t") == (2, 2, [0, 1, 2, 3], [2, 3])

    run(scenario)


def test_no_controller_and_no_broker_is_missed_for_what_is_known_of_writers() -> None:
    """After any restart, of a controller or a broker, an unforced shrink is decided at once; and
    one write is still known when the broker that saw it does not come back."""

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        controller = await world.controller(tree, **LEVEL)
        brokers = one, two = await reporting(world, controller, 1, 2)
        for name in ("t", "u"):
            await one.forward(topic(name, 2, 2), 7)
            assert await resized(one, counts(name, 4)) == (ErrorCode.NONE, "")
        led = messages.BrokerHeartbeatRequest.LedTopic
        ids = {name: controller.cluster.topic_id(name) for name in ("t", "u")}
        clock = controller.seams.clock

        async def report(u_ms: int) -> None:
            await one.heartbeat(led_topics=[led(ids["t"], -1), led(ids["u"], -1)])
            await two.heartbeat(led_topics=[led(ids["t"], -1), led(ids["u"], u_ms)])

        await report(clock.wall_ms())
        await controller.stop()
        again = await world.controller(tree, **LEVEL)
        for broker in brokers:
            assert (await broker.register(again.listener_port)).error_code == 0
        # Broker 2 comes back on another disk: what it saw is only on record.
        await report(-1)
        assert await resized(one, counts("t", 2)) == (ErrorCode.NONE, "")
        code, why = await resized(one, counts("u", 2))
        assert (code, "wrote to it 0 minutes ago" in why) == (ErrorCode.POLICY_VIOLATION, True)
        asked = messages.DescribeConditionRequest(subjects=["resizes"])
        (row,) = json.loads((await one.forward(asked, 0)).condition)["unaware_writers"]
        assert (row["topic"], row["broker"]) == ("u", None)

    run(scenario)


@pytest.mark.parametrize("marked", [False, True], ids=["deleted", "marked"])
def test_a_resize_of_a_topic_that_is_deleted_meanwhile_has_no_success(marked: bool) -> None:
    """The nodes of a large topic go in several commits, and its mark comes before them."""

    async def scenario(world: World) -> None:
        controller = await world.controller(**LEVEL)
        one, two = await reporting(world, controller, 1, 2)
        await one.forward(topic("t", 2, 2), 7)
        one.reports = two.reports = False
        asked = asyncio.get_running_loop().create_task(resized(one, counts("t", 4)))
        await until(lambda: controller.cluster.resizing, DEADLINE_S)
        if marked:
            controller.cluster.marked.add("t")
            controller.changed(ControllerEvent.SENT)
        else:
            request = messages.DeleteTopicsRequest
            await two.forward(request(topics=[request.DeleteTopicState("t")], timeout_ms=5000), 6)
        code, why = await asked
        assert code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert why == "The topic t was deleted meanwhile."

    run(scenario)


def test_a_resize_that_fails_does_not_hold_up_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(**LEVEL)
        (one,) = await reporting(world, controller, 1)
        for name in ("a", "t"):
            await one.forward(topic(name, 2, 1), 7)
        advance = resizing.advance

        def fails(cluster: Any, name: str, **changes: Any) -> Any:
            if name == "a":
                raise WriteTooLarge("planted")
            return advance(cluster, name, **changes)

        monkeypatch.setattr(resizing, "advance", fails)
        code, _ = await resized(one, counts("a", 4, timeout_ms=50))
        assert code is ErrorCode.REQUEST_TIMED_OUT
        assert (await resized(one, counts("t", 4)))[0] is ErrorCode.NONE
        monkeypatch.setattr(resizing, "advance", advance)
        await until(lambda: not controller.cluster.resizing, DEADLINE_S)
        assert controller.cluster.topics["a"].undeleted_partition_count == 4

    run(scenario)
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said and set(said) == {"the resize of topic a could not go on"}
