"""The controller at each level over real connections: versions, order, both deletion queues."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest

from tests.support.controller_process import RecordedBroker, World, run, topic
from tests.support.lone_broker import until
from tidelog.controller.activation import activate
from tidelog.controller.decisions.cluster import ClusterState, LogEnd
from tidelog.controller.decisions.decision import Decision, Put
from tidelog.controller.decisions.settlement import put_state
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryStore, MemoryTree
from tidelog.metadata.store import Delete
from tidelog.model.configs.resolve import BrokerLayers
from tidelog.model.errors import ErrorCode
from tidelog.model.levels import LEVEL_NAMES, level_of
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

OLD = ("1.0", "1.1", "1.2", "1.3")
STOP, LEAD, METADATA = "StopReplica", "LeaderAndIsr", "UpdateMetadata"


class VersionedBroker(RecordedBroker):
    """Records the versions too, and answers StopReplica by name where the version has no ids."""

    def __init__(self, node_id: int) -> None:
        super().__init__(node_id)
        self.versions: list[int] = []

    def _handle(self, broker: Any, request: Any, context: Any) -> Any:
        self.versions.append(context.version)
        if isinstance(request, messages.StopReplicaRequest) and context.version < 4:
            self.requests.append(request)
            self.more.set()
            error = self.stop_errors.pop(0) if self.stop_errors else 0
            one = messages.StopReplicaResponse.StopReplicaPartitionError
            named = [(t.name, index) for t in request.topics for index in t.partition_indexes]
            named += [
                (t.topic_name, p.partition_index)
                for t in request.topic_states
                for p in t.partition_states
            ]
            return messages.StopReplicaResponse(
                partition_errors=[
                    one(topic_name=name, partition_index=index, error_code=error)
                    for name, index in named
                ]
            )
        return super()._handle(broker, request, context)

    def told_in(self, name: str) -> list[tuple[int, Any]]:
        """The requests of one kind with their versions."""
        rows = zip(self.names(), self.versions, self.requests, strict=True)
        return [(version, request) for kind, version, request in rows if kind == name]


async def versioned(
    world: World, port: int, former: VersionedBroker | None = None
) -> VersionedBroker:
    """A broker that has registered and got all state; ``former``: its last incarnation."""
    broker = VersionedBroker(1)
    if former is not None:
        broker.directory = former.directory
    world.brokers.append(broker)
    await broker.listen()
    assert (await broker.register(port)).error_code == 0
    await broker.told(lambda requests: METADATA in broker.names())
    return broker


def deletion(name: str) -> messages.DeleteTopicsRequest:
    request = messages.DeleteTopicsRequest
    return request(topics=[request.DeleteTopicState(name)], timeout_ms=25_000)


@pytest.mark.parametrize("name", LEVEL_NAMES)
def test_requests_have_the_versions_of_the_level(name: str) -> None:
    level = level_of(name)

    async def scenario(world: World) -> None:
        controller = await world.controller(inter_broker_protocol_version=name)
        broker = await versioned(world, controller.listener_port)
        created = (await broker.forward(topic("t", 2, 1), 7)).topics[0]
        assert created.error_code == 0
        assert created.topic_id != uuid.UUID(int=0), "ids are kept in the store at every level"
        assert (await broker.forward(deletion("t"), 6)).responses[0].error_code == 0
        await broker.told(lambda requests: len(broker.told_in(METADATA)) >= 3)
        assert {version for version, _ in broker.told_in(LEAD)} == {level.leader_and_isr}
        assert {version for version, _ in broker.told_in(METADATA)} == {level.update_metadata}
        assert {version for version, _ in broker.told_in(STOP)} == {level.stop_replica}
        lead = broker.told_in(LEAD)[-1][1]
        assert lead.topic_states[0].topic_id == (
            created.topic_id if level.topic_ids else uuid.UUID(int=0)
        )
        stop = broker.told_in(STOP)[0][1]
        if not level.one_stop_request:
            assert (stop.delete_partitions, stop.topics[0].partition_indexes) == (True, [0, 1])
            return
        states = stop.topic_states[0].partition_states
        assert [(x.partition_index, x.leader_epoch, x.delete_partition) for x in states] == [
            (0, -2, True),
            (1, -2, True),
        ]

    run(scenario)


@pytest.mark.parametrize("name", OLD)
def test_below_1_4_a_refused_delete_is_tried_again_and_holds_the_name(name: str) -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(
            inter_broker_protocol_version=name, delete_topic_retry_ms="200"
        )
        broker = await versioned(world, controller.listener_port)
        assert (await broker.forward(topic("t", 1, 1), 7)).topics[0].error_code == 0
        broker.stop_errors = [int(ErrorCode.KAFKA_STORAGE_ERROR)]
        assert (await broker.forward(deletion("t"), 6)).responses[0].error_code == 0
        refused = (await broker.forward(topic("t", 1, 1), 7)).topics[0]
        assert refused.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert "marked for deletion" in refused.error_message
        await broker.told(lambda requests: len(broker.told_in(STOP)) == 2)
        # The same request once more says so too: it is gone, or going.
        answer = (await broker.forward(deletion("t"), 6)).responses[0]
        assert answer.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        while (await broker.forward(topic("t", 1, 1), 7)).topics[0].error_code:
            pass
        assert len(broker.told_in(STOP)) == 2

    run(scenario)


@pytest.mark.parametrize("name", OLD)
def test_below_1_4_a_broker_that_was_away_gets_its_deletions_first(
    name: str,
) -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree, inter_broker_protocol_version=name)
        broker = await versioned(world, first.listener_port)
        for each in ("t", "kept"):
            assert (await broker.forward(topic(each, 1, 1), 7)).topics[0].error_code == 0
        # No answer to StopReplica: the controller dies between asking and hearing.
        broker.stop_errors = [int(ErrorCode.KAFKA_STORAGE_ERROR)]
        assert (await broker.forward(deletion("t"), 6)).responses[0].error_code == 0
        assert len(broker.told_in(STOP)) == 1
        await first.stop()
        second = await world.controller(tree, inter_broker_protocol_version=name)
        again = await versioned(world, second.listener_port, broker)
        kinds = [kind for kind in again.names() if kind in (STOP, LEAD, METADATA)]
        assert kinds == [STOP, LEAD, METADATA]
        assert [t.topic_name for t in again.told_in(LEAD)[0][1].topic_states] == ["kept"]
        assert [t.topic_name for t in again.told_in(METADATA)[0][1].topic_states] == ["kept"]
        assert (await again.forward(topic("t", 1, 1), 7)).topics[0].error_code == 0

    run(scenario)


def test_from_1_3_to_1_4_a_deletion_moves_to_the_queue_with_ids() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree, inter_broker_protocol_version="1.3")
        broker = await versioned(world, first.listener_port)
        assert (await broker.forward(topic("t", 1, 1), 7)).topics[0].error_code == 0
        broker.stop_errors = [int(ErrorCode.KAFKA_STORAGE_ERROR)]
        assert (await broker.forward(deletion("t"), 6)).responses[0].error_code == 0
        await first.stop()
        second = await world.controller(tree)
        (moved,) = second.cluster.deletions.values()
        assert (moved.name, moved.partitions) == ("t", {0: [1]})
        assert second.cluster.marked == set()
        assert second.cluster.topics == {}
        again = await versioned(world, second.listener_port, broker)
        # The FULL does not name it: stale at the broker, and so confirmed.
        assert again.told_in(STOP) == []
        assert again.told_in(LEAD)[0][1].topic_states == []
        await again.forward(topic("t", 1, 1), 7)
        assert second.cluster.deletions == {}
        assert not second.cluster.topic_histories["t"].migrated

    run(scenario)


def test_a_broker_whose_code_knows_less_than_the_level_is_refused() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(inter_broker_protocol_version="1.2")
        broker = VersionedBroker(1)
        world.brokers.append(broker)
        await broker.listen()
        answer = await broker.register(controller.listener_port, highest_level="1.1")
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert controller.cluster.brokers == {}
        assert (
            await broker.register(controller.listener_port, highest_level="1.2")
        ).error_code == 0

    run(scenario)


def test_a_replica_that_was_taken_away_is_stopped_and_its_note_goes() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(inter_broker_protocol_version="1.1")
        broker = await versioned(world, controller.listener_port)
        assert (await broker.forward(topic("t", 1, 1), 7)).topics[0].error_code == 0

        def taken_away(cluster: ClusterState) -> Decision[None]:
            # As a reassignment will: broker 1 leaves R, and the note says with which epoch.
            node = msgspec.structs.replace(cluster.topics["t"], partitions={0: [2]})
            notes = {0: {1: 7}}
            history = msgspec.structs.replace(cluster.topic_histories["t"], pending_stops=notes)
            return Decision(
                None, (Put(layout.topic("t"), node), Put(layout.topic_history("t"), history))
            )

        def leaves_the_isr(cluster: ClusterState) -> Decision[None]:
            where = TopicPartition("t", 0)
            state = msgspec.structs.replace(cluster.states[where], leader=2, isr=[2])
            return Decision(None, (put_state(cluster, where, state),))

        _, revision = await controller.perform(taken_away)
        assert await controller.reached(revision, 60_000)
        assert broker.told_in(STOP) == [], "it is still in the ISR"
        await controller.perform(leaves_the_isr)
        await broker.told(lambda requests: bool(broker.told_in(STOP)))
        ((_, stop),) = broker.told_in(STOP)
        (state,) = stop.topic_states[0].partition_states
        assert (state.partition_index, state.leader_epoch, state.delete_partition) == (0, 7, True)
        assert await controller.reached(controller.cluster.revision, 60_000)
        assert controller.cluster.topic_histories["t"].pending_stops == {}
        assert len(broker.told_in(STOP)) == 1

    run(scenario)


def test_the_note_of_a_stop_that_is_fenced_goes() -> None:
    """The broker has a later assignment of the partition: the stop is not sent again and again."""

    async def scenario(world: World) -> None:
        controller = await world.controller(inter_broker_protocol_version="1.1")
        broker = await versioned(world, controller.listener_port)
        assert (await broker.forward(topic("t", 1, 1), 7)).topics[0].error_code == 0
        broker.stop_errors = [int(ErrorCode.FENCED_LEADER_EPOCH)]
        held = {(controller.cluster.topic_id("t"), 0): LogEnd(-1, 9, 5)}
        controller.cluster.inventories[1] = held

        def taken_away(cluster: ClusterState) -> Decision[None]:
            where = TopicPartition("t", 0)
            node = msgspec.structs.replace(cluster.topics["t"], partitions={0: [2]})
            history = msgspec.structs.replace(
                cluster.topic_histories["t"], pending_stops={0: {1: 7}}
            )
            state = msgspec.structs.replace(cluster.states[where], leader=2, isr=[2])
            writes = Put(layout.topic("t"), node), Put(layout.topic_history("t"), history)
            return Decision(None, (*writes, put_state(cluster, where, state)))

        await controller.perform(taken_away)
        await until(lambda: controller.cluster.topic_histories["t"].pending_stops == {})
        assert len(broker.told_in(STOP)) == 1
        assert controller.cluster.inventories[1] == held, "it has the replica still"

    run(scenario)


def test_a_controller_below_1_4_does_not_take_over_while_a_deletion_with_an_id_is_under_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree)
        broker = await versioned(world, first.listener_port)
        assert (await broker.forward(topic("t", 1, 1), 7)).topics[0].error_code == 0
        broker.stop_errors = [int(ErrorCode.KAFKA_STORAGE_ERROR)]
        assert (await broker.forward(deletion("t"), 6)).responses[0].error_code == 0
        lower = await world.controller(tree, inter_broker_protocol_version="1.3")
        assert not lower.active
        await first.stop()
        await until(lambda: "1.3 is refused: deleted topics (t) still have replicas" in caplog.text)
        assert not lower.active
        third = await world.controller(tree)
        assert third.active
        again = await versioned(world, third.listener_port, broker)
        await until(lambda: not third.cluster.deletions)
        assert (await again.forward(topic("t", 1, 1), 7)).topics[0].error_code == 0
        await third.stop()
        await until(lambda: lower.active)
        assert lower.cluster.topic_histories["t"].migrated

    run(scenario)


def test_the_mark_of_transactions_is_in_the_store_once_a_controller_is_active_at_1_6() -> None:
    async def scenario(_world: World) -> None:
        store = MemoryStore(MemoryTree())
        await store.open()
        for level, marked in (("1.5", False), ("1.6", True), ("1.6", True), ("1.5", False)):
            cluster = await activate(
                store, BrokerLayers(), 101, uuid.UUID(int=1), 0, level_of(level)
            )
            node = await store.get(layout.OFFERED_TRANSACTIONS)
            assert (node is not None) is marked, level
            assert (layout.OFFERED_TRANSACTIONS in cluster.versions) is marked, level
            held = await store.get(layout.CONTROLLER)
            assert held is not None
            assert await store.multi([Delete(layout.CONTROLLER, held.version)]) is None

    run(scenario)


def test_a_controller_below_1_5_does_not_take_over_once_a_topic_was_resized(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree, inter_broker_protocol_version="1.5")
        broker = await versioned(world, first.listener_port)
        assert (await broker.forward(topic("t", 1, 1), 7)).topics[0].error_code == 0

        def resized(cluster: ClusterState) -> Decision[None]:
            # As after a growth and a shrink: nothing is retired any more.
            history = msgspec.structs.replace(cluster.topic_histories["t"], resize_epoch=2)
            return Decision(None, (Put(layout.topic_history("t"), history),))

        lower = await world.controller(tree, inter_broker_protocol_version="1.4")
        await first.stop()
        # A roll may go back before the first resize.
        await until(lambda: lower.active)
        await lower.stop()
        second = await world.controller(tree, inter_broker_protocol_version="1.5")
        await second.perform(resized)
        lower = await world.controller(tree, inter_broker_protocol_version="1.4")
        assert not lower.active
        await second.stop()
        await until(lambda: "1.4 is refused: topics (t) were resized" in caplog.text)
        assert not lower.active
        third = await world.controller(tree, inter_broker_protocol_version="1.5")
        assert third.active
        again = await versioned(world, third.listener_port, broker)
        assert (await again.forward(deletion("t"), 6)).responses[0].error_code == 0
        await until(lambda: not third.cluster.deletions)
        await third.stop()
        await until(lambda: lower.active)

    run(scenario)


@pytest.mark.parametrize(
    ("level", "line"),
    [
        ("1.3", "topic t marked for deletion, 2 partitions"),
        ("1.4", "topic t deleted, id {id}, 2 partitions"),
    ],
)
def test_a_deletion_leaves_a_line_for_the_audit(
    caplog: pytest.LogCaptureFixture, level: str, line: str
) -> None:
    """Promise 32, in both queues of deletions."""

    async def scenario(world: World) -> None:
        controller = await world.controller(inter_broker_protocol_version=level)
        broker = await world.broker(controller, 1)
        created = (await broker.forward(topic("t", 2, 1), 7)).topics[0]
        assert created.error_code == 0
        request = messages.DeleteTopicsRequest
        states = [request.DeleteTopicState("t")]
        await broker.forward(request(topics=states, timeout_ms=1000), 6)
        (said,) = [r.getMessage() for r in caplog.records if r.name == "tidelog.audit"]
        assert said == line.format(id=layout.id_text(created.topic_id))

    run(scenario)
