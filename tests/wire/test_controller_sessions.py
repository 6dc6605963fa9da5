"""What counts only on a broker's session: its heartbeats, its changes of the ISR, its damage."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest

from tests.support.controller_process import RecordedBroker, World, run
from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tests.support.standing_clock import silence, stand_still
from tidelog.client.connecting.connection import connect
from tidelog.controller.decisions import losses, registration
from tidelog.controller.decisions.decision import Decision
from tidelog.controller.pending import Changes
from tidelog.controller.performing import NotActive
from tidelog.controller.session_watch import SEEK_MS
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryTree
from tidelog.metadata.records import UncertainReplicas
from tidelog.metadata.store import Create
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

CONDITION = messages.DescribeConditionRequest()
T0 = TopicPartition("t", 0)


async def on_two(
    world: World, tree: MemoryTree | None = None
) -> tuple[LoneController, RecordedBroker, RecordedBroker, Any]:
    """A topic t on brokers 1, its leader, and 2; with its id."""
    controller = await world.controller(tree)
    one = await world.broker(controller, 1)
    two = await world.broker(controller, 2)
    request = messages.CreateTopicsRequest
    assignment = [request.CreatableReplicaAssignment(0, [1, 2])]
    wanted = request([request.CreatableTopic("t", -1, -1, assignment)], 25_000)
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


def test_a_wait_for_the_store_is_no_broker_s_silence(caplog: pytest.LogCaptureFixture) -> None:
    """Heartbeats were refused and registrations accepted, in turns: each broker came and was
    suspected, four times a second, as long as the store was away."""
    caplog.set_level("INFO")

    async def scenario(world: World) -> None:
        controller, one, _, _ = await on_two(world)
        clock = stand_still(controller)
        controller.store.reachable = False
        assert (await one.heartbeat()).error_code == ErrorCode.NOT_CONTROLLER
        assert one.session is not None
        one.session.close()
        again = await one.register(controller.listener_port)
        assert again.error_code == ErrorCode.NOT_CONTROLLER
        await silence(controller, clock, 60_000)
        assert controller.cluster.suspected == set()
        assert controller.cluster.brokers.keys() == {1, 2}
        assert controller.cluster.states[T0].isr == [1, 2]
        assert caplog.text.count("no broker is suspected meanwhile") == 1
        controller.store.reachable = True
        # Broker 2 has its connection still, 1 has the time of its longest pause to come back.
        await silence(controller, clock, SEEK_MS, 100)
        assert controller.cluster.suspected == set()
        assert (await one.register(controller.listener_port)).error_code == 0
        assert (await one.heartbeat()).error_code == 0
        # One that does not is suspected like any other.
        one.session.close()
        await until(lambda: controller.session_watch.sessions.by_broker[1].closed_ms is not None)
        await silence(controller, clock, 300, 100)
        assert controller.cluster.suspected == {1}

    run(scenario)


def test_a_broker_that_asked_to_leave_is_not_suspected_in_what_people_see(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    async def scenario(world: World) -> None:
        controller, one, two, _ = await on_two(world)
        clock = stand_still(controller)
        assert (await one.heartbeat(want_shut_down=True)).should_shut_down
        assert one.session is not None
        one.session.close()
        await until(lambda: controller.session_watch.sessions.by_broker[1].closed_ms is not None)
        await silence(controller, clock, 300, 100)
        # It leads nothing, like a suspected one.
        assert controller.cluster.suspected == {1}
        found = json.loads((await two.forward(CONDITION, 0)).condition)
        kinds = {each["kind"]: each["level"] for each in found["problems"]}
        assert kinds["brokers_shutting_down"] == "notice" and "brokers_suspected" not in kinds
        assert found["brokers"]["1"]["condition"] == "shutting_down"
        assert [x for x in caplog.messages if "is suspected" in x] == []
        assert [x.levelname for x in caplog.records if "has left" in x.getMessage()] == ["INFO"]
        # A session that times out is a dead broker, whatever it had asked.
        await silence(controller, clock, 120_000)
        found = json.loads((await two.forward(CONDITION, 0)).condition)
        assert "brokers_dead" in {each["kind"] for each in found["problems"]}

    run(scenario)


def test_a_broker_that_died_while_the_store_was_away_is_suspected_soon_after() -> None:
    async def scenario(world: World) -> None:
        controller, one, _, _ = await on_two(world)
        clock = stand_still(controller)
        controller.store.reachable = False
        assert one.session is not None
        one.session.close()
        await until(lambda: controller.session_watch.sessions.by_broker[1].closed_ms is not None)
        await silence(controller, clock, 1_000)
        controller.store.reachable = True
        await silence(controller, clock, SEEK_MS + 400, 100)
        assert controller.cluster.suspected == {1}
        assert controller.cluster.states[T0].leader == 2

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
        wanted = create([create.CreatableTopic("t", -1, -1, assignment)], 25_000)
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
        assert list(controller.cluster.topic_histories["t"].unclean) == [4]

    run(scenario)


def test_noted_replicas_of_a_power_cut_are_compared_once_their_brokers_have_registered() -> None:
    """A state was repaired while no controller was active: the next one elected the replica with
    the highest id before it knew where the logs end, or one of a broker that was dead."""

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first, one, two, topic_id = await on_two(world, tree)
        await first.stop()
        notes = layout.encode(UncertainReplicas({"t": {0: [1, 2]}}))
        session = tree.new_session()
        assert tree.apply(session, [Create(layout.UNCERTAIN_REPLICAS, notes)]) is None
        second = await world.controller(tree)
        # The note has become part of the state, which still waits for both.
        state = second.cluster.states[T0]
        assert state.leader == -1 and state.unclean_members == [1, 2]
        assert layout.UNCERTAIN_REPLICAS not in tree.nodes
        entry = messages.BrokerRegistrationRequest
        for broker, end in ((two, 5), (one, 7)):
            assert second.cluster.states[T0].leader == -1
            parts = [entry.InventoryPartition(0, 1, 0, end)]
            broker.inventory = [entry.InventoryTopic("t", topic_id, parts)]
            assert (await broker.register(second.listener_port)).error_code == 0
        state = second.cluster.states[T0]
        assert (state.leader, state.isr, state.is_unclean_leader) == (1, [1], True)

    run(scenario)


async def with_another_id(world: World) -> tuple[LoneController, RecordedBroker, RecordedBroker]:
    """A new controller, and brokers 1 and 2: 1 has the topic, 2 a former one of its name only."""
    tree = MemoryTree()
    first, one, two, topic_id = await on_two(world, tree)
    await first.stop()
    entry = messages.BrokerRegistrationRequest
    parts = [entry.InventoryPartition(0, 1, 0, 5)]
    for broker, its_id in ((one, topic_id), (two, uuid.UUID(int=4711))):
        broker.inventory = [entry.InventoryTopic("t", its_id, parts)]
    return await world.controller(tree), one, two


def test_what_was_noted_counts_once_a_registration_shows_that_the_topic_is_right() -> None:
    """Broker 2 stayed in the ISR as if it had everything."""

    async def scenario(world: World) -> None:
        second, one, two = await with_another_id(world)
        two.incarnation = uuid.uuid4()
        assert (await two.register(second.listener_port, last_life_ended=0)).error_code == 0
        assert second.cluster.unreadable_topics == ["t"]
        assert second.cluster.past.uncertain.topics == {"t": {0: [2]}}
        assert (await one.register(second.listener_port)).error_code == 0
        assert second.cluster.unreadable_topics == []
        assert second.cluster.past.uncertain.topics == {}
        assert second.cluster.states[T0].isr == [1]

    run(scenario)


def test_of_two_registrations_at_once_the_second_sends_what_it_makes_readable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It compared with the time before its turn: a broker kept the topic as unreadable."""

    async def scenario(world: World) -> None:
        second, one, two = await with_another_id(world)
        sent: list[TopicPartition] = []
        send = second.controller.send

        def noting(changes: Changes) -> None:
            sent.extend(changes.partitions)
            send(changes)

        monkeypatch.setattr(second.controller, "send", noting)
        registrations = []
        async with second.turn:
            for broker in (two, one):
                waiting = len(second.turn._waiters or ())
                made = asyncio.create_task(broker.register(second.listener_port))
                registrations.append(made)
                await until(lambda before=waiting: len(second.turn._waiters or ()) > before)
        assert [(await x).error_code for x in registrations] == [0, 0]
        assert second.cluster.unreadable_topics == [] and T0 in sent

    run(scenario)


