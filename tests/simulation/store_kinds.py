"""Each kind of decision of a controller: how it is asked for, and when it is done.

Owns one entry for each; what fails meanwhile is ``striking_store``, what must hold ``store_stage``.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.store_stage import Stage
from tests.support.controller_process import topic
from tidelog.controller.decisions.cluster import NO_LEADER
from tidelog.controller.decisions.restoration import accept
from tidelog.metadata import layout
from tidelog.metadata.store import Create, Delete, Operation, Set, StoreRefused
from tidelog.model.admin_requests import ElectionType
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

T0 = TopicPartition("t", 0)
N0 = TopicPartition("n", 0)
U0 = TopicPartition("u", 0)
V0 = TopicPartition("v", 0)

Act = Callable[[Stage], Awaitable[None]]


@dataclass
class Kind:
    """One thing that a controller does: ``act`` may be asked again until ``done``."""

    act: Act
    done: Callable[[Stage], Any]
    texts: dict[str, str] = field(default_factory=dict)
    first: Act | None = None
    lasts_s: float = 1.0
    """Virtual seconds in which it makes the calls that are struck."""
    is_shared: bool = False
    """Whether others must be able to write to the store while a controller is active."""


async def create(stage: Stage) -> None:
    await stage.ask(topic("n", 2, 2), 7)


async def create_in_slices(stage: Stage) -> None:
    made = topic("n", 1, 2)
    made.topics += topic("m", 2, 2).topics
    await stage.ask(made, 7)


async def delete_in_slices(stage: Stage) -> None:
    # Each topic is refused once: the next attempt names both, and is confirmed in slices.
    for broker in stage.brokers.values():
        broker.stop_errors = [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    request = messages.DeleteTopicsRequest
    named = [request.DeleteTopicState(name) for name in ("t", "n")]
    await stage.ask(request(topics=named, timeout_ms=1000), 6)


async def move_in_slices(stage: Stage) -> None:
    request = messages.AlterPartitionReassignmentsRequest
    topics = [
        request.ReassignableTopic(where.topic, [request.ReassignablePartition(0, [2, 1])])
        for where in (T0, U0)
    ]
    await stage.ask(request(timeout_ms=1000, topics=topics), 0)


def has_begun_to_move(stage: Stage) -> bool:
    """Whether t-0 has its replicas in another order, and u-0 a target that has not joined."""
    cluster = stage.cluster
    return cluster.replicas(T0) == [2, 1] and cluster.moves.get(U0) == [2, 1]


def grown(*names: str) -> Act:
    async def grow(stage: Stage) -> None:
        request = messages.CreatePartitionsRequest
        named = [request.CreatePartitionsTopic(name, 3, None) for name in names]
        await stage.ask(request(named, 1000), 2)

    return grow


def resized(count: int, *names: str) -> Act:
    async def resize(stage: Stage) -> None:
        request = messages.CreatePartitionsRequest
        named = [request.CreatePartitionsTopic(name, count, None) for name in names]
        await stage.ask(request(named, 1000, force=True), 2)

    return resize


async def grow_to_three(stage: Stage) -> None:
    await resized(3, "t")(stage)
    assert is_resized(stage, 3, "t")


def is_resized(stage: Stage, count: int, *names: str) -> bool:
    cluster = stage.cluster
    return all(
        cluster.topics[name].undeleted_partition_count == count
        and cluster.topic_histories[name].resize is None
        for name in names
    )


async def report_nothing(stage: Stage) -> None:
    for broker in stage.brokers.values():
        broker.reports = False


def is_undone(stage: Stage) -> bool:
    epoch = stage.cluster.topic_histories["t"].resize_epoch
    return is_resized(stage, 1, "t") and epoch >= 2 and not epoch % 2


async def delete(stage: Stage) -> None:
    request = messages.DeleteTopicsRequest
    await stage.ask(request(topics=[request.DeleteTopicState("t")], timeout_ms=1000), 6)


def altered(kind: int, names: Sequence[str], key: str, value: str) -> Act:
    async def alter(stage: Stage) -> None:
        request = messages.IncrementalAlterConfigsRequest
        wanted = [request.AlterableConfig(key, 0, value)]
        named = [request.AlterConfigsResource(kind, name, wanted) for name in names]
        await stage.ask(request(named), 1)

    return alter


def proposed(leader: int, *isr: int, where: TopicPartition = T0, handled: bool = False) -> Act:
    return proposed_for((where,), leader, *isr, handled=handled)


def proposed_for(
    places: Sequence[TopicPartition], leader: int, *isr: int, handled: bool = False
) -> Act:
    """All in one request."""

    async def propose(stage: Stage) -> None:
        request = messages.AlterIsrRequest
        topics = []
        for where in places:
            state = stage.cluster.states.get(where)
            epoch = -1 if state is None else state.leader_epoch
            version = stage.cluster.isr_version(where)
            part = request.PartitionData(0, epoch, list(isr), version, unclean_handled=handled)
            topic_id = stage.cluster.topic_id(where.topic)
            topics.append(request.TopicData(where.topic, [part], topic_id))
        await stage.send(leader, request(leader, stage.brokers[leader].epoch, topics))

    return propose


shrink = proposed(1, 1)


async def take_ids(stage: Stage) -> None:
    epoch = stage.brokers[1].epoch
    await stage.send(1, messages.AllocateProducerIdsRequest(1, epoch))


async def join(stage: Stage) -> None:
    if 3 not in stage.brokers:
        await stage.broker(3)


async def come_back_anew(stage: Stage) -> None:
    two = stage.brokers[2]
    entry = messages.BrokerRegistrationRequest
    two.inventory = [
        entry.InventoryTopic(x, stage.cluster.topic_id(x), [entry.InventoryPartition(0, -1, 0, 5)])
        for x in ("t", "u")
    ]
    two.incarnation = uuid.UUID(int=77)
    if two.session is not None:
        two.session.close()


async def die(stage: Stage) -> None:
    stage.silent.add(2)
    session = stage.brokers[2].session
    if session is not None:
        session.close()


async def leave(stage: Stage) -> None:
    one = stage.brokers[1]
    await stage.send(1, messages.BrokerHeartbeatRequest(1, one.epoch, want_shut_down=True))


async def break_replica(stage: Stage) -> None:
    request = messages.BrokerHeartbeatRequest
    stage.silent.add(1)
    damaged = request.DamagedReplica("t", stage.cluster.topic_id("t"), 0)
    failures = request.Failures([], [damaged])
    one = stage.brokers[1]
    answer = await stage.send(1, request(1, one.epoch, failures=failures))
    if answer is None or answer.error_code:
        await stage.register(one)


async def fall_silent(stage: Stage) -> None:
    """Its connection stays open."""
    stage.silent.add(2)


def elected(kind: ElectionType, *names: str) -> Act:
    async def elect(stage: Stage) -> None:
        request = messages.ElectLeadersRequest
        named = [request.TopicPartitions(name, [0]) for name in names]
        await stage.ask(request(kind, named, 1000), 2)

    return elect


async def lose_the_only_member(stage: Stage) -> None:
    """2 dies, which alone was in sync: there is no leader, and 1 could only lead uncleanly."""
    request = messages.CreateTopicsRequest
    wanted = topic("v")
    wanted.topics[0].assignments = [request.CreatableReplicaAssignment(0, [2, 1])]
    await stage.ask(wanted, 7)
    await proposed(2, 2, where=V0)(stage)
    await die(stage)
    await asyncio.sleep(8.0)
    assert stage.cluster.states[V0].leader == NO_LEADER


elect_uncleanly = elected(ElectionType.UNCLEAN, "v")


async def owe(stage: Stage) -> None:
    await lose_the_only_member(stage)
    await elect_uncleanly(stage)
    assert stage.cluster.topic_histories["v"].unclean


async def report_a_cut(stage: Stage) -> None:
    request = messages.ReportTruncationRequest
    topic_id = stage.cluster.topic_id("v")
    cut = request.Truncation(topic_id, 0, from_offset=3, to_offset=7, leader_epochs=[0])
    await stage.send(1, request(1, stage.brokers[1].epoch, [cut]))


async def look_on(_stage: Stage) -> None:
    """The controller does it by itself."""


async def led_by_two(stage: Stage) -> None:
    await leave(stage)
    await stage.register(stage.brokers[1])
    await proposed(2, 2, 1)(stage)


async def two_led_by_one(stage: Stage) -> None:
    request = messages.CreateTopicsRequest
    wanted = topic("n")
    wanted.topics[0].assignments = [request.CreatableReplicaAssignment(0, [1, 2])]
    await stage.ask(wanted, 7)


async def two_led_by_two(stage: Stage) -> None:
    await stage.ask(topic("n", 1, 2), 7)
    await led_by_two(stage)
    await proposed(2, 2, 1, where=TopicPartition("n", 0))(stage)


def tool(*operations: Operation) -> Act:
    async def write(stage: Stage) -> None:
        stage.by_tool(*operations)

    return write


async def damage_and_heal(stage: Stage) -> None:
    stage.by_tool(Set(layout.topic_configs("t"), b"{"))
    await asyncio.sleep(1.0)
    stage.by_tool(Set(layout.topic_configs("t"), RETENTION))


async def mark_while_a_channel_breaks(stage: Stage) -> None:
    stage.by_tool(MARK)
    await asyncio.sleep(1.0)
    # On a slow store the mark is read, and not removed yet: a new channel begins with a FULL.
    server = stage.brokers[2].server
    assert server is not None
    for connection in list(server.connections):
        connection.abort()


NEW_NODE = b'{"version":1,"partitions":{"0":[1,2]}}'
MARK = Create(layout.deletion_mark("t"), b"")
STRAY = f"{layout.partition('t', 0)}/junk"


async def put_a_stray(stage: Stage) -> None:
    stage.by_tool(Create(STRAY, b""))


async def put_strays_below_a_broker(stage: Stage) -> None:
    path = layout.broker(2)
    stage.by_tool(Create(f"{path}/junk", b""), Create(f"{path}/junk/deeper", b""))


async def delete_under_a_stray(stage: Stage) -> None:
    await delete(stage)
    stage.by_tool(Delete(STRAY))


async def mark_under_a_stray(stage: Stage) -> None:
    stage.by_tool(Create(STRAY, b""), MARK)
    await asyncio.sleep(1.0)
    stage.by_tool(Delete(STRAY))


async def lose_office(stage: Stage) -> None:
    stage.controller.lose("planted: the session expired")


async def be_deposed(stage: Stage) -> None:
    stage.by_tool(Delete(layout.CONTROLLER))


def restarted(*written: Operation, **texts: str) -> Act:
    async def restart(stage: Stage) -> None:
        if stage.controller.active and stage.cluster.controller_epoch > 1:
            return
        await stage.controller.stop()
        stage.by_tool(*written)
        stage.controller = stage.another(**texts)
        await stage.controller.start()

    return restart


async def start_without_the_id(stage: Stage) -> None:
    """A start is refused by a store that lost its cluster id; then the id is put back."""
    if stage.controller.active and stage.cluster.controller_epoch > 1:
        return
    await stage.controller.stop()
    kept = stage.place.node(layout.CLUSTER_ID)
    assert kept is not None
    stage.by_tool(Delete(layout.CLUSTER_ID))
    stage.controller = stage.another()
    with contextlib.suppress(StoreRefused):
        await stage.controller.start()
    assert not stage.controller.active
    stage.by_tool(Create(layout.CLUSTER_ID, kept.data))
    if stage.controller.server is None:
        stage.controller = stage.another()
        await stage.controller.start()


async def go_back(stage: Stage) -> None:
    two = stage.brokers[2]
    seen = messages.BrokerRegistrationRequest.HighestSeen(500, 10**6)
    stage.silent.add(2)
    assert two.session is not None
    two.session.close()
    await two.register(stage.controller.listener_port, highest_seen=seen)
    stage.silent.discard(2)


async def go_back_and_accept(stage: Stage) -> None:
    if stage.cluster.controller_epoch < 500 and stage.cluster.went_back is None:
        await go_back(stage)
    await accept_it(stage)


async def accept_it(stage: Stage) -> None:
    controller = stage.controller
    if stage.cluster.went_back is not None and controller.active:
        with contextlib.suppress(Exception):
            await controller.perform(lambda x: accept(x, (), (), controller.entropy))
            controller.lose("accepted")


def state(stage: Stage) -> Any:
    return stage.cluster.states.get(T0)


LOWERED = Set(layout.topic_configs("t"), b'{"version":1,"config":{"min.insync.replicas":"1"}}')
RETENTION = b'{"version":1,"config":{"retention.ms":"7000"}}'

RESIZES = {"inter.broker.protocol.version": "1.5"}
WIDER = b'{"version":1,"partitions":{"0":[1,2],"1":[2,1],"2":[1,2]}}'

PLAN = (
    b'{"version":1,"partitions":['
    b'{"topic":"t","partition":0,"replicas":[2,1]},{"topic":"u","partition":0,"replicas":[2,1]}]}'
)

KINDS: dict[str, Kind] = {
    "create": Kind(create, lambda s: "n" in s.cluster.topics),
    "create in slices": Kind(create_in_slices, lambda s: {"n", "m"} <= s.cluster.topics.keys()),
    "delete in slices": Kind(
        delete_in_slices,
        lambda s: not {"t", "n"} & s.cluster.topics.keys() and not s.cluster.deletions,
        {"delete.topic.retry.ms": "500"},
        first=create,
    ),
    "grow": Kind(grown("t"), lambda s: len(s.cluster.topics["t"].partitions) == 3),
    "grow in slices": Kind(
        grown("t", "u"), lambda s: all(len(s.cluster.topics[x].partitions) == 3 for x in "tu")
    ),
    "resize": Kind(resized(3, "t"), lambda s: is_resized(s, 3, "t"), RESIZES),
    "resize in slices": Kind(resized(3, "t", "u"), lambda s: is_resized(s, 3, "t", "u"), RESIZES),
    "shrink": Kind(resized(1, "t"), lambda s: is_resized(s, 1, "t"), RESIZES, first=grow_to_three),
    "undo a resize": Kind(
        resized(3, "t"),
        is_undone,
        {**RESIZES, "resize.timeout.ms": "200"},
        first=report_nothing,
    ),
    "a tool's growth at level 1.5": Kind(
        tool(Set(layout.topic("t"), WIDER)),
        lambda s: is_resized(s, 3, "t"),
        RESIZES,
        is_shared=True,
    ),
    "move in slices": Kind(move_in_slices, has_begun_to_move),
    "a tool's plan of moves": Kind(
        tool(Create(layout.REASSIGN_PARTITIONS, PLAN)), has_begun_to_move, is_shared=True
    ),
    "delete": Kind(delete, lambda s: "t" not in s.cluster.topics and not s.cluster.deletions),
    "alter a topic": Kind(
        altered(2, "t", "retention.ms", "7000"),
        lambda s: s.cluster.topic_configs["t"].get("retention.ms") == "7000",
    ),
    "alter in slices": Kind(
        altered(2, "tu", "retention.ms", "7000"),
        lambda s: all(s.cluster.topic_configs[x].get("retention.ms") == "7000" for x in "tu"),
    ),
    "alter defaults": Kind(
        altered(4, [""], "log.retention.ms", "7000"),
        lambda s: s.cluster.broker_configs.get(layout.ALL_BROKERS),
    ),
    "change the ISR": Kind(shrink, lambda s: state(s).isr == [1]),
    "change the ISR in slices": Kind(
        proposed_for((T0, N0), 1, 1),
        lambda s: all(x in s.cluster.states and s.cluster.states[x].isr == [1] for x in (T0, N0)),
        first=two_led_by_one,
    ),
    "producer ids": Kind(take_ids, lambda s: s.cluster.producer_ids is not None),
    "a new broker": Kind(join, lambda s: 3 in s.cluster.brokers),
    "a new life": Kind(come_back_anew, lambda s: s.cluster.brokers[2].broker_epoch > 2),
    "a death": Kind(die, lambda s: 2 not in s.cluster.brokers and state(s).isr == [1], lasts_s=8.0),
    "a death over a stray": Kind(
        die,
        lambda s: 2 not in s.cluster.brokers and state(s).isr == [1],
        first=put_strays_below_a_broker,
        lasts_s=8.0,
    ),
    "a silence": Kind(fall_silent, lambda s: state(s).isr == [1], lasts_s=5.0),
    "a leave": Kind(leave, lambda s: state(s).leader == 2),
    "damage": Kind(break_replica, lambda s: state(s).leader == 2),
    "elect": Kind(
        elected(ElectionType.PREFERRED, "t"), lambda s: state(s).leader == 1, first=led_by_two
    ),
    "elect in slices": Kind(
        elected(ElectionType.PREFERRED, "t", "n"),
        lambda s: all(x.leader == s.cluster.replicas(y)[0] for y, x in s.cluster.states.items()),
        first=two_led_by_two,
    ),
    "rebalance": Kind(
        look_on,
        lambda s: state(s).leader == 1,
        {"leader.imbalance.check.interval.seconds": "5"},
        first=led_by_two,
        lasts_s=7.0,
    ),
    "elect uncleanly": Kind(
        elect_uncleanly,
        lambda s: s.cluster.states[V0].leader == 1 and s.cluster.topic_histories["v"].unclean,
        first=lose_the_only_member,
    ),
    "report a cut": Kind(
        report_a_cut, lambda s: s.cluster.topic_histories["v"].unclean[0].lost, first=owe
    ),
    "handle what was lost": Kind(
        proposed(1, 1, where=V0, handled=True),
        lambda s: (
            not (s.cluster.states[V0].is_unclean_leader or s.cluster.topic_histories["v"].unclean)
        ),
        first=owe,
    ),
    "a tool's topic": Kind(
        tool(Create(layout.topic("n"), NEW_NODE)),
        lambda s: "n" in s.cluster.topic_histories and TopicPartition("n", 0) in s.cluster.states,
        is_shared=True,
    ),
    "damage by a tool": Kind(
        damage_and_heal,
        lambda s: (
            not s.cluster.damaged and s.cluster.topic_configs["t"] == {"retention.ms": "7000"}
        ),
        lasts_s=3.0,
        is_shared=True,
    ),
    "a tool's configuration": Kind(
        tool(Set(layout.topic_configs("t"), RETENTION)),
        lambda s: s.cluster.topic_configs["t"] == {"retention.ms": "7000"},
        is_shared=True,
    ),
    "a tool's mark": Kind(
        tool(MARK),
        lambda s: "t" not in s.cluster.topics,
        is_shared=True,
    ),
    "a tool's mark in vain": Kind(
        mark_while_a_channel_breaks,
        lambda s: s.place.node(MARK.path) is None and "t" in s.cluster.topics,
        {"delete.topic.enable": "false"},
        is_shared=True,
    ),
    "delete under a stray": Kind(
        delete_under_a_stray,
        lambda s: "t" not in s.cluster.topics and not s.cluster.deletions,
        first=put_a_stray,
    ),
    "mark under a stray": Kind(
        mark_under_a_stray,
        lambda s: "t" not in s.cluster.topics,
        is_shared=True,
    ),
    "lose office": Kind(lose_office, lambda s: s.cluster.controller_epoch > 1),
    "be deposed by a tool": Kind(
        be_deposed,
        lambda s: s.cluster.controller_epoch > 1,
        is_shared=True,
    ),
    "start with a lower minimum": Kind(
        restarted(LOWERED),
        lambda s: s.cluster.controller_epoch > 1 and not state(s).eligible_replicas,
        first=shrink,
    ),
    "start with a mark": Kind(restarted(MARK), lambda s: "t" not in s.cluster.topics),
    "start without the cluster's id": Kind(
        start_without_the_id, lambda s: s.cluster.controller_epoch > 1
    ),
    "start at a lower level": Kind(
        restarted(inter_broker_protocol_version="1.3"),
        lambda s: s.cluster.controller_epoch > 1 and s.cluster.topic_histories["t"].migrated,
    ),
    "accept a restored store": Kind(
        accept_it, lambda s: s.cluster.went_back is None, first=go_back
    ),
    "go back and accept": Kind(
        go_back_and_accept,
        lambda s: s.cluster.went_back is None and s.cluster.controller_epoch > 500,
    ),
}
