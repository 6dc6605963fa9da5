"""Altering configurations: operations, resources and refusals as tables; producer id blocks."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.configuration import (
    Alteration,
    Resource,
    alter_configs,
    cost_of_change,
    replace_configs,
)
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, RequestRefusal
from tidelog.controller.decisions.producer_ids import Block, next_block
from tidelog.metadata import layout
from tidelog.metadata.records import ProducerIdBlock
from tidelog.model.errors import ErrorCode as E

TOPIC = Resource(2, "t")
SET, DELETE, APPEND, SUBTRACT = range(4)


def world() -> World:
    made = World(1)
    made.create(TopicToCreate("t", configs=(("retention.ms", "5"), ("cleanup.policy", "compact"))))
    return made


def errors(answer: Any) -> list[E | None]:
    return [None if refusal is None else refusal.error for _, refusal in answer]


@pytest.mark.parametrize(
    ("name", "operation", "value", "after"),
    [
        ("retention.ms", SET, "7", "7"),
        ("retention.ms", DELETE, None, None),
        ("segment.ms", DELETE, None, None),
        ("no.such", DELETE, None, None),
        ("cleanup.policy", APPEND, "delete", "compact,delete"),
        ("cleanup.policy", APPEND, "compact", "compact"),
        ("cleanup.policy", SUBTRACT, "compact", ""),
        ("cleanup.policy", SUBTRACT, "delete", "compact"),
        ("leader.replication.throttled.replicas", APPEND, "0:1, 1:2", "0:1,1:2"),
        ("retention.ms", SET, "x", E.INVALID_CONFIG),
        ("retention.ms", SET, None, E.INVALID_REQUEST),
        ("retention.ms", APPEND, None, E.INVALID_REQUEST),
        ("retention.ms", DELETE, "5", None),
        ("retention.ms", APPEND, "1", E.INVALID_CONFIG),
        ("retention.ms", SUBTRACT, "1", E.INVALID_CONFIG),
        ("no.such", SET, "1", E.INVALID_CONFIG),
        ("no.such", APPEND, "1", E.INVALID_CONFIG),
        ("cleanup.policy", APPEND, "shred", E.INVALID_CONFIG),
        ("retention.ms", 4, "1", E.INVALID_REQUEST),
        ("retention.ms", -1, "1", E.INVALID_REQUEST),
    ],
)
def test_operations(name: str, operation: int, value: str | None, after: Any) -> None:
    made = world()
    before = dict(made.cluster.topic_configs["t"])
    asked = [(TOPIC, [Alteration(name, operation, value)])]
    answer = made.do(alter_configs(made.cluster, asked, validate_only=True))
    assert made.cluster.topic_configs["t"] == before
    assert made.do(alter_configs(made.cluster, asked)) == answer
    if isinstance(after, E):
        assert errors(answer) == [after]
        assert made.cluster.topic_configs["t"] == before
    else:
        assert errors(answer) == [None]
        expected = {**before, name: after} if after is not None else before
        if after is None:
            expected.pop(name, None)
        assert made.cluster.topic_configs["t"] == expected


LISTED = "leader.replication.throttled.replicas"


@pytest.mark.parametrize("operation", [SET, APPEND, SUBTRACT])
def test_a_value_is_no_longer_than_a_string_of_the_protocol(operation: int) -> None:
    made = world()
    asked = [(TOPIC, [Alteration(LISTED, operation, ",".join(["1:1"] * 10_000))])]
    assert errors(made.do(alter_configs(made.cluster, asked))) == [E.INVALID_CONFIG]
    replaced = [(TOPIC, [(LISTED, ",".join(["1:1"] * 10_000))])]
    assert errors(made.do(replace_configs(made.cluster, replaced))) == [E.INVALID_CONFIG]
    assert LISTED not in made.cluster.topic_configs["t"]


def test_a_value_does_not_grow_beyond_that_by_appending() -> None:
    made = world()
    for start, error in ((0, None), (4_000, E.INVALID_CONFIG)):
        more = ",".join(f"{index}:1" for index in range(start, start + 4_000))
        answer = made.do(alter_configs(made.cluster, [(TOPIC, [Alteration(LISTED, APPEND, more)])]))
        assert errors(answer) == [error]
    assert made.cluster.topic_configs["t"][LISTED].count(",") == 3_999


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_the_longest_lists_take_milliseconds(operation: int) -> None:
    made = world()
    first = ",".join(f"{index:x}" for index in range(6_000))
    second = ",".join(f"-{index:x}" for index in range(5_000))
    made.cluster.topic_configs["t"][LISTED] = first
    begun = time.process_time()
    alter_configs(made.cluster, [(TOPIC, [Alteration(LISTED, operation, second)])])
    assert time.process_time() - begun < 0.2  # 0.8 s with 6,000 x 5,000 comparisons


def test_long_lists_cost_more() -> None:
    short, long = ((TOPIC, [Alteration(LISTED, SET, "1:1," * times)]) for times in (1, 8_000))
    assert cost_of_change(long) > 10 * cost_of_change(short)
    assert cost_of_change((TOPIC, [(LISTED, "1:1," * 8_000)])) == cost_of_change(long)


@pytest.mark.parametrize(
    ("resource", "name", "error"),
    [
        (Resource(2, "t"), "segment.ms", None),
        (Resource(2, "none"), "segment.ms", E.UNKNOWN_TOPIC_OR_PARTITION),
        (Resource(4, "1"), "log.retention.ms", None),
        (Resource(4, ""), "log.retention.ms", None),
        (Resource(4, "one"), "log.retention.ms", E.INVALID_REQUEST),
        (Resource(4, "-1"), "log.retention.ms", E.INVALID_REQUEST),
        (Resource(2, "none"), "no.such", E.INVALID_CONFIG),
        (Resource(2, ""), "segment.ms", E.INVALID_REQUEST),
        (Resource(2, "a/b"), "segment.ms", E.INVALID_TOPIC_EXCEPTION),
        (Resource(4, "1"), "node.id", E.INVALID_REQUEST),
        (Resource(4, "1"), "retention.ms", E.INVALID_REQUEST),
        (Resource(4, ""), "log.cleaner.min.cleanable.ratio", E.INVALID_REQUEST),
        (Resource(4, "1"), "min.insync.replicas", E.INVALID_CONFIG),
        (Resource(8, "1"), "a", E.INVALID_REQUEST),
        (Resource(32, "g"), "a", E.INVALID_REQUEST),
    ],
)
def test_resources(resource: Resource, name: str, error: E | None) -> None:
    made = world()
    answer = made.do(alter_configs(made.cluster, [(resource, [Alteration(name, SET, "9")])]))
    assert errors(answer) == [error]
    answer = made.do(replace_configs(made.cluster, [(resource, [(name, "9")])]))
    assert errors(answer) == [error]


def test_replacing_drops_what_is_not_named() -> None:
    made = world()
    made.do(replace_configs(made.cluster, [(TOPIC, [("segment.ms", "9")])]))
    assert made.cluster.topic_configs["t"] == {"segment.ms": "9"}
    made.do(replace_configs(made.cluster, [(TOPIC, [])]))
    assert "t" not in made.cluster.topic_configs
    assert layout.topic_configs("t") not in made.cluster.versions


@pytest.mark.parametrize(
    ("resource", "name", "operation", "error"),
    [
        (Resource(4, ""), "log.cleanup.policy", APPEND, None),
        (Resource(4, ""), "log.retention.ms", APPEND, E.INVALID_CONFIG),
        (Resource(4, "one"), "log.retention.ms", APPEND, E.INVALID_REQUEST),
        (Resource(4, ""), "log.retention.ms", 4, E.INVALID_REQUEST),
        (Resource(8, "1"), "a", APPEND, E.INVALID_REQUEST),
        (Resource(2, "none"), "segment.ms", APPEND, E.INVALID_CONFIG),
    ],
)
def test_operations_on_resources(
    resource: Resource, name: str, operation: int, error: E | None
) -> None:
    made = world()
    asked = [(resource, [Alteration(name, operation, "delete")])]
    assert errors(made.do(alter_configs(made.cluster, asked))) == [error]


def test_a_null_value_replaces_nothing() -> None:
    made = world()
    before = dict(made.cluster.topic_configs["t"])
    answer = made.do(replace_configs(made.cluster, [(TOPIC, [("segment.ms", None)])]))
    assert errors(answer) == [E.INVALID_REQUEST]
    assert made.cluster.topic_configs["t"] == before


def test_names_given_twice() -> None:
    made = world()
    twice = [Alteration("segment.ms", SET, "1"), Alteration("segment.ms", SET, "2")]
    assert errors(alter_configs(made.cluster, [(TOPIC, twice)]).answer) == [E.INVALID_REQUEST]
    once = [Alteration("segment.ms", SET, "1")]
    answer = alter_configs(made.cluster, [(TOPIC, once), (TOPIC, once)]).answer
    assert errors(answer) == [E.INVALID_REQUEST] * 2
    nowhere = Resource(2, "none")
    answer = alter_configs(made.cluster, [(nowhere, once), (nowhere, once)]).answer
    assert errors(answer) == [E.INVALID_REQUEST] * 2, "the form comes before what is there"
    pairs = [("segment.ms", "1"), ("segment.ms", "2")]
    assert errors(replace_configs(made.cluster, [(TOPIC, pairs)]).answer) == [E.INVALID_REQUEST]


def test_brokers_and_their_default() -> None:
    made = world()
    for name in ("", "1"):
        change = [(Resource(4, name), [Alteration("log.retention.ms", SET, "9" + name)])]
        made.do(alter_configs(made.cluster, change))
    assert made.cluster.broker_configs == {
        layout.ALL_BROKERS: {"log.retention.ms": "9"},
        "1": {"log.retention.ms": "91"},
    }
    (created,) = made.create(TopicToCreate("u"))
    values = {entry.name: entry.value for entry in created.configs}
    assert values["retention.ms"] == "9"


def test_blocks_of_producer_ids_never_repeat() -> None:
    made = world()
    firsts = [made.do(next_block(made.cluster, 1)).first for _ in range(3)]
    assert firsts == [0, 1000, 2000]
    assert made.cluster.producer_ids == ProducerIdBlock(1, "2000", "2999")
    last = ProducerIdBlock(1, "0", str(2**63 - 1 - 1000))
    made.commit((Put(layout.PRODUCER_IDS, last),))
    assert isinstance(made.do(next_block(made.cluster, 1)), Block)
    decision = next_block(made.cluster, 1)
    assert isinstance(decision.answer, RequestRefusal)
    assert decision.writes == ()
    made.cluster.damaged[layout.PRODUCER_IDS] = layout.Damaged(layout.PRODUCER_IDS, "x")
    assert isinstance(next_block(made.cluster, 1).answer, RequestRefusal)


def test_many_resources_cost_as_many_looks() -> None:
    """Each was looked for among all: 3,000 of them took 20 s."""
    asked = [(Resource(2, f"x{number}"), []) for number in range(5_000)]
    seconds = []
    for _ in range(3):
        began = time.thread_time()
        replace_configs(ClusterState(), asked, False)
        seconds.append(time.thread_time() - began)
    assert min(seconds) < 1.0
