"""``tidelog groups --describe`` with a partition that no broker leads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.group_broker import GroupBroker
from tests.support.processes import DEADLINE_S
from tests.support.resized_topics import tell_resized
from tidelog.cli.groups import describe, describe_all
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ClientError
from tidelog.client.groups.committed_offsets import Position, commit_offsets
from tidelog.client.producing.sender import RecordSender
from tidelog.model.topics import TopicPartition


def test_a_partition_without_a_leader_is_named_and_the_others_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        lone = GroupBroker(tmp_path)
        await lone.start()
        lone.lead("t", 2)
        lone.lead_offsets()
        # As long as a user waits: the command must not use it up.
        settings = ClusterSettings(default_api_timeout_ms=int(4_000 * DEADLINE_S))
        async with asyncio.timeout(DEADLINE_S), Cluster(lone.bootstrap, settings) as cluster:
            async with RecordSender(cluster) as sender:
                await (await sender.send("t", b"x", partition=0))
            start = {TopicPartition("t", index): Position(0) for index in (0, 1)}
            await commit_offsets(cluster, "g", start)
            births = {0: (0, 0), 1: (0, 0)}
            tell_resized(lone, "t", births, resize_epoch=0, leaders={1: -1})
            shown = await describe(cluster, "g")
            ends = [[row["log_end_offset"], row["lag"]] for row in shown["offsets"]]
            assert ends == [[1, 1], [None, None]]
            said = capsys.readouterr().err
            assert said.count("\n") == 1
            assert "the end and the lag of t-1 are not shown" in said
            assert "LEADER_NOT_AVAILABLE" in said
            # Its state and its members need no leader at all.
            await describe(cluster, "g", has_ends=False)
            assert not capsys.readouterr().err
            missing: dict[str, ClientError] = {}
            both = await describe_all(cluster, ["deleted", "g"], missing, has_ends=False)
            assert [each["group"] for each in both] == ["g"]
            assert not missing, "one that was deleted after it was listed"
        await lone.stop()

    asyncio.run(story())
