"""A group's reader against one broker: what goes wrong on its way is said or tried again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.group_broker import GroupBroker, done
from tests.support.lone_broker import until
from tests.support.processes import DEADLINE_S
from tests.support.resized_topics import tell_resized
from tidelog.broker.handlers import heartbeat, offset_fetch
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import Refused
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.client.groups.committed_offsets import (
    CommitRefused,
    PartitionsRefused,
    Position,
    commit_offsets,
    committed_offsets,
)
from tidelog.client.groups.group_member import GroupMember
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.groups.membership import MemberState
from tidelog.client.producing.sender import RecordSender
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.network.router import Handler, Router
from tidelog.protocol import messages
from tidelog.runtime.backoff import Backoff

CONFIG = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 500}
FAST = Backoff(10, 50)
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class RefusingBroker(GroupBroker):
    """It answers OffsetFetch with ``refusals`` first, of one topic's partitions each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, CONFIG)
        self.refusals: list[tuple[str, ErrorCode]] = []
        self.group_refusal = ErrorCode.NONE
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.beats = self.hung = self.beats_to_hang = 0

    def router(self, extra: Iterable[Handler] = ()) -> Router:
        routes = super().router(extra)
        true = offset_fetch.HANDLER
        routes._handlers[true.api_key] = Handler(true.api_key, true.scope, self._offset_fetch)
        beat = heartbeat.HANDLER
        routes._handlers[beat.api_key] = Handler(beat.api_key, beat.scope, self._heartbeat)
        return routes

    async def _heartbeat(self, broker: Any, request: Any, context: Any) -> Any:
        if self.hung < self.beats_to_hang:
            self.hung += 1
            await asyncio.Event().wait()
        self.beats += 1
        answer = done(heartbeat.HANDLER.handle(broker, request, context))
        if asyncio.iscoroutine(answer) or asyncio.isfuture(answer):
            answer = done(await answer)
        return answer

    async def _offset_fetch(self, broker: Any, request: Any, context: Any) -> Any:
        self.asked += 1
        answer = done(offset_fetch.HANDLER.handle(broker, request, context))
        if asyncio.iscoroutine(answer) or asyncio.isfuture(answer):
            answer = done(await answer)
        await self.may_answer.wait()
        if self.group_refusal:
            for group in answer.groups:
                group.topics, group.error_code = [], int(self.group_refusal)
        if self.refusals:
            name, code = self.refusals.pop(0)
            for group in answer.groups:
                for topic in group.topics:
                    for item in topic.partitions:
                        if topic.name == name:
                            item.error_code = int(code)
        return answer

    def lose_leader(self, topic: str, partition: int) -> None:
        """Let metadata name no leader of a partition."""
        update = messages.UpdateMetadataRequest
        state = update.UpdateMetadataPartitionState(
            partition_index=partition, leader=-1, leader_epoch=1, isr=[], replicas=[1]
        )
        self._tell(topic, state)

    def delete(self, topic: str) -> None:
        """Let the controller have deleted a topic."""
        update = messages.UpdateMetadataRequest
        gone = update.UpdateMetadataPartitionState(
            partition_index=0, leader=-2, leader_epoch=-2, isr=[], replicas=[]
        )
        self._tell(topic, gone)
        self.broker.partitions.stop(topic, 0, delete=True)

    def _tell(self, topic: str, partition: Any) -> None:
        update = messages.UpdateMetadataRequest
        state = update.UpdateMetadataTopicState(
            topic_name=topic,
            topic_id=uuid.uuid5(uuid.NAMESPACE_OID, topic),
            partition_states=[partition],
        )
        told = update(controller_id=1, topic_states=[state], live_brokers=[])
        self.broker.metadata.apply(told, complete=False)


def with_group(folder: Path, story: Callable[[RefusingBroker, Cluster], Awaitable[None]]) -> None:
    """Run ``story`` with a broker of two topics, a record in each."""

    async def main() -> None:
        lone = RefusingBroker(folder)
        await lone.start()
        lone.lead("a")
        lone.lead("b")
        lone.lead_offsets()
        settings = ClusterSettings(backoff=FAST)
        async with asyncio.timeout(DEADLINE_S), Cluster(lone.bootstrap, settings) as cluster:
            await write(cluster, "a", "b")
            await story(lone, cluster)
        await lone.stop()

    asyncio.run(main())


