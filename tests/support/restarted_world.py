"""A topic with a history, and a controller that begins on a store whose nodes are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from uuid import UUID

import msgspec

from tests.support.controller_world import World
from tests.support.resizing_world import ResizingWorld
from tests.support.retired_topic import held
from tidelog.controller import requests
from tidelog.controller.decisions import config_effects, soft_state
from tidelog.controller.decisions.cluster import ClusterState, InventoryFence, LoadedStore, LogEnd
from tidelog.controller.decisions.completion import complete
from tidelog.controller.decisions.decision import Put
from tidelog.controller.decisions.external_changes import Taken, changed, take_up
from tidelog.controller.decisions.nodes import judge_reports, load
from tidelog.controller.decisions.registration import (
    Address,
    Registration,
    register,
    why_gone_back,
)
from tidelog.controller.decisions.removal import remove_retired, retired_from_the_top
from tidelog.controller.decisions.reported_command import Commands
from tidelog.controller.decisions.settlement import elect_awaited, put_state
from tidelog.controller.decisions.stops import stops_of
from tidelog.controller.decisions.uncertain_replicas import settle_noted
from tidelog.controller.requests import Sender
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryTree
from tidelog.metadata.records import ConfigNode, Counter, PartitionState, WentBack
from tidelog.metadata.store import Node
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition
from tidelog.records.control_records import ChangeKind

SENDER = Sender(101, "PLAINTEXT")
T0 = TopicPartition("t", 0)
OTHER = UUID(int=4711)
BROKERS = (1, 2, 3)
BEHIND = 3
"""It has less than what was acknowledged, and is in the ISR of ``OLD`` only."""
ENDS = {1: 80, 2: 100, 3: 40}
"""Of all partitions; 1 may lack what it had not synced: the leader 2 has everything."""


class Story:
    """A topic before (``old``) and after resizes, elections and a change of its configuration."""

    def __init__(self, before: int, *after: int) -> None:
        world = self.right = ResizingWorld(assignment=[(1, 2, 3)] * 2)
        world.commit((Put(layout.topic_configs("t"), ConfigNode({"min.insync.replicas": "1"})),))
        self._resize(before)
        self.old = world.nodes()
        for step, count in enumerate(after):
            if step:
                self._remove_retired()
            self._resize(count)
        for tp, state in list(world.cluster.states.items()):
            led = msgspec.structs.replace(state, leader=2, leader_epoch=state.leader_epoch + 5)
            world.commit((put_state(world.cluster, tp, msgspec.structs.replace(led, isr=[2, 1])),))
        configs = ConfigNode({"min.insync.replicas": "2", "retention.ms": "-1"})
        world.commit((Put(layout.topic_configs("t"), configs),))
        # The newest partition is one of another topic.
        self.newest = world.cluster.counters[layout.PARTITION_EPOCH] + 1
        world.commit((Put(layout.PARTITION_EPOCH, Counter(self.newest)),))
        self.nodes = world.nodes()
        self.topic_id = world.cluster.topic_id("t")
        self.held = {
            broker: {(self.topic_id, tp.partition): self._end(tp, broker) for tp in self.states}
            for broker in BROKERS
        }

    def _resize(self, count: int) -> None:
        if count != len(self.right.cluster.topics["t"].partitions):
            self.right.ask(count)
            self.right.settle()

    def _remove_retired(self) -> None:
        cluster = self.right.cluster
        states = {x: self.right.state(x) for x in retired_from_the_top(cluster, "t")}
        empty = {
            x: held(leader=state.leader, leader_epoch=state.leader_epoch)
            for x, state in states.items()
        }
        assert self.right.do(remove_retired(cluster, "t", empty, (), {})) == [3, 2]

    @property
    def states(self) -> dict[TopicPartition, PartitionState]:
        return self.right.cluster.states

    def _end(self, tp: TopicPartition, broker: int) -> LogEnd:
        cluster = self.right.cluster
        node, state = cluster.partition_nodes[tp], cluster.states[tp]
        epoch = 0 if broker == BEHIND else state.leader_epoch
        newest = cluster.topic_histories["t"].resize_epoch
        fence = InventoryFence(newest, 4, ChangeKind.FENCE)
        births = (node.birth_epoch, node.birth_offset)
        fences = () if broker == BEHIND or not newest else (fence,)
        return LogEnd(node.partition_epoch, epoch, ENDS[broker], *births, fences, epoch)


STORIES = {
    "grown": Story(2, 4),
    "shrunk": Story(4, 2),
    "never resized": Story(2, 2),
    "grown again": Story(4, 2, 4),
}
Wrong = Callable[[Story, str], bytes | None]


def missing(story: Story, path: str) -> bytes | None:
    return None


def torn(story: Story, path: str) -> bytes | None:
    return story.nodes[path].data[:-7]


def older(story: Story, path: str) -> bytes | None:
    return story.old[path].data


def of_another(story: Story, path: str) -> bytes | None:
    right = layout.id_text(story.topic_id).encode()
    return story.nodes[path].data.replace(right, layout.id_text(OTHER).encode())


def without_id(story: Story, path: str) -> bytes | None:
    fields = json.loads(story.nodes[path].data)
    del fields["topic_id"]
    return json.dumps(fields).encode()


def of_another_partition(story: Story, path: str) -> bytes | None:
    fields = json.loads(story.nodes[path].data)
    return json.dumps({**fields, "partition_epoch": story.newest}).encode()


class Restarted(World):
    """The store with wrong nodes, and a controller that has just become active on it."""

    def __init__(self, story: Story, nodes: dict[str, Node]) -> None:
        super().__init__()
        self.story, self.right = story, story.right.cluster
        self.given = nodes
        self.tree = MemoryTree()
        self.session = self.tree.new_session()
        for path, node in nodes.items():
            self.tree.nodes[path] = type(self.tree.nodes["/"])(node.data, node.version, None)
            if path != "/":
                above = path.rpartition("/")[0] or "/"
                self.tree.names.setdefault(above, set()).add(path.rpartition("/")[2])
                self.tree.names.setdefault(path, set())
        self.begin()

    def begin(self) -> None:
        cluster = self.cluster = ClusterState(level=self.right.level)
        load(cluster, self.nodes())
        newest = cluster.counters[layout.PARTITION_EPOCH]
        cluster.loaded = LoadedStore(cluster.revision, newest)
        soft_state.presume_all(cluster)
        self.write(config_effects.of_a_start(cluster).writes)
        self.write(settle_noted(cluster).writes)
        self.write(complete(cluster, self.chance).writes)

    def write(self, writes: tuple) -> None:  # type: ignore[type-arg]
        if writes:
            self.commit_only(writes)

    def arrive(
        self, broker: int, ended: FormerRegistration, commands: Commands | None = None
    ) -> None:
        """Broker registers as ``handlers.broker_registration`` has it."""
        cluster = self.cluster
        node = cluster.brokers[broker]
        same = ended is FormerRegistration.SAME
        known = layout.parse_id(node.incarnation_id or "")
        asked = Registration(
            *(broker, "", known if same and known else UUID(int=900 + broker)),
            UUID(int=broker),
            (Address("PLAINTEXT", f"h{broker}", 1, "PLAINTEXT"),),
            *(None, ended, dict(self.story.held[broker])),
            held={self.story.topic_id: "t"},
            seen=(self.right.controller_epoch, self.right.revision),
            commands=commands or {},
        )
        gone_back = None if cluster.went_back else why_gone_back(cluster, asked)
        soft_state.take_report(cluster, asked)
        if gone_back is None:
            judge_reports(cluster, asked.inventory, asked.held)
        decision = register(cluster, asked, 1)
        assert isinstance(decision.answer, int)
        first = () if gone_back is None else (Put(layout.WENT_BACK, WentBack(gone_back)),)
        self.write((*first, *decision.writes))
        soft_state.note_session(cluster, broker)
        self.write(elect_awaited(cluster, broker).writes)
        self.write(complete(cluster, self.chance).writes)
        self.check_sent(broker)

    def check_sent(self, broker: int) -> None:
        """What the broker is sent takes no replica away."""
        cluster = self.cluster
        # A stop of a former incarnation hits no replica of a later one.
        inventory = self.story.held[broker]
        stops = stops_of(cluster, broker)
        assert self.right.topic_histories["t"].former or not stops, stops
        for stop in stops:
            end = inventory.get((stop.topic_id, stop.partition))
            assert end is None or stop.partition_epoch not in (-1, end.partition_epoch), stop
        if requests.why_no_full(cluster, leaves_unreadable=True) is not None:
            return
        places = list(cluster.all_partitions())
        full = requests.leader_and_isr(cluster, SENDER, broker, places, requests.FULL)
        if "t" in full.unreadable_topics:
            return
        named = {
            (topic.topic_id, part.partition_index): part
            for topic in full.topic_states
            for part in topic.partition_states
        }
        assert named.keys() >= self.story.held[broker].keys(), "stale"
        for key, command in named.items():
            end = self.story.held[broker].get(key)
            assert end is None or command.partition_epoch in (-1, end.partition_epoch), "another"

    def check_states(self, *unfit: int) -> None:
        """No epoch has gone back, and what lacks records does not lead."""
        for tp, right in self.right.states.items():
            state, node = self.cluster.states.get(tp), self.cluster.partition_nodes.get(tp)
            # What a topic is not known to assign, or an older store, elects and commands nothing.
            if state is not None and self.cluster.replicas(tp) and not self.cluster.went_back:
                assert state.leader not in unfit, f"{tp}: {state}"
                if not self.cluster.presumed:
                    assert state.leader_epoch >= right.leader_epoch, f"{tp}: {state}"
                    assert set(state.isr) <= set(right.isr), f"{tp}: {state}"
                # What is not named as wrong is commanded.
                right_node = self.right.partition_nodes[tp]
                assert node is None or node.partition_epoch == right_node.partition_epoch, tp
            path = layout.partition(*tp)
            stored = self.nodes().get(path)
            given = (self.given.get(path), self.story.nodes[path])
            assert stored is None or stored.data in [x.data for x in given if x], tp

    def repair(self, paths: list[str]) -> None:
        """The operator puts the right nodes back, one after the other."""
        for path in paths:
            self.put(path, self.story.nodes[path].data)

    def put(self, path: str, data: bytes) -> Taken:
        """Another program writes a node."""
        there = self.tree.nodes.get(path)
        version = 0 if there is None else there.node.version + 1
        self.tree.nodes[path] = type(self.tree.nodes["/"])(data, version, None)
        found = changed(self.cluster, {path: Node(data, version)})
        draft = self.cluster.draft()
        decision = take_up(draft, found, self.chance, deletes=True)
        self.cluster.adopt(draft)
        self.write(decision.writes)
        return decision.answer

    def check_repaired(self) -> None:
        cluster = self.cluster
        assert {x: str(y) for x, y in cluster.damaged.items()} == {}
        assert cluster.topics == self.right.topics
        assert cluster.topic_configs == self.right.topic_configs
        assert cluster.partition_nodes == self.right.partition_nodes
        history, right = cluster.topic_histories["t"], self.right.topic_histories["t"]
        assert msgspec.structs.replace(history, unclean=right.unclean) == right
        assert cluster.states.keys() == self.right.states.keys()
