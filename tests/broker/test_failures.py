"""What a broker tells of damaged replicas: in the inventory and in its heartbeats (promise 26)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.lone_broker import LoneBroker


def test_a_damaged_replica_is_reported_in_the_inventory_and_in_heartbeats(tmp_path: Path) -> None:
    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        try:
            hosted = lone.lead("t", 2)
            partitions = lone.broker.partitions
            assert partitions.failures() is None
            hosted.go_offline("a batch below the recovery point is damaged")
            failures = partitions.failures()
            assert failures.failed_directories == []
            (named,) = failures.damaged_replicas
            assert (named.topic_name, named.partition_index) == ("t", 0)
            assert named.topic_id == hosted.topic_id
            (topic,) = partitions.inventory()
            ends = {x.partition_index: (x.leader_epoch, x.end_offset) for x in topic.partitions}
            assert ends == {0: (-1, -1), 1: (0, 0)}

            directory = partitions.directories[0]
            directory.resources.fail("planted")
            failures = partitions.failures()
            assert [x.int for x in failures.failed_directories] == [directory.meta.directory_id.int]
            assert [x.partition_index for x in failures.damaged_replicas] == [0, 1]
            # One that could not be used at the start counts, and has no id.
            partitions.away = ["log directory /x cannot be used"]
            assert len(partitions.failures().failed_directories) == 2
        finally:
            await lone.stop()

    asyncio.run(main())
