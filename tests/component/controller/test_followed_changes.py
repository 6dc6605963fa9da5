"""What follows from a change is done at once: here nothing comes by time. No broker expires for its
silence, no revision comes late, no check is periodic, and no wait of a request ends by itself."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.controller_conflicts import assigned, topics_told
from tests.support.controller_process import RecordedBroker, World, run, topic
from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tests.support.processes import DEADLINE_S
from tests.support.reporting_brokers import ReportingBroker, counts, reporting
from tests.support.standing_clock import StandingClock, silence, stand_still
from tidelog.controller import outbox, serving
from tidelog.controller.handlers import create_partitions
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryTree
from tidelog.metadata.store import Create
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

BY_A_TOOL = b'{"version":1,"partitions":{"0":[1,2]}}'
LONG_MS = int(2_000 * DEADLINE_S)


@pytest.fixture(autouse=True)
def _nothing_comes_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "REVISION_EVERY_S", LONG_MS / 1000)
    monkeypatch.setattr(serving, "MAX_WAIT_FOR_BROKERS_MS", LONG_MS)
    monkeypatch.setattr(create_partitions, "MAX_WAIT_FOR_REPORTS_MS", LONG_MS)
    monkeypatch.setattr(create_partitions, "MAX_WAIT_FOR_CHECK_MS", LONG_MS)


async def next_controller(
    world: World,
) -> tuple[LoneController, StandingClock, RecordedBroker, RecordedBroker]:
    """A controller that presumes brokers 1 and 2 alive; its store has a new topic of both, made by
    a tool. Until a broker has registered or expired, it may have a replica."""
    tree = MemoryTree()
    first = await world.controller(tree)
    one, two = await world.broker(first, 1), await world.broker(first, 2)
    await first.stop()
    assert tree.apply(tree.new_session(), [Create(layout.topic("t"), BY_A_TOOL)]) is None
    second = await world.controller(tree)
    clock = stand_still(second)
    await until(lambda: "t" in second.cluster.topic_histories)
    return second, clock, one, two


def has_led_t(broker: RecordedBroker) -> bool:
    """Whether a broker was sent that a broker leads the topic t."""
    return any(
        (kind, name) == ("LeaderAndIsrRequest", "t") and leader > 0
        for kind, name, leader in topics_told(broker.requests)
    )


def test_a_topic_that_waited_for_a_broker_is_made_when_it_registers() -> None:
    async def scenario(world: World) -> None:
        controller, _, one, two = await next_controller(world)
        assert (await one.register(controller.listener_port)).error_code == 0
        assert not controller.cluster.states
        assert (await two.register(controller.listener_port)).error_code == 0
        await one.told(lambda _: has_led_t(one))

    run(scenario)


def test_a_topic_that_waited_for_a_broker_is_made_when_it_has_expired() -> None:
    async def scenario(world: World) -> None:
        controller, clock, one, _ = await next_controller(world)
        assert (await one.register(controller.listener_port)).error_code == 0
        # Never so long that the silence of 1 itself is in doubt.
        third_ms = controller.session_watch.sessions.patience.timeout_ms // 3
        for _ in range(3):
            assert not has_led_t(one)
            assert (await one.heartbeat()).error_code == 0
            await silence(controller, clock, third_ms)
        await one.told(lambda _: has_led_t(one))

    run(scenario)


def test_a_topic_that_a_tool_makes_and_marks_at_once_is_deleted() -> None:
    """It gets its id with the first decision, and can be deleted only with that."""

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        controller = await world.controller(tree)
        stand_still(controller)
        await world.broker(controller, 1)
        both = [Create(layout.topic("t"), BY_A_TOOL), Create(layout.deletion_mark("t"), b"")]
        assert tree.apply(tree.new_session(), list(both)) is None
        await until(lambda: not {node.path for node in both} & tree.nodes.keys())

    run(scenario)


def test_a_request_waits_for_no_broker_that_is_suspected() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()
        clock = stand_still(controller)
        one, two = await world.broker(controller, 1), await world.broker(controller, 2)
        two.holds = asyncio.Event()
        creation = asyncio.create_task(one.forward(assigned("t", 1), 7))
        channels, sessions = controller.channels, controller.session_watch.sessions
        await until(lambda: "t" in controller.cluster.topics)
        await until(lambda: channels.reached(1) >= controller.cluster.revision)
        assert not creation.done()
        assert two.session is not None
        two.session.close()
        await until(lambda: sessions.by_broker[2].closed_ms is not None)
        clock.passed_ms += sessions.patience.grace_ms
        await controller.session_watch.judge()
        assert (await creation).topics[0].error_code == 0
        two.holds.set()

    run(scenario)


async def grown(world: World) -> tuple[LoneController, ReportingBroker, ReportingBroker]:
    """Two brokers, with a topic of 4 partitions that had 2; no periodic check of retired ones."""
    controller = await world.controller(
        inter_broker_protocol_version="1.5", retired_check_interval_ms=str(LONG_MS)
    )
    stand_still(controller)
    one, two = await reporting(world, controller, 1, 2)
    await one.forward(topic("t", 2, 1), 7)
    assert await resized(one, 4) == ErrorCode.NONE
    return controller, one, two


async def resized(broker: ReportingBroker, count: int, *, force: bool = False) -> ErrorCode:
    (result,) = (await broker.forward(counts("t", count, LONG_MS, force=force), 3)).results
    return ErrorCode(result.error_code)


def test_a_shrink_begins_when_the_last_leader_has_reported_its_writers() -> None:
    async def scenario(world: World) -> None:
        controller, one, two = await grown(world)
        topic_id = controller.cluster.topic_id("t")
        none = [messages.BrokerHeartbeatRequest.LedTopic(topic_id, -1)]
        shrink = asyncio.create_task(resized(one, 2))
        # On the same connection: once it counts, the shrink waits.
        heartbeat = asyncio.create_task(one.heartbeat(led_topics=none))
        await until(lambda: 1 in controller.cluster.unaware.get(topic_id, {}))
        assert not shrink.done()
        await two.heartbeat(led_topics=none)
        assert await shrink == ErrorCode.NONE
        await heartbeat

    run(scenario)


def test_the_time_of_retired_partitions_begins_when_the_shrink_is_published() -> None:
    async def scenario(world: World) -> None:
        controller, one, _ = await grown(world)
        assert await resized(one, 2, force=True) == ErrorCode.NONE
        await until(lambda: 2 in controller.cluster.topic_histories["t"].retired_ms)

    run(scenario)


def test_a_growth_over_retired_partitions_is_answered_when_they_are_checked() -> None:
    async def scenario(world: World) -> None:
        controller, one, _ = await grown(world)
        assert await resized(one, 2, force=True) == ErrorCode.NONE
        await controller.retired.check()
        await until(lambda: controller.channels.all_reached(controller.cluster.revision))
        # These brokers say nothing of their logs: nothing is removed, and no other change comes.
        assert await resized(one, 4) == ErrorCode.INVALID_PARTITIONS

    run(scenario)
