"""An empty store is not a new one: which ones are empty, what a second loss must not repeat."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put
from tidelog.controller.decisions.lost_store import adopt, is_empty, why_no_id
from tidelog.controller.decisions.producer_ids import next_block
from tidelog.controller.decisions.registration import Address, Registration, register
from tidelog.controller.decisions.restoration import accept
from tidelog.metadata import layout
from tidelog.metadata.records import (
    ConfigNode,
    Counter,
    DeletionMark,
    ProducerIdBlock,
    Record,
    WentBack,
)
from tidelog.model.registration import FormerRegistration

X = "anothercluster00000000"

CREATED: dict[str, tuple[str, Record]] = {
    "a partition, deleted since": (layout.PARTITION_EPOCH, Counter(1)),
    "producer ids": (layout.PRODUCER_IDS, ProducerIdBlock(1, "0", "999")),
    "the configurations of a topic": (layout.topic_configs("t"), ConfigNode({"a": "b"})),
    "the configurations of a broker": (f"{layout.BROKER_CONFIGS}/1", ConfigNode({"a": "b"})),
    "a mark": (layout.deletion_mark("t"), DeletionMark()),
    "a mark that it is lost": (layout.WENT_BACK, WentBack("why")),
}


def registration(broker: int, seen: tuple[int, int] = (-1, -1)) -> Registration:
    addresses = (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),)
    ended = FormerRegistration.CLEAN
    identity = UUID(int=broker)
    return Registration(broker, "", identity, identity, addresses, None, ended, {}, seen=seen)


def test_brokers_make_no_store_a_used_one() -> None:
    world = World()
    assert is_empty(world.cluster)
    world.do(register(world.cluster, registration(1), 1))
    assert is_empty(world.cluster)
    world.create(TopicToCreate("t", 1, 1))
    assert not is_empty(world.cluster)


@pytest.mark.parametrize("what", CREATED)
def test_whatever_was_created_makes_it_a_used_one(what: str) -> None:
    world = World()
    world.commit((Put(*CREATED[what]),))
    assert not is_empty(world.cluster)
    assert adopt(world.cluster, X, "broker 2 says so").writes == ()


def test_what_is_used_and_has_no_id_is_named() -> None:
    world = World()
    world.cluster.cluster_id = None
    assert why_no_id(world.cluster) is None
    world.create(TopicToCreate("t", 1, 1)) if world.cluster.brokers else world.commit(
        (Put(layout.PARTITION_EPOCH, Counter(1)),)
    )
    assert layout.CLUSTER_ID in (why_no_id(world.cluster) or "")


def lost_and_accepted(seen: tuple[int, int]) -> World:
    """A store that was lost while a broker had seen this much, and was accepted empty."""
    world = World()
    world.cluster.inventories[2] = {}
    world.do(adopt(world.cluster, X, "broker 2 says so"))
    world.cluster.seen[2] = seen
    world.do(register(world.cluster, registration(2, seen), 1))
    answer = world.do(accept(world.cluster, (), (), world.chance))
    assert isinstance(answer, dict), answer
    return world


def test_a_second_loss_repeats_no_producer_id_and_no_broker_epoch() -> None:
    first = lost_and_accepted((7, 100))
    blocks = [first.do(next_block(first.cluster, 2)) for _ in range(3)]
    seen = (first.cluster.controller_epoch, first.cluster.revision)
    epochs = [first.cluster.brokers[2].broker_epoch]
    epochs.append(first.do(register(first.cluster, registration(2, seen), 2)))
    second = lost_and_accepted(seen)
    (block, *_) = [second.do(next_block(second.cluster, 2))]
    assert block.first > max(x.first + x.size for x in blocks)
    assert second.cluster.brokers[2].broker_epoch > max(epochs)
    assert second.cluster.cluster_id == X and second.cluster.went_back is None
