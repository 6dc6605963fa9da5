"""Nodes of the metadata store that are well-formed JSON and wrong: every field of every record.

Owns a store in which every kind of node stands, and how a field is made wrong. What a controller
does with such a store: see ``tests/unit/controller/test_wrong_nodes.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from tests.support.resizing_world import ResizingWorld
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, Write
from tidelog.controller.decisions.reassignments import Asked, reassign
from tidelog.metadata import layout
from tidelog.metadata.records import (
    ConfigChange,
    ConfigNode,
    Counter,
    DeletionNode,
    FormerPartition,
    LostRange,
    OfferedTransactions,
    ProducerIdBlock,
    ReassignPartitionsNode,
    TopicHistory,
    UncertainReplicas,
    UncleanDebt,
)
from tidelog.model.topics import TopicPartition

STANDER = "stander"
"""A topic whose nodes stay right: whatever is wrong beside it must not concern it."""

GONE = UUID(int=999)
"""The id of a topic that is being deleted."""

_ALIKE = {
    *(layout.broker(x) for x in (2, 3)),
    *(layout.state("t", x) for x in (1, 2, 3)),
    *(layout.partition("t", x) for x in (1, 2, 3)),
    layout.state("moving", 1),
    layout.partition("moving", 1),
}
"""Nodes beside one that is just like them."""

INTEGERS = (-1, -2, 0, 1, 7, 2**31 - 1, 2**31, 2**63, 10**40)
TEXTS = ("", "x", "../x", "a" * 300)
LISTS: tuple[Any, ...] = ([], [1, 1], [-1], [2**31], [7], [3, 1], [1, "2"], [[1]])
MAPS: tuple[Any, ...] = (
    {},
    {"0": []},
    {"-1": [1]},
    {"0": [1], "2": [1]},
    {"0": [1, 1]},
    {"0": [3, 1]},
    {"9": {"9": 9}},
    {"0": {"-1": 5}},
    {"0": {"1": -7}},
    {"0": {"1": 5}},
    {"0": 2**40},
    {"x": "y"},
)
OF_OTHER_TYPES: tuple[Any, ...] = (1.5, True, None, "5", [5], {"5": 5})

LEFT_OUT = object()


def store() -> ResizingWorld:
    """A cluster of three brokers: a topic that grows, one that moves, one that is being deleted,
    one that stands, and every other kind of node."""
    world = ResizingWorld(4)
    names = ("moving", STANDER, "small")
    world.create(
        *(TopicToCreate(name, assignment=((0, (1, 2)), (1, (2, 3)))) for name in names[:2]),
        TopicToCreate(names[2], 1, 1),
    )
    world.ask(2 + 4)
    world.advance()
    world.do(reassign(world.cluster, [Asked(TopicPartition("moving", 0), (2, 3))]))
    world.commit(tuple(_others(world)))
    return world


def _others(world: ResizingWorld) -> Iterator[Write]:
    yield Put(layout.BROKER_EPOCH, Counter(30))
    yield Put(layout.PRODUCER_IDS, ProducerIdBlock(1, "0", "999"))
    yield Put(layout.deletion(GONE), DeletionNode("gone", {0: [1, 2]}, {0: 4}))
    yield Put(layout.topic_configs("moving"), ConfigNode({"retention.ms": "5"}))
    yield Put(layout.broker_configs("1"), ConfigNode({"log.cleaner.threads": "2"}))
    yield Put(layout.broker_configs(layout.ALL_BROKERS), ConfigNode({"log.retention.ms": "9"}))
    yield Put(layout.OFFERED_TRANSACTIONS, OfferedTransactions("1.6"))
    yield Put(layout.UNCERTAIN_REPLICAS, UncertainReplicas({"small": {0: [1]}}))
    row = {"topic": "moving", "partition": 1, "replicas": [3, 1]}
    yield Put(layout.REASSIGN_PARTITIONS, ReassignPartitionsNode([row]))
    yield Put(f"{layout.CONFIG_CHANGES}/config_change_0000000001", ConfigChange("topics/moving"))
    history = TopicHistory(
        world.cluster.topics["small"].topic_id or "",
        1,
        original_replicas={0: [1]},
        pending_stops={0: {3: 0}},
        stop_partition_epochs={0: {3: 1}},
        former={1: FormerPartition(9, 3, 8, 2, 0)},
        unclean={0: UncleanDebt(1, 0, 5, 0, [LostRange(2, 4, 5, [0])])},
        unclean_past={0: [UncleanDebt(2, 0)]},
    )
    yield Put(layout.topic_history("small"), history)


def wrong_nodes(world: ResizingWorld) -> Iterator[tuple[str, str, bytes]]:
    """Yield (path, what is wrong, content) for every field of every node but the stander's."""
    for path, node in sorted(world.nodes().items()):
        if layout.topic_of(path) == STANDER or layout.kind_of(path) is None or not node.data:
            continue
        if path in _ALIKE:
            continue
        right = json.loads(node.data)
        for place, now in _places(right):
            for value in (*_wrong_for(now), LEFT_OUT):
                wrong = _with(right, place, value)
                if wrong != right:
                    said = "left out" if value is LEFT_OUT else json.dumps(value)[:20]
                    yield path, f"{'.'.join(map(str, place)) or 'all'}: {said}", _text(wrong)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    yield at, value
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _places(part, (*at, name))
    elif isinstance(value, list) and value:
        yield from _places(value[0], (*at, 0))


def _wrong_for(now: Any) -> tuple[Any, ...]:
    if isinstance(now, bool):
        return OF_OTHER_TYPES
    kinds = ((int, INTEGERS), (str, TEXTS), (list, LISTS), (dict, MAPS))
    same = next((values for kind, values in kinds if isinstance(now, kind)), ())
    return (*same, *OF_OTHER_TYPES)


def _with(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return {} if new is LEFT_OUT else new
    name, *rest = place
    if new is LEFT_OUT and not rest:
        if isinstance(value, dict):
            return {key: x for key, x in value.items() if key != name}
        return [x for index, x in enumerate(value) if index != name]
    changed = _with(value[name], tuple(rest), new)
    if isinstance(value, dict):
        return {**value, name: changed}
    return [changed if index == name else x for index, x in enumerate(value)]


def _text(value: Any) -> bytes:
    return json.dumps(value).encode()
