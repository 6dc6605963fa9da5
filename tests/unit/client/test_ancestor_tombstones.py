"""Tests of ancestor tombstones: which homes of a key need one, once, and how they are sent."""

from __future__ import annotations

from dataclasses import replace
from typing import cast
from uuid import UUID

from tidelog.client.cluster import Cluster
from tidelog.client.metadata import ClusterMetadata, Partition, Topic
from tidelog.client.producing.ancestor_tombstones import (
    AncestorTombstones,
    RecentKeys,
    Voided,
    rounds_of,
    sent_now,
    voided_by,
)
from tidelog.client.stamps import Stamp, stamp_of
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import FastBuilder
from tidelog.replication.resize_rules import Named
from tidelog.runtime.clock import RealClock


def topic(count: int, initial: int = 4, births: tuple[int, ...] = (1,)) -> Topic:
    partitions = {
        index: Partition(
            index, 1, 0, (1,), (1,), (), partition_epoch=index, birth_epoch=births[0] * (index >= 4)
        )
        for index in range(count)
    }
    return Topic("t", UUID(int=1), False, partitions, 0, initial, count, 1, count)


def stamp(of: Topic) -> Stamp:
    found = stamp_of(of)
    assert found is not None
    return found


def test_a_partition_born_by_a_growth_has_all_its_ancestors() -> None:
    now = stamp(topic(16))
    assert voided_by(topic(16), 13, b"k", now) == [
        Voided(TopicPartition("t", 5), b"k", now),
        Voided(TopicPartition("t", 1), b"k", now),
    ]
    assert voided_by(topic(16), 3, b"k", now) == []


def test_a_partition_that_its_topic_was_created_with_has_none() -> None:
    assert voided_by(topic(16, births=(0,)), 13, b"k", stamp(topic(16))) == []


def test_a_topic_that_is_not_ordered_has_none() -> None:
    assert voided_by(topic(16, initial=-1), 13, b"k", stamp(topic(16))) == []
    assert voided_by(topic(4), 13, b"k", stamp(topic(4))) == []


def test_no_tombstone_is_sent_in_a_newer_resize_epoch() -> None:
    """A shrink makes an ancestor the home of the key again: the tombstone would void what is
    written there since."""
    before = topic(16)
    after = replace(before, undeleted_partition_count=4, resize_epoch=2)
    assert voided_by(after, 13, b"k", stamp(before)) == []
    waiting = voided_by(before, 13, b"k", stamp(before))
    sent = sent_now(ClusterMetadata(topics={"t": before}), waiting, now_ms=1)
    assert [(where.partition, named) for where, named, _ in sent] == [
        (5, Named(16, 1, 5)),
        (1, Named(16, 1, 1)),
    ]
    assert sent_now(ClusterMetadata(topics={"t": after}), waiting, now_ms=1) == []
    assert sent_now(ClusterMetadata(), waiting, now_ms=1) == []


def test_a_key_is_remembered_for_each_home_until_others_take_its_place() -> None:
    recent = RecentKeys(most=2)
    assert recent.add("t", 4, 7, b"a")
    assert not recent.add("t", 4, 7, b"a")
    # The next incarnation of the partition is another home.
    assert recent.add("t", 4, 8, b"a")
    assert recent.add("t", 5, 7, b"a")
    assert recent.add("t", 4, 7, b"a")


def test_a_request_has_one_key_of_each_partition() -> None:
    one, two = TopicPartition("t", 1), TopicPartition("t", 2)
    now = stamp(topic(4))
    a, b, d = (Voided(one, key, now) for key in (b"a", b"b", b"d"))
    c = Voided(two, b"c", now)
    assert rounds_of([a, b, c, d]) == [{one: a, two: c}, {one: b}, {one: d}]


def test_a_batch_of_an_older_resize_epoch_leaves_no_key_remembered() -> None:
    """The next write of the key, in the present epoch, still needs its tombstones."""
    now = topic(16)
    tombstones = AncestorTombstones(cast("Cluster", None), RealClock())
    batch = batch_of(b"k", None)
    older = stamp(now)._replace(resize_epoch=0)
    assert tombstones._voided(now, 13, older, batch) == []
    found = tombstones._voided(now, 13, stamp(now), batch)
    assert [(each.ancestor.partition, each.key) for each in found] == [(5, b"k"), (1, b"k")]
    assert tombstones._voided(now, 13, stamp(now), batch) == []


def batch_of(*keys: bytes | None) -> bytes:
    builder = FastBuilder(1 << 20)
    for key in keys:
        builder.append(1, key, b"v", [])
    return builder.build()
