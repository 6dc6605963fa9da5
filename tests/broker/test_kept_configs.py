"""The configurations that a broker keeps beside a log outlive a restart and a late controller."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.kept_configs import KEPT, on_disk
from tests.support.lone_broker import LoneBroker
from tidelog.broker.metadata.configurations import EntityType
from tidelog.model.work import finish


def test_a_broker_keeps_what_the_controller_says_and_tells_it_at_its_next_registration(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        hosted = lone.lead("t", configs=dict(KEPT))
        assert on_disk(tmp_path) == KEPT
        finish(hosted.log.keeping_configs(()))  # as 02f3bcb leaves it
        changed = (("cleanup.policy", "compact"), ("retention.ms", "77"))
        finish(
            lone.broker.topic_configs.apply(
                [(EntityType.TOPIC, "t", dict(changed))], complete=False
            )
        )
        await lone.broker.maintenance.keep_configs()
        assert on_disk(tmp_path) == changed
        await lone.stop()

        lone = LoneBroker(tmp_path)
        await lone.start()
        partition = lone.broker.partitions.get("t", 0)
        assert partition is not None
        assert partition.log.configs.compacted and partition.log.configs.retention_ms == 77
        (topic,) = lone.broker.partitions.inventory()
        assert [(each.name, each.value) for each in topic.configs] == list(changed)
        await lone.stop()

    asyncio.run(main())
