"""Look-ups of fences: what is asked again, and what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tidelog.client.errors import ClientError, Refused, VersionUnsupported
from tidelog.client.fences import DescribedFence, DescribedFences
from tidelog.client.metadata import ClusterMetadata, Partition, Topic
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.gates import Fence
from tidelog.pipeline import resized_topics
from tidelog.pipeline.resized_topics import FenceCache, FormerCache, look_up_resizes

WHERE = TopicPartition("t", 0)
TOPIC = Topic(
    "t",
    UUID(int=7),
    False,
    {
        0: Partition(0, 1, 3, (1,), (1,), (), partition_epoch=0),
        1: Partition(1, 1, 3, (1,), (1,), (), partition_epoch=1, birth_epoch=1),
    },
    0,
    1,
    2,
    1,
    1,
)


class Answers:
    """In the place of a cluster: ``fences`` has the epochs that a leader names, for each call."""

    def __init__(self, topic: Topic, *fences: tuple[int, ...]) -> None:
        self.view = ClusterMetadata(topics={"t": topic})
        self.fences = list(fences)
        self.asked = 0

    async def retry(
        self, attempt: Any, timeout_ms: int, retry_on: Callable[[ClientError], bool]
    ) -> Any:
        while True:
            try:
                return await attempt()
            except ClientError as error:
                if not self.fences or not retry_on(error):
                    raise

    async def describe(
        self, _: Any, places: Iterable[TopicPartition], **__: Any
    ) -> dict[TopicPartition, DescribedFences]:
        self.asked += 1
        epochs = self.fences.pop(0)
        found = tuple(DescribedFence(Fence(each, 10 * each, 9), 2, False) for each in epochs)
        return {where: DescribedFences(3, found) for where in places}


def asked(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> Any:
    monkeypatch.setattr(resized_topics, "describe_fences", answers.describe)
    return answers


def test_fences_hold_for_one_leader_epoch_and_one_resize_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, cache = asked(monkeypatch, Answers(TOPIC, (1,), (1,), (1, 2))), FenceCache()

    def of(resize_epoch: int) -> Any:
        return asyncio.run(cache.of(cluster, WHERE, resize_epoch, 1_000))

    assert [of(1), of(1), cluster.asked] == [((10, 1),), ((10, 1),), 1]
    moved = replace(TOPIC.partitions[0], leader_epoch=4)
    partitions = {**TOPIC.partitions, 0: moved}
    cluster.view = ClusterMetadata(topics={"t": replace(TOPIC, partitions=partitions)})
    assert [of(1), cluster.asked] == [((10, 1),), 2]
    # The plan knows a later epoch than this task's metadata.
    assert [of(2), cluster.asked] == [((10, 1), (20, 2)), 3]


def test_a_topic_that_metadata_show_as_never_resized_was_if_the_plan_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = asked(monkeypatch, Answers(replace(TOPIC, resize_epoch=0), (1,)))
    assert asyncio.run(FenceCache().of(cluster, WHERE, 0, 1_000)) == ()
    assert asyncio.run(FenceCache().of(cluster, WHERE, 1, 1_000)) == ((10, 1),)


def test_a_leader_that_does_not_name_the_newest_fence_yet_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fence above the high watermark is not named: records after it would have its epoch."""
    cluster = asked(monkeypatch, Answers(TOPIC, (), (1,)))
    assert asyncio.run(FenceCache().of(cluster, WHERE, 1, 1_000)) == ((10, 1),)
    cluster = asked(monkeypatch, Answers(TOPIC, ()))
    with pytest.raises(Refused) as raised:
        asyncio.run(FenceCache().of(cluster, WHERE, 1, 1_000))
    assert raised.value.code == ErrorCode.OFFSET_NOT_AVAILABLE


@pytest.mark.parametrize(("epochs", "is_known"), [((1,), True), ((), False)])
def test_a_partition_without_its_newest_fence_is_silent_in_a_look_up(
    monkeypatch: pytest.MonkeyPatch, epochs: tuple[int, ...], is_known: bool
) -> None:
    cluster, cache = asked(monkeypatch, Answers(TOPIC, epochs)), FormerCache()
    cache.keep(TOPIC, {})
    found = asyncio.run(look_up_resizes(cluster, {"t": TOPIC}, cache, {}, failed={}))
    places = {WHERE, TopicPartition("t", 1)}
    assert set(found.failed) == (set() if is_known else places)
    ((gate,),) = found.gates["t"].values()
    assert [need.upto is not None for need in gate.needs] == [is_known]


def test_fences_of_a_topic_whose_keys_are_not_kept_in_order_are_asked_for_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its metadata say no resize epoch, so they do not say when another fence was written."""
    cluster = asked(monkeypatch, Answers(replace(TOPIC, resize_epoch=-1), (1,), (1, 2)))
    cache = FenceCache()
    assert asyncio.run(cache.of(cluster, WHERE, 0, 1_000)) == ((10, 1),)
    assert asyncio.run(cache.of(cluster, WHERE, 0, 1_000)) == ((10, 1), (20, 2))
    # Apache Kafka says no partition epochs either, and is not asked.
    plain = replace(TOPIC, resize_epoch=-1, max_partition_epoch=-1)
    cluster = asked(monkeypatch, Answers(plain))
    assert asyncio.run(FenceCache().of(cluster, WHERE, 0, 1_000)) == ()
    assert cluster.asked == 0


def test_a_cluster_that_cannot_name_fences_has_none_where_no_resize_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise VersionUnsupported("DescribeFences")

    cluster = asked(monkeypatch, Answers(replace(TOPIC, resize_epoch=-1)))
    monkeypatch.setattr(resized_topics, "describe_fences", refuse)
    assert asyncio.run(FenceCache().of(cluster, WHERE, 0, 1_000)) == ()
    with pytest.raises(VersionUnsupported):
        asyncio.run(FenceCache().of(cluster, WHERE, 1, 1_000))
