"""The controller over real connections: a recorded broker registers, is commanded, and asks.

The broker here is a server of the product's own network layer that records control requests, in
order, and gives the responses of the test.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.controller_process import HeldStore, RecordedBroker, World, configs, run, topic
from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tests.support.processes import DEADLINE_S
from tests.support.standing_clock import silence, stand_still
from tidelog.controller.metrics import statistics
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryStore, MemoryTree
from tidelog.metadata.store import Create, Set, StoreRefused, StoreUnavailable
from tidelog.model.api_keys import ApiKey
from tidelog.model.epochs import HIGHEST_EPOCH, HIGHEST_REVISION
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import codec, messages
from tidelog.runtime.seams import Seams

REQUEST_TIMED_OUT = int(ErrorCode.REQUEST_TIMED_OUT)
OPENING = ["OpenControlChannel", "UpdateConfigs", "LeaderAndIsr", "UpdateMetadata"]


def test_a_channel_opens_then_tells_everything_then_changes() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()
        broker = await world.broker(controller, 1)
        await broker.told(lambda requests: len(requests) >= 4)
        assert broker.names() == OPENING
        opening, _, full, metadata = broker.requests
        assert (opening.controller_id, opening.controller_epoch) == (101, 1)
        assert opening.broker_epoch == broker.epoch == 1
        assert (full.type, full.topic_states) == (2, [])
        assert [x.id for x in metadata.live_brokers] == [1]

        answer = await broker.forward(topic("t", 2, 1, retention_ms="1000"), 7)
        result = answer.topics[0]
        assert (result.error_code, result.error_message) == (0, None)
        assert (result.num_partitions, result.replication_factor) == (2, 1)
        values = {entry.name: (entry.value, entry.config_source) for entry in result.configs}
        assert values["retention.ms"] == ("1000", 1)
        assert values["segment.bytes"] == ("1073741824", 5)
        # The response came after the requests; a topic's configuration came before its partitions.
        assert broker.names()[4:] == ["UpdateConfigs", "LeaderAndIsr", "UpdateMetadata"]
        _, orders, metadata = broker.requests[4:]
        assert orders.type == 1
        assert orders.topic_states[0].topic_id == result.topic_id
        states = orders.topic_states[0].partition_states
        assert [(x.partition_index, x.leader, x.leader_epoch, x.isr, x.is_new) for x in states] == [
            (0, 1, 0, [1], True),
            (1, 1, 0, [1], True),
        ]
        assert metadata.topic_states[0].topic_id == result.topic_id

    run(scenario)


def test_a_deleted_name_is_used_again_when_every_live_broker_was_notified() -> None:
    """Otherwise a coordinator could remove commits for the new topic as those of the former one."""

    async def scenario(world: World) -> None:
        controller = await world.controller(delete_topic_retry_ms="50")
        brokers = [await world.broker(controller, node_id) for node_id in (1, 2)]
        for broker in brokers:
            await broker.told(lambda requests: len(requests) >= 4)
        holder, other = brokers
        wanted = topic("t")
        assignment = messages.CreateTopicsRequest.CreatableReplicaAssignment
        wanted.topics[0].assignments = [assignment(0, [1])]
        former = (await holder.forward(wanted, 7)).topics[0]
        assert former.error_code == 0
        other.holds = asyncio.Event()
        request = messages.DeleteTopicsRequest
        doomed = request(topics=[request.DeleteTopicState("t")], timeout_ms=1)
        assert (await holder.forward(doomed, 6)).responses[0].error_code == REQUEST_TIMED_OUT
        wanted.timeout_ms = 25_000
        waiting = asyncio.ensure_future(holder.forward(wanted, 7))
        another = topic("u", 1, 1)
        another.timeout_ms = 1
        free = (await other.forward(another, 7)).topics[0]
        assert free.error_code == REQUEST_TIMED_OUT and "u" in controller.cluster.topics
        assert "t" not in controller.cluster.topics, "its name is not free yet"
        other.holds.set()
        created = (await waiting).topics[0]
        assert created.error_code == 0 and created.topic_id != former.topic_id

    run(scenario)


def test_a_topic_is_deleted_and_its_name_is_free_at_once() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(delete_topic_retry_ms="50")
        broker = await world.broker(controller, 1)
        # Otherwise it may get the topic twice: in the full state, and as a new one.
        await broker.told(lambda _: broker.names() == OPENING)
        created = await broker.forward(topic("t", 1, 1), 7)
        broker.stop_errors = [int(ErrorCode.KAFKA_STORAGE_ERROR)]
        request = messages.DeleteTopicsRequest
        answer = await broker.forward(
            request(topics=[request.DeleteTopicState("t")], timeout_ms=25_000), 6
        )
        assert answer.responses[0].error_code == 0
        assert answer.responses[0].topic_id == created.topics[0].topic_id
        again = await broker.forward(topic("t", 1, 1), 7)
        assert again.topics[0].error_code == 0
        assert again.topics[0].topic_id != created.topics[0].topic_id

        def stops(requests: list[Any]) -> list[Any]:
            return [x for x in requests if isinstance(x, messages.StopReplicaRequest)]

        # The first try was refused, a later one was not; then nothing is left of the deletion.
        await broker.told(lambda requests: len(stops(requests)) >= 2)
        for stop in stops(broker.requests):
            assert stop.topic_states[0].topic_id == created.topics[0].topic_id
            state = stop.topic_states[0].partition_states[0]
            assert (state.leader_epoch, state.delete_partition) == (-2, True)
        gone = [
            state.leader
            for x in broker.requests
            if isinstance(x, messages.UpdateMetadataRequest)
            for t in x.topic_states
            for state in t.partition_states
            if t.topic_id == created.topics[0].topic_id
        ]
        assert gone == [0 + 1, -2]

    run(scenario)


def test_a_restart_on_the_same_store_goes_on() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree)
        broker = await world.broker(first, 1)
        created = await broker.forward(topic("t", 1, 1, cleanup_policy="compact"), 7)
        first_block = await broker.session.send(  # type: ignore[union-attr]
            messages.AllocateProducerIdsRequest(1, broker.epoch), 0
        )
        assert (first_block.producer_id_start, first_block.producer_id_len) == (0, 1000)
        await first.stop()
        broker.requests.clear()

        second = await world.controller(tree)
        assert second.cluster.cluster_id == first.cluster.cluster_id
        assert second.cluster.controller_epoch == 2
        topic_id = created.topics[0].topic_id
        entry = messages.BrokerRegistrationRequest
        broker.incarnation = uuid.uuid4()
        broker.inventory = [
            entry.InventoryTopic("t", topic_id, [entry.InventoryPartition(0, 1, 0, 10)])
        ]
        answer = await broker.register(second.listener_port)
        assert (answer.error_code, answer.broker_epoch) == (0, 2)
        await broker.told(lambda requests: len(requests) >= 4)
        _, told, full, _ = broker.requests
        assert [(e.entity_name, [(c.name, c.value) for c in e.configs]) for e in told.entities] == [
            ("t", [("cleanup.policy", "compact")]),
            ("", []),
            ("1", []),
        ]
        state = full.topic_states[0].partition_states[0]
        # A new life never leads in an old epoch.
        assert (full.type, state.leader, state.leader_epoch, state.is_unclean_leader) == (
            2,
            1,
            1,
            False,
        )
        block = await broker.session.send(  # type: ignore[union-attr]
            messages.AllocateProducerIdsRequest(1, broker.epoch), 0
        )
        assert block.producer_id_start == 1000

    run(scenario)


def test_suspected_after_the_grace_dead_after_the_timeout() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(default_replication_factor="2")
        clock = stand_still(controller)
        one = await world.broker(controller, 1)
        two = await world.broker(controller, 2)
        request = messages.CreateTopicsRequest
        assignment = [request.CreatableReplicaAssignment(0, [2, 1])]
        wanted = request([request.CreatableTopic("t", -1, -1, assignment)], 25_000)
        assert (await one.forward(wanted, 7)).topics[0].error_code == 0
        await two.close()
        sessions = controller.session_watch.sessions
        await until(lambda: sessions.by_broker[2].closed_ms is not None)

        def led_by_one(requests: list[Any]) -> bool:
            orders = [x for x in requests if isinstance(x, messages.LeaderAndIsrRequest)]
            states = [s for x in orders for t in x.topic_states for s in t.partition_states]
            return bool(states) and (states[-1].leader, states[-1].isr) == (1, [1])

        clock.passed_ms += sessions.patience.grace_ms - 1
        await controller.session_watch.judge()
        assert controller.cluster.suspected == set()
        # From here on the watch itself sees how late it is.
        clock.passed_ms += 1
        await one.told(led_by_one)
        assert set(controller.cluster.brokers) == {1, 2}
        for ms in (20_000, 20_000, sessions.patience.timeout_ms - 41_000):
            await silence(controller, clock, ms)
            assert (await one.heartbeat()).error_code == 0
        assert set(controller.cluster.brokers) == {1, 2}
        await silence(controller, clock, 1000)
        await one.told(
            lambda requests: (
                isinstance(requests[-1], messages.UpdateMetadataRequest)
                and [x.id for x in requests[-1].live_brokers] == [1]
            )
        )
        assert 2 not in controller.cluster.brokers
        last = one.requests[-1].topic_states[0].partition_states[0]
        assert last.offline_replicas == [2]

    run(scenario)


def test_a_broker_that_leaves_gives_its_leadership_away_first() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()
        one = await world.broker(controller, 1)
        two = await world.broker(controller, 2)
        assert (await one.forward(topic("t", 4, 2), 7)).topics[0].error_code == 0
        answer = await two.heartbeat(want_shut_down=True)
        assert (answer.error_code, answer.should_shut_down) == (0, True)
        assert {state.leader for state in controller.cluster.states.values()} == {1}
        assert (await two.heartbeat(want_shut_down=True)).should_shut_down
        # The last one has no successor: it may stop all the same.
        assert (await one.heartbeat(want_shut_down=True)).should_shut_down

    run(scenario)


def test_bad_registrations_and_heartbeats() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()
        broker = await world.broker(controller, 1)
        other = RecordedBroker(1)
        world.brokers.append(other)
        other.port = broker.port
        port = controller.listener_port
        answer = await other.register(port)
        assert answer.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        answer = await other.register(port, broker_id=2, cluster_id="another")
        assert answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        answer = await other.register(port, broker_id=2, listeners=[])
        assert answer.error_code == ErrorCode.INVALID_REGISTRATION
        # N3: that claim would have stopped this cluster, and leave no number above it.
        request = messages.BrokerRegistrationRequest
        for seen in ((HIGHEST_EPOCH + 1, 1), (1, HIGHEST_REVISION + 1)):
            highest = request.HighestSeen(*seen)
            answer = await other.register(port, broker_id=2, highest_seen=highest)
            assert answer.error_code == ErrorCode.INVALID_REGISTRATION
        assert controller.cluster.went_back is None and 2 not in controller.cluster.brokers
        broker.epoch += 1
        assert (await broker.heartbeat()).error_code == ErrorCode.STALE_BROKER_EPOCH
        broker.node_id = 77
        assert (await broker.heartbeat()).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        described = await broker.session.send(messages.DescribeClusterRequest(), 1)  # type: ignore[union-attr]
        assert described.cluster_id == controller.cluster.cluster_id
        assert [x.broker_id for x in described.brokers] == [1]

    run(scenario)


def test_what_an_envelope_may_not_carry() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()
        broker = await world.broker(controller, 1)
        assert broker.session is not None
        heartbeat = b"".join(
            codec.encode_request(
                ApiKey.BROKER_HEARTBEAT, 0, 1, None, messages.BrokerHeartbeatRequest()
            )
        )[4:]
        for data, error in (
            (heartbeat, ErrorCode.INVALID_REQUEST),
            (b"", ErrorCode.INVALID_REQUEST),
            (b"\x00\x13\x00\x63\x00\x00\x00\x01\xff\xff\x00", ErrorCode.UNSUPPORTED_VERSION),
            (b"\x00\x13\x00\x07\x00\x00\x00\x01\xff\xff\x00\xff", ErrorCode.INVALID_REQUEST),
        ):
            answer = await broker.session.send(messages.EnvelopeRequest(data, b"", b""), 0)
            assert answer.error_code == error

    run(scenario)


def test_a_slow_broker_times_a_creation_out_but_not_the_topic() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()
        broker = await world.broker(controller, 1)
        await broker.told(lambda requests: len(requests) >= 4)
        assert broker.server is not None
        await broker.server.stop(0.1)
        wanted = topic("t", 1, 1)
        wanted.timeout_ms = 100
        answer = await broker.forward(wanted, 7)
        assert answer.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "t" in controller.cluster.topics
        answer = await broker.forward(messages.DescribeConditionRequest(), 0)
        assert json.loads(answer.condition)["counts"]["topics"] == 1
        assert statistics(controller)["topics"] == 1

    run(scenario)


def test_configurations_reach_brokers_before_the_answer() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()
        broker = await world.broker(controller, 1)
        await broker.forward(topic("t", 1, 1), 7)
        request = messages.IncrementalAlterConfigsRequest
        change = request.AlterableConfig("retention.ms", 0, "77")
        answer = await broker.forward(request([request.AlterConfigsResource(2, "t", [change])]), 1)
        assert answer.responses[0].error_code == 0
        last = broker.requests[-1]
        assert isinstance(last, messages.UpdateConfigsRequest)
        assert [(c.name, c.value) for c in last.entities[0].configs] == [("retention.ms", "77")]
        bad = request.AlterableConfig("retention.ms", 0, "soon")
        answer = await broker.forward(request([request.AlterConfigsResource(2, "t", [bad])]), 1)
        assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG
        assert "retention.ms" in answer.responses[0].error_message

    run(scenario)


def test_a_channel_that_breaks_begins_again_with_everything() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()
        broker = await world.broker(controller, 1)
        assert (await broker.forward(topic("t", 1, 1), 7)).topics[0].error_code == 0
        assert broker.server is not None
        broker.requests.clear()
        for connection in list(broker.server.connections):
            connection.abort()
        await broker.told(lambda requests: len(requests) >= 4)
        assert broker.names() == OPENING
        opening, _, full, _ = broker.requests
        assert opening.channel_number == 2
        assert [x.topic_name for x in full.topic_states] == ["t"]

    run(scenario)


def test_leaders_change_their_isr_and_damaged_replicas_are_taken_out() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()
        one = await world.broker(controller, 1)
        two = await world.broker(controller, 2)
        request = messages.CreateTopicsRequest
        assignment = [request.CreatableReplicaAssignment(0, [1, 2])]
        wanted = request([request.CreatableTopic("t", -1, -1, assignment)], 25_000)
        topic_id = (await one.forward(wanted, 7)).topics[0].topic_id
        alter = messages.AlterIsrRequest

        async def ask(broker: RecordedBroker, version: int, *isr: int) -> Any:
            part = alter.PartitionData(0, 0, list(isr), version)
            asked = alter(broker.node_id, broker.epoch, [alter.TopicData("t", [part], topic_id)])
            assert broker.session is not None
            return await broker.session.send(asked, 0)

        (part,) = (await ask(one, 0, 1)).topics[0].partitions
        assert (part.error_code, part.isr, part.isr_version) == (0, [1], 1)
        (part,) = (await ask(one, 0, 1, 2)).topics[0].partitions
        assert part.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert (part.leader_id, part.leader_epoch, part.isr, part.isr_version) == (1, 0, [1], 1)
        (part,) = (await ask(one, 1, 1, 2)).topics[0].partitions
        assert (part.error_code, part.isr, part.isr_version) == (0, [1, 2], 2)
        (part,) = (await ask(two, 2, 2)).topics[0].partitions
        assert part.error_code == ErrorCode.FENCED_LEADER_EPOCH
        two.epoch -= 1
        assert (await ask(two, 2, 2)).error_code == ErrorCode.STALE_BROKER_EPOCH

        heartbeat = messages.BrokerHeartbeatRequest
        damaged = heartbeat.DamagedReplica("t", topic_id, 0)
        await one.heartbeat(failures=heartbeat.Failures([], [damaged]))
        state = controller.cluster.states[TopicPartition("t", 0)]
        assert (state.leader, state.leader_epoch, state.isr) == (2, 1, [2])

        # It is rebuilt, and damaged again before it is in sync: its command is repeated.
        node = controller.cluster.brokers[1]
        controller.cluster.brokers[1] = msgspec.structs.replace(node, log_dirs=["/a"])
        await one.heartbeat(failures=heartbeat.Failures([topic_id], []))
        assert controller.cluster.diskless == {1}
        await one.heartbeat()
        assert controller.cluster.diskless == set()
        await one.told(lambda _: one.names()[-1] == "UpdateMetadata")
        before = one.names().count("LeaderAndIsr")
        await one.heartbeat(failures=heartbeat.Failures([], [damaged]))
        await one.told(lambda _: one.names().count("LeaderAndIsr") > before)

    run(scenario)


class FailingStore(MemoryStore):
    """A store whose next write fails, made or not."""

    fails_after: bool | None = None
    refuses_opens = 0

    async def open(self) -> None:
        if self.refuses_opens:
            self.refuses_opens -= 1
            raise OSError("planted")
        await super().open()

    async def multi(self, operations: Any) -> Any:
        fails, self.fails_after = self.fails_after, None
        conflict = None
        if fails is not False:
            conflict = await super().multi(operations)
        if fails is not None:
            raise StoreUnavailable("planted")
        return conflict


@pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])
def test_a_store_that_fails_is_loaded_again_and_the_outcome_is_what_it_says(made: bool) -> None:
    async def scenario(world: World) -> None:
        store = FailingStore(MemoryTree())
        controller = LoneController(configs(), Seams(), store)
        world.controllers.append(controller)
        await controller.start()
        broker = await world.broker(controller, 1)
        store.fails_after = made
        assert await broker.refused(topic("t", 1, 1), 7) == ErrorCode.NOT_CONTROLLER
        async with asyncio.timeout(DEADLINE_S):
            await controller.activity.activated.wait()
        assert controller.cluster.controller_epoch == 2
        assert set(controller.cluster.topics) == ({"t"} if made else set())
        # The broker's session ended with the epoch: it registers again and gets all state.
        assert (await broker.heartbeat()).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        broker.requests.clear()
        assert (await broker.register(controller.listener_port)).broker_epoch == 1
        await broker.told(lambda requests: len(requests) >= 4)
        assert broker.requests[0].controller_epoch == 2
        assert [x.topic_name for x in broker.requests[2].topic_states] == (["t"] if made else [])

    run(scenario)


def test_a_controller_tries_again_whatever_keeps_it_from_being_active() -> None:
    async def scenario(world: World) -> None:
        store = FailingStore(MemoryTree())
        controller = LoneController(configs(), Seams(), store)
        world.controllers.append(controller)
        await controller.start()
        broker = await world.broker(controller, 1)
        store.fails_after, store.refuses_opens = False, 1
        assert await broker.refused(topic("t", 1, 1), 7) == ErrorCode.NOT_CONTROLLER
        async with asyncio.timeout(DEADLINE_S):
            await controller.activity.activated.wait()
        assert store.refuses_opens == 0

    run(scenario)


def test_a_registration_is_answered_with_the_longest_interval_between_heartbeats() -> None:
    async def scenario(world: World) -> None:
        times = {"broker_session_timeout_ms": "6000", "broker_silence_suspect_ms": "2100"}
        controller = await world.controller(**times)
        broker = await world.broker(controller, 1)
        assert (await broker.register(controller.listener_port)).heartbeat_ms == 700

    run(scenario)


@pytest.mark.parametrize("minimum", [None, "2"])
def test_brokers_get_the_minimum_of_the_controllers_file(minimum: str | None) -> None:
    async def scenario(world: World) -> None:
        texts = {} if minimum is None else {"min_insync_replicas": minimum}
        controller = await world.controller(**texts)
        broker = await world.broker(controller, 1)
        await broker.told(lambda requests: len(requests) >= 4)
        assert broker.requests[1].min_insync_replicas == int(minimum or 1)

    run(scenario)


def test_two_that_return_at_once_without_certainty_are_compared() -> None:
    """Simulation, seed 1039: the second was decided before the session of the first had begun."""

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree)
        brokers = [await world.broker(first, node_id) for node_id in (1, 2)]
        created = await brokers[0].forward(topic("t", 1, 2), 7)
        await first.stop()
        store = HeldStore(tree)
        second = LoneController(configs(), Seams(), store)
        world.controllers.append(second)
        await second.start()
        entry = messages.BrokerRegistrationRequest

        async def returns(broker: RecordedBroker, end: int) -> None:
            broker.incarnation = uuid.uuid4()
            replica = entry.InventoryPartition(0, 1, 0, end)
            broker.inventory = [entry.InventoryTopic("t", created.topics[0].topic_id, [replica])]
            answer = await broker.register(second.listener_port, last_life_ended=0)
            assert answer.error_code == 0

        store.free.clear()
        store.reached.clear()
        longer = asyncio.create_task(returns(brokers[0], 20))
        await until(store.reached.is_set)
        shorter = asyncio.create_task(returns(brokers[1], 10))
        # Its request waits for the turn of the other one's.
        await until(lambda: bool(second.turn._waiters))
        store.free.set()
        await asyncio.gather(longer, shorter)
        state = second.cluster.states[TopicPartition("t", 0)]
        assert (state.leader, state.isr, state.is_unclean_leader) == (1, [1], True)

    run(scenario)


def test_a_paused_controller_cannot_write_after_another_took_over() -> None:
    """Promise 22; "Known traps": a paused controller wakes after another was elected."""

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree)
        broker = await world.broker(first, 1)
        epoch = [
            Set(layout.CONTROLLER_EPOCH, b"7"),
            Create("/brokers/topics/other", b'{"version":1,"partitions":{"0":[1]}}'),
        ]
        assert tree.apply(99, epoch) is None
        assert await broker.refused(topic("t", 1, 1), 7) == ErrorCode.NOT_CONTROLLER
        assert "/brokers/topics/t" not in tree.nodes

    run(scenario)


def test_a_standby_answers_not_controller_until_the_active_one_is_gone() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree)
        second = await world.controller(tree)
        assert (first.active, second.active) == (True, False)
        broker = await world.broker(first, 1)
        other = RecordedBroker(2)
        world.brokers.append(other)
        await other.listen()
        answer = await other.register(second.listener_port)
        assert answer.error_code == ErrorCode.NOT_CONTROLLER
        assert other.session is not None
        answer = await other.session.send(messages.EnvelopeRequest(b"", b"", b""), 0)
        assert answer.error_code == ErrorCode.NOT_CONTROLLER
        await first.stop()
        async with asyncio.timeout(DEADLINE_S):
            await second.activity.activated.wait()
        assert second.cluster.controller_epoch == 2
        broker.requests.clear()
        assert (await broker.register(second.listener_port)).broker_epoch == 1
        await broker.told(lambda requests: len(requests) >= 4)
        assert broker.names() == OPENING

    run(scenario)


def test_a_controller_that_is_cut_off_from_its_store_answers_no_heartbeat() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()
        broker = await world.broker(controller, 1)
        controller.store.reachable = False
        assert (await broker.heartbeat()).error_code == ErrorCode.NOT_CONTROLLER
        controller.store.reachable = True
        assert (await broker.heartbeat()).error_code == 0

    run(scenario)


def test_a_store_that_went_back_in_time_commands_no_broker() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()
        broker = RecordedBroker(1)
        world.brokers.append(broker)
        await broker.listen()
        seen = messages.BrokerRegistrationRequest.HighestSeen(1, 1000)
        answer = await broker.register(controller.listener_port, highest_seen=seen)
        # Loaded again as an older copy, so that all brokers say what the acceptance goes by.
        assert answer.error_code == ErrorCode.NOT_CONTROLLER
        answer = await world.registered(controller, broker, highest_seen=seen)
        assert answer.error_code == 0
        await broker.told(lambda requests: len(requests) >= 1)
        (refused,) = (await broker.forward(topic("t", 1, 1), 7)).topics
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert "tidelog doctor restored" in refused.error_message
        assert broker.names() == ["OpenControlChannel"]

    run(scenario)


def test_a_second_controller_on_one_sqlite_file_is_refused() -> None:
    async def scenario(world: World) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "metadata.sqlite"
            first = LoneController(configs(metadata_store=f"sqlite:{path}"), Seams())
            world.controllers.append(first)
            await first.start()
            second = LoneController(configs(metadata_store=f"sqlite:{path}"), Seams())
            with pytest.raises(StoreRefused, match="Another controller has"):
                await second.start()
            await second.stop()
            broker = await world.broker(first, 1)
            assert (await broker.forward(topic("t", 3, 1), 7)).topics[0].error_code == 0
            await first.stop()
            third = LoneController(configs(metadata_store=f"sqlite:{path}"), Seams())
            world.controllers.append(third)
            await third.start()
            assert set(third.cluster.topics) == {"t"}
            assert third.cluster.controller_epoch == 2
            await third.stop()

    run(scenario)
