"""Which of two metadata answers holds, and what an address is."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tidelog.client.errors import ClientError
from tidelog.client.metadata import (
    BrokerAddress,
    ClusterMetadata,
    Partition,
    Topic,
    parse_bootstrap,
)
from tidelog.model.topics import TopicPartition

FIRST, SECOND = UUID(int=1), UUID(int=2)


def topic(
    leader: int, epoch: int, *, topic_id: UUID = FIRST, resize: int = -1, error: int = 0
) -> Topic:
    partition = Partition(0, leader, epoch, (1, 2), (1, 2), ())
    return Topic("t", topic_id, False, {0: partition}, error, resize_epoch=resize)


def view(*topics: Topic, brokers: tuple[int, ...] = (1, 2)) -> ClusterMetadata:
    return ClusterMetadata(
        "c", 1, {n: BrokerAddress(n, "h", 9000 + n) for n in brokers}, {t.name: t for t in topics}
    )


def leader_after(before: Topic, answer: Topic, *, whole: bool = False) -> tuple[int, int]:
    found = view(before).merged(view(answer), whole=whole).partition(TopicPartition("t", 0))
    assert found is not None
    return found.leader, found.leader_epoch


def test_a_newer_leader_epoch_holds() -> None:
    assert leader_after(topic(1, 4), topic(2, 5)) == (2, 5)


def test_an_older_response_takes_nothing_back() -> None:
    assert leader_after(topic(2, 5), topic(1, 4)) == (2, 5)


def test_an_answer_without_epochs_holds() -> None:
    assert leader_after(topic(2, 5), topic(1, -1)) == (1, -1)


def test_another_incarnation_of_the_topic_starts_over() -> None:
    assert leader_after(topic(2, 5), topic(1, 0, topic_id=SECOND)) == (1, 0)


def test_an_older_resize_epoch_takes_nothing_back() -> None:
    assert leader_after(topic(2, 5, resize=3), topic(1, 9, resize=2)) == (2, 5)


def resized(resize: int, newest: int, *partitions: tuple[int, int, int]) -> Topic:
    """A topic at a resize epoch; of each partition index, partition epoch and leader epoch."""
    return Topic(
        "t",
        FIRST,
        False,
        {
            index: Partition(index, 1, epoch, (1, 2), (1, 2), (), partition_epoch=incarnation)
            for index, incarnation, epoch in partitions
        },
        initial_partition_count=1,
        undeleted_partition_count=1,
        resize_epoch=resize,
        max_partition_epoch=newest,
    )


def partitions_after(before: Topic, answer: Topic) -> dict[int, tuple[int, int]]:
    """Partition epoch and leader epoch of each partition of the merged topic."""
    found = view(before).merged(view(answer), whole=False).topics["t"].partitions
    return {index: (each.partition_epoch, each.leader_epoch) for index, each in found.items()}


@pytest.mark.parametrize(
    ("before", "answer", "after"),
    [
        # A partition that was seen as removed stays so within one resize epoch.
        (resized(2, 9, (0, 1, 3)), resized(2, 9, (0, 1, 4), (1, 2, 3)), {0: (1, 4)}),
        # One that is removed now is gone.
        (resized(2, 9, (0, 1, 3), (1, 2, 3)), resized(2, 9, (0, 1, 3)), {0: (1, 3)}),
        # A smaller largest partition epoch is older, but a leader may be newer.
        (resized(2, 9, (0, 1, 3)), resized(2, 8, (0, 1, 5), (1, 2, 3)), {0: (1, 5)}),
        # A larger one is newer: below level 1.5 topics grow within a resize epoch.
        (resized(0, 8, (0, 1, 3)), resized(0, 9, (0, 1, 2), (1, 9, 0)), {0: (1, 3), 1: (9, 0)}),
        # Leader epochs count within one incarnation only.
        (resized(2, 8, (0, 1, 7)), resized(3, 9, (0, 9, 5)), {0: (9, 5)}),
    ],
)
def test_the_newer_metadata_of_a_resized_topic_hold(
    before: Topic, answer: Topic, after: dict[int, tuple[int, int]]
) -> None:
    assert partitions_after(before, answer) == after


def test_a_newer_leader_of_an_older_resize_epoch_leaves_the_retirement() -> None:
    """A gate waits for the retired partition: without the mark its survivor would not."""
    before, answer = resized(2, 9, (0, 1, 4), (1, 2, 6)), resized(3, 9, (0, 1, 4), (1, 2, 5))
    retired = replace(answer.partitions[1], retirement_epoch=3, birth_epoch=1, birth_offset=8)
    answer = replace(answer, partitions={**answer.partitions, 1: retired})
    found = view(before).merged(view(answer), whole=False).topics["t"].partitions[1]
    assert found == replace(retired, leader_epoch=6)


def test_a_topic_is_ordered_with_counts_and_epochs_only() -> None:
    known = resized(0, 3, (0, 1, 0))
    assert known.is_ordered
    assert not replace(known, undeleted_partition_count=-1).is_ordered
    assert not resized(0, 3, (0, -1, 0)).is_ordered
    assert not topic(1, 0).is_ordered


def test_without_counts_the_partitions_that_are_not_retired_take_records() -> None:
    known = replace(resized(2, 3, (0, 1, 0), (1, 2, 0)), undeleted_partition_count=-1)
    assert known.count == 2
    retired = {**known.partitions, 1: replace(known.partitions[1], retirement_epoch=2)}
    assert replace(known, partitions=retired).count == 1


def test_brokers_are_those_of_the_answer() -> None:
    merged = view(topic(1, 1)).merged(view(brokers=(7,)), whole=False)
    assert list(merged.brokers) == [7]
    assert list(merged.topics) == ["t"]


def test_a_whole_answer_drops_what_it_lacks() -> None:
    assert view(topic(1, 1)).merged(view(), whole=True).topics == {}


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", [("a", 1)]),
        (" a:1 , b:65535 ,", [("a", 1), ("b", 65535)]),
        ("a", [("a", 9092)]),
        ("[::1]:5", [("::1", 5)]),
        ("::1", [("::1", 9092)]),
        ("PLAINTEXT://h:7", [("h", 7)]),
        (["a:1", "b:2"], [("a", 1), ("b", 2)]),
    ],
)
def test_addresses(text: str | list[str], addresses: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize("text", ["", " , ", "a:b", "a:0", "a:65536", ":9092", "a:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ClientError):
        parse_bootstrap(text)
