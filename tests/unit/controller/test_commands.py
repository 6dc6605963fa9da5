"""What brokers are sent: changes from writes, requests from state, sessions by given times."""

from __future__ import annotations

from uuid import UUID

import msgspec

from tests.support.controller_world import World
from tidelog.controller import requests
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, Write
from tidelog.controller.decisions.deletion import PendingDelete, delete_topics
from tidelog.controller.decisions.journal import operations, with_revision
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.registration import expire
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.decisions.stops import stops_of
from tidelog.controller.pending import Changes, changes_of
from tidelog.controller.requests import Gone, Sender
from tidelog.metadata import layout
from tidelog.metadata.records import ConfigNode, PartitionState, TopicHistory, UncleanDebt
from tidelog.metadata.store import CheckVersion, Create, Delete, Set
from tidelog.model.topics import TopicPartition

SENDER = Sender(101, "PLAINTEXT")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def world() -> World:
    made = World(1, 2)
    made.create(TopicToCreate("t", 2, 1))
    return made


def test_every_write_is_conditional_on_the_controller_epoch_and_known_versions() -> None:
    made = world()
    state = PartitionState(2, 1, 1, [2])
    writes: tuple[Write, ...] = (
        Put(layout.state("t", 0), state),
        Put("/config/topics/t", ConfigNode({})),
        Put("/config/topics/t", ConfigNode({"a": "b"})),
        Put("/new/deep/node", ConfigNode({})),
    )
    found = operations(made.cluster, with_revision(made.cluster, writes))
    kinds = [(type(x), x.path, getattr(x, "version", None)) for x in found]
    assert kinds == [
        (CheckVersion, "/controller_epoch", 0),
        (Set, "/brokers/topics/t/partitions/0/state", 0),
        (Create, "/config/topics/t", None),
        (Set, "/config/topics/t", 0),
        (Create, "/new", None),
        (Create, "/new/deep", None),
        (Create, "/new/deep/node", None),
        (Set, "/tidelog/revision", 0),
    ]
    removal = delete_topics(made.cluster, [PendingDelete("t")]).writes
    deleted = [x for x in operations(made.cluster, removal) if isinstance(x, Delete)]
    assert deleted
    assert all(x.version == made.cluster.versions[x.path] for x in deleted)


def test_what_writes_concern() -> None:
    made = world()
    cluster = made.cluster
    state = PartitionState(2, 1, 1, [2])
    history = msgspec.structs.replace(cluster.topic_histories["t"], unclean={1: UncleanDebt(1, 1)})
    node = cluster.topics["t"]
    named, moved, grown = (
        msgspec.structs.replace(node, **changes)
        for changes in (
            {"topic_id": "other"},
            {"partitions": {0: [1, 2], 1: [2]}},
            {"partitions": {0: [1], 1: [2], 2: [1]}},
        )
    )
    rows: list[tuple[Write, Changes]] = [
        (put_state(cluster, T0, state), Changes(partitions={T0})),
        (Put(layout.topic("t"), node), Changes()),
        (Put(layout.topic("t"), named), Changes({(2, "t")}, {T0, T1})),
        (Put(layout.topic("t"), moved), Changes(partitions={T0})),
        (Put(layout.topic("t"), grown), Changes({(2, "t")}, {TopicPartition("t", 2)})),
        (
            Put(layout.topic("u"), node),
            Changes({(2, "u")}, {TopicPartition("u", x) for x in (0, 1)}),
        ),
        (Put(layout.topic_configs("t"), ConfigNode({})), Changes(configs={(2, "t")})),
        (Put(layout.broker_configs("1"), ConfigNode({})), Changes(configs={(4, "1")})),
        (Put(layout.broker_configs("<default>"), ConfigNode({})), Changes(configs={(4, "")})),
        (Put(layout.topic_history("t"), history), Changes()),
    ]
    for write, expected in rows:
        assert isinstance(write, Put)
        expected.kinds = {type(write.record)}
        assert changes_of(cluster, [write]) == expected, write
    made.commit((Put(layout.topic_history("t"), history),))
    cleared = msgspec.structs.replace(history, unclean={})
    assert changes_of(cluster, [Put(layout.topic_history("t"), cleared)]) == Changes(
        partitions={T1}, kinds={TopicHistory}
    )
    found = changes_of(cluster, expire(cluster, [1]).writes)
    assert found.brokers
    assert T0 in found.partitions
    removal = delete_topics(cluster, [PendingDelete("t")]).writes
    found = changes_of(cluster, removal)
    assert found.gone == {"t": Gone("t", cluster.topic_id("t"), (0, 1))}
    assert found.stops
    assert not Changes()


def test_changes_add_up_to_the_life_that_the_broker_knows() -> None:
    first, second = Gone("t", UUID(int=1), (0,)), Gone("t", UUID(int=2), (0, 1))
    changes = Changes(partitions={T0})
    changes.add(Changes(gone={"t": first}, all_stops=True))
    changes.add(Changes(gone={"t": second}, brokers=True, configs={(2, "t")}))
    assert changes == Changes({(2, "t")}, {T0}, {"t": first}, all_stops=True, brokers=True)


def test_slices_have_whole_topics_with_what_is_only_shown() -> None:
    a, b, c = ([TopicPartition(name, index) for index in range(4)] for name in "abc")
    changes = Changes(partitions={*a[:2], *c}, shown={*a[2:], *b}, brokers=True)
    parts = [(part.partitions, part.shown, part.brokers) for part in changes.slices(8)]
    assert parts == [({*a[:2]}, {*a[2:], *b}, True), ({*c}, set(), False)]
    assert [bool(part) for part in changes.slices(4)] == [True] * 3
    assert len(list(changes.slices(12))) == 1
    more = Changes(shown={*c})
    more.add(changes)
    assert (more.shown, more.partitions) == ({*a[2:], *b, *c}, changes.partitions)