async def write(cluster: Cluster, *topics: str) -> None:
    async with RecordSender(cluster) as sender:
        for topic in topics:
            await (await sender.send(topic, b"x"))


def reader_of(cluster: Cluster, *topics: str, **options: Any) -> GroupReader:
    made: dict[str, Any] = {
        "reset": OffsetReset.EARLIEST,
        "heartbeat_interval_ms": 50,
        "partition_check_ms": 100,
        **options,
    }
    return GroupReader(cluster, "g", topics, **made)


async def read(reader: GroupReader, count: int) -> list[TopicPartition]:
    """Poll until so many pieces have come; their partitions."""
    found: list[TopicPartition] = []
    while len(found) < count:
        found += [piece.partition for piece in await reader.poll(100)]
    return found


def test_a_refused_look_up_is_said_and_tried_again(tmp_path: Path) -> None:
    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        lone.refusals += [("b", code)] * 2
        async with reader_of(cluster, "a", "b") as reader:
            said: list[PartitionsRefused] = []
            found: list[TopicPartition] = []
            while B not in found:
                try:
                    found += [piece.partition for piece in await reader.poll(100)]
                except PartitionsRefused as error:
                    said.append(error)
            # The other topic was read; no record was lost, and no partition was left out.
            assert sorted(found) == [A, B]
            assert [list(error.errors) for error in said] == [[B], [B]]
            assert said[0].code == code
            assert sorted(reader.assignment) == [A, B]
            assert reader.member.state is MemberState.READING

    with_group(tmp_path, story)


def test_a_dead_leader_of_a_partition_born_in_a_growth_holds_up_no_other(tmp_path: Path) -> None:
    """The coordinator has no offsets at all in a response with a partition that it must ask for."""

    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        old = {0: (0, 0), 1: (0, 0)}
        lone.lead("grown", 4)
        lone.broker.metadata.topics["grown"].partitions.clear()
        tell_resized(lone, "grown", old, resize_epoch=0)
        first = TopicPartition("grown", 0)
        await commit_offsets(cluster, "g", {first: Position(0)})
        async with RecordSender(cluster) as sender:
            await (await sender.send("grown", b"x", partition=0))
        tell_resized(
            lone, "grown", {**old, 2: (1, 0), 3: (1, 0)}, resize_epoch=1, leaders={2: -1, 3: -1}
        )
        for born in (2, 3):
            hosted = lone.broker.partitions.get("grown", born)
            assert hosted is not None
            hosted.is_leader = False
        async with reader_of(cluster, "a", "grown") as reader:
            assert sorted(await read(reader, 2)) == [A, first]
            assert reader.member.state is MemberState.JOINED
            assert sorted(reader.generation.unplaced) == [
                TopicPartition("grown", 2),
                TopicPartition("grown", 3),
            ]

    with_group(tmp_path, story)


def test_a_refused_group_is_refused_as_one(tmp_path: Path) -> None:
    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        settings = ClusterSettings(backoff=FAST, default_api_timeout_ms=200)
        born = {0: (0, 0), 1: (0, 0), 2: (1, 0), 3: (1, 0)}
        lone.lead("grown", 4)
        lone.broker.metadata.topics["grown"].partitions.clear()
        tell_resized(lone, "grown", born, resize_epoch=1)
        lone.group_refusal = ErrorCode.GROUP_AUTHORIZATION_FAILED
        async with Cluster(lone.bootstrap, settings) as hasty:
            reader = reader_of(hasty, "grown")
            with pytest.raises(Refused) as caught:
                await read(reader, 1)
            assert not isinstance(caught.value, PartitionsRefused)
            assert caught.value.code == ErrorCode.GROUP_AUTHORIZATION_FAILED
            await reader.close()

    with_group(tmp_path, story)


