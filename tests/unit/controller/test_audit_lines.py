"""What the log says of the commits that an operator may ask about (U11)."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from tests.support.controller_world import World
from tidelog.controller.audit_lines import audit_lines
from tidelog.controller.decisions.creation import Defaults, TopicToCreate, create_topics
from tidelog.controller.decisions.decision import Decision, Put, Remove, Write
from tidelog.controller.decisions.deletion import PendingDelete, delete_topics
from tidelog.controller.decisions.growth import Growth, create_partitions
from tidelog.controller.decisions.isr import Proposal, alter_isr
from tidelog.controller.decisions.moves import complete
from tidelog.controller.decisions.reassignments import Asked, reassign
from tidelog.metadata import layout
from tidelog.metadata.records import ConfigNode
from tidelog.model.levels import level_of
from tidelog.model.topics import TopicPartition


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
    world.cluster.level = level_of("1.4")
    grown = create_partitions(world.cluster, [Growth("t", 8)], world.chance)
    assert said(world, *grown.writes) == ["topic t has 8 partitions now, after 2"]
    world.do(grown)
    gone = delete_topics(world.cluster, [PendingDelete("t")])
    (line,) = audit_lines(world.cluster, gone.writes)
    assert str(line).startswith("topic t deleted, id ") and line.level == logging.WARNING
    # A write that changes nothing is not logged again.
    assert said(world, Put(layout.topic("t"), world.cluster.topics["t"])) == []


def test_each_step_of_a_move() -> None:
    world = World(1, 2, 3, 4, 5)
    world.create(TopicToCreate("t", assignment=((0, (1, 2)),)))
    where = TopicPartition("t", 0)

    def did(decision: Decision[Any]) -> list[str]:
        lines = said(world, *decision.writes)
        world.do(decision)
        return lines

    def asked(*targets: int) -> list[str]:
        return did(reassign(world.cluster, [Asked(where, targets or None)]))

    def joins(*isr: int) -> list[str]:
        state, version = world.cluster.states[where], world.cluster.isr_version(where)
        proposal = Proposal(where, UUID(int=0), state.leader_epoch, isr, version)
        return did(alter_isr(world.cluster, 1, [proposal]))

    move = "reassignment of t-0"
    assert asked(3, 4) == [f"{move} started: from [1, 2] to [3, 4], leader epoch 1"]
    assert joins(1, 2, 3) == []
    assert asked(3, 5) == [f"{move} changed: to [3, 5] instead of [3, 4], leader epoch 2"]
    assert asked() == [f"{move} cancelled: to [3, 5]; it stays on [1, 2, 3], leader epoch 3"]
    assert asked(3, 4) == [f"{move} started: from [1, 2, 3] to [3, 4], leader epoch 4"]
    assert joins(1, 2, 3, 4) == []
    ended = f"{move} completed: from [1, 2, 3, 4] to [3, 4], leader epoch 5"
    assert did(complete(world.cluster)) == [ended]


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
