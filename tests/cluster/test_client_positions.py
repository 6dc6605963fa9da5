"""Positions of tidelog's own client, and the leader epochs that go with them.

Runs against Apache Kafka too (`TIDELOG_TEST_TARGET=kafka`).
"""

from __future__ import annotations

import asyncio

from tests.support.clients import create_topic
from tests.support.processes import DEADLINE_S
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.fetching.fetcher import Fetcher, OffsetReset
from tidelog.client.groups.committed_offsets import committed_offsets
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.producing.sender import RecordSender
from tidelog.model.topics import TopicPartition

BELIEVED_AFTER_MS = 700


async def _write(cluster: Cluster, topic: str, count: int) -> None:
    async with RecordSender(cluster) as sender:
        for number in range(count):
            await (await sender.send(topic, b"%d" % number))


def test_a_commit_says_in_which_epoch_the_record_before_it_was_written(
    bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name)
    where = TopicPartition(topic_name, 0)

    async def work() -> None:
        async with asyncio.timeout(DEADLINE_S), Cluster(bootstrap) as cluster:
            await _write(cluster, topic_name, 3)
            async with GroupReader(
                cluster,
                topic_name,
                [topic_name],
                reset=OffsetReset.EARLIEST,
                auto_commit_ms=None,
            ) as reader:
                last = -1
                while last < 2:
                    for piece in await reader.poll(1000):
                        last = [row.offset for row in piece.rows()][-1]
                # Of what is before another offset it knows nothing.
                for offset, epoch in ((2, -1), (3, 0)):
                    await reader.controls.commit_up_to({where: offset})
                    found = (await committed_offsets(cluster, topic_name, [where]))[where]
                    assert (found.offset, found.leader_epoch) == (offset, epoch)

    asyncio.run(work())


def test_an_epoch_unknown_to_all_replicas_is_of_a_former_topic_in_the_end(
    bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name)
    where = TopicPartition(topic_name, 0)
    settings = ClusterSettings(metadata_max_age_ms=BELIEVED_AFTER_MS)

    async def work() -> None:
        async with asyncio.timeout(DEADLINE_S), Cluster(bootstrap, settings) as cluster:
            await _write(cluster, topic_name, 3)
            fetcher = Fetcher(cluster)
            began = asyncio.get_running_loop().time()
            fetcher.assign({where: 1}, epochs={where: 9})
            assert fetcher.epoch_before(where, 1) == 9
            offsets: list[int] = []
            while offsets[-1:] != [2]:
                for piece in await fetcher.poll(1000):
                    offsets += [row.offset for row in piece.rows()]
            assert asyncio.get_running_loop().time() - began > BELIEVED_AFTER_MS / 1000
            assert offsets == [1, 2]
            assert fetcher.epoch_before(where, 3) == 0
            await fetcher.close()

    asyncio.run(work())
