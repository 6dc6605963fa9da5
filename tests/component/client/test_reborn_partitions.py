"""A partition, or the topic itself, was removed and created again since a member read it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ConnectionLost
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.metadata import ClusterMetadata, Partition, Topic
from tidelog.model.topics import TopicPartition
from tidelog.replication.resize_rules import Named

KEPT, REBORN = TopicPartition("t", 0), TopicPartition("t", 1)


def topic(*partition_epochs: int) -> Topic:
    """Return a topic whose partitions have these epochs, and no leader."""
    partitions = {
        index: Partition(index, -1, 0, (1,), (1,), (), partition_epoch=epoch)
        for index, epoch in enumerate(partition_epochs)
    }
    count = len(partitions)
    return Topic(
        "t",
        UUID(int=1),
        False,
        partitions,
        initial_partition_count=1,
        undeleted_partition_count=count,
        resize_epoch=5,
    )


class NoBrokers:
    """What a reader needs of a cluster of which no broker is reached."""

    settings = ClusterSettings()
    view = ClusterMetadata(topics={"t": topic(7, 12)})

    async def retry(self, *_: Any, **__: Any) -> None:
        raise ConnectionLost("there is no broker")

    leader = refresh = describe = connection = retry


def test_a_reborn_partition_is_read_from_where_the_coordinator_says() -> None:
    async def story() -> None:
        reader = GroupReader(cast("Cluster", NoBrokers()), "g", ["t"])
        reader.generation.assigned = [KEPT, REBORN]
        former = {KEPT: Named(2, 3, 7), REBORN: Named(2, 3, 8)}
        reader.fetcher.add({KEPT: 40, REBORN: 11}, named=former)
        reader.commits.committed = {KEPT: 40, REBORN: 11}
        await reader.generation.begin()
        try:
            assert reader.positions() == {KEPT: 40}
            assert reader.given == [KEPT, REBORN]
            assert reader.generation.unplaced == [REBORN]
            assert reader.commits.committed == {KEPT: 40}
            assert reader.fetcher.named() == {KEPT: Named(2, 5, 7)}
        finally:
            await reader.gating.stop()
            await reader.fetcher.close()

    asyncio.run(story())


def test_a_position_of_a_former_topic_counts_in_no_generation_of_the_next_one() -> None:
    """A commit that was on its way while the topic was created again hid its first records."""

    async def story() -> None:
        cluster = NoBrokers()
        reader = GroupReader(cast("Cluster", cluster), "g", ["t"])
        reader.generation.assigned = [KEPT]
        found = []
        # The former topic, the one of its name, and that one in the generation after it.
        for number in (2, 1, 1):
            named = replace(topic(7, 12), topic_id=UUID(int=number))
            cluster.view = ClusterMetadata(topics={"t": named})
            reader.generation.has_begun = False
            await reader.generation.begin()
            await reader.gating.stop()
            found.append(reader.generation.is_of_former(KEPT, Position(30, 0)))
            # A birth offset is of the present topic.
            assert not reader.generation.is_of_former(KEPT, Position(30))
        await reader.fetcher.close()
        assert found == [False, True, False]

    asyncio.run(story())


def test_a_kept_partition_of_another_topic_of_the_name_is_not_read_on() -> None:
    """Its incarnation has the same number: only the topic id says that it is another one."""

    async def story() -> None:
        reader = GroupReader(cast("Cluster", NoBrokers()), "g", ["t"])
        reader.generation.assigned = [KEPT]
        reader.generation.ids = {"t": UUID(int=2)}
        reader.fetcher.add({KEPT: 40}, named={KEPT: Named(2, 3, 7)})
        await reader.generation.begin()
        await reader.gating.stop()
        assert reader.positions() == {} and reader.generation.unplaced == [KEPT]
        assert reader.given == [KEPT]
        await reader.fetcher.close()

    asyncio.run(story())