def test_damage_of_a_former_incarnation_of_the_topic_takes_nothing_out() -> None:
    async def scenario(world: World) -> None:
        controller, one, _, _ = await on_two(world)
        heartbeat = messages.BrokerHeartbeatRequest
        former = heartbeat.DamagedReplica("t", one.directory, 0)
        assert (await one.heartbeat(failures=heartbeat.Failures([], [former]))).error_code == 0
        assert controller.cluster.states[T0].isr == [1, 2]

    run(scenario)


def test_brokers_get_no_requests_once_their_store_is_known_to_be_old() -> None:
    """Promise 14: what an older store says may repeat a leader epoch. It elects no leader, takes no
    change of an ISR, and holds up no broker that leaves."""

    async def scenario(world: World) -> None:
        controller, one, two, topic_id = await on_two(world)
        three = RecordedBroker(3)
        world.brokers.append(three)
        await three.listen()
        seen = messages.BrokerRegistrationRequest.HighestSeen(1, 10**6)
        answer = await three.register(controller.listener_port, highest_seen=seen)
        assert answer.error_code == ErrorCode.NOT_CONTROLLER
        for broker in (one, two, three):
            broker.requests.clear()
            assert (await world.registered(controller, broker)).error_code == 0
        assert controller.cluster.went_back is not None
        # The registration of three changes metadata for all; one gets a new channel instead.
        await one.told(lambda requests: len(requests) > 0)
        alter = messages.AlterIsrRequest
        version = controller.cluster.isr_version(T0)
        part = alter.PartitionData(0, 0, [1], version)
        asked = alter(1, one.epoch, [alter.TopicData("t", [part], topic_id)])
        assert one.session is not None
        (found,) = (await one.session.send(asked, 0)).topics[0].partitions
        assert found.error_code == ErrorCode.OPERATION_NOT_ATTEMPTED
        heartbeat = await one.heartbeat(want_shut_down=True)
        assert (heartbeat.error_code, heartbeat.should_shut_down) == (0, True)
        state = controller.cluster.states[T0]
        assert (state.leader, state.isr) == (1, [1, 2]), "as the copy has it"
        assert set(one.names()) == {"OpenControlChannel"}

    run(scenario)


