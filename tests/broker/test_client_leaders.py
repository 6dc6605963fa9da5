"""Look-ups at leaders whose partitions went meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.lone_broker import LoneBroker
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.leaders import ask_leaders
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def test_metadata_of_a_partition_that_its_leader_does_not_know_are_asked_for(
    tmp_path: Path,
) -> None:
    """A removed one keeps no gate shut: newer metadata say that it is gone, not its leader."""

    async def gone(_: int, group: list[TopicPartition]) -> dict[TopicPartition, str | ErrorCode]:
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return {each: missing if each == SECOND else "here" for each in group}

    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        try:
            lone.lead("t", 2)
            async with Cluster(f"127.0.0.1:{lone.port}") as cluster:
                known = (await cluster.topics(["t"]))["t"]
                assert set(known.partitions) == {0, 1}
                topic = lone.broker.metadata.topics["t"]
                del topic.partitions[1]
                topic.changed(topic.change + 1)
                failed: dict[TopicPartition, ClientError] = {}
                found = await ask_leaders(cluster, [FIRST, SECOND], gone, failed=failed)
                assert (found, list(failed)) == ({FIRST: "here"}, [SECOND])
                await cluster.leader(FIRST)
                assert set(cluster.view.topics["t"].partitions) == {0}
        finally:
            await lone.stop()

    asyncio.run(main())
