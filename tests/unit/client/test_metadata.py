"""Which of two metadata answers holds, and what an address is."""

from __future__ import annotations

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


def test_another_life_of_the_topic_starts_over() -> None:
    assert leader_after(topic(2, 5), topic(1, 0, topic_id=SECOND)) == (1, 0)


def test_an_older_resize_epoch_takes_nothing_back() -> None:
    assert leader_after(topic(2, 5, resize=3), topic(1, 9, resize=2)) == (2, 5)


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