def test_no_decision_goes_by_what_is_in_memory_of_a_store_that_is_known_to_be_old() -> None:
    """The controller steps down in the turn in which it marks the store."""

    async def scenario(world: World) -> None:
        controller, _, _, _ = await on_two(world)
        three = RecordedBroker(3)
        world.brokers.append(three)
        await three.listen()
        seen = messages.BrokerRegistrationRequest.HighestSeen(1, 10**6)
        port = controller.listener_port
        coming = asyncio.create_task(three.register(port, highest_seen=seen))
        with pytest.raises(NotActive):
            for _ in range(100_000):  # One decision waits for its turn at any time.
                marked, _ = await controller.perform(lambda x: Decision(x.went_back))
                assert marked is None
        assert (await coming).error_code == ErrorCode.NOT_CONTROLLER

    run(scenario)


def test_a_controller_that_was_stopped_begins_to_count_again() -> None:
    """Promise 24: a controller that was silent itself would expire every broker of the cluster."""

    async def scenario(world: World) -> None:
        controller = await world.controller()
        clock = stand_still(controller)
        one, two = await world.broker(controller, 1), await world.broker(controller, 2)
        clock.passed_ms = 120_000
        await controller.session_watch.judge()
        assert set(controller.cluster.brokers) == {1, 2}
        for broker in (one, two):
            assert (await broker.heartbeat()).error_code == 0
        # A silence that the controller was awake for is the broker's own.
        await silence(controller, clock, 50_000)
        assert (await one.heartbeat()).error_code == 0
        await silence(controller, clock, 9_000)
        assert set(controller.cluster.brokers) == {1, 2}
        await silence(controller, clock, 1_000)
        assert set(controller.cluster.brokers) == {1}
        assert (await two.heartbeat()).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        assert (await one.heartbeat()).error_code == 0

    run(scenario)