def test_leader_and_isr_names_only_the_brokers_own_partitions() -> None:
    made = world()
    cluster = made.cluster
    full = requests.leader_and_isr(cluster, SENDER, 2, [T0, T1], requests.FULL)
    assert (full.controller_id, full.controller_epoch, full.broker_epoch) == (101, 1, 2)
    (topic,) = full.topic_states
    assert (topic.topic_name, topic.topic_id) == ("t", cluster.topic_id("t"))
    assert not topic.migrated
    (state,) = topic.partition_states
    assert (state.partition_index, state.leader, state.isr_version, state.is_new) == (1, 2, 0, True)
    (leader,) = full.live_leaders
    assert (leader.broker_id, leader.host_name, leader.port) == (2, "h2", 1)


def test_an_order_says_that_a_topic_is_older_than_topic_ids() -> None:
    """A replica without an id adopts that of such a topic, and no other's (KIP-516)."""
    made = world()
    history = msgspec.structs.replace(made.cluster.topic_histories["t"], migrated=True)
    made.commit((Put(layout.topic_history("t"), history),))
    full = requests.leader_and_isr(made.cluster, SENDER, 2, [T0, T1], requests.FULL)
    assert [topic.migrated for topic in full.topic_states] == [True]


def test_a_damaged_state_stands_with_leader_and_epoch_minus_one() -> None:
    made = world()
    cluster = made.cluster
    made.tree.apply(made.session, [Set(layout.state("t", 0), b"{")])
    load(cluster, made.nodes())
    assert requests.why_no_full(cluster) is None
    full = requests.leader_and_isr(cluster, SENDER, 1, [T0], requests.FULL)
    (state,) = full.topic_states[0].partition_states
    assert (state.leader, state.leader_epoch, state.isr) == (-1, -1, [])


def test_no_full_while_a_topic_cannot_be_read_or_has_no_id() -> None:
    made = world()
    made.tree.apply(made.session, [Create(layout.topic("u"), b"{")])
    load(made.cluster, made.nodes())
    assert "/brokers/topics/u" in (requests.why_no_full(made.cluster) or "")
    made = world()
    old = msgspec.structs.replace(made.cluster.topics["t"], topic_id=None)
    made.commit((Put(layout.topic("t"), old),))
    assert requests.why_no_full(made.cluster) == "The topic t has no id yet."


def test_debts_and_flags_reach_the_leader() -> None:
    made = world()
    history = msgspec.structs.replace(
        made.cluster.topic_histories["t"], unclean={0: UncleanDebt(1, 1)}
    )
    made.commit((Put(layout.topic_history("t"), history),))
    flagged = msgspec.structs.replace(made.cluster.states[T0], is_unclean_leader=True)
    made.commit((put_state(made.cluster, T0, flagged),))
    orders = requests.leader_and_isr(made.cluster, SENDER, 1, [T0], requests.INCREMENTAL)
    (state,) = orders.topic_states[0].partition_states
    assert (state.is_unclean_leader, state.has_debt, state.isr_version) == (True, True, 1)


def test_metadata_names_live_brokers_offline_replicas_and_what_is_gone() -> None:
    made = World(1, 2)
    made.create(TopicToCreate("t", 1, 2))
    del made.cluster.brokers[2]
    gone = Gone("old", UUID(int=9), (0, 1))
    told = requests.update_metadata(made.cluster, SENDER, 1, [T0], [gone])
    assert [broker.id for broker in told.live_brokers] == [1]
    (end,) = told.live_brokers[0].endpoints
    assert (end.listener, end.host, end.port, end.security_protocol) == ("PLAINTEXT", "h1", 1, 0)
    old, topic = told.topic_states
    assert [(x.partition_index, x.leader) for x in old.partition_states] == [(0, -2), (1, -2)]
    (state,) = topic.partition_states
    assert (state.replicas, state.offline_replicas) == ([1, 2], [2])


def test_configurations_are_whole_sets_and_empty_ones_for_what_has_none() -> None:
    made = world()
    made.commit((Put(layout.topic_configs("t"), ConfigNode({"b": "2", "a": "1"})),))
    told = requests.update_configs(made.cluster, SENDER, 1, None)
    assert told.store_revision == made.cluster.revision
    assert told.level == made.cluster.level.name == "1.6"
    found = [
        (e.entity_type, e.entity_name, [(c.name, c.value) for c in e.configs])
        for e in told.entities
    ]
    assert found == [(2, "t", [("a", "1"), ("b", "2")]), (4, "", []), (4, "1", [])]
    told = requests.update_configs(made.cluster, SENDER, 1, {(2, "gone")})
    assert [(e.entity_name, e.configs) for e in told.entities] == [("gone", [])]


def test_a_deletion_is_ordered_by_id_with_the_sentinel_epoch() -> None:
    made = world()
    topic_id = made.cluster.topic_id("t")
    made.do(delete_topics(made.cluster, [PendingDelete("t")]))
    (order,) = requests.stop_replica(made.cluster, SENDER, 1, stops_of(made.cluster, 1))
    (topic,) = order.topic_states
    assert (topic.topic_name, topic.topic_id) == ("t", topic_id)
    (state,) = topic.partition_states
    assert (state.partition_index, state.leader_epoch, state.partition_epoch) == (0, -2, -1)
    assert state.delete_partition
