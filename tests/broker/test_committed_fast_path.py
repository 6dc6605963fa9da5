"""The fast path of OffsetFetch beside the handler of all, at one broker: the same responses."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.support.group_broker import GroupBroker
from tests.support.resized_topics import tell_resized
from tidelog.broker.coordinator import committed_fast_path, parts
from tidelog.broker.handlers import offset_commit, offset_fetch
from tidelog.groups.group import GroupState
from tidelog.groups.records import FirstSight
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import codec, messages
from tidelog.protocol.primitives import NO_UUID

Asked = messages.OffsetFetchRequest
PLAIN = range(committed_fast_path.OLDEST, offset_fetch.HANDLER.versions.stop)
REQUESTS = 200
GROWN, COUNTED, UNCOUNTED, REMADE = "grown", "counted", "uncounted", "remade"
COUNTS = {GROWN: 4, COUNTED: 100, UNCOUNTED: 3, REMADE: 2}
CLIENT: Any = SimpleNamespace(client_host="127.0.0.1")


def frame_of(version: int, request: Any) -> tuple[memoryview, int]:
    """A request without its size and header, after some other bytes, and where it begins."""
    head = 4 + 10 + (version >= committed_fast_path.FLEXIBLE_SINCE)
    whole = b"".join(codec.encode_request(ApiKey.OFFSET_FETCH, version, 5, "", request))
    return memoryview(b"head" + whole[head:]), 4


def fast(broker: GroupBroker, version: int, frame: memoryview, position: int) -> bytes | None:
    return committed_fast_path.answer(broker.broker, frame, position, version, 9, CLIENT)


async def slow(broker: GroupBroker, version: int, request: Any) -> bytes:
    """The frame of the response that the handler makes."""
    answer = await broker.ask(offset_fetch, request, version)
    return b"".join(codec.encode_response(ApiKey.OFFSET_FETCH, version, 9, answer))


async def commit(broker: GroupBroker, group: str, topic: str, offsets: dict[int, int]) -> None:
    request = messages.OffsetCommitRequest
    asked = [
        request.OffsetCommitRequestPartition(at, offset, offset % 3 - 1, "ü" * (offset % 5 * 40))
        for at, offset in offsets.items()
    ]
    topics = [request.OffsetCommitRequestTopic(topic, partitions=asked)]
    answer = await broker.ask(offset_commit, request(group_id=group, topics=topics), 8)
    assert {part.error_code for part in answer.topics[0].partitions} == {E.NONE}


async def coordinator(folder: Path) -> GroupBroker:
    """A broker with two groups: ``g`` has offsets in each topic, ``h`` in one."""
    broker = GroupBroker(folder)
    await broker.start()
    for name, count in COUNTS.items():
        broker.lead(name, count)
    await broker.coordinator.reloaded(broker.lead_offsets())
    for name in (GROWN, COUNTED):
        broker.broker.metadata.topics[name].partitions.clear()
    tell_resized(broker, GROWN, {0: (0, 0), 1: (0, 0)}, resize_epoch=0)
    tell_resized(broker, COUNTED, dict.fromkeys(range(100), (0, 0)), resize_epoch=0)
    await commit(broker, "g", GROWN, {0: 7})
    tell_resized(broker, GROWN, {0: (0, 0), 1: (0, 0), 2: (1, 5), 3: (1, 2)}, resize_epoch=1)
    await commit(broker, "g", COUNTED, {at: at for at in range(0, 100, 2)})
    await commit(broker, "g", UNCOUNTED, {1: 2**40})
    await commit(broker, "g", REMADE, {0: 1, 1: 2})
    await commit(broker, "h", COUNTED, {99: 5})
    (table,) = broker.coordinator.tables()
    group = table.get("g")
    assert group is not None
    # Its offsets there are of a former topic of this name.
    group.first_sights[REMADE] = FirstSight(UUID(int=5), 0, -1)
    return broker


def some(chance: random.Random, version: int, ids: dict[str, UUID]) -> Any:
    """What a client may ask; most of it plain."""
    names = chance.sample([*COUNTS, "unknown"], chance.choice((1, 1, 2, 3)))
    if chance.random() < 0.05:
        names.append(names[0])
    asked = []
    for name in names:
        count = COUNTS.get(name, 1)
        numbers = chance.sample(range(count + (chance.random() < 0.05)), chance.randint(1, count))
        if chance.random() < 0.05:
            numbers.append(numbers[0])
        asked.append((name, numbers))
    group = chance.choice(("g", "g", "g", "h", "missing", "g" * 200))
    stable = {"require_stable": chance.random() < 0.5} if version >= 7 else {}
    topics: Any = None
    if version < 8:
        topics = [Asked.OffsetFetchRequestTopic(*each) for each in asked]
        topics = chance.choice((topics, topics, topics, topics, topics, []))
        return Asked(group_id=group, topics=topics, **stable)
    topics = [
        Asked.OffsetFetchRequestTopics(
            name, ids.get(name, UUID(int=99)) if version >= 10 else NO_UUID, numbers
        )
        for name, numbers in asked
    ]
    topics = chance.choice((topics, topics, topics, topics, topics, None))
    groups = [Asked.OffsetFetchRequestGroup(group, topics=topics)]
    if chance.random() < 0.1:
        groups.append(Asked.OffsetFetchRequestGroup("h", topics=topics))
    tags = {"include_expiry": chance.random() < 0.1} if version >= 9 else {}
    return Asked(groups=groups, **stable, **tags)


@pytest.mark.parametrize("version", PLAIN)
def test_both_ways_give_the_same_responses(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        chance = random.Random(version)
        broker = await coordinator(tmp_path)
        ids = {name: broker.broker.metadata.id_of(name) for name in COUNTS}
        served = 0
        for number in range(REQUESTS):
            request = some(chance, version, ids)
            found = fast(broker, version, *frame_of(version, request))
            if found is not None:
                served += 1
                expected = await slow(broker, version, request)
                assert found == expected, f"request {number} of seed {version}: {request}"
        assert served > REQUESTS // 4, "the fast path serves plain requests"
        await broker.stop()

    asyncio.run(main())


@pytest.mark.parametrize("version", PLAIN)
def test_what_is_not_plain_is_left_to_the_handler(tmp_path: Path, version: int) -> None:
    """Every prefix of a request, one with a byte too much, one that is long, and births."""

    def asks(name: str, numbers: list[int]) -> Any:
        topic_id = broker.broker.metadata.id_of(name) if version >= 10 else NO_UUID
        if version < 8:
            return Asked(group_id="g", topics=[Asked.OffsetFetchRequestTopic(name, numbers)])
        topics = [Asked.OffsetFetchRequestTopics(name, topic_id, numbers)]
        return Asked(groups=[Asked.OffsetFetchRequestGroup("g", topics=topics)])

    async def main() -> None:
        nonlocal broker
        broker = await coordinator(tmp_path)
        frame, position = frame_of(version, asks(COUNTED, [3, 2, 1]))
        assert fast(broker, version, frame, position) is not None
        for stop in range(position, len(frame)):
            assert fast(broker, version, frame[:stop], position) is None, stop
        assert fast(broker, version, memoryview(bytes(frame) + b"\0"), position) is None
        long = list(range(parts.PART))
        for name, numbers in ((COUNTED, long), (GROWN, [0]), (COUNTED, [100])):
            assert fast(broker, version, *frame_of(version, asks(name, numbers))) is None
        await broker.stop()

    broker: Any = None
    asyncio.run(main())


def test_an_id_of_a_former_topic_of_the_name_is_left_to_the_handler(tmp_path: Path) -> None:
    """Whoever asks for the offsets of a former topic must not get those of the present one."""

    async def main() -> None:
        broker = await coordinator(tmp_path)
        metadata, former = broker.broker.metadata, UUID(int=7)
        metadata.names.put(UNCOUNTED, former)
        for topic_id, is_plain in ((former, False), (metadata.id_of(UNCOUNTED), True)):
            topics = [Asked.OffsetFetchRequestTopics("", topic_id, [1])]
            frame = frame_of(10, Asked(groups=[Asked.OffsetFetchRequestGroup("g", topics=topics)]))
            assert (fast(broker, 10, *frame) is not None) == is_plain
        await broker.stop()

    asyncio.run(main())


def test_where_more_than_the_offsets_of_a_living_group_counts(tmp_path: Path) -> None:
    """Retired partitions are asked about; a coordinator that loads, or is elsewhere, does not say
    that there are no offsets; a group that is being removed has none."""

    async def main() -> None:
        broker = await coordinator(tmp_path)
        topics = [Asked.OffsetFetchRequestTopic(COUNTED, [98, 2])]
        request = Asked(group_id="g", topics=topics)
        frame, position = frame_of(7, request)
        (table,) = broker.coordinator.tables()
        group = table.get("g")
        assert group is not None
        found = fast(broker, 7, frame, position)
        state, group.state = group.state, GroupState.DEAD
        removed = fast(broker, 7, frame, position)
        assert removed == await slow(broker, 7, request)
        assert removed != found
        group.state = state
        whole = dict.fromkeys(range(100), (0, 0))
        tell_resized(broker, COUNTED, whole, resize_epoch=0, retired={99: 0})
        assert fast(broker, 7, frame, position) is None
        await broker.stop()
        other = GroupBroker(tmp_path / "other")
        await other.start()
        other.lead(COUNTED, 100)
        assert fast(other, 7, frame, position) is None
        await other.stop()

    asyncio.run(main())
