"""What counts only on a broker's session: its heartbeats, its changes of the ISR, its damage."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from tests.support.lone_broker import until
from tests.wire.test_controller_process import RecordedBroker, World, run
from tidelog.client.connection import connect
from tidelog.controller.decisions import losses
from tidelog.controller.process import Controller
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.runtime.clock import RealClock
from tidelog.runtime.seams import Seams

T0 = TopicPartition("t", 0)


class ShiftedClock(RealClock):
    """The real clock, and how long the process was stopped beside it."""

    stopped_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.stopped_ms


async def on_two(world: World) -> tuple[Controller, RecordedBroker, RecordedBroker, Any]:
    """A topic t on brokers 1, its leader, and 2; with its id."""
    controller = await world.controller()
    one = await world.broker(controller, 1)
    two = await world.broker(controller, 2)
    request = messages.CreateTopicsRequest
    assignment = [request.CreatableReplicaAssignment(0, [1, 2])]
    wanted = request([request.CreatableTopic("t", -1, -1, assignment)], 5000)
    created = (await one.forward(wanted, 7)).topics[0]
    assert created.error_code == 0
    return controller, one, two, created.topic_id


def test_heartbeats_and_isr_changes_of_another_connection_do_not_count() -> None:
    async def scenario(world: World) -> None:
        controller, one, _, topic_id = await on_two(world)
        session = one.session
        one.session = await connect("127.0.0.1", controller.listener_port)
        alter = messages.AlterIsrRequest
        part = alter.PartitionData(0, 0, [1], 0)
        asked = alter(1, one.epoch, [alter.TopicData("t", [part], topic_id)])
        assert (await one.heartbeat()).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        assert (await one.session.send(asked, 0)).error_code == ErrorCode.STALE_BROKER_EPOCH
        assert controller.cluster.states[T0].isr == [1, 2]
        # Registering there makes it the session, and ends the other one.
        one.session.close()
        assert (await one.register(controller.listener_port)).error_code == 0
        assert (await one.heartbeat()).error_code == 0
        assert one.session is not None and session is not None
        assert (await session.send(asked, 0)).error_code == ErrorCode.STALE_BROKER_EPOCH
        assert (await one.session.send(asked, 0)).error_code == 0
        assert controller.cluster.states[T0].isr == [1]
        session.close()
        # The old one's end is no sign of the broker's.
        assert (await one.heartbeat()).error_code == 0
        assert controller.cluster.suspected == set()

    run(scenario)


def test_a_damaged_replica_in_the_inventory_leaves_and_comes_back_as_a_follower() -> None:
    async def scenario(world: World) -> None:
        controller, one, _, topic_id = await on_two(world)
        entry = messages.BrokerRegistrationRequest
        damaged = entry.InventoryPartition(0, 1, -1, -1)
        one.inventory = [entry.InventoryTopic("t", topic_id, [damaged])]
        one.incarnation = one.directory
        assert (await one.register(controller.listener_port)).error_code == 0
        state = controller.cluster.states[T0]
        assert (state.leader, state.isr, state.is_unclean_leader) == (2, [2], False)
        assert controller.cluster.broken == {(1, T0)}
        heartbeat = messages.BrokerHeartbeatRequest
        replica = heartbeat.DamagedReplica("t", topic_id, 0)
        assert (await one.heartbeat(failures=heartbeat.Failures([], [replica]))).error_code == 0
        assert controller.cluster.broken == {(1, T0)}
        # Fetched again: no longer named, and nothing keeps it from joining.
        assert (await one.heartbeat()).error_code == 0
        assert controller.cluster.broken == set()

    run(scenario)


def test_unclean_elections_beyond_the_room_of_the_record_follow_as_others_are_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses, "KEPT_BYTES", 700)
    assert losses.most_debts(2) == 2

    async def scenario(world: World) -> None:
        controller = await world.controller()
        one = await world.broker(controller, 1)
        await world.broker(controller, 2)
        create, alter = messages.CreateTopicsRequest, messages.AlterIsrRequest
        assignment = [create.CreatableReplicaAssignment(index, [1, 2]) for index in range(5)]
        wanted = create([create.CreatableTopic("t", -1, -1, assignment)], 5000)
        topic_id = (await one.forward(wanted, 7)).topics[0].topic_id

        async def ask(*indexes: int, handled: bool) -> None:
            states = {x: controller.cluster.states[TopicPartition("t", x)] for x in indexes}
            version = {x: controller.cluster.isr_version(TopicPartition("t", x)) for x in indexes}
            parts = [
                alter.PartitionData(x, state.leader_epoch, [1], version[x], unclean_handled=handled)
                for x, state in states.items()
            ]
            assert one.session is not None
            asked = alter(1, one.epoch, [alter.TopicData("t", parts, topic_id)])
            (answer,) = (await one.session.send(asked, 0)).topics
            assert [part.error_code for part in answer.partitions] == [0] * len(indexes)

        def led() -> list[int]:
            states = controller.cluster.states
            return [x for x in range(5) if states[TopicPartition("t", x)].leader == 1]

        await ask(0, 1, 2, 3, 4, handled=False)
        one.incarnation = uuid.uuid4()
        assert (await one.register(controller.listener_port, last_life_ended=0)).error_code == 0
        await one.heartbeat()
        assert led() == [0, 1]
        for handled, known in (((0, 1), [0, 1, 2, 3]), ((2, 3), [0, 1, 2, 3, 4])):
            await ask(*handled, handled=True)
            assert led() == known
        assert list(controller.cluster.memories["t"].unclean) == [4]

    run(scenario)


def test_damage_of_a_former_life_of_the_topic_takes_nothing_out() -> None:
    async def scenario(world: World) -> None:
        controller, one, _, _ = await on_two(world)
        heartbeat = messages.BrokerHeartbeatRequest
        former = heartbeat.DamagedReplica("t", one.directory, 0)
        assert (await one.heartbeat(failures=heartbeat.Failures([], [former]))).error_code == 0
        assert controller.cluster.states[T0].isr == [1, 2]

    run(scenario)


def test_brokers_that_were_told_before_a_store_is_known_to_be_old_are_told_no_more() -> None:
    """Promise 14: what an older store says may repeat a leader epoch."""

    async def scenario(world: World) -> None:
        controller, one, _, _ = await on_two(world)
        one.requests.clear()
        three = RecordedBroker(3)
        world.brokers.append(three)
        await three.listen()
        seen = messages.BrokerRegistrationRequest.HighestSeen(1, 10**6)
        answer = await three.register(controller.listener_port, highest_seen=seen)
        assert answer.error_code == 0
        assert controller.cluster.went_back is not None
        # The registration of three is news for all brokers; one gets a new channel instead.
        await one.told(lambda requests: len(requests) > 0)
        heartbeat = await one.heartbeat(want_shut_down=True)
        assert heartbeat.error_code == 0, "the decision is made, and nobody is told of it"
        assert controller.cluster.states[T0].leader == 2
        assert set(one.names()) == {"OpenControlChannel"}

    run(scenario)


def test_a_controller_that_was_stopped_hears_what_came_meanwhile_before_it_buries() -> None:
    """Promise 24: a controller that was silent itself would bury every broker of the cluster."""

    async def scenario(world: World) -> None:
        controller = await world.controller()
        clock = ShiftedClock()
        controller.seams = Seams(clock=clock)
        one, two = await world.broker(controller, 1), await world.broker(controller, 2)
        clock.stopped_ms = 120_000
        # On its way, and not read yet, when the sessions are judged; broker 2 is silent.
        beat = asyncio.ensure_future(one.heartbeat())
        await controller.session_watch.judge()
        assert (await beat).error_code == 0
        assert set(controller.cluster.brokers) == {1}
        assert (await two.heartbeat()).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        assert (await one.heartbeat()).error_code == 0

    run(scenario)


def test_brokers_that_die_together_leave_no_channel_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()
        clock = ShiftedClock()
        controller.seams = Seams(clock=clock)
        for node_id in (1, 2, 3):
            await world.broker(controller, node_id)
        clock.stopped_ms = 120_000
        await controller.session_watch.judge()
        assert not controller.cluster.brokers and not controller.outboxes

    run(scenario)
    assert "failed" not in caplog.text


def test_a_heartbeat_behind_a_change_of_the_isr_is_heard_while_that_waits() -> None:
    async def scenario(world: World) -> None:
        controller, one, _, topic_id = await on_two(world)
        clock = ShiftedClock()
        controller.seams = Seams(clock=clock)
        alter = messages.AlterIsrRequest
        part = alter.PartitionData(0, 0, [1], 0)
        asked = alter(1, one.epoch, [alter.TopicData("t", [part], topic_id)])
        assert one.session is not None
        sessions = controller.session_watch.sessions.by_broker
        async with controller.turn:
            waiting = one.session.submit(asked, 0)
            clock.stopped_ms = 30_000
            behind = asyncio.ensure_future(one.heartbeat())
            now = clock.monotonic_ms()
            await until(lambda: sessions[1].heard_ms >= now)
            assert not waiting.done() and not behind.done(), "answers leave in order"
        assert (await waiting).error_code == (await behind).error_code == 0

    run(scenario)
