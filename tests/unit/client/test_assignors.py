"""Shares of members by range and in turn, with their retired partitions apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.groups.assignors import (
    ASSIGNORS,
    RANGE,
    PartitionCounts,
    assign,
    is_cooperative,
    offered,
)
from tidelog.client.groups.consumer_protocol import Subscription
from tidelog.model.topics import TopicPartition


def parts(topic: str, *indexes: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in indexes]


def counts(**topics: int) -> dict[str, PartitionCounts]:
    return {name: PartitionCounts(number, number) for name, number in topics.items()}


def members(**topics: str) -> dict[str, Subscription]:
    return {member: Subscription(tuple(names.split())) for member, names in topics.items()}


def test_the_first_members_get_one_more() -> None:
    shares = assign(RANGE, members(b="t", a="t", c="t"), counts(t=7))
    assert shares == {"a": parts("t", 0, 1, 2), "b": parts("t", 3, 4), "c": parts("t", 5, 6)}


def test_members_get_only_what_they_subscribed_to() -> None:
    shares = assign(RANGE, members(a="t u", b="u"), counts(t=2, u=2))
    assert shares == {"a": parts("t", 0, 1) + parts("u", 0), "b": parts("u", 1)}


def test_more_members_than_partitions_and_unknown_topics() -> None:
    assert assign(RANGE, members(a="t gone", b="t"), counts(t=1)) == {"a": parts("t", 0), "b": []}


def test_round_robin_goes_on_from_topic_to_topic() -> None:
    """The example of Kafka's RoundRobinAssignor."""
    shares = assign("roundrobin", members(c0="t0 t1", c1="t0 t1"), counts(t0=3, t1=3))
    assert shares == {
        "c0": parts("t0", 0, 2) + parts("t1", 1),
        "c1": parts("t0", 1) + parts("t1", 0, 2),
    }


def test_round_robin_skips_members_without_the_topic() -> None:
    """The second example of Kafka's RoundRobinAssignor."""
    said = members(c0="t0", c1="t0 t1", c2="t0 t1 t2")
    assert assign("roundrobin", said, counts(t0=1, t1=2, t2=3)) == {
        "c0": parts("t0", 0),
        "c1": parts("t1", 0),
        "c2": parts("t1", 1) + parts("t2", 0, 1, 2),
    }


@pytest.mark.parametrize("assignor", [RANGE, "roundrobin"])
def test_static_members_come_first_by_their_own_ids(assignor: str) -> None:
    said = {
        "a": Subscription(("t",)),
        "z": Subscription(("t",), instance_id="2"),
        "y": Subscription(("t",), instance_id="1"),
    }
    shares = assign(assignor, said, counts(t=3))
    assert shares == {"y": parts("t", 0), "z": parts("t", 1), "a": parts("t", 2)}


def test_retired_partitions_are_assigned_apart() -> None:
    said = members(a="t", b="t")
    resized = {"t": PartitionCounts(4, 6)}
    assert assign("tidelog.range", said, resized) == {
        "a": parts("t", 0, 1, 4),
        "b": parts("t", 2, 3, 5),
    }
    assert assign(RANGE, said, resized) == {"a": parts("t", 0, 1, 2), "b": parts("t", 3, 4, 5)}


@pytest.mark.parametrize("assignor", ["tidelog.sticky", "tidelog.cooperative-sticky"])
def test_sticky_members_share_the_retired_partitions_too(assignor: str) -> None:
    said = {"a": Subscription(("t",), tuple(parts("t", 2, 3)), 1), "b": Subscription(("t",))}
    shares = assign(assignor, said, {"t": PartitionCounts(2, 4)})
    taking = [sum(each.partition < 2 for each in share) for share in shares.values()]
    assert taking == [1, 1]
    if assignor == "tidelog.sticky":
        assert [len(share) for share in shares.values()] == [2, 2]


def test_a_member_offers_the_aware_names_first() -> None:
    assert offered(["range", "cooperative-sticky"]) == [
        "tidelog.range",
        "tidelog.cooperative-sticky",
        "range",
        "cooperative-sticky",
    ]
    assert is_cooperative(["cooperative-sticky"])
    assert not is_cooperative(["range", "cooperative-sticky"])


TOPICS = ("t", "u", "v")
SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(6)]),
    st.builds(lambda names: Subscription(tuple(names)), st.sets(st.sampled_from(TOPICS))),
)
COUNTS = st.dictionaries(
    st.sampled_from(TOPICS),
    st.integers(0, 9).flatmap(
        lambda taking: st.builds(PartitionCounts, st.just(taking), st.integers(taking, taking + 5))
    ),
)


@given(SUBSCRIPTIONS, COUNTS, st.sampled_from(offered(ASSIGNORS)))
def test_every_partition_has_one_subscribed_owner(
    said: dict[str, Subscription], known: dict[str, PartitionCounts], assignor: str
) -> None:
    shares = assign(assignor, said, known)
    assert shares.keys() == said.keys()
    owned = sorted(each for share in shares.values() for each in share)
    read = {topic for each in said.values() for topic in each.topics}
    assert owned == sorted(
        TopicPartition(topic, index)
        for topic, each in known.items()
        if topic in read
        for index in range(each.listed)
    )
    for member, share in shares.items():
        assert {each.topic for each in share} <= set(said[member].topics)
