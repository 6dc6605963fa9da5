"""Brokers that ``cordoned.log.dirs`` closes (KIP-1066): what they are still given, and what not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.controller_world import World
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.configuration import Alteration, Resource, alter_configs
from tidelog.controller.decisions.cordons import closed_brokers, is_closed
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, RequestRefusal
from tidelog.controller.decisions.growth import Growth, create_partitions
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.reassignments import Asked, reassign
from tidelog.metadata import layout
from tidelog.metadata.records import ConfigNode
from tidelog.model.errors import ErrorCode as E
from tidelog.model.levels import LEVEL_NAMES, level_of
from tidelog.model.topics import TopicPartition

T0 = TopicPartition("t", 0)
CORDONED = "cordoned.log.dirs"
SET, DELETE, APPEND, SUBTRACT = range(4)
DIRS = ["/a", "/b"]


def world(*brokers: int) -> World:
    made = World(*(brokers or (1, 2, 3)))
    for broker, node in made.cluster.brokers.items():
        made.cluster.brokers[broker] = msgspec.structs.replace(node, log_dirs=DIRS)
    return made


def cordon(
    made: World, broker: int, text: str = "*", operation: int = SET
) -> RequestRefusal | None:
    asked = [(Resource(4, str(broker)), [Alteration(CORDONED, operation, text)])]
    ((_, refusal),) = made.do(alter_configs(made.cluster, asked))
    found: RequestRefusal | None = refusal
    return found


def in_file(made: World, broker: int, *entries: str) -> None:
    node = made.cluster.brokers[broker]
    changed = msgspec.structs.replace(node, cordoned_log_dirs=list(entries))
    made.cluster.brokers[broker] = changed


def without_dirs(made: World, broker: int) -> None:
    """Make a broker one that code before KIP-1066 registered."""
    node = made.cluster.brokers[broker]
    made.cluster.brokers[broker] = msgspec.structs.replace(node, log_dirs=[])


@pytest.mark.parametrize(
    ("dynamic", "static", "closed"),
    [
        (None, (), False),
        ("*", (), True),
        ("/a,/b", (), True),
        ("/a", (), False),
        ("", (), False),
        (None, ("*",), True),
        (None, ("/a", "/b/"), True),
        # The dynamic value counts, an empty one, too.
        ("", ("*",), False),
        ("/b", ("*",), False),
    ],
)
def test_which_brokers_are_closed(
    dynamic: str | None, static: tuple[str, ...], closed: bool
) -> None:
    made = world()
    in_file(made, 2, *static)
    if dynamic is not None:
        assert cordon(made, 2, dynamic) is None
    assert [is_closed(made.cluster, broker) for broker in (1, 2, 3)] == [False, closed, False]


def test_unknown_directories_and_brokers_that_are_not_alive() -> None:
    made = world()
    without_dirs(made, 2)
    refused = cordon(made, 2, "/a")
    assert refused is not None and refused.error is E.INVALID_CONFIG
    assert "the log directories of broker 2 are unknown while" in refused.sentence
    assert cordon(made, 2) is None and is_closed(made.cluster, 2)
    # It is closed before it is there, and while it is away.
    assert cordon(made, 9) is None and is_closed(made.cluster, 9)
    assert closed_brokers(made.cluster) == {2, 9}
    # A list that was set while it was alive can be shortened while it is not.
    assert cordon(made, 3, "/a,/b") is None
    without_dirs(made, 3)
    assert not is_closed(made.cluster, 3), "which directories it has is unknown"
    assert cordon(made, 3, "/b", SUBTRACT) is None
    assert made.cluster.broker_configs["3"] == {CORDONED: "/a"}


@pytest.mark.parametrize(
    ("broker", "operation", "text", "error", "said"),
    [
        ("2", SET, "/c", E.INVALID_CONFIG, "/c is no log directory of broker 2, which has /a, /b."),
        ("2", SET, "/a,/c", E.INVALID_CONFIG, "/c is no log directory"),
        ("2", APPEND, "/c", E.INVALID_CONFIG, "/c is no log directory"),
        ("2", SET, "*,/a", E.INVALID_REQUEST, "'*' stands alone"),
        ("2", SET, "/a,,/b", E.INVALID_REQUEST, "an entry is empty"),
        ("", SET, "*", E.INVALID_REQUEST, "cordoned.log.dirs is set for one broker, not for all."),
    ],
)
def test_values_that_are_refused(
    broker: str, operation: int, text: str, error: E, said: str
) -> None:
    made = world()
    asked = [(Resource(4, broker), [Alteration(CORDONED, operation, text)])]
    ((_, refusal),) = made.do(alter_configs(made.cluster, asked))
    assert refusal is not None and (refusal.error, True) == (error, said in refusal.sentence)
    assert made.cluster.broker_configs == {}


def test_a_value_that_an_old_tool_wrote_closes_nothing() -> None:
    made = world()
    made.commit((Put(layout.broker_configs("2"), ConfigNode({CORDONED: "*,/a"})),))
    made.commit((Put(layout.broker_configs(layout.ALL_BROKERS), ConfigNode({CORDONED: "*"})),))
    assert not any(is_closed(made.cluster, broker) for broker in (1, 2, 3))


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_new_partitions_go_to_open_brokers_at_every_level(level: str) -> None:
    made = world()
    made.cluster.level = level_of(level)
    cordon(made, 2)
    (created,) = made.create(TopicToCreate("t", 20, 2))
    assert created.refusal is None
    grown: Any = made.do(create_partitions(made.cluster, [Growth("t", 40)], made.chance))
    assert grown == [("t", None)]
    node = made.cluster.topics["t"]
    assert len(node.partitions) == 40
    assert all(2 not in replicas for replicas in node.partitions.values())
    # An open broker that is suspected still comes before a closed one.
    made.cluster.suspected.add(3)
    made.create(TopicToCreate("u", 5, 2))
    assert all(set(x) == {1, 3} for x in made.cluster.topics["u"].partitions.values())
    # It is open again.
    cordon(made, 2, "", DELETE)
    made.create(TopicToCreate("v", 20, 3))
    assert all(2 in replicas for replicas in made.cluster.topics["v"].partitions.values())


def test_too_few_open_brokers_are_refused_with_the_closed_ones() -> None:
    made = world()
    made.create(TopicToCreate("t", 1, 3))
    cordon(made, 2)
    cordon(made, 3, "/a,/b")
    (created,) = made.create(TopicToCreate("u", 1, 2))
    assert created.refusal == RequestRefusal(
        E.INVALID_REPLICATION_FACTOR,
        "A replication factor of 2 needs as many brokers that get new replicas; of 3 there are, "
        "cordoned.log.dirs closes 2, 3.",
    )
    ((_, refusal),) = made.do(create_partitions(made.cluster, [Growth("t", 2)], made.chance))
    assert refusal is not None and refusal.error is E.INVALID_REPLICATION_FACTOR
    (created,) = made.create(TopicToCreate("u", 1, 4))
    assert created.refusal is not None and "3 are there." in created.refusal.sentence


def test_assignments_may_not_name_a_closed_broker() -> None:
    made = world()
    made.create(TopicToCreate("t", 1, 2))
    cordon(made, 3)
    said = (
        "The replica assignment cannot be used: broker 3 gets no new replicas: its log directories "
        "are cordoned."
    )
    expected = RequestRefusal(E.INVALID_REPLICA_ASSIGNMENT, said)
    (created,) = made.create(TopicToCreate("u", assignment=((0, (1, 3)),)))
    assert created.refusal == expected
    growth = Growth("t", 2, ((3, 1),))
    ((_, refusal),) = made.do(create_partitions(made.cluster, [growth], made.chance))
    assert refusal == expected
    ((_, refusal),) = made.do(reassign(made.cluster, [Asked(T0, (1, 3))]))
    assert refusal == expected
    assert made.cluster.moves == {}


def test_replicas_and_targets_that_are_there_stay() -> None:
    made = world(1, 2, 3, 4)
    made.create(TopicToCreate("t", assignment=((0, (1, 2)),)))
    cordon(made, 2)

    def moved(*targets: int) -> RequestRefusal | None:
        ((_, refusal),) = made.do(reassign(made.cluster, [Asked(T0, targets)]))
        found: RequestRefusal | None = refusal
        return found

    assert moved(2, 1) is None, "another order"
    assert moved(3, 2) is None, "one of two leaves"
    cordon(made, 3)
    assert moved(3, 2) is None, "the same move again"
    assert moved(2, 3) is None, "its target was on its way before the cordon"
    refused = moved(1, 4), moved(3, 1)
    assert refused[0] is None
    assert refused[1] is not None and "broker 3 gets no new replicas" in refused[1].sentence
    ((_, refusal),) = made.do(reassign(made.cluster, [Asked(T0, None)]))
    assert refusal is None


@given(
    st.dictionaries(st.integers(1, 8), st.sampled_from("ab"), min_size=1),
    st.sets(st.integers(1, 8)),
    st.sets(st.integers(1, 8)),
    st.integers(1, 12),
    st.integers(1, 4),
)
def test_no_new_partition_is_on_a_closed_broker(
    racks: dict[int, str], closed: set[int], suspected: set[int], count: int, factor: int
) -> None:
    made = World(*racks, racks=racks)
    made.cluster.suspected.update(suspected & racks.keys())
    for broker in sorted(closed & racks.keys()):
        assert cordon(made, broker) is None
    may = racks.keys() - closed
    (created,) = made.create(TopicToCreate("t", count, factor))
    if factor > len(may):
        assert created.refusal is not None
        assert created.refusal.error is E.INVALID_REPLICATION_FACTOR
        return
    made.do(create_partitions(made.cluster, [Growth("t", 2 * count)], made.chance))
    replicas = made.cluster.topics["t"].partitions.values()
    assert len(replicas) == 2 * count
    assert all(may >= set(some) and len(set(some)) == factor for some in replicas)
    # As if the closed ones were not there.
    alone = World(*may, racks={broker: racks[broker] for broker in may})
    alone.cluster.suspected.update(suspected & may)
    alone.create(TopicToCreate("t", count, factor))
    alone.do(create_partitions(alone.cluster, [Growth("t", 2 * count)], alone.chance))
    assert alone.cluster.topics["t"].partitions == made.cluster.topics["t"].partitions


def test_a_cordon_outlives_the_controller() -> None:
    made = world()
    cordon(made, 2)
    again = ClusterState(brokers=made.cluster.brokers)
    load(again, made.nodes())
    assert [is_closed(again, broker) for broker in (1, 2, 3)] == [False, True, False]
