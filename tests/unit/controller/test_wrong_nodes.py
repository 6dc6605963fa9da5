"""Every field of every node of the store, made wrong: a controller neither fails nor harms.

Other programs write nodes, and disks and backups damage them. For each wrong node all decisions of
a controller are made on the store, and what brokers would be sent is encoded. What must hold:

- no decision raises, and no request is impossible to encode;
- what is written can be read again;
- the topic beside it, whose nodes are right, keeps its nodes and gets its commands;
- no replica is stopped, or becomes stale by a FULL, that is not stopped in the right store: a FULL
  is sent whatever topic cannot be read, and names that topic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.support.controller_world import Chance
from tests.support.wrong_nodes import GONE, STANDER, store, wrong_nodes
from tidelog.controller import requests
from tidelog.controller.decisions import (
    completion,
    config_effects,
    deletion,
    levels,
    moves,
    reassignment_node,
    settlement,
)
from tidelog.controller.decisions.autoscaled_topics import autoscaled_names
from tidelog.controller.decisions.cluster import NO_ID, ClusterState, LogEnd
from tidelog.controller.decisions.condition import condition
from tidelog.controller.decisions.decision import Decision, Write
from tidelog.controller.decisions.elections import Standing
from tidelog.controller.decisions.external_changes import changed, take_up
from tidelog.controller.decisions.journal import committed, operations, with_revision
from tidelog.controller.decisions.moves_condition import on_record
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.producer_ids import next_block
from tidelog.controller.decisions.reassignments import listed, moves_of
from tidelog.controller.decisions.resizing import advance
from tidelog.controller.decisions.stops import stops_of
from tidelog.controller.requests import Sender
from tidelog.metadata import layout
from tidelog.metadata.layout import Damaged
from tidelog.metadata.memory import MemoryTree
from tidelog.metadata.records import PartitionNode
from tidelog.metadata.store import Node, Set
from tidelog.model.api_keys import ApiKey
from tidelog.model.work import finish
from tidelog.protocol.codec import encode_message

SENDER = Sender(101, "PLAINTEXT")
Replica = tuple[int, UUID, int]

RIGHT = store()
NODES = RIGHT.nodes()
PARTS = 4
SHOWN = 12


def cases() -> list[tuple[str, str, bytes]]:
    """Every wrong node; of those of a path that cannot be read one stands for all."""
    found, unreadable = [], set()
    for path, what, content in wrong_nodes(RIGHT):
        if isinstance(layout.decode(path, content), Damaged):
            if path in unreadable:
                continue
            unreadable.add(path)
        found.append((path, what, content))
    return found


CASES = cases()


class Controller:
    """The decisions of a controller over a store, in the order of a start, without brokers."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.tree = MemoryTree()
        self.session = self.tree.new_session()
        for path, node in nodes.items():
            self.tree.nodes[path] = type(self.tree.nodes["/"])(node.data, node.version, None)
        for path in nodes:
            above = path.rpartition("/")[0] or "/"
            if path != "/":
                self.tree.names.setdefault(above, set()).add(path.rpartition("/")[2])
                self.tree.names.setdefault(path, set())
        self.chance = Chance()
        self.cluster = ClusterState()
        load(self.cluster, nodes)

    def commit(self, writes: tuple[Write, ...]) -> None:
        if not writes:
            return
        complete = with_revision(self.cluster, writes)
        found = operations(self.cluster, complete)
        conflict = self.tree.apply(self.session, found)
        assert conflict is None, conflict
        committed(self.cluster, found, complete)

    def register(self) -> None:
        """Have every broker register with what it holds, before any decision about it."""
        self.cluster.brokers = {**RIGHT.cluster.brokers, **self.cluster.brokers}
        self.cluster.inventories = {
            broker: {
                (topic_id, index): LogEnd(EPOCHS[topic_id, index], 0, 5)
                for at, topic_id, index in HELD
                if at == broker
            }
            for broker in self.cluster.brokers
        }

    def decide(self) -> None:
        cluster = self.cluster
        assert levels.why_refused(cluster) is None or cluster.damaged
        for mark in levels.marks(cluster):
            self.commit(mark)
        self.commit(config_effects.of_a_start(cluster).writes)
        self.commit(deletion.take_up(cluster).writes)
        self.commit(completion.complete(cluster, self.chance).writes)
        places = list(cluster.all_partitions())
        self.commit(tuple(settlement.settle_all(cluster, places, Standing.of(cluster))))
        for element in list(reassignment_node.due(cluster)):
            self.commit(reassignment_node.begin(cluster, [element]).writes)
        self.commit(reassignment_node.brought_up_to_date(cluster).writes)
        self.commit(moves.complete(cluster).writes)
        for name in sorted(cluster.resizing):
            self.commit(advance(cluster, name).writes)
        for name in cluster.topics:
            cluster.resolve(name)
        autoscaled_names(cluster)
        self.commit(next_block(cluster, 1).writes)

    def sent(self) -> tuple[set[Replica] | None, set[Replica]]:
        """Encode all that brokers are sent; return the replicas that a FULL names, None if none
        may be sent, and those that are stopped."""
        cluster, level = self.cluster, self.cluster.level
        places = list(cluster.all_partitions())
        named: set[Replica] = set()
        stopped: set[Replica] = set()
        for broker in sorted(cluster.brokers):
            stops = stops_of(cluster, broker)
            stopped |= {(broker, x.topic_id, x.partition) for x in stops if x.topic_id != GONE}
            full = requests.leader_and_isr(cluster, SENDER, broker, places, requests.FULL)
            made: list[tuple[ApiKey, int, Any]] = [
                (ApiKey.LEADER_AND_ISR, level.leader_and_isr, full),
                (
                    ApiKey.UPDATE_METADATA,
                    level.update_metadata,
                    requests.update_metadata(cluster, SENDER, broker, places),
                ),
                (
                    ApiKey.UPDATE_CONFIGS,
                    0,
                    requests.update_configs(cluster, SENDER, broker, None),
                ),
            ]
            made += [
                (ApiKey.STOP_REPLICA, level.stop_replica, one)
                for one in requests.stop_replica(cluster, SENDER, broker, stops)
            ]
            for key, version, request in made:
                encode_message(key, version, request)
            named |= {
                (broker, topic.topic_id, x.partition_index)
                for topic in full.topic_states
                for x in topic.partition_states
            }
            left = {RIGHT.cluster.topic_id(name) for name in full.unreadable_topics}
            assert left == {UNREAD.get(x) for x in cluster.damaged} - {None}, "not said"
            named |= {x for x in HELD if x[0] == broker and x[1] in left}
        finish(condition(cluster))
        list(on_record(cluster))
        for where in moves_of(cluster):
            listed(cluster, where)
        why = requests.why_no_full(cluster, leaves_unreadable=True)
        return (None if why else named), stopped


