"""What tools write to the store: one row per case of ``decisions.outside`` and ``completion``.

"Known traps": a topic node overwritten without its id by an old tool: the id is restored, never
replaced by a new one. Promise 20: what is missing or damaged deletes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller import requests
from tidelog.controller.decisions import config_effects
from tidelog.controller.decisions.cluster import ClusterState, LogEnd
from tidelog.controller.decisions.completion import complete
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Decision
from tidelog.controller.decisions.external_changes import Taken, changed, take_up
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.settlement import put_state
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState
from tidelog.metadata.store import Create, Delete, Operation, Set
from tidelog.model.levels import level_of
from tidelog.model.topics import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OTHER_ID = layout.id_text(UUID(int=77))


def made() -> World:
    world = World(1, 2)
    world.create(TopicToCreate("t", 2, 2))
    return world


def outside(world: World, *operations: Operation, deletes: bool = True) -> Taken:
    """A tool writes; the controller notices and acts."""
    assert world.tree.apply(world.session, operations) is None
    nodes = world.nodes()
    found = changed(world.cluster, {x.path: nodes.get(x.path) for x in operations})
    decision: Decision[Taken] = take_up(world.cluster, found, world.chance, deletes)
    taken: Taken = world.do(decision)
    return taken


def node(text: str) -> bytes:
    return text.replace("'", '"').encode()


OLD_NODE = node("{'version':1,'partitions':{'0':[1,2],'1':[2,1]}}")


def test_an_old_tool_that_rewrites_a_topic_loses_nothing() -> None:
    world = made()
    before = world.cluster.topics["t"]
    taken = outside(world, Set(layout.topic("t"), OLD_NODE))
    assert world.cluster.topics["t"] == msgspec.structs.replace(before, version=1)
    assert taken.errors == []
    assert requests.why_no_full(world.cluster) is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{'version':3,'partitions':{'0':[2],'1':[2,1]}}", "other replicas"),
        ("{'version':3,'partitions':{'0':[1,2]}}", "fewer partitions"),
        (f"{{'partitions':{{'0':[1,2],'1':[2,1]}},'topic_id':'{OTHER_ID}'}}", OTHER_ID),
    ],
)
def test_what_a_tool_must_not_change_is_put_back(text: str, error: str) -> None:
    world = made()
    before = world.cluster.topics["t"]
    taken = outside(world, Set(layout.topic("t"), node(text)))
    assert world.cluster.topics["t"] == before
    assert world.cluster.names == {world.cluster.topic_id("t"): "t"}
    assert error in taken.errors[0]


def test_partitions_that_a_tool_adds_below_level_1_5_get_leaders_and_epochs() -> None:
    world = made()
    world.cluster.level = level_of("1.4")
    outside(world, Set(layout.topic("t"), node("{'partitions':{'0':[1,2],'1':[2,1],'2':[2]}}")))
    cluster = world.cluster
    now = cluster.topics["t"]
    assert (now.initial_partition_count, now.undeleted_partition_count) == (3, 3)
    assert cluster.topic_histories["t"].initial_partition_count == 3
    new = TopicPartition("t", 2)
    assert (cluster.states[new].leader, cluster.partition_nodes[new].partition_epoch) == (2, 3)


def test_a_topic_that_a_tool_creates() -> None:
    world = made()
    text = node("{'version':1,'partitions':{'0':[2,1],'1':[9]}}")
    outside(world, Create(layout.topic("u"), text))
    cluster = world.cluster
    assert cluster.topic_id("u") == UUID(int=2)
    assert not cluster.topic_histories["u"].migrated
    assert cluster.states[TopicPartition("u", 0)].leader == 2
    # No broker is there to lead the other one; it is created when its broker comes.
    assert TopicPartition("u", 1) not in cluster.states
    cluster.brokers[9] = cluster.brokers[1]
    world.do(complete(cluster, world.chance))
    assert cluster.states[TopicPartition("u", 1)].leader == 9
    assert world.do(complete(cluster, world.chance)) == []


def test_a_topic_that_a_tool_creates_while_its_brokers_have_not_registered_waits() -> None:
    world = made()
    world.cluster.presumed = {2}
    outside(world, Create(layout.topic("u"), node("{'partitions':{'0':[2,1]}}")))
    where = TopicPartition("u", 0)
    assert where not in world.cluster.states
    world.cluster.presumed = set()
    world.do(complete(world.cluster, world.chance))
    assert world.cluster.states[where].isr == [2, 1]


def old_store(*, presumed: set[int] | None = None) -> World:
    """A store from before ids, loaded by a controller: nothing of ours remembers the topic."""
    world = made()
    world.do(Decision(None, (put_state(world.cluster, T0, PartitionState(1, 7, 1, [1, 2])),)))
    path = layout.topic_history("t")
    written: list[Operation] = [Set(layout.topic("t"), OLD_NODE), Delete(path)]
    assert world.tree.apply(world.session, written) is None
    loaded = ClusterState(brokers=world.cluster.brokers)
    load(loaded, world.nodes())
    loaded.presumed = presumed or set()
    world.cluster = loaded
    return world


def test_ids_come_back_from_the_replicas() -> None:
    world = old_store(presumed={1, 2})
    cluster = world.cluster
    assert requests.why_no_full(cluster) == "The topic t has no id yet."
    known, former = UUID(int=5), UUID(int=4)
    cluster.held = {known: "t", former: "t", UUID(int=6): "other"}
    cluster.inventories[1] = {(known, 0): LogEnd(1, 7, 10), (known, 1): LogEnd(1, 7, 10)}
    cluster.presumed = {2}
    assert world.do(complete(cluster, world.chance)) == []
    cluster.inventories[2] = {(former, 0): LogEnd(1, 9, 99), (UUID(int=6), 0): LogEnd(1, 9, 9)}
    cluster.presumed = set()
    world.do(complete(cluster, world.chance))
    assert cluster.topic_id("t") == known
    history = cluster.topic_histories["t"]
    assert (history.migrated, history.initial_partition_count) == (False, 2)
    assert requests.why_no_full(cluster) is None


def test_topics_from_before_ids_are_migrated() -> None:
    world = old_store()
    cluster = world.cluster
    cluster.nameless[1] = {T0: LogEnd(-1, 7, 10)}
    world.do(complete(cluster, world.chance))
    assert cluster.topic_id("t") == UUID(int=2)
    assert cluster.topic_histories["t"].migrated
    assert cluster.log_end(1, T0) == LogEnd(-1, 7, 10), "it adopts the id: nothing is lost"
    count = cluster.topics["t"].initial_partition_count
    assert count == cluster.topics["t"].undeleted_partition_count == 2


def test_partitions_from_before_epochs_get_one() -> None:
    world = made()
    for index in (0, 1):
        assert world.tree.apply(world.session, [Set(layout.partition("t", index), b"")]) is None
    loaded = ClusterState(brokers=world.cluster.brokers)
    load(loaded, world.nodes())
    assert loaded.partition_nodes == {}
    world.cluster = loaded
    world.do(complete(loaded, world.chance))
    assert {where.partition: x.partition_epoch for where, x in loaded.partition_nodes.items()} == {
        0: 3,
        1: 4,
    }
    assert loaded.counters[layout.PARTITION_EPOCH] == 4


def test_no_new_id_while_a_broker_that_may_know_it_is_away() -> None:
    world = old_store()
    cluster = world.cluster
    del cluster.brokers[2]
    assert world.do(complete(cluster, world.chance)) == []
    assert requests.why_no_full(cluster) is not None
    cluster.nameless[1] = {T0: LogEnd(-1, 7, 10)}
    world.do(complete(cluster, world.chance))
    assert requests.why_no_full(cluster) is None


def test_a_partition_whose_state_is_gone_is_not_born_again() -> None:
    world = made()
    assert world.tree.apply(world.session, [Delete(layout.state("t", 1))]) is None
    loaded = ClusterState(brokers=world.cluster.brokers)
    load(loaded, world.nodes())
    assert complete(loaded, world.chance).writes == ()
    full = requests.leader_and_isr(loaded, requests.Sender(1, "PLAINTEXT"), 1, [T0, T1], 2)
    states = full.topic_states[0].partition_states
    assert [(x.leader, x.leader_epoch) for x in states] == [(1, 0), (-1, -1)]


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ([Set(layout.topic("t"), b"{")], "/brokers/topics/t cannot be read"),
        ([Set(layout.topic("t"), b'{"partitions":{"0":[]}}')], "without replicas"),
        ([Set(layout.topic_history("t"), b"{")], None),
        ([Set(layout.state("t", 0), b"{")], None),
    ],
)
def test_a_damaged_node_is_named_and_healed_later(operations: list[Set], why: str | None) -> None:
    world = made()
    path = operations[0].path
    healthy = world.nodes()[path].data
    before = world.cluster.topics["t"]
    taken = outside(world, *operations)
    assert path in taken.errors[0]
    said = requests.why_no_full(world.cluster)
    assert (said is None) if why is None else (why in (said or ""))
    outside(world, Set(path, healthy))
    assert world.cluster.damaged == {}
    assert world.cluster.topics["t"] == before
    assert requests.why_no_full(world.cluster) is None


def test_a_topic_node_that_is_gone_deletes_nothing() -> None:
    world = made()
    gone = [Delete(layout.state("t", i)) for i in (0, 1)]
    gone += [Delete(layout.partition("t", i)) for i in (0, 1)]
    gone += [Delete(layout.partitions("t")), Delete(layout.topic("t"))]
    taken = outside(world, *gone)
    assert "it is missing, but /tidelog/topics/t is there" in taken.errors[0]
    # An advice to remove the other node was one to delete the topic.
    assert "is removed too, the topic is deleted with its records" in taken.errors[0]
    assert "/brokers/topics/t" in (requests.why_no_full(world.cluster) or "")
    outside(world, Delete(layout.topic_history("t")))
    assert requests.why_no_full(world.cluster) is None


def test_a_topic_node_that_is_gone_beside_a_damaged_history_deletes_nothing() -> None:
    world = made()
    path, history = layout.topic("t"), layout.topic_history("t")
    was = {name: world.nodes()[name].data for name in (path, history)}
    outside(world, Set(history, b"{"))
    states = [Delete(layout.state("t", i)) for i in (0, 1)]
    states += [Delete(layout.partition("t", i)) for i in (0, 1)]
    outside(world, *states, Delete(layout.partitions("t")), Delete(path))
    loaded = ClusterState(brokers=world.cluster.brokers)
    load(loaded, world.nodes())
    for cluster in (world.cluster, loaded):
        assert cluster.damaged.keys() == {path, history}
        assert cluster.unreadable_topics == ["t"]
    # Either node alone is not the topic yet.
    outside(world, Set(history, was[history]))
    assert world.cluster.unreadable_topics == ["t"]
    outside(world, Create(path, was[path]))
    assert world.cluster.damaged == {}


def test_a_partition_missing_from_a_loaded_node_deletes_nothing() -> None:
    world = made()
    text = node("{'partitions':{'0':[1,2]}}")
    assert world.tree.apply(world.session, [Set(layout.topic("t"), text)]) is None
    loaded = ClusterState()
    load(loaded, world.nodes())
    assert "lacks the partition 1" in (requests.why_no_full(loaded) or "")


def test_a_deletion_that_a_tool_asks_for() -> None:
    world = made()
    outside(world, Create("/admin/delete_topics/t", b""))
    cluster = world.cluster
    assert cluster.topics == {} and cluster.marked == set()
    assert [x.name for x in cluster.deletions.values()] == ["t"]
    assert "/admin/delete_topics/t" not in world.tree.nodes
    outside(world, Create("/admin/delete_topics/none", b""))
    assert "/admin/delete_topics/none" not in world.tree.nodes


def test_a_deletion_is_not_done_while_deletion_is_switched_off() -> None:
    world = made()
    outside(world, Create("/admin/delete_topics/t", b""), deletes=False)
    assert set(world.cluster.topics) == {"t"}
    assert "/admin/delete_topics/t" not in world.tree.nodes


def test_a_topic_that_is_rewritten_and_deleted_at_once() -> None:
    world = made()
    written = node("{'partitions':{'0':[1,2],'1':[2,1],'2':[1]}}")
    outside(world, Set(layout.topic("t"), written), Create("/admin/delete_topics/t", b""))
    assert world.cluster.topics == {}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ("{'version':2,'entity_path':'topics/t'}", "/config/topics/t"),
        ("{'version':1,'entity_type':'topics','entity_name':'t'}", "/config/topics/t"),
        ("{'version':2,'entity_path':'brokers/<default>'}", "/config/brokers/<default>"),
        ("{'version':2,'entity_path':'users/u'}", None),
        ("nonsense", None),
    ],
)
def test_notes_of_config_changes_name_what_to_look_at(change: str, path: str | None) -> None:
    world = made()
    note = "/config/changes/config_change_0000000001"
    taken = outside(world, Create(note, node(change)))
    assert taken.to_check == ([] if path is None else [path])
    assert note not in world.tree.nodes


def test_configurations_that_a_tool_writes() -> None:
    world = made()
    cluster = world.cluster
    shrunk = PartitionState(1, 0, 1, [1], eligible_replicas=[2])
    world.commit((put_state(cluster, T0, shrunk),))
    path = layout.topic_configs("t")
    outside(world, Create(path, node("{'version':1,'config':{'min.insync.replicas':'1'}}")))
    assert cluster.topic_configs["t"] == {"min.insync.replicas": "1"}
    # Cleared before brokers receive a lowered minimum.
    assert cluster.states[T0].eligible_replicas == []
    outside(world, Set(path, node("{'version':1,'config':{'retention.ms':'5'}}")))
    assert cluster.topic_configs["t"] == {"retention.ms": "5"}
    outside(world, Delete(path))
    assert "t" not in cluster.topic_configs
    world.commit((put_state(cluster, T0, PartitionState(-1, 0, 1, [])),))
    defaults = node("{'config':{'unclean.leader.election.enable':'true'}}")
    outside(world, Create(layout.broker_configs(layout.ALL_BROKERS), defaults))
    assert cluster.states[T0].is_unclean_leader
    outside(world, Delete(layout.broker_configs(layout.ALL_BROKERS)))
    outside(world, Create(layout.broker_configs("7"), node("{'version':1,'config':{'a':'b'}}")))
    assert cluster.broker_configs == {"7": {"a": "b"}}


def test_no_record_goes_by_configurations_that_cannot_be_read() -> None:
    """The defaults took their place, and with them a retention of a week."""
    world = made()
    path, defaults = layout.topic_configs("t"), layout.broker_configs(layout.ALL_BROKERS)
    own = node(
        "{'version':1,'config':{'cleanup.policy':'compact','min.insync.replicas':'2',"
        "'min.insync.machines':'3'}}"
    )
    outside(
        world, Create(path, own), Create(defaults, node("{'config':{'log.retention.ms':'-1'}}"))
    )
    shrunk = PartitionState(1, 0, 1, [1], eligible_replicas=[2])
    world.commit((put_state(world.cluster, T0, shrunk),))
    taken = outside(world, Set(path, b"{"), Set(defaults, b"{"))
    assert len(taken.errors) == 2
    for name in ("t", "another"):
        configs = world.cluster.resolve(name).configs
        assert (configs.retention_ms, configs.retention_bytes, configs.compacted) == (-1, -1, False)
    # Nor is a minimum lowered by that: the known one counts, and of one that was never read all.
    assert world.cluster.resolve("t").configs.min_insync_replicas == 2
    assert world.cluster.resolve("t").configs.min_insync_machines == 3
    assert world.cluster.resolve("another").configs.min_insync_replicas == 1
    load(again := ClusterState(), world.nodes())
    assert again.min_insync("t", 3) == again.min_insync("another", 3) == 3
    assert world.cluster.states[T0].eligible_replicas == [2]
    assert config_effects.of_a_start(world.cluster).writes == ()
    outside(world, Set(path, own), Delete(defaults))
    assert world.cluster.damaged == {}
    assert world.cluster.topic_configs["t"]["min.insync.replicas"] == "2"


def test_what_the_controller_wrote_itself_is_not_taken_for_anothers() -> None:
    world = made()
    nodes = world.nodes()
    paths = [
        layout.topic("t"),
        layout.topic_history("t"),
        "/config/topics/t",
        "/brokers/topics/none",
    ]
    assert changed(world.cluster, {path: nodes.get(path) for path in paths}) == {}


def test_a_look_at_many_topics_walks_over_the_states_a_few_times_in_all() -> None:
    class Counted(dict[TopicPartition, PartitionState]):
        walks = 0

        def __iter__(self) -> Iterator[TopicPartition]:
            self.walks += 1
            return super().__iter__()

    world = World(1)
    names = [f"t{number}" for number in range(50)]
    world.create(*(TopicToCreate(name) for name in names))
    states = world.cluster.states = Counted(world.cluster.states)
    bare = node("{'version':1,'partitions':{'0':[1]}}")
    operations = [Set(layout.topic(name), bare) for name in names]
    assert world.tree.apply(world.session, operations) is None
    nodes = world.nodes()
    found = changed(world.cluster, {x.path: nodes.get(x.path) for x in operations})
    assert len(found) == len(names)
    take_up(world.cluster, found, world.chance, True)
    assert states.walks < 10


@pytest.mark.parametrize("wrong", [layout.topic("t"), layout.topic_history("t")])
def test_a_topic_with_another_id_than_its_history_deletes_nothing(wrong: str) -> None:
    """The history of a former topic of the name was taken for the right one: all replicas of the
    present one became stale."""
    world = made()
    right = world.nodes()[wrong].data
    topic_id = world.cluster.topic_id("t")
    other = right.replace(layout.id_text(topic_id).encode(), OTHER_ID.encode())
    assert other != right
    assert world.tree.apply(world.session, [Set(wrong, other)]) is None
    loaded = ClusterState(brokers=world.cluster.brokers)
    load(loaded, world.nodes())
    assert loaded.unreadable_topics == ["t"]
    assert OTHER_ID in str(loaded.damaged[layout.topic("t")])
    world.cluster = loaded
    world.do(complete(loaded, world.chance))
    assert world.nodes()[wrong].data == other
    outside(world, Set(wrong, right))
    assert (loaded.damaged, loaded.topic_id("t")) == ({}, topic_id)


def test_a_history_that_is_repaired_with_another_id_deletes_nothing() -> None:
    world = made()
    path, topic_id = layout.topic_history("t"), world.cluster.topic_id("t")
    right = world.nodes()[path].data
    outside(world, Set(path, b"{"))
    other = right.replace(layout.id_text(topic_id).encode(), OTHER_ID.encode())
    outside(world, Set(path, other))
    assert world.cluster.unreadable_topics == ["t"]
    outside(world, Set(path, right))
    assert (world.cluster.damaged, world.cluster.topic_id("t")) == ({}, topic_id)


@pytest.mark.parametrize("wrong", [b"{", b'{"partitions":{"0":[1,2]}}'])
def test_a_topic_whose_history_is_removed_beside_its_damaged_node_is_not_deleted(
    wrong: bytes,
) -> None:
    """The removal was taken for the second half of a deletion, while the topic's node was there."""
    world = made()
    path, history = layout.topic("t"), layout.topic_history("t")
    before = world.cluster.topics["t"]
    right = world.nodes()[path].data
    assert world.tree.apply(world.session, [Set(path, wrong)]) is None
    world.cluster = ClusterState(brokers=world.cluster.brokers)
    load(world.cluster, world.nodes())
    assert world.cluster.unreadable_topics == ["t"]
    outside(world, Delete(history))
    assert world.cluster.unreadable_topics == ["t"]
    outside(world, Set(path, right))
    assert (world.cluster.damaged, world.cluster.topics["t"]) == ({}, before)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_topic_without_its_id_and_a_partition_without_its_epoch_get_their_own(
    is_gone: bool,
) -> None:
    """The replicas were looked for under no id: the partition got a new epoch, and each replica
    of it became stale."""
    world = made()
    topic_id = world.cluster.topic_id("t")
    written: list[Operation] = [Set(layout.topic("t"), OLD_NODE)]
    if is_gone:
        written += [Delete(layout.state("t", 1)), Delete(layout.partition("t", 1))]
    else:
        written.append(Set(layout.partition("t", 1), b""))
    assert world.tree.apply(world.session, written) is None
    loaded = ClusterState(brokers=world.cluster.brokers)
    load(loaded, world.nodes())
    for broker in (1, 2):
        loaded.inventories[broker] = {(topic_id, i): LogEnd(1 + i, 0, 5) for i in (0, 1)}
    world.cluster = loaded
    for _ in range(2):
        world.do(complete(loaded, world.chance))
    assert loaded.topic_id("t") == topic_id
    found = loaded.partition_nodes.get(T1)
    assert found is None if is_gone else found is not None and found.partition_epoch == 2
    assert (T1 in loaded.states) != is_gone


def test_a_topic_without_an_id_beside_a_damaged_history_holds_up_no_other() -> None:
    world = made()
    path, history = layout.topic("t"), layout.topic_history("t")
    topic_id, right = world.cluster.topic_id("t"), world.nodes()[history].data
    written = [Set(path, OLD_NODE), Set(history, b"{")]
    assert world.tree.apply(world.session, written) is None
    world.cluster = ClusterState(brokers=world.cluster.brokers)
    load(world.cluster, world.nodes())
    world.do(complete(world.cluster, world.chance))
    assert world.cluster.unreadable_topics == ["t"]
    assert requests.why_no_full(world.cluster, leaves_unreadable=True) is None
    assert history in (requests.why_no_full(world.cluster) or "")
    outside(world, Set(history, right))
    assert (world.cluster.unreadable_topics, world.cluster.topic_id("t")) == ([], topic_id)
