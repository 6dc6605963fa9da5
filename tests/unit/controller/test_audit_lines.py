"""What the log says of the commits that an operator may ask about (U11)."""

from __future__ import annotations

import logging

from tests.support.controller_world import World
from tidelog.controller.audit_lines import audit_lines
from tidelog.controller.decisions.creation import Defaults, TopicToCreate, create_topics
from tidelog.controller.decisions.decision import Put, Remove, Write
from tidelog.controller.decisions.deletion import PendingDelete, delete_topics
from tidelog.controller.decisions.growth import Growth, create_partitions
from tidelog.metadata import layout
from tidelog.metadata.records import ConfigNode


def said(world: World, *writes: Write) -> list[str]:
    return [str(line) for line in audit_lines(world.cluster, writes)]


def test_a_topic_that_comes_grows_and_goes() -> None:
    world = World(1, 2, 3)
    asked = [TopicToCreate("t", 2, 3, configs=(("retention.ms", "5"),))]
    created = create_topics(world.cluster, asked, Defaults(1, 1), world.chance)
    lines = audit_lines(world.cluster, created.writes)
    assert [str(line) for line in lines] == [
        "configuration of topic t: retention.ms=5",
        "topic t created: 2 partitions, 3 replicas each",
    ]
    assert lines[1].level == logging.INFO
    fields = lines[1].fields
    assert (fields["topic"], fields["partitions"], fields["replicas"]) == ("t", 2, 3)
    assert fields["topic_id"] == layout.id_text(created.answer[0].topic_id)
    world.do(created)
    grown = create_partitions(world.cluster, [Growth("t", 8)], world.chance)
    assert said(world, *grown.writes) == ["topic t has 8 partitions now, after 2"]
    world.do(grown)
    gone = delete_topics(world.cluster, [PendingDelete("t")])
    (line,) = audit_lines(world.cluster, gone.writes)
    assert str(line).startswith("topic t deleted, id ") and line.level == logging.WARNING
    # A write that changes nothing is not logged again.
    assert said(world, Put(layout.topic("t"), world.cluster.topics["t"])) == []


def test_what_changed_of_a_configuration() -> None:
    world = World(1)
    world.create(TopicToCreate("t", configs=(("retention.ms", "5"), ("segment.ms", "7"))))
    path = layout.topic_configs("t")
    changed = ConfigNode({"retention.ms": "6", "cleanup.policy": "compact"})
    assert said(world, Put(path, changed)) == [
        "configuration of topic t: cleanup.policy=compact, retention.ms=6, segment.ms unset"
    ]
    (line,) = audit_lines(world.cluster, [Remove(path)])
    assert dict(line.fields) == {"topic": "t", "changes": "retention.ms unset, segment.ms unset"}
    assert said(world, Put(path, ConfigNode({"retention.ms": "5", "segment.ms": "7"}))) == []
    brokers = [
        Put(layout.broker_configs(layout.ALL_BROKERS), ConfigNode({"a": "1"})),
        Put(layout.broker_configs("3"), ConfigNode({"b": "2"})),
    ]
    assert said(world, *brokers) == [
        "configuration of broker all: a=1",
        "configuration of broker 3: b=2",
    ]
