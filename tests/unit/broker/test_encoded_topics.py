"""Which bytes of a topic are kept, and how many."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.broker.metadata.cache import MetadataCache, TopicMetadata
from tidelog.broker.metadata.cluster_view import ClusterView
from tidelog.broker.metadata.encoded_topics import (
    OVERHEAD_BYTES,
    Appearance,
    EncodedTopics,
    Form,
)
from tidelog.protocol import messages

Update = messages.UpdateMetadataRequest
FORM = Form(version=9, tagged=False, with_operations=False)
TAGGED = Form(version=9, tagged=True, with_operations=False)
ALL, OURS = "PLAINTEXT", "INSIDE"
"""A listener of all brokers, and one of the first only."""


def topic(name: str, leader: int = 1, **counts: int) -> Any:
    part = Update.UpdateMetadataPartitionState(partition_index=0, leader=leader, replicas=[1, 2])
    return Update.UpdateMetadataTopicState(topic_name=name, partition_states=[part], **counts)


def told(cache: MetadataCache, *topics: Any, brokers: tuple[int, ...] = (1, 2)) -> None:
    live = [
        Update.UpdateMetadataBroker(
            id=node,
            endpoints=[
                Update.UpdateMetadataEndpoint(port=9, host="host", listener=name)
                for name in ((ALL, OURS) if node == 1 else (ALL,))
            ],
        )
        for node in brokers
    ]
    cache.apply(Update(topic_states=list(topics), live_brokers=live), complete=False)


@pytest.fixture
def cache() -> MetadataCache:
    made = MetadataCache()
    told(made, topic("t", 1), topic("u", 2))
    return made


def view(
    cache: MetadataCache,
    listener: str = ALL,
    lost: tuple[int, ...] = (),
    *,
    ordered: bool = True,
) -> ClusterView:
    return ClusterView.of(cache, lost.__contains__, listener, is_ordered=lambda _: ordered)


def appearances(seen: ClusterView, form: Form = FORM) -> tuple[Appearance, Appearance]:
    """How the two topics appear."""
    topics = seen.metadata.topics
    return seen.appearance_of(topics["t"], form), seen.appearance_of(topics["u"], form)


def test_a_topic_appears_otherwise_when_its_leader_cannot_be_named(cache: MetadataCache) -> None:
    before = appearances(view(cache))
    assert appearances(view(cache)) == before
    lost = appearances(view(cache, lost=(2,)))
    assert lost[0] == before[0]
    assert lost[1] != before[1]
    told(cache, brokers=(1,))
    assert appearances(view(cache)) == lost
    told(cache, brokers=(1, 2, 3))
    assert appearances(view(cache)) == before


def test_listeners_of_all_brokers_share_an_appearance(cache: MetadataCache) -> None:
    assert appearances(view(cache, OURS))[0] != appearances(view(cache))[0]
    told(cache, brokers=(1,))
    assert appearances(view(cache, OURS))[0] == appearances(view(cache))[0]


def test_counts_are_shown_to_clients_that_ask_for_them(cache: MetadataCache) -> None:
    unordered = view(cache, ordered=False)
    assert appearances(view(cache), TAGGED) == appearances(unordered, TAGGED)
    told(cache, topic("t", undeleted_partition_count=1, initial_partition_count=1))
    assert appearances(view(cache), TAGGED)[0] != appearances(unordered, TAGGED)[0]
    assert appearances(view(cache)) == appearances(unordered)


def keep(
    encoded: EncodedTopics, found: TopicMetadata, appearance: Appearance, content: bytes
) -> None:
    encoded.keep(found.name, found.change, appearance, content)


def kept(encoded: EncodedTopics, found: TopicMetadata, appearance: Appearance) -> bytes | None:
    return encoded.get(found.name, found.change, appearance)


def test_a_change_of_one_topic_drops_the_bytes_of_no_other(cache: MetadataCache) -> None:
    encoded, seen = EncodedTopics(), view(cache)
    for found, appearance, content in zip(
        cache.topics.values(), appearances(seen), (b"t", b"u"), strict=True
    ):
        keep(encoded, found, appearance, content)
    told(cache, topic("t", 2))
    seen = view(cache)
    at, other = appearances(seen)
    assert kept(encoded, cache.topics["t"], at) is None
    assert kept(encoded, cache.topics["u"], other) == b"u"
    keep(encoded, cache.topics["t"], at, b"new")
    assert kept(encoded, cache.topics["t"], at) == b"new"
    # What was begun before the change is no newer than it.
    encoded.keep("t", cache.topics["t"].change - 1, at, b"old")
    assert kept(encoded, cache.topics["t"], at) == b"new"
    assert encoded.size == len(b"new") + len(b"u") + 2 * OVERHEAD_BYTES


def test_a_topic_of_the_same_name_has_other_bytes(cache: MetadataCache) -> None:
    encoded, appearance = EncodedTopics(), appearances(view(cache))[0]
    keep(encoded, cache.topics["t"], appearance, b"t")
    told(cache, topic("t", leader=-2))
    told(cache, topic("t"))
    assert kept(encoded, cache.topics["t"], appearance) is None


def test_the_bytes_of_all_topics_have_a_bound(cache: MetadataCache) -> None:
    most = 10 * (OVERHEAD_BYTES + 100)
    encoded, seen = EncodedTopics(most), view(cache)
    names = [f"t{number}" for number in range(30)]
    told(cache, *map(topic, names))
    found = [(cache.topics[name], seen.appearance_of(cache.topics[name], FORM)) for name in names]
    for one, appearance in found:
        keep(encoded, one, appearance, bytes(100))
        assert encoded.size <= most
    assert [one.name for one, appearance in found if kept(encoded, one, appearance)] == names[-10:]
    # Versions count, too: the topic that has been kept for longest makes room.
    one, appearance = found[-1]
    for version in range(10, 14):
        keep(encoded, one, appearance._replace(form=FORM._replace(version=version)), bytes(100))
    assert encoded.size == most
    assert [one.name for one, appearance in found if kept(encoded, one, appearance)] == names[-6:]
    keep(encoded, cache.topics["t"], appearance, bytes(most))
    assert kept(encoded, cache.topics["t"], appearance) is None
    encoded.forget("t29")
    assert encoded.size == most // 2
    encoded.clear()
    assert (encoded.size, kept(encoded, found[-2][0], appearance)) == (0, None)
