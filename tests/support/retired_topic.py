"""A topic with two retired partitions, and what their leader says of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from tests.support.controller_world import World
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, Write
from tidelog.controller.decisions.removal import Held
from tidelog.metadata import layout
from tidelog.model.levels import level_of
from tidelog.model.topics import TopicPartition

TOPIC = "t"
T4, T5 = TopicPartition(TOPIC, 4), TopicPartition(TOPIC, 5)
EMPTY = Held(
    leader=1,
    leader_epoch=3,
    log_start=90,
    stable_end=100,
    log_end=100,
    data_end=90,
    is_closed=True,
)


def shrunk(**configs: str) -> World:
    """Six partitions, born as four; at resize epoch 3 four are left: 4 and 5 are retired."""
    world = World(1, 2, 3)
    world.cluster.level = level_of("1.5")
    settings = tuple((key.replace("_", "."), value) for key, value in configs.items())
    replicas = tuple((index, (1, 2)) for index in range(6))
    world.create(TopicToCreate(TOPIC, assignment=replicas, configs=settings))
    cluster = world.cluster
    node = msgspec.structs.replace(
        cluster.topics[TOPIC], initial_partition_count=2, undeleted_partition_count=4
    )
    history = msgspec.structs.replace(
        cluster.topic_histories[TOPIC], initial_partition_count=2, resize_epoch=3
    )
    writes: list[Write] = [
        Put(layout.topic(TOPIC), node),
        Put(layout.topic_history(TOPIC), history),
    ]
    for where in (T4, T5):
        state = msgspec.structs.replace(cluster.states[where], leader_epoch=3)
        born = msgspec.structs.replace(
            cluster.partition_nodes[where], birth_epoch=1, birth_offset=10, retirement_epoch=3
        )
        writes += [Put(layout.partition(*where), born), Put(layout.state(*where), state)]
    world.commit(tuple(writes))
    return world


def changed(world: World, **fields: Any) -> None:
    history = msgspec.structs.replace(world.cluster.topic_histories[TOPIC], **fields)
    world.commit((Put(layout.topic_history(TOPIC), history),))


def held(**changes: int) -> Held:
    """What a leader holds that is empty but for the changes."""
    return replace(EMPTY, **changes)
