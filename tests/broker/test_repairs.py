"""A replica with damage below its tail: never served, rebuilt when that is safe (promise 26)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_pair import Pair, append, flip_a_bit, run, running, until_same
from tests.support.lone_broker import LoneBroker, until
from tidelog.broker.control_plane.channel import Channel
from tidelog.broker.partitions.partition import HostedPartition, LeaderAndIsrState, Role
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.records.batch import Rejected
from tidelog.replication.command_rules import LeaderAndIsrType


def cut_in_the_middle(folder: Path) -> Path:
    """Take synced records from the end of t-0 of a stopped broker."""
    (segment,) = folder.rglob("t-0/*.log")
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)
    return segment.parent


async def command(
    lone: LoneBroker, isr: tuple[int, ...], leader: int = 1, epoch: int = 1, *, has_ids: bool = True
) -> None:
    """LeaderAndIsr as the control channel hands it on; without ids as below level 1.4."""
    control, here = lone.broker.control, partition_of(lone)
    request = messages.LeaderAndIsrRequest
    state = request.LeaderAndIsrPartitionState(
        partition_index=0,
        leader=leader,
        leader_epoch=epoch,
        isr=list(isr),
        isr_version=100 + epoch * 10 - len(isr),
        replicas=[1, 2],
        partition_epoch=0,
    )
    topic = request.LeaderAndIsrTopicState("t", here.topic_id, partition_states=[state])
    connection: Any = object()
    lone.broker.channel.present = Channel(connection, 1, 1)
    sent = request(
        controller_epoch=1,
        broker_epoch=lone.broker.session.broker_epoch,
        type=LeaderAndIsrType.INCREMENTAL if has_ids else LeaderAndIsrType.UNSPECIFIED,
        topic_states=[topic],
    )
    if not has_ids:
        state.topic_name, sent.topic_states, sent.ungrouped_partition_states = "t", [], [state]
    obeyed = await control.apply_leader_and_isr(sent, connection)
    assert obeyed == [("t", here.topic_id if has_ids else NO_UUID, 0, ErrorCode.NONE)]


def partition_of(lone: LoneBroker) -> HostedPartition:
    hosted = lone.broker.partitions.get("t", 0)
    assert hosted is not None
    return hosted


async def damaged_follower(tmp_path: Path, pair: Pair) -> LoneBroker:
    """Broker 2 once more, after damage to what it had."""
    leader = pair.lead()
    append(leader, *"abcdef")
    await until_same(leader, pair.follow())
    await pair.follower.broker.followers.close()
    await pair.follower.stop()
    cut_in_the_middle(tmp_path / "2")
    again = LoneBroker(tmp_path / "2", {"node.id": 2, "stale.partition.delete.delay.ms": 0})
    await again.start()
    again.session = pair.follower.session
    pair.follower = again
    pair.tell(pair.leader.port)
    return again


def strays(tmp_path: Path) -> list[str]:
    return [path.name for path in tmp_path.rglob("*-stray")]


@pytest.mark.parametrize("by", ["command", "metadata", "command without ids"])
def test_it_is_rebuilt_once_it_is_out_of_the_isr(tmp_path: Path, by: str) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            lone = await damaged_follower(tmp_path, pair)
            leader = pair.leader.broker.partitions.get("t", 0)
            assert leader is not None
            damaged = partition_of(lone)
            assert damaged.role is Role.OFFLINE
            (named,) = lone.broker.partitions.failures().damaged_replicas
            assert (named.topic_name, named.partition_index) == ("t", 0)
            # In the ISR, without a leader, or as the leader: its bytes may be the last ones.
            await command(lone, isr=(1, 2))
            await command(lone, isr=(), leader=-1, epoch=2)
            await command(lone, isr=(2,), leader=2, epoch=3)
            assert partition_of(lone) is damaged
            assert damaged.role is Role.OFFLINE
            pair.lead(epoch=4)
            has_ids = by != "command without ids"
            await command(lone, isr=(1,), epoch=4, has_ids=has_ids)
            fresh = partition_of(lone)
            assert fresh is not damaged
            await until_same(leader, fresh)
            assert lone.broker.partitions.failures() is None
            assert len(strays(tmp_path)) == 1
            await lone.broker.maintenance.remove()
            assert len(strays(tmp_path)) == 1, "not in sync yet: the bytes are kept"
            # Metadata may be older than the command that put it out of the ISR.
            lone._tell_metadata(
                "t", fresh.topic_id, 1, LeaderAndIsrState(leader=1, isr=(1, 2), replicas=(1, 2))
            )
            pair.tell(pair.leader.port)
            await lone.broker.maintenance.remove()
            assert lone.broker.maintenance._repairs._quarantined, (
                "that metadata is older than the last command"
            )
            if by != "metadata":
                await command(lone, isr=(1, 2), epoch=5, has_ids=has_ids)
            else:
                newer = fresh.state.isr_version + 1
                joined = LeaderAndIsrState(leader=1, isr=(1, 2), isr_version=newer, replicas=(1, 2))
                lone._tell_metadata("t", fresh.topic_id, 1, joined)
            assert partition_of(lone) is fresh
            await lone.broker.maintenance.remove()
            await until(lambda: not strays(tmp_path))

    run(main())


def test_damage_that_is_met_while_it_follows_is_named_and_rebuilt(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = pair.lead()
            append(leader, *"abcdef")
            follower = pair.follow()
            await until_same(leader, follower)
            flip_a_bit(follower)
            refused = follower.read(0, 1_000_000)
            assert isinstance(refused, Rejected)
            assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
            assert follower.role is Role.OFFLINE
            failures = pair.follower.broker.partitions.failures
            await until(lambda: failures() is not None)
            (named,) = failures().damaged_replicas
            assert (named.topic_name, named.partition_index) == ("t", 0)
            append(leader, "g")
            # In this epoch the leader counts on what the damaged one has fetched: an empty one
            # could join the ISR by that (simulation seeds 93103 and 93176).
            await command(pair.follower, isr=(1,), epoch=1)
            assert partition_of(pair.follower) is follower
            pair.lead(epoch=2)
            await command(pair.follower, isr=(1,), epoch=2)
            fresh = partition_of(pair.follower)
            assert fresh is not follower
            await until_same(leader, fresh)
            assert pair.follower.broker.partitions.failures() is None
            # Damaged again before it is in the ISR.
            flip_a_bit(fresh)
            assert isinstance(fresh.read(0, 1_000_000), Rejected)
            await command(pair.follower, isr=(1,), epoch=2)
            assert partition_of(pair.follower) is fresh
            pair.lead(epoch=3)
            await command(pair.follower, isr=(1,), epoch=3)
            assert partition_of(pair.follower) is not fresh
            await until_same(leader, partition_of(pair.follower))

    run(main())
