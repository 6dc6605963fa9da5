"""What a fetch request says in a session, and what it leaves out."""

from __future__ import annotations

from tidelog.client.fetching.fetch_requests import topics_of
from tidelog.client.fetching.fetch_sessions import (
    MAX_EPOCH,
    FetchSession,
    PartitionFetch,
    SessionRequest,
)
from tidelog.model.topics import TopicPartition
from tidelog.replication.resize_rules import Named

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def at(offset: int) -> PartitionFetch:
    return PartitionFetch(offset, 100, 0)


def test_only_changes_are_said_again() -> None:
    session = FetchSession()
    assert session.ask({A: at(0), B: at(0)}) == SessionRequest(0, 0, {A: at(0), B: at(0)}, [])
    session.answered(7)
    assert session.ask({A: at(5), B: at(0)}) == SessionRequest(7, 1, {A: at(5)}, [])
    session.answered(7)
    assert session.ask({A: at(5)}) == SessionRequest(7, 2, {}, [B])
    session.answered(7)
    assert session.ask({A: at(5), B: at(9)}) == SessionRequest(7, 3, {B: at(9)}, [])


def test_new_numbers_of_a_partition_are_sent_again() -> None:
    """Count, resize epoch, partition epoch: the broker keeps the last ones (KIP-253)."""
    session = FetchSession()
    old, new = at(5)._replace(named=Named(4, 1, 20)), at(5)._replace(named=Named(8, 2, 20))
    session.ask({A: old, B: at(0)})
    session.answered(7)
    assert session.ask({A: old, B: at(0)}).wanted == {}
    session.answered(7)
    assert session.ask({A: new, B: at(0)}).wanted == {A: new}


def test_partitions_on_two_sides_of_a_resize_have_two_entries_of_their_topic() -> None:
    wanted = {
        A: at(1)._replace(named=Named(4, 1, 20)),
        B: at(2)._replace(named=Named(8, 2, 21)),
        TopicPartition("t", 2): at(3)._replace(named=Named(8, 2, 22)),
        TopicPartition("u", 0): at(4),
    }
    found = [
        (
            *(topic.topic, topic.undeleted_partition_count, topic.resize_epoch),
            *((part.partition, part.partition_epoch) for part in topic.partitions),
        )
        for topic in topics_of(wanted)
    ]
    assert found == [
        ("t", 4, 1, (0, 20)),
        ("t", 8, 2, (1, 21), (2, 22)),
        ("u", -1, -1, (0, -1)),
    ]


def test_without_a_session_everything_is_said_every_time() -> None:
    session = FetchSession()
    for _ in range(3):
        assert session.ask({A: at(1)}) == SessionRequest(0, 0, {A: at(1)}, [])
        session.answered(0)


def test_an_error_starts_over() -> None:
    session = FetchSession()
    session.ask({A: at(1)})
    session.answered(7)
    session.ask({A: at(2)})
    session.reset()
    assert session.open_id == 0
    assert session.ask({A: at(2)}) == SessionRequest(0, 0, {A: at(2)}, [])


def test_a_session_that_begins_again_names_the_one_that_it_ends() -> None:
    session = FetchSession()
    session.ask({A: at(1)})
    session.answered(7)
    session.begin_again()
    assert session.open_id == 7
    assert session.ask({A: at(1)}) == SessionRequest(7, 0, {A: at(1)}, [])
    session.answered(8)
    assert session.ask({A: at(1)}) == SessionRequest(8, 1, {}, [])


def test_a_broker_that_ends_the_session_is_believed() -> None:
    session = FetchSession()
    session.ask({A: at(1)})
    session.answered(7)
    session.ask({A: at(2)})
    session.answered(0)
    assert session.ask({A: at(2)}).wanted == {A: at(2)}


def test_the_epoch_wraps_to_one() -> None:
    session = FetchSession()
    session.ask({A: at(1)})
    session.answered(7)
    session._epoch = MAX_EPOCH
    session.answered(7)
    assert session.ask({A: at(1)}).epoch == 1
