"""Shares of members, and the bytes they travel in."""

from __future__ import annotations

import pytest

from tidelog.client.errors import ClientError
from tidelog.client.groups.assignors import (
    AWARE_RANGE,
    RANGE,
    PartitionCounts,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    epochs_of_assignment,
    epochs_of_subscription,
    range_assignment,
)
from tidelog.model.topics import TopicPartition


def parts(topic: str, *indexes: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in indexes]


def counts(**topics: int) -> dict[str, PartitionCounts]:
    return {name: PartitionCounts(number, number) for name, number in topics.items()}


def test_the_first_members_get_one_more() -> None:
    shares = range_assignment({"b": ["t"], "a": ["t"], "c": ["t"]}, counts(t=7))
    assert shares == {"a": parts("t", 0, 1, 2), "b": parts("t", 3, 4), "c": parts("t", 5, 6)}


def test_members_get_only_what_they_subscribed_to() -> None:
    shares = range_assignment({"a": ["t", "u"], "b": ["u"]}, counts(t=2, u=2))
    assert shares == {"a": parts("t", 0, 1) + parts("u", 0), "b": parts("u", 1)}


def test_more_members_than_partitions_and_unknown_topics() -> None:
    shares = range_assignment({"a": ["t", "gone"], "b": ["t"]}, counts(t=1))
    assert shares == {"a": parts("t", 0), "b": []}


def test_every_partition_has_one_owner() -> None:
    for members in range(1, 8):
        names = {f"m{number}": ["t"] for number in range(members)}
        for count in range(12):
            owned = [
                p for share in range_assignment(names, counts(t=count)).values() for p in share
            ]
            assert sorted(owned) == parts("t", *range(count))


def test_retired_partitions_are_assigned_apart() -> None:
    members = {"a": ["t"], "b": ["t"]}
    resized = {"t": PartitionCounts(4, 6)}
    assert range_assignment(members, resized, AWARE_RANGE) == {
        "a": parts("t", 0, 1, 4),
        "b": parts("t", 2, 3, 5),
    }
    assert range_assignment(members, resized, RANGE) == {
        "a": parts("t", 0, 1, 2),
        "b": parts("t", 3, 4, 5),
    }


def test_resize_epochs_travel_as_user_data() -> None:
    epochs = {"t": 3, "ü": 0}
    subscription = encode_subscription(["ü", "t"], epochs)
    assert decode_subscription(subscription) == ["t", "ü"]
    assert epochs_of_subscription(subscription) == epochs
    assignment = encode_assignment(parts("t", 1, 2), epochs)
    assert decode_assignment(assignment) == parts("t", 1, 2)
    assert epochs_of_assignment(assignment) == epochs


@pytest.mark.parametrize(
    "data",
    [
        encode_subscription(["t"]),
        encode_subscription(["t"], {"t": 3})[:-2],
        # Another version, and another client's user data.
        encode_subscription(["t"])[:-4] + b"\0\0\0\x06\0\1\0\0\0\1",
        encode_subscription(["t"])[:-4] + b"\0\0\0\x03\0\0\7",
        b"",
    ],
)
def test_user_data_that_are_not_ours_say_nothing(data: bytes) -> None:
    assert epochs_of_subscription(data) == {}
    assert epochs_of_assignment(b"") == {}


def test_bytes_round_trip() -> None:
    shares = parts("t", 0, 5) + parts("ü", 1)
    assert decode_assignment(encode_assignment(shares)) == shares
    assert decode_assignment(b"") == []
    assert decode_subscription(encode_subscription(["b", "a", "a"])) == ["a", "b"]


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    later = b"\0\3" + encode_subscription(["t"])[2:] + b"\0\0\0\0\0\0\0\7\xff\xff"
    assert decode_subscription(later) == ["t"]


@pytest.mark.parametrize("cut", range(2, 12))
def test_cut_bytes_are_refused(cut: int) -> None:
    with pytest.raises(ClientError):
        decode_subscription(encode_subscription(["topic"])[:cut])