def of_stander(nodes: dict[str, Node]) -> dict[str, bytes]:
    return {path: x.data for path, x in nodes.items() if layout.topic_of(path) == STANDER}


def read(tree: MemoryTree) -> dict[str, Node]:
    return {path: kept.node for path, kept in tree.nodes.items()}


def right_outcome() -> tuple[set[Replica], set[Replica]]:
    controller = Controller(NODES)
    assert not controller.cluster.damaged
    before, stops = controller.sent()
    controller.decide()
    named, stopped = controller.sent()
    assert before is not None and named is not None
    assert not loaded_again(controller).damaged
    # A copy of a target holds nothing committed, and a topic that is gone has no replicas to lose.
    assigned = {x for x in before if x[0] in REPLICAS[x[1], x[2]]}
    return assigned, stops | stopped


def loaded_again(controller: Controller) -> ClusterState:
    again = ClusterState()
    load(again, read(controller.tree))
    return again


EPOCHS = {
    (RIGHT.cluster.topic_id(where.topic), where.partition): node.partition_epoch
    for where, node in RIGHT.cluster.partition_nodes.items()
}
REPLICAS = {
    (RIGHT.cluster.topic_id(where.topic), where.partition): RIGHT.cluster.replicas(where)
    for where in RIGHT.cluster.partition_nodes
}
UNREAD = {layout.topic(name): RIGHT.cluster.topic_id(name) for name in RIGHT.cluster.topics}
HELD: set[Replica] = set()
HELD, STOPPED = right_outcome()


