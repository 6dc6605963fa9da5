"""ConsumerGroupPosition over a connection: reports, questions, hostile requests."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.group_broker import GroupBroker
from tests.support.group_driver import assignment, subscription
from tests.support.lone_broker import Peer
from tests.support.resized_topics import tell_resized
from tidelog.broker.handlers import consumer_group_position, describe_condition
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import codec, messages
from tidelog.runtime import pace

Ask = messages.ConsumerGroupPositionRequest
GROUP = "g"
HUGE = 2**31 - 1
NO_CONTEXT: Any = None


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def asking(member: str, generation: int, *parts: tuple[int, bool, int], group: str = GROUP) -> Any:
    """(partition, asks, position) of topic ``t``."""
    topic = Ask.Topic("t", [Ask.Partition(*part) for part in parts])
    return Ask(group_id=group, generation_id=generation, member_id=member, topics=[topic])


@asynccontextmanager
async def coordinator(folder: Path) -> AsyncIterator[GroupBroker]:
    lone = GroupBroker(folder, {"group.initial.rebalance.delay.ms": 0})
    await lone.start()
    try:
        lone.lead("t", 2)
        tell_resized(lone, "t", {0: (0, 0), 1: (0, 0)}, resize_epoch=0)
        await lone.broker.coordinator.reloaded(lone.lead_offsets())
        yield lone
    finally:
        await lone.stop()


async def member_of(peer: Peer, *, aware: bool) -> tuple[str, int]:
    """Join alone, with both partitions; return the member id and the generation."""
    join = messages.JoinGroupRequest
    names = ["tidelog.range", "range"] if aware else ["range"]
    protocols = [join.JoinGroupRequestProtocol(name, subscription("t")) for name in names]
    asked = join(GROUP, 10_000, 10_000, "", None, "consumer", protocols)
    asked.member_id = (await peer.ask(asked, 6)).member_id
    joined = await peer.ask(asked, 6)
    assert joined.error_code == 0
    sync = messages.SyncGroupRequest
    share = sync.SyncGroupRequestAssignment(joined.member_id, assignment(t=[0, 1]))
    asked_sync = sync(
        group_id=GROUP,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[share],
    )
    assert (await peer.ask(asked_sync, 3)).error_code == 0
    return joined.member_id, joined.generation_id


async def commit(peer: Peer, member: str, generation: int, offset: int) -> None:
    request = messages.OffsetCommitRequest
    part = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [request.OffsetCommitRequestTopic("t", partitions=[part])]
    asked = request(
        group_id=GROUP, generation_id_or_member_epoch=generation, member_id=member, topics=topics
    )
    answer = await peer.ask(asked, 8)
    assert answer.topics[0].partitions[0].error_code == 0


def shown(answer: Any) -> list[tuple[int, bool, int, bool]]:
    assert answer.error_code == 0
    return [
        (part.partition, part.need_position, part.position, part.from_commit)
        for topic in answer.topics
        for part in topic.partitions
    ]


def test_a_member_reports_and_asks(tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator(tmp_path) as lone:
            peer = await Peer.connect(lone.port)
            member, generation = await member_of(peer, aware=True)
            await commit(peer, member, generation, 3)
            unknown = asking(member, generation, (0, True, -1), (1, True, -1))
            assert shown(await peer.ask(unknown, 0)) == [
                (0, True, -1, False),
                (1, True, -1, False),
            ]
            report = asking(member, generation, (0, False, 9), (1, True, 5))
            assert shown(await peer.ask(report, 0)) == [
                (0, False, -1, False),
                (1, True, 5, False),
            ]
            # A request in which a partition stands twice: the last report counts.
            twice = asking(member, generation, (0, True, 8), (0, True, 7), (1, True, -1))
            assert shown(await peer.ask(twice, 0))[:2] == [(0, True, 7, False)] * 2
            await commit(peer, member, generation, 4)
            assert shown(await peer.ask(unknown, 0))[0] == (0, True, 4, False)
            # The first sight of the topic came with the assignment.
            (group,) = [table.get(GROUP) for table in lone.broker.coordinator.tables()]
            assert group is not None
            assert (group.first_sights["t"].resize_epoch, group.first_sights["t"].partitions) == (
                0,
                2,
            )
            # Elsewhere, and after another coordinator, nothing is known.
            lone.lead_offsets(epoch=1, leader=2)
            answer = await peer.ask(unknown, 0)
            assert (answer.error_code, answer.topics) == (E.NOT_COORDINATOR, [])
            await lone.broker.coordinator.reloaded(lone.lead_offsets(epoch=2))
            assert shown(await peer.ask(unknown, 0))[0] == (0, True, -1, False)
            peer.writer.close()

    run(work())


def test_the_commits_of_stock_members_and_of_no_members(tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator(tmp_path) as lone:
            peer = await Peer.connect(lone.port)
            nobody = asking("", -1, (0, True, 99), (1, True, -1))
            assert shown(await peer.ask(nobody, 0)) == [(0, True, -1, True), (1, True, -1, True)]
            member, generation = await member_of(peer, aware=False)
            await commit(peer, member, generation, 3)
            assert (await peer.ask(nobody, 0)).error_code == E.UNKNOWN_MEMBER_ID
            leave = messages.LeaveGroupRequest
            await peer.ask(leave(group_id=GROUP, member_id=member), 1)
            assert shown(await peer.ask(nobody, 0)) == [(0, True, 3, True), (1, True, -1, True)]
            assert (await peer.ask(asking(member, generation), 0)).error_code == E.UNKNOWN_MEMBER_ID
            peer.writer.close()

    run(work())


def test_a_tool_is_answered_with_the_progress_of_a_group(tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator(tmp_path) as lone:
            peer = await Peer.connect(lone.port)

            async def progress(*subjects: str) -> Any:
                request = messages.DescribeConditionRequest(subjects=["group", *subjects])
                found: Any = describe_condition.handle(lone.broker, request, NO_CONTEXT)
                answer = await pace.response(found, lone.broker.clock)
                return E(answer.error_code) if answer.error_code else json.loads(answer.condition)

            assert await progress("stranger", "t") is E.GROUP_ID_NOT_FOUND
            member, generation = await member_of(peer, aware=True)
            await peer.ask(asking(member, generation, (0, False, 9)), 0)
            found = await progress(GROUP, "t", "t", "unknown")
            assert (found["role"], found["state"]) == ("coordinator", "Stable")
            assert [
                (row["partition"], row["member"], row["position"]) for row in found["partitions"]
            ] == [(0, member, 9), (1, member, None)]
            assert found["members"][member]["client_id"] == "peer"
            assert (
                found["members"][member]["silent_ms"]
                < found["members"][member]["session_timeout_ms"]
            )
            lone.lead_offsets(epoch=1, leader=2)
            assert await progress(GROUP, "t") is E.NOT_COORDINATOR
            peer.writer.close()

    run(work())


def test_too_many_elements_and_odd_values(tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator(tmp_path) as lone:
            peer = await Peer.connect(lone.port)
            member, generation = await member_of(peer, aware=True)
            most = consumer_group_position.MOST_ELEMENTS
            many = asking(member, generation, *((at, True, at) for at in range(most)))
            answer = await peer.ask(many, 0)
            assert (answer.error_code, answer.topics) == (E.INVALID_REQUEST, [])
            del many.topics[0].partitions[-1]
            assert len(shown(await peer.ask(many, 0))) == most - 1
            odd = asking(member, generation, (-1, True, 7), (HUGE, True, 2**63 - 1), (0, True, -9))
            assert shown(await peer.ask(odd, 0)) == [
                (-1, True, -1, True),
                (HUGE, True, -1, True),
                (0, True, 0, False),
            ]
            for group, name, at in (("", member, generation), ("x" * 40_000, member, generation)):
                answer = await peer.ask(asking(name, at, (0, True, 1), group=group), 0)
                assert answer.error_code == E.UNKNOWN_MEMBER_ID
            peer.writer.close()

    run(work())


def test_damaged_requests_leave_the_broker_serving(tmp_path: Path) -> None:
    async def work() -> None:
        draw = random.Random(7)
        async with coordinator(tmp_path) as lone:
            peer = await Peer.connect(lone.port)
            member, generation = await member_of(peer, aware=True)
            sound = asking(member, generation, (0, True, 4), (1, True, 5))
            key = ApiKey.CONSUMER_GROUP_POSITION
            whole = b"".join(codec.encode_request(key, 0, 1, "c", sound))
            for _ in range(150):
                damaged = bytearray(whole)
                for _ in range(draw.randint(1, 3)):
                    damaged[draw.randrange(14, len(damaged))] = draw.randrange(256)
                other = await Peer.connect(lone.port)
                other.asked(1, key, 0)
                other.writer.write(damaged)
                try:
                    await other.receive()
                except ConnectionError:
                    pass
                finally:
                    other.writer.close()
            assert len(shown(await peer.ask(sound, 0))) == 2
            peer.writer.close()

    run(work())
