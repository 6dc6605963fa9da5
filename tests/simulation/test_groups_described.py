"""``tidelog groups --describe --all-groups`` beside a frozen broker, in virtual time.

The frozen broker coordinates some groups, or leads partitions of their topic, and has no successor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.simulation.cluster.nodes import PORT
from tests.simulation.cluster.scripted_run import ScriptedRun
from tidelog.cli.groups import describe_all
from tidelog.cli.many_requests import AT_ONCE, PATIENCE_S
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ClientError
from tidelog.client.groups.committed_offsets import Position, commit_offsets
from tidelog.model.topics import OFFSETS_TOPIC, TopicPartition
from tidelog.runtime.backoff import Backoff

pytestmark = pytest.mark.usefixtures("quiet")

GROUPS = list("abcdefgh")
PARTITIONS = [TopicPartition("s", index) for index in range(4)]
API_TIMEOUT_MS = 15_000
"""As the command has it."""


def described(
    seed: int, of_groups: int, of_topic: int, groups: Sequence[str] = GROUPS
) -> tuple[list[dict[str, Any]], dict[str, int], float]:
    """Freeze a broker, and describe all groups; return what is shown, the frozen coordinator of
    each group that is not, and the time that it took."""
    shown: list[dict[str, Any]] = []
    lost: dict[str, int] = {}
    took: list[float] = []

    async def script(run: ScriptedRun) -> None:
        await run.admin.create("s", len(PARTITIONS), of_topic, {"min.insync.replicas": "1"})
        await run.admin.create(OFFSETS_TOPIC, 8, of_groups, {"min.insync.replicas": "1"})
        await run.until(run.faults.all_in_sync, "in sync")
        *others, frozen = run.cluster.brokers
        settings = ClusterSettings(
            backoff=Backoff(random=run.world.random("client")),
            default_api_timeout_ms=API_TIMEOUT_MS,
        )
        async with Cluster([f"{node.host}:{PORT}" for node in others], settings) as cluster:
            for group in groups:
                await commit_offsets(cluster, group, dict.fromkeys(PARTITIONS, Position(0)))
            await cluster.all_topics()
            run.faults.unquiet_until = asyncio.get_running_loop().time() + 60
            assert frozen.process is not None
            frozen.process.pause()
            began_s = asyncio.get_running_loop().time()
            missing: dict[str, ClientError] = {}
            shown.extend(await describe_all(cluster, groups, missing))
            took.append(asyncio.get_running_loop().time() - began_s)
            for group, error in missing.items():
                assert cluster.known_coordinator(group) in (None, frozen.node_id), error
                lost[group] = frozen.node_id
        frozen.process.resume()
        await run.until(run.faults.all_in_sync, "in sync")

    run = ScriptedRun(seed, script, "replicated", {"min.insync.replicas": "2"}, brokers=4)
    result = run.run()
    assert not result.violations, result.report()
    print(f"{len(shown)} groups shown, {len(lost)} not, in {took[0]:.1f} s")
    return shown, lost, took[0]


@pytest.mark.parametrize("seed", [1, 2])
def test_groups_of_a_frozen_coordinator_hold_up_no_other(seed: int) -> None:
    shown, lost, took_s = described(seed, of_groups=1, of_topic=3)
    assert {each["group"] for each in shown} | lost.keys() == set(GROUPS)
    assert len(shown) > len(lost) > 0
    assert took_s < PATIENCE_S + 0.5


def test_many_groups_of_a_frozen_coordinator_cost_as_much_as_one() -> None:
    """Each ``AT_ONCE`` of them held up all others for 5 s."""
    groups = [f"g{number:03}" for number in range(100)]
    shown, lost, took_s = described(1, of_groups=1, of_topic=3, groups=groups)
    assert [each["group"] for each in shown] == [group for group in groups if group not in lost]
    assert len(shown) > len(lost) > AT_ONCE
    assert took_s < PATIENCE_S + 0.5


@pytest.mark.parametrize("seed", [1, 2])
def test_partitions_of_a_frozen_leader_hold_up_no_group(seed: int) -> None:
    """Each group waited 10 s for their ends, one group after the other."""
    shown, lost, took_s = described(seed, of_groups=3, of_topic=1)
    assert [each["group"] for each in shown] == GROUPS and not lost
    unknown = [row["partition"] for row in shown[0]["offsets"] if row["log_end_offset"] is None]
    assert len(unknown) == 1, "that of the frozen leader"
    assert took_s < PATIENCE_S + 0.5


def test_a_frozen_broker_with_successors_costs_no_group() -> None:
    shown, lost, _ = described(1, of_groups=3, of_topic=3)
    assert [each["group"] for each in shown] == GROUPS and not lost
