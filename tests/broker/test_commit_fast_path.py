"""The fast path of OffsetCommit beside the handler of all: the same responses and the same group.

Two brokers get the same requests: one as frames, the other without its fast path. Some requests are
damaged: for these the fast path has to return None, and to change nothing.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.support.group_broker import GroupBroker, done
from tests.support.lone_broker import until
from tidelog.broker.coordinator import commit_fast_path, parts
from tidelog.broker.handlers import join_group, offset_commit, sync_group
from tidelog.groups.records import CommittedOffset
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import codec, messages
from tidelog.protocol.primitives import NO_UUID

Asked = messages.OffsetCommitRequest
PLAIN = range(commit_fast_path.OLDEST, offset_commit.HANDLER.versions.stop)
REQUESTS = 150
CLIENT: Any = SimpleNamespace(client_host="127.0.0.1")


def frame_of(version: int, request: Any) -> tuple[memoryview, int]:
    """A request without its size and header, after some other bytes, and where it begins."""
    head = 4 + 10 + (version >= commit_fast_path.FLEXIBLE_SINCE)
    whole = b"".join(codec.encode_request(ApiKey.OFFSET_COMMIT, version, 5, "", request))
    return memoryview(b"head" + whole[head:]), 4


async def fast(broker: GroupBroker, version: int, frame: memoryview, position: int) -> bytes | None:
    """The frame of the response; None from a request that is not plain."""
    end = offsets_end(broker)
    answer: Any = commit_fast_path.answer(broker.broker, frame, position, version, 9, CLIENT)
    if answer is None:
        assert offsets_end(broker) == end
        return None
    return await answer if asyncio.isfuture(answer) else bytes(answer)


async def slow(broker: GroupBroker, version: int, request: Any) -> bytes:
    """The frame of the response that the handler makes."""
    answer = await broker.ask(offset_commit, request, version)
    return b"".join(codec.encode_response(ApiKey.OFFSET_COMMIT, version, 9, answer))


def offsets_end(broker: GroupBroker) -> int:
    hosted = broker.broker.partitions.get("__consumer_offsets", 0)
    assert hosted is not None
    return hosted.end_offset


def state_of(broker: GroupBroker, group: str) -> dict[str, dict[int, CommittedOffset]]:
    """The offsets of a group, without their times."""
    (table,) = broker.coordinator.tables()
    known = table.get(group)
    return {
        topic: {
            at: CommittedOffset(one.offset, one.leader_epoch, one.metadata, topic_id=one.topic_id)
            for at, one in positions.items()
        }
        for topic, positions in (known.offsets if known is not None else {}).items()
    }


async def led(folder: Path) -> GroupBroker:
    """A broker that coordinates groups, and knows two topics."""
    broker = GroupBroker(folder, {"group.initial.rebalance.delay.ms": 0})
    await broker.start()
    broker.lead("t", 100)
    broker.lead("u", 3)
    broker.lead_offsets()
    await until(lambda: not broker.coordinator.is_loading)
    return broker


def some(chance: random.Random, version: int, ids: dict[str, UUID]) -> Any:
    """A commit of a tool, or of a stranger; most of it plain."""

    def topic(name: str) -> Any:
        most = {"t": 100, "u": 3, "unknown": 3}[name]
        count = chance.choice((1, 2, most))
        text = chance.choice((None, None, "", "", "m"))
        numbers = chance.sample(range(most + (chance.random() < 0.1)), count)
        return Asked.OffsetCommitRequestTopic(
            name,
            ids.get(name, UUID(int=99)) if version >= 10 else NO_UUID,
            [
                Asked.OffsetCommitRequestPartition(
                    at, chance.randrange(2**40), chance.choice((-1, 3)), text
                )
                for at in numbers
            ],
        )

    names = chance.choices(("t", "u", "unknown"), (6, 6, 1), k=chance.choice((1, 1, 2, 3)))
    return Asked(
        group_id=chance.choice(("g", "h", "g" * 200)),
        generation_id_or_member_epoch=chance.choice((-1, -1, -1, 4)),
        member_id=chance.choice(("", "", "", "stranger")),
        group_instance_id=chance.choice((None, None, None, "i")) if version >= 7 else None,
        topics=[topic(name) for name in names],
    )


@pytest.mark.parametrize("version", PLAIN)
def test_both_ways_give_the_same_responses_and_leave_the_same_offsets(
    tmp_path: Path, version: int
) -> None:
    async def main() -> None:
        chance = random.Random(version)
        one, other = await led(tmp_path / "one"), await led(tmp_path / "other")
        # Ids are made by each broker: the second one gets those of its own.
        ids, others = (
            {name: broker.broker.metadata.id_of(name) for name in ("t", "u")}
            for broker in (one, other)
        )
        served = 0
        for number in range(REQUESTS):
            seed = chance.randrange(2**32)
            request = some(random.Random(seed), version, ids)
            same = some(random.Random(seed), version, others)
            found = await fast(one, version, *frame_of(version, request))
            expected = await slow(other, version, same)
            if found is None:
                found = await slow(one, version, request)
            else:
                served += 1
            for name in ids:
                expected = expected.replace(others[name].bytes, ids[name].bytes)
            assert found == expected, f"request {number} of seed {version}: {request}"
        for group in ("g", "h", "g" * 200):
            mine, theirs = state_of(one, group), state_of(other, group)
            for topic, positions in theirs.items():
                for at, value in positions.items():
                    assert mine[topic][at] == value
            assert {topic: set(mine[topic]) for topic in mine} == {
                topic: set(theirs[topic]) for topic in theirs
            }
        assert served > REQUESTS // 4, "the fast path serves plain requests"
        await one.stop()
        await other.stop()

    asyncio.run(main())


@pytest.mark.parametrize("version", PLAIN)
def test_what_is_not_plain_changes_nothing(tmp_path: Path, version: int) -> None:
    """Every prefix of a request, and one with a byte too much."""

    async def main() -> None:
        broker = await led(tmp_path)
        topic_id = broker.broker.metadata.id_of("u") if version >= 10 else NO_UUID
        partition = Asked.OffsetCommitRequestPartition
        plain = [partition(at, 5, -1, None) for at in range(3)]
        request = Asked(group_id="g", topics=[Asked.OffsetCommitRequestTopic("u", topic_id, plain)])
        frame, position = frame_of(version, request)
        for stop in range(position, len(frame)):
            assert await fast(broker, version, frame[:stop], position) is None, stop
        assert await fast(broker, version, memoryview(bytes(frame) + b"\0"), position) is None
        long = [partition(at % 3, 5, -1, None) for at in range(parts.PART)]
        request.topics = [Asked.OffsetCommitRequestTopic("u", topic_id, long)]
        assert await fast(broker, version, *frame_of(version, request)) is None
        assert state_of(broker, "g") == {}
        assert await fast(broker, version, frame, position) is not None
        assert set(state_of(broker, "g")["u"]) == {0, 1, 2}
        await broker.stop()

    asyncio.run(main())


def test_an_error_of_the_group_is_in_each_partition(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await led(tmp_path)
        partition = Asked.OffsetCommitRequestPartition
        plain = [partition(at, 5, -1, None) for at in range(3)]
        topics = [Asked.OffsetCommitRequestTopic("u", NO_UUID, plain)]
        request = Asked(group_id="g", generation_id_or_member_epoch=3, topics=topics)
        for version, error in ((8, 22), (9, 69)):
            found = await fast(broker, version, *frame_of(version, request))
            assert found is not None
            _, response = codec.decode_response(
                ApiKey.OFFSET_COMMIT, version, memoryview(found)[4:]
            )
            errors = [part.error_code for part in done(response).topics[0].partitions]
            assert errors == [error] * 3
        await broker.stop()

    asyncio.run(main())


@pytest.mark.parametrize("version", [7, 10])
def test_a_static_member_is_known_by_its_instance(tmp_path: Path, version: int) -> None:
    """Another member of its instance gets FENCED_INSTANCE_ID, after which its client ends."""

    async def main() -> None:
        broker = await led(tmp_path)
        topic_id = broker.broker.metadata.id_of("u") if version >= 10 else NO_UUID
        join = messages.JoinGroupRequest
        joined = await broker.ask(
            join_group,
            join(
                group_id="g",
                session_timeout_ms=60_000,
                rebalance_timeout_ms=60_000,
                group_instance_id="i",
                protocol_type="consumer",
                protocols=[join.JoinGroupRequestProtocol("range", b"")],
            ),
            9,
        )
        assert joined.error_code == E.NONE
        sync = messages.SyncGroupRequest
        synced = await broker.ask(
            sync_group,
            sync(
                group_id="g",
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                group_instance_id="i",
                protocol_type="consumer",
                protocol_name="range",
                assignments=[sync.SyncGroupRequestAssignment(joined.member_id, b"")],
            ),
            5,
        )
        assert synced.error_code == E.NONE
        plain = [Asked.OffsetCommitRequestPartition(0, 5, -1, None)]
        for member_id, instance_id, error in (
            (joined.member_id, "i", E.NONE),
            (joined.member_id, None, E.NONE),
            ("another", "i", E.FENCED_INSTANCE_ID),
            ("another", None, E.UNKNOWN_MEMBER_ID),
        ):
            request = Asked(
                group_id="g",
                generation_id_or_member_epoch=joined.generation_id,
                member_id=member_id,
                group_instance_id=instance_id,
                topics=[Asked.OffsetCommitRequestTopic("u", topic_id, plain)],
            )
            found = await fast(broker, version, *frame_of(version, request))
            assert found is not None
            assert found == await slow(broker, version, request)
            _, response = codec.decode_response(
                ApiKey.OFFSET_COMMIT, version, memoryview(found)[4:]
            )
            assert response.topics[0].partitions[0].error_code == error
        await broker.stop()

    asyncio.run(main())


def test_a_group_that_a_commit_begins_counts_for_the_address_of_its_client(tmp_path: Path) -> None:
    """Each address has a share of the room for groups."""

    async def main() -> None:
        broker = await led(tmp_path)
        (table,) = broker.coordinator.tables()
        partitions = [Asked.OffsetCommitRequestPartition(0, 5, -1, None)]
        topics = [Asked.OffsetCommitRequestTopic("u", NO_UUID, partitions)]
        one, other = (Asked(group_id=group, topics=topics) for group in ("one", "other"))
        assert await fast(broker, 8, *frame_of(8, one)) is not None
        await slow(broker, 8, other)
        for request in (one, other):
            known = table.get(request.group_id)
            assert known is not None
            assert known.begun_by == "/" + CLIENT.client_host
        await broker.stop()

    asyncio.run(main())


def test_an_id_of_a_former_topic_of_the_name_is_left_to_the_handler(tmp_path: Path) -> None:
    """Its offsets must not become those of the present topic."""

    async def main() -> None:
        broker = await led(tmp_path)
        former = UUID(int=7)
        broker.broker.metadata.names.put("u", former)
        for topic_id, is_plain in ((former, False), (broker.broker.metadata.id_of("u"), True)):
            plain = [Asked.OffsetCommitRequestPartition(0, 5, -1, None)]
            topics = [Asked.OffsetCommitRequestTopic("u", topic_id, plain)]
            frame, position = frame_of(10, Asked(group_id="g", topics=topics))
            assert (await fast(broker, 10, frame, position) is not None) == is_plain
            assert bool(state_of(broker, "g")) == is_plain
        await broker.stop()

    asyncio.run(main())