def test_a_partition_without_a_leader_holds_up_no_other_of_its_topic(tmp_path: Path) -> None:
    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        lone.lead("two", 2)
        first, second = TopicPartition("two", 0), TopicPartition("two", 1)
        async with RecordSender(cluster) as sender:
            await (await sender.send("two", b"x", partition=0))
        lone.lose_leader("two", 1)
        async with reader_of(cluster, "a", "two") as reader:
            # Its look-up has a minute: the others are read, and committed, all the while.
            assert sorted(await read(reader, 2)) == [A, first]
            assert reader.member.state is MemberState.JOINED
            await reader.controls.commit()
        assert (await committed_offsets(cluster, "g"))[first].offset == 1
        settings = ClusterSettings(backoff=FAST, default_api_timeout_ms=200)
        async with Cluster(lone.bootstrap, settings) as hasty:
            reader = reader_of(hasty, "a", "two")
            with pytest.raises(PartitionsRefused) as caught:
                await read(reader, 1)
            assert {each: error.code for each, error in caught.value.errors.items()} == {
                second: ErrorCode.LEADER_NOT_AVAILABLE
            }
            await reader.close()

    with_group(tmp_path, story)


def test_a_member_that_is_recalled_does_not_wait_for_its_positions(tmp_path: Path) -> None:
    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        lone.may_answer.clear()
        async with Cluster(lone.bootstrap) as other, reader_of(cluster, "a", "b") as first:
            polling = asyncio.create_task(first.poll(3_600_000))
            await until(lambda: lone.asked)
            late = GroupMember(other, "g", ["a", "b"])
            # Its look-up hangs, and the other's join waits for it.
            await late.join()
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            lone.may_answer.set()
            await late.leave()

    with_group(tmp_path, story)


def test_a_poll_that_is_cancelled_between_join_and_positions_loses_nothing(
    tmp_path: Path,
) -> None:
    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        lone.may_answer.clear()
        async with reader_of(cluster, "a") as reader:
            polling = asyncio.create_task(reader.poll(3_600_000))
            await until(lambda: lone.asked)
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            # Nor does a poll wait longer than it was asked to.
            assert await reader.poll(1) == []
            assert reader.member.state is MemberState.JOINED
            lone.may_answer.set()
            assert await read(reader, 1) == [A]
            assert lone.asked == 1

    with_group(tmp_path, story)


def test_a_partition_without_a_position_or_a_reset_is_an_error_of_each_poll(tmp_path: Path) -> None:
    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        async with reader_of(cluster, "a", "b", reset=OffsetReset.NONE) as reader:
            said = 0
            while said < 3:
                try:
                    assert await reader.poll(100) == []
                except PartitionsRefused as error:
                    assert set(error.errors) == {A, B}
                    assert error.code == ErrorCode.OFFSET_OUT_OF_RANGE
                    said += 1

    with_group(tmp_path, story)


def test_a_deleted_topic_does_not_keep_a_reader_from_the_others(tmp_path: Path) -> None:
    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        async with reader_of(cluster, "a", "b", auto_commit_ms=50) as reader:
            assert sorted(await read(reader, 2)) == [A, B]
            lone.delete("b")
            await write(cluster, "a")
            assert await read(reader, 1) == [A]
            # The leader of the group sees it, and the member joins again.
            while reader.assignment != [A] or reader.member.state is not MemberState.READING:
                await reader.poll(100)
            await write(cluster, "a")
            assert await read(reader, 1) == [A]
            await reader.controls.commit()
        assert (await committed_offsets(cluster, "g", [A]))[A].offset == 3

    with_group(tmp_path, story)


def test_a_commit_says_what_was_refused_of_each_partition(tmp_path: Path) -> None:
    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        gone = TopicPartition("gone", 0)
        with pytest.raises(CommitRefused) as caught:
            await commit_offsets(
                cluster, "h", {gone: Position(7), A: Position(1), B: Position(1, -1, "n" * 5_000)}
            )
        assert {where: error.code for where, error in caught.value.errors.items()} == {
            gone: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            B: ErrorCode.OFFSET_METADATA_TOO_LARGE,
        }
        assert (await committed_offsets(cluster, "h"))[A].offset == 1

    with_group(tmp_path, story)


