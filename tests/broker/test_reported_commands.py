"""The newest command of each replica in a broker's report (docs/decisions/0125)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.controller_commands import (
    OK,
    A,
    command,
    follow,
    leader_and_isr,
    run,
    running,
    stop,
)
from tests.support.lone_broker import LoneBroker


def reported(lone: LoneBroker) -> Any:
    """Leader epoch, ISR version, leader and ISR of t-0, None without a command."""
    (topic,) = lone.broker.partitions.inventory()
    (part,) = topic.partitions
    named = part.command
    return named and (named.leader_epoch, named.isr_version, named.leader, list(named.isr))


def test_a_replica_comes_with_the_newest_leader_and_isr_that_it_was_given(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            assert await command(channel, follow([0], 4)) == [OK]
            assert reported(lone) == (4, 0, 2, [2])
            # The ISR alone has changed, and then the leader.
            newer = follow([0], 4)
            (state,) = newer.topic_states[0].partition_states
            state.isr, state.isr_version = [2, 1], 1
            assert await command(channel, newer) == [OK]
            assert reported(lone) == (4, 1, 2, [2, 1])
            assert await command(channel, leader_and_isr({"t": (A, {0: (5, 2)})})) == [OK]
            assert reported(lone) == (5, 2, 1, [1])
            hosted = lone.broker.partitions.get("t", 0)
            assert hosted is not None
            # The response to AlterIsr.
            hosted.take_isr((1, 3), 3)
            assert reported(lone) == (5, 3, 1, [1, 3])
            hosted.go_offline("as a check found it")
            assert reported(lone) == (5, 3, 1, [1, 3]), "a damaged one names its ISR"

    run(work())


def test_a_broker_that_restarted_has_none_and_one_that_was_stopped_neither(tmp_path: Path) -> None:
    """No disk keeps it: what the process does not know it does not report."""

    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            assert await command(channel, leader_and_isr({"t": (A, {0: (5, 2)})})) == [OK]
            assert await command(channel, stop(A, -1, delete=False), 4) == [OK]
            assert reported(lone) is None
            assert await command(channel, leader_and_isr({"t": (A, {0: (5, 2)})})) == [OK]
            assert reported(lone) == (5, 2, 1, [1])
        async with running(tmp_path) as (lone, _):
            assert reported(lone) is None

    run(work())