def test_a_silent_broker_is_replaced_and_may_lead_again_when_it_sends() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(broker_silence_suspect_ms="2000")
        clock = stand_still(controller)
        one, two = await world.broker(controller, 1), await world.broker(controller, 2)
        request = messages.CreateTopicsRequest
        for name, brokers in (("t", [1, 2]), ("single", [1])):
            placed = [request.CreatableReplicaAssignment(0, brokers)]
            wanted = request([request.CreatableTopic(name, -1, -1, placed)], 25_000)
            assert (await one.forward(wanted, 7)).topics[0].error_code == 0
        for _ in range(9):
            clock.passed_ms += 250
            assert (await two.heartbeat()).error_code == 0
            await controller.session_watch.judge()
        states = controller.cluster.states
        assert controller.cluster.suspected == {1}
        assert (states[T0].leader, states[T0].isr) == (2, [2])
        assert states[TopicPartition("single", 0)].leader == 1, "no other broker could lead it"
        assert set(controller.cluster.brokers) == {1, 2}, "it is registered as before"
        assert (await one.heartbeat()).error_code == 0
        assert controller.cluster.suspected == set()

    run(scenario)


def test_a_heartbeat_that_is_on_its_way_comes_before_a_suspicion() -> None:
    """The controller listens first: it may have been busy while the heartbeat came."""

    async def scenario(world: World) -> None:
        controller, one, two, _ = await on_two(world)
        clock = stand_still(controller)
        patience = controller.session_watch.sessions.patience
        assert (await one.heartbeat()).error_code == 0
        for _ in range(patience.silence_ms // patience.check_ms):
            assert (await two.heartbeat()).error_code == 0
            clock.passed_ms += patience.check_ms
            controller.session_watch._check()
        assert (await two.heartbeat()).error_code == 0
        on_its_way = asyncio.ensure_future(one.heartbeat())
        await controller.session_watch.judge()
        assert (await on_its_way).error_code == 0
        state = controller.cluster.states[T0]
        assert (state.leader, state.isr) == (1, [1, 2])

    run(scenario)


def test_the_loop_is_looked_at_while_there_is_nothing_to_judge() -> None:
    """Otherwise it would seem to have stood still whenever a broker is silent for a moment."""

    async def scenario(world: World) -> None:
        watch = (await world.controller(broker_silence_suspect_ms="2000")).session_watch
        for _ in range(2):
            looked, judged = watch.sessions.checked_ms, watch._judged_ms
            await until(lambda: watch.sessions.checked_ms != looked)  # noqa: B023
            assert watch._judged_ms == judged

    run(scenario)


def test_a_suspected_broker_keeps_no_other_from_being_suspected() -> None:
    """It is in no doubt any more, however long it stays silent: one after the other goes."""

    async def scenario(world: World) -> None:
        controller = await world.controller(broker_silence_suspect_ms="2000")
        clock = stand_still(controller)
        brokers = [await world.broker(controller, node_id) for node_id in (1, 2, 3)]
        for received, suspected in ((brokers[1:], {1}), (brokers[1:], {1}), (brokers[2:], {1, 2})):
            for _ in range(9):
                clock.passed_ms += 250
                for each in received:
                    assert (await each.heartbeat()).error_code == 0
                await controller.session_watch.judge()
            assert controller.cluster.suspected == suspected

    run(scenario)


@pytest.mark.parametrize(
    ("host", "own", "suspected"),
    [("127.0.0.1", 101, {1, 2}), ("localhost", 101, set()), ("127.0.0.1", 3, set())],
)
def test_brokers_of_a_rack_are_one_machine_on_one_host(
    host: str, own: int, suspected: set[int]
) -> None:
    """And the heartbeats of the controller's own machine prove nothing."""

    async def scenario(world: World) -> None:
        controller = await world.controller(
            broker_silence_suspect_ms="2000",
            node_id=str(own),
            process_roles="broker,controller",
            listeners="PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        )
        clock = stand_still(controller)
        listener = messages.BrokerRegistrationRequest.Listener
        for node_id, rack, its_host in ((1, "a", "127.0.0.1"), (2, "a", host), (3, "b", host)):
            broker = await world.broker(controller, node_id)
            at = [listener("PLAINTEXT", its_host, broker.port, 0)]
            answer = await broker.register(controller.listener_port, rack=rack, listeners=at)
            assert answer.error_code == 0
        for _ in range(9):
            clock.passed_ms += 250
            assert (await world.brokers[2].heartbeat()).error_code == 0
            await controller.session_watch.judge()
        assert controller.cluster.suspected == suspected

    run(scenario)


def test_a_broker_without_the_response_to_its_registration_is_not_suspected_for_silence() -> None:
    """It beats once it knows its epoch, however long it takes to say what that begins with."""

    async def scenario(world: World) -> None:
        controller = await world.controller(broker_silence_suspect_ms="2000")
        clock = stand_still(controller)
        await world.broker(controller, 1)
        two = await world.broker(controller, 2)
        watch = controller.session_watch

        async def silent_for_a_while() -> None:
            for _ in range(9):
                clock.passed_ms += 250
                assert (await two.heartbeat()).error_code == 0
                await watch.judge()

        watch.received(1, is_answered=False)
        await silent_for_a_while()
        assert controller.cluster.suspected == set()
        watch.answered(1, watch._peers[1])
        await silent_for_a_while()
        assert controller.cluster.suspected == {1}

    run(scenario)


def test_a_suspected_member_that_sends_again_leads_what_had_no_leader() -> None:
    """The leader dies while the other member of the ISR is silent; then that one sends again."""

    async def scenario(world: World) -> None:
        controller, one, two, _ = await on_two(world)
        controller.session_watch.sessions.suspect({2})
        controller.cluster.suspected.add(2)
        await one.close()
        await until(lambda: 1 in controller.cluster.suspected)
        await controller.perform(lambda cluster: registration.expire(cluster, [1]))
        assert controller.cluster.states[T0].leader == -1
        assert (await two.heartbeat()).error_code == 0
        assert controller.cluster.states[T0].leader == 2

    run(scenario)


def test_brokers_that_die_together_leave_no_channel_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()
        clock = stand_still(controller)
        for node_id in (1, 2, 3):
            await world.broker(controller, node_id)
        await silence(controller, clock, 61_000)
        assert not controller.cluster.brokers and not controller.channels.has(1)

    run(scenario)
    assert "failed" not in caplog.text


def test_a_heartbeat_after_a_change_of_the_isr_counts_while_that_waits() -> None:
    async def scenario(world: World) -> None:
        controller, one, _, topic_id = await on_two(world)
        clock = stand_still(controller)
        alter = messages.AlterIsrRequest
        part = alter.PartitionData(0, 0, [1], 0)
        asked = alter(1, one.epoch, [alter.TopicData("t", [part], topic_id)])
        assert one.session is not None
        sessions = controller.session_watch.sessions.by_broker
        async with controller.turn:
            waiting = one.session.submit(asked, 0)
            clock.passed_ms = 30_000
            behind = asyncio.ensure_future(one.heartbeat())
            now = clock.monotonic_ms()
            await until(lambda: sessions[1].received_ms >= now)
            assert not waiting.done() and not behind.done(), "answers leave in order"
        assert (await waiting).error_code == (await behind).error_code == 0

    run(scenario)


def test_a_leader_without_the_raised_minimum_gets_no_eligible_replica() -> None:
    """Its channel hangs. By the smaller ISR it would acknowledge alone, as the former minimum
    allows, and 2 would be elected without that once 1 is gone."""

    async def scenario(world: World) -> None:
        controller, one, two, topic_id = await on_two(world)
        assert await controller.reached(controller.cluster.revision, 60_000)
        one.holds = asyncio.Event()
        configs = messages.IncrementalAlterConfigsRequest
        raised = configs.AlterableConfig("min.insync.replicas", 0, "2")
        raising = asyncio.create_task(
            two.forward(configs([configs.AlterConfigsResource(2, "t", [raised])]), 1)
        )
        await until(lambda: "t" in controller.cluster.topic_configs)
        raising.cancel()
        await asyncio.wait([raising])
        assert two.session is not None and one.session is not None
        two.session.close()
        await until(lambda: controller.cluster.states[T0].isr == [1])
        assert controller.cluster.states[T0].eligible_replicas == [2]
        alter = messages.AlterIsrRequest
        part = alter.PartitionData(0, 0, [1], 0)
        asked = alter(1, one.epoch, [alter.TopicData("t", [part], topic_id)])
        (answer,) = (await one.session.send(asked, 0)).topics[0].partitions
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert (answer.isr, answer.isr_version) == ([], -1)
        one.holds.set()
        assert await controller.reached(controller.cluster.revision, 60_000)
        (answer,) = (await one.session.send(asked, 0)).topics[0].partitions
        assert (answer.isr, answer.isr_version) == ([1], 1)

    run(scenario)