def test_a_commit_of_a_poll_that_begins_at_once_does_not_fail_the_one_before(
    tmp_path: Path,
) -> None:
    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        async with reader_of(cluster, "a", auto_commit_ms=60_000) as reader:
            assert await read(reader, 1) == [A]
            reporting = asyncio.create_task(reader.commits.before_report({A: 0}))
            await until(lambda: reader.commits.running)
            assert reader.commits.running is not None
            # As a poll whose commit is due, and that runs before the one that waits does.
            reader.commits.running.add_done_callback(
                lambda _: reader.commits.aside(reader.positions())
            )
            await reporting

    with_group(tmp_path, story)


def test_positions_that_wait_for_a_newer_commit_do_not_take_it_back(tmp_path: Path) -> None:
    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        async with reader_of(cluster, "a", auto_commit_ms=60_000) as reader:
            assert await read(reader, 1) == [A]
            assert reader.fetcher.positions() == {A: 1}
            reader.commits.aside(reader.positions())
            await reader.commits.before_report({A: 0})
            assert (await committed_offsets(cluster, "g", [A]))[A].offset == 1

    with_group(tmp_path, story)


def test_a_member_that_is_slow_to_come_back_keeps_its_session(tmp_path: Path) -> None:
    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        times = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 50}
        async with Cluster(lone.bootstrap) as other:
            slow = GroupMember(cluster, "g", ["a"], **times)
            late = GroupMember(other, "g", ["a"], **times)
            assert await slow.join() == [A]
            joining = asyncio.create_task(late.join())
            await until(lambda: slow.state is MemberState.RECALLED)
            group = lone.coordinator.table_of("g").get("g")
            began = asyncio.get_running_loop().time()
            # It works on what it read beyond its session; then its commit counts.
            await until(lambda: asyncio.get_running_loop().time() - began > 3)
            assert slow.membership.member_id in group.members
            assert not joining.done()
            await slow.commit({A: Position(1)})
            shares = await asyncio.gather(slow.join(), joining)
            assert sorted(shares) == [[], [A]]
            await slow.leave()
            await late.leave()

    with_group(tmp_path, story)


def test_a_coordinator_that_hangs_once_does_not_cost_the_session(tmp_path: Path) -> None:
    """The heartbeat waited for it as long as any request: 30 s, beyond the session."""

    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        member = GroupMember(
            cluster, "g", ["a"], session_timeout_ms=1_500, heartbeat_interval_ms=50
        )
        assert await member.join() == [A]
        member.positioned()
        lone.beats_to_hang = 1
        await until(lambda: lone.hung == 1)
        seen = lone.beats
        await until(lambda: lone.beats > seen + 5 or member.state is not MemberState.READING)
        assert member.state is MemberState.READING
        assert member.membership.member_id in lone.coordinator.table_of("g").get("g").members
        await member.leave()

    with_group(tmp_path, story)


def test_a_reader_that_is_recalled_in_mid_poll_does_not_sit_out_its_time(tmp_path: Path) -> None:
    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        async with Cluster(lone.bootstrap) as other, reader_of(cluster, "a") as first:
            await read(first, 1)
            polling = asyncio.create_task(first.poll(3_600_000))
            second = reader_of(other, "a")
            while second.member.state is not MemberState.READING:
                await second.poll(100)
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            await second.close()

    with_group(tmp_path, story)


def test_a_join_that_is_cancelled_leaves_a_member_that_may_leave_or_join(tmp_path: Path) -> None:
    async def story(lone: RefusingBroker, cluster: Cluster) -> None:
        async with Cluster(lone.bootstrap) as other:
            first, second = GroupMember(cluster, "g", ["a"]), GroupMember(other, "g", ["a"])
            await first.join()
            joining = asyncio.create_task(second.join())
            await until(lambda: len(lone.coordinator.table_of("g").get("g").members) == 2)
            joining.cancel()
            await asyncio.gather(joining, return_exceptions=True)
            assert second.state is MemberState.OUT
            await second.leave()
            await until(lambda: len(lone.coordinator.table_of("g").get("g").members) == 1)
            await first.leave()
            with pytest.raises(Refused):
                await first.commit({A: Position(1)})

    with_group(tmp_path, story)