def judge(path: str, content: bytes) -> None:
    controller = Controller({**NODES, path: Node(content, NODES[path].version)})
    controller.register()
    check(controller)
    if path in REFUSING and path in controller.cluster.damaged:
        return
    if path == layout.REASSIGN_PARTITIONS:
        # Any plan may be there: which rows are refused, its own tests say.
        return
    had = set(controller.cluster.damaged)
    controller.decide()
    check(controller)
    assert of_stander(read(controller.tree)) == of_stander(NODES)
    left = loaded_again(controller).damaged
    assert left.keys() <= had, f"written and not readable: {[str(x) for x in left.values()]}"


def judge_a_change(path: str, content: bytes) -> None:
    """Another program writes the node while this controller is active."""
    controller = Controller(NODES)
    controller.register()
    known = controller.cluster
    written = Set(path, content, NODES[path].version)
    assert controller.tree.apply(controller.session, [written]) is None
    found = changed(known, {path: read(controller.tree)[path]})
    draft = known.draft()
    decision: Decision[Any] = take_up(draft, found, controller.chance, deletes=True)
    known.adopt(draft)
    controller.commit(decision.writes)
    check(controller)
    assert of_stander(read(controller.tree)) == of_stander(NODES)


def check(controller: Controller) -> None:
    named, stopped = controller.sent()
    assert stopped <= STOPPED, f"stopped: {stopped - STOPPED}"
    held = {x for x in HELD if x[0] in controller.cluster.brokers}
    cluster = controller.cluster
    assert named is not None or cluster.went_back or NO_ID in map(cluster.topic_id, cluster.topics)
    assert named is None or named >= held, f"stale: {held - (named or set())}"


REFUSING = (
    layout.CLUSTER_ID,
    layout.CONTROLLER_EPOCH,
    layout.PARTITION_EPOCH,
    layout.BROKER_EPOCH,
    layout.REVISION,
)
"""A controller does not become active while one of these is damaged."""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("judged", [judge, judge_a_change])
def test_a_controller_neither_fails_nor_harms_because_of_a_wrong_node(
    judged: Callable[[str, bytes], None], part: int
) -> None:
    failed: dict[str, str] = {}
    for path, what, content in CASES[part::PARTS]:
        try:
            judged(path, content)
        except Exception as error:  # Whatever it is: the others go on.
            failed[f"{path} {what}"] = f"{type(error).__name__}: {error}"[:300]
    assert not failed, "\n".join(f"{x}: {y}" for x, y in list(failed.items())[:SHOWN])


def born(node: PartitionNode) -> tuple[int, ...]:
    return node.partition_epoch, node.birth_epoch, node.birth_offset


def judge_a_loss(path: str) -> None:
    """The node is gone before this controller, which is not the first one, starts."""
    controller = Controller({x: node for x, node in NODES.items() if x != path})
    if path in REFUSING and path in controller.cluster.damaged:
        return
    controller.cluster.counters[layout.CONTROLLER_EPOCH] = RIGHT.cluster.controller_epoch + 1
    controller.register()
    check(controller)
    controller.decide()
    check(controller)
    cluster = controller.cluster
    was = {x: data for x, data in of_stander(NODES).items() if x != path}
    now = of_stander(read(controller.tree))
    # What is missing comes back as it was, or stays away and is named.
    assert now == of_stander(NODES) or (now == was and path in cluster.damaged)
    for where, node in RIGHT.cluster.partition_nodes.items():
        found = cluster.partition_nodes.get(where)
        assert found is None or born(found) == born(node), f"{where}: its replicas are stale"
    given, block = RIGHT.cluster.producer_ids, cluster.producer_ids
    assert given is not None and block is not None
    assert int(block.block_start) > int(given.block_end)
    for counter in {layout.PARTITION_EPOCH, layout.BROKER_EPOCH} - cluster.damaged.keys():
        assert cluster.counters[counter] >= RIGHT.cluster.counters[counter], counter


RECORDS = sorted(path for path in NODES if NODES[path].data)
"""Without `/tidelog/revision` the store counts as one that has gone back: brokers know a later one.
Without `/cluster/id` the start is refused or gets that of the node's own log directories."""


def test_a_node_that_is_missing_is_not_a_new_one() -> None:
    failed: dict[str, str] = {}
    for path in RECORDS:
        try:
            judge_a_loss(path)
        except Exception as error:  # Whatever it is: the others go on.
            failed[path] = f"{type(error).__name__}: {error}"[:300]
    assert not failed, "\n".join(f"{x}: {y}" for x, y in list(failed.items())[:SHOWN])
