"""Subscriptions and assignments as bytes: ours, Kafka's, damaged ones."""

from __future__ import annotations

import pytest
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyAssignorUserDataV1
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from tidelog.client.errors import ClientError
from tidelog.client.groups.assignors import ASSIGNORS, offered
from tidelog.client.groups.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    epochs_of_assignment,
)
from tidelog.model.topics import TopicPartition

OWNED = (TopicPartition("t", 0), TopicPartition("t", 3), TopicPartition("ü", 1))


def parts(topic: str, *indexes: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in indexes]


def plain(*topics: str) -> bytes:
    return encode_subscription(Subscription(topics), "range")


def aware(*topics: str, **epochs: int) -> bytes:
    return encode_subscription(Subscription(topics, epochs=epochs), "tidelog.range")


@pytest.mark.parametrize("assignor", offered(ASSIGNORS))
def test_a_subscription_is_read_as_it_was_written(assignor: str) -> None:
    said = Subscription(("t", "ü"), OWNED, 7, {"t": 3, "ü": 0})
    read = decode_subscription(encode_subscription(said, assignor), assignor)
    assert read.topics == said.topics
    if assignor.startswith("tidelog."):
        assert read.epochs == said.epochs
    else:
        assert read.epochs == {}
    if assignor.startswith("tidelog.") or "sticky" in assignor:
        assert (read.owned, read.generation) == (OWNED, 7)
    else:
        assert (read.owned, read.generation) == ((), -1)


def test_other_clients_read_what_sticky_members_say() -> None:
    """aiokafka's sticky and kafka-python's cooperative assignor are second opinions on the bytes.

    kafka-python's sticky one is none: it writes a version before its user data, and Java does not.
    """
    said = Subscription(("t", "ü"), OWNED, 7)
    data = encode_subscription(said, "sticky")
    user_data = StickyAssignorUserDataV1.decode(data[2 + 4 + 3 + 4 + 4 :])
    assert [(topic, list(some)) for topic, some in user_data.previous_assignment] == [
        ("t", [0, 3]),
        ("ü", [1]),
    ]
    assert user_data.generation == 7
    cooperative = ConsumerProtocolSubscription.decode(
        encode_subscription(said, "cooperative-sticky")
    )
    read = CooperativeStickyAssignor.parse_member_metadata(cooperative)
    assert sorted(tuple(each) for each in read.partitions) == sorted(OWNED)
    assert (read.generation, sorted(read.subscription)) == (7, ["t", "ü"])


def test_a_cooperative_member_of_version_1_has_its_generation_in_its_user_data() -> None:
    said = encode_subscription(Subscription(("t",), OWNED, 7), "cooperative-sticky")
    older = b"\0\1" + said[2:-4]
    assert decode_subscription(older, "cooperative-sticky").generation == 7
    assert decode_subscription(older, "cooperative-sticky").owned == OWNED


def test_resize_epochs_travel_as_user_data() -> None:
    epochs = {"t": 3, "ü": 0}
    assignment = encode_assignment(parts("t", 1, 2), epochs)
    assert decode_assignment(assignment) == parts("t", 1, 2)
    assert epochs_of_assignment(assignment) == epochs
    assert epochs_of_assignment(encode_assignment(parts("t", 1, 2))) == {}


@pytest.mark.parametrize(
    "data",
    [
        plain("t"),
        aware("t", t=3)[:-12],
        # Another version, and another client's user data.
        plain("t")[:-4] + b"\0\0\0\x06\0\1\0\0\0\1",
        plain("t")[:-4] + b"\0\0\0\x03\0\0\7",
    ],
)
def test_user_data_that_are_not_ours_say_nothing(data: bytes) -> None:
    read = decode_subscription(data, "tidelog.range")
    assert read.topics == ("t",)
    assert read.epochs == {}
    assert epochs_of_assignment(b"") == {}


def test_bytes_round_trip() -> None:
    shares = parts("t", 0, 5) + parts("ü", 1)
    assert decode_assignment(encode_assignment(shares)) == shares
    assert decode_assignment(b"") == []
    assert decode_subscription(plain("b", "a", "a")).topics == ("a", "b")


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    later = b"\0\3" + plain("t")[2:] + b"\0\0\0\0\0\0\0\7\xff\xff"
    assert decode_subscription(later).topics == ("t",)
    assert decode_subscription(later).generation == 7


@pytest.mark.parametrize("cut", range(2, 12))
def test_cut_bytes_are_refused(cut: int) -> None:
    with pytest.raises(ClientError):
        decode_subscription(plain("topic")[:cut])


@pytest.mark.parametrize("assignor", offered(ASSIGNORS))
def test_bytes_cut_after_the_topics_say_at_most_what_they_hold(assignor: str) -> None:
    data = encode_subscription(Subscription(("t",), OWNED, 7, {"t": 3}), assignor)
    for cut in range(9, len(data)):
        read = decode_subscription(data[:cut], assignor)
        assert read.topics == ("t",)
        assert read.owned in ((), OWNED)
        assert read.generation in (-1, 7)
