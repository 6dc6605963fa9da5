"""What a broker does with replicas that an accepted store does not know (docs/decisions/0103)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.controller_commands import (
    FULL,
    OK,
    A,
    command,
    leader_and_isr,
    quarantined,
    run,
    running,
    stop,
)
from tests.support.kept_configs import on_disk
from tests.support.lone_broker import Peer
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch

CONFIGS = {"retention.ms": "-1"}
EVERYTHING = 10**9


async def configured(channel: Peer, configs: dict[str, str]) -> None:
    """The complete configurations: those of t, or none of it."""
    request = messages.UpdateConfigsRequest
    own = [request.Config(*each) for each in configs.items()]
    entities = [request.Entity(2, "t", own)] if configs else []
    asked = request(controller_id=1, controller_epoch=1, broker_epoch=7, entities=entities)
    assert (await channel.ask(asked, 0)).error_code == ErrorCode.NONE


async def produced(channel: Peer) -> int:
    produce = messages.ProduceRequest
    # Older than any default retention.
    batch = build_batch([NewRecord(1_000, None, b"x")])
    data = produce.TopicProduceData(
        name="t", partition_data=[produce.PartitionProduceData(0, batch)]
    )
    answer = await channel.ask(produce(acks=-1, timeout_ms=10_000, topic_data=[data]), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def named(kind: int = FULL) -> Any:
    """Leader -1 in epoch -1: the controller knows of the replica, and commands nothing."""
    request = leader_and_isr({"t": (A, {0: (-1, 0)})}, kind=kind)
    request.topic_states[0].partition_states[0].leader = -1
    return request


def test_a_late_replica_is_neither_served_nor_changed_nor_removed(tmp_path: Path) -> None:
    """Its broker was cut off while the store was lost and accepted, and has led it until now."""

    async def work() -> None:
        async with running(tmp_path, **{"log.retention.ms": "1000"}) as (lone, channel):
            await configured(channel, CONFIGS)
            assert await command(channel, leader_and_isr({"t": (A, {0: (5, 0)})})) == [OK]
            assert await produced(channel) == OK
            assert on_disk(tmp_path) == tuple(CONFIGS.items())
            # As a new channel begins.
            assert await command(channel, stop(A, -1, delete=False), 4) == [OK]
            await configured(channel, {})
            assert await command(channel, named()) == [OK]
            assert await produced(channel) == ErrorCode.NOT_LEADER_OR_FOLLOWER
            hosted = lone.broker.partitions.get("t", 0)
            assert hosted is not None and not hosted.assigned
            hosted.log.roll(EVERYTHING)
            await lone.broker.maintenance.check_retention()
            await lone.broker.maintenance.keep_configs()
            assert (hosted.start_offset, hosted.end_offset) == (0, 1)
            assert on_disk(tmp_path) == tuple(CONFIGS.items())
            assert quarantined(tmp_path, "stray") == quarantined(tmp_path, "delete") == []
            # The next registration has it, so that a second acceptance can take it back.
            (found,) = lone.broker.partitions.inventory()
            (part,) = found.partitions
            assert (found.topic_id, part.end_offset, part.record_epoch) == (A, 1, 5)
            assert [(x.name, x.value) for x in found.configs] == list(CONFIGS.items())
            await configured(channel, CONFIGS)
            assert await command(channel, leader_and_isr({"t": (A, {0: (9, 0)})})) == [OK]
            assert await produced(channel) == OK
            assert hosted.assigned and hosted.end_offset == 2

    run(work())


def test_a_damaged_replica_that_no_command_names_is_kept(tmp_path: Path) -> None:
    """It is in no report: the controller cannot know whether anything took it."""

    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            assert await command(channel, leader_and_isr({"t": (A, {0: (5, 0)})})) == [OK]
            assert await produced(channel) == OK
            hosted = lone.broker.partitions.get("t", 0)
            assert hosted is not None
            hosted.log.damaged = "as a check found it"
            hosted.go_offline(hosted.log.damaged)
            await command(channel, leader_and_isr({}, kind=FULL))
            (stray,) = quarantined(tmp_path, "stray")
            removals = lone.broker.directories[0].resources.removals
            assert removals.due(lone.broker.clock.wall_ms() + EVERYTHING) is None, stray

    run(work())


def test_an_epoch_in_which_a_leader_wrote_nothing_is_none_of_its_records(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            await command(channel, leader_and_isr({"t": (A, {0: (5, 0)})}))
            (part,) = lone.broker.partitions.inventory()[0].partitions
            assert (part.leader_epoch, part.record_epoch) == (5, -1)
            assert await produced(channel) == OK
            await command(channel, leader_and_isr({"t": (A, {0: (6, 0)})}))
            (part,) = lone.broker.partitions.inventory()[0].partitions
            assert (part.leader_epoch, part.record_epoch) == (6, 5)

    run(work())
