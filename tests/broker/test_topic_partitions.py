"""DescribeTopicPartitions: pages of topics, by name and by cursor, from any broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.support.lone_broker import LoneBroker
from tidelog.broker.handlers import describe_topic_partitions
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.protocol import codec, messages

TOLD = messages.UpdateMetadataRequest
ASKED = messages.DescribeTopicPartitionsRequest
HERE, INSIDE_ONLY, GONE = 1, 2, 3
"""A broker with the client's listener, one without it, and one that does not live."""


def tell(broker: LoneBroker, counts: dict[str, int], leader: int = HERE) -> None:
    """Tell of topics with so many partitions each."""

    def endpoints(*names: str) -> list[Any]:
        return [TOLD.UpdateMetadataEndpoint(port=9, host="h", listener=name) for name in names]

    update = TOLD(
        controller_id=HERE,
        topic_states=[
            TOLD.UpdateMetadataTopicState(
                topic_name=name,
                topic_id=UUID(int=1000 + number),
                partition_states=[
                    TOLD.UpdateMetadataPartitionState(
                        partition_index=index,
                        leader=leader,
                        leader_epoch=7,
                        isr=[HERE],
                        replicas=[HERE, INSIDE_ONLY, GONE],
                        offline_replicas=[GONE],
                    )
                    for index in range(count)
                ],
            )
            for number, (name, count) in enumerate(counts.items())
        ],
        live_brokers=[
            TOLD.UpdateMetadataBroker(id=HERE, endpoints=endpoints("PLAINTEXT", "INSIDE")),
            TOLD.UpdateMetadataBroker(id=INSIDE_ONLY, endpoints=endpoints("INSIDE")),
        ],
    )
    broker.broker.metadata.apply(update, complete=True)


@asynccontextmanager
async def knowing(folder: Path, counts: dict[str, int], **more: Any) -> AsyncIterator[LoneBroker]:
    broker = LoneBroker(folder)
    await broker.start()
    try:
        tell(broker, counts, **more)
        yield broker
    finally:
        await broker.stop()


def ask(
    broker: LoneBroker,
    *names: str,
    limit: int = 2000,
    cursor: tuple[str, int] | None = None,
    grown: list[int] | None = None,
) -> Any:
    """The answer as it comes over the wire; ``grown`` gets what each step of it yields."""
    request = ASKED(
        topics=[ASKED.TopicRequest(name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else ASKED.Cursor(*cursor),
    )
    frame = b"".join(codec.encode_request(75, 0, 1, "c", request))
    received = memoryview(frame)[4:]
    body = codec.decode_request_header(received).body
    request = finish(codec.decode_request(75, 0, received, body))
    context = SimpleNamespace(version=0, client_id="", listener_name="PLAINTEXT")
    answer = describe_topic_partitions.HANDLER.handle(broker.broker, request, context)
    while not isinstance(answer, messages.DescribeTopicPartitionsResponse):
        try:
            step = next(answer)
        except StopIteration as end:
            answer = end.value
        else:
            if grown is not None:
                grown.append(step)
    frame = b"".join(codec.encode_response(75, 0, 1, answer))
    return codec.decode_response(75, 0, memoryview(frame)[4:])[1]


def shown(answer: Any) -> list[tuple[str, list[int]]]:
    return [(t.name, [p.partition_index for p in t.partitions]) for t in answer.topics]


def cursor_of(answer: Any) -> tuple[str, int] | None:
    found = answer.next_cursor
    return None if found is None else (found.topic_name, found.partition_index)


COUNTS = {"b": 3, "a": 2, "d": 1, "c": 4}


@pytest.mark.parametrize(
    ("names", "limit", "cursor", "expected", "following"),
    [
        ((), 2000, None, [("a", 2), ("b", 3), ("c", 4), ("d", 1)], None),
        (("d", "b", "b"), 2000, None, [("b", 3), ("d", 1)], None),
        ((), 3, None, [("a", 2), ("b", 1)], ("b", 1)),
        ((), 5, None, [("a", 2), ("b", 3)], ("c", 0)),
        ((), 10, None, [("a", 2), ("b", 3), ("c", 4), ("d", 1)], None),
        (("a", "b"), 5, None, [("a", 2), ("b", 3)], None),
        ((), 0, None, [("a", 1)], ("a", 1)),
        ((), -1, None, [("a", 1)], ("a", 1)),
        ((), 2000, ("bb", 7), [("c", 4), ("d", 1)], None),
        (("a", "b"), 2000, ("b", 9), [("b", 0)], None),
        (("a", "b"), 2000, ("z", 0), [], None),
    ],
)
def test_a_page(
    tmp_path: Path,
    names: tuple[str, ...],
    limit: int,
    cursor: tuple[str, int] | None,
    expected: list[tuple[str, int]],
    following: tuple[str, int] | None,
) -> None:
    async def main() -> None:
        async with knowing(tmp_path, COUNTS) as broker:
            answer = ask(broker, *names, limit=limit, cursor=cursor)
            assert shown(answer) == [(name, list(range(count))) for name, count in expected]
            assert cursor_of(answer) == following

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_pages_come_to_everything_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    counts = {f"t{rng.randrange(1000)}": rng.randrange(1, 30) for _ in range(20)}

    async def main() -> None:
        async with knowing(tmp_path, counts) as broker:
            found: dict[str, list[int]] = {}
            cursor: tuple[str, int] | None = None
            limit = rng.randrange(1, 40)
            for _ in range(sum(counts.values()) + 1):
                answer = ask(broker, limit=limit, cursor=cursor)
                parts = shown(answer)
                assert sum(len(numbers) for _, numbers in parts) <= limit
                for name, numbers in parts:
                    found.setdefault(name, []).extend(numbers)
                cursor = cursor_of(answer)
                if cursor is None:
                    break
            assert found == {name: list(range(count)) for name, count in counts.items()}

    asyncio.run(main())


def test_the_description_of_a_topic(tmp_path: Path) -> None:
    async def main() -> None:
        counts = {"__consumer_offsets": 1, "t": 1}
        async with knowing(tmp_path, counts) as broker:
            answer = ask(broker, "t", "__consumer_offsets", "nosuch", "no/name")
            internal, invalid, unknown, topic = answer.topics
            assert (internal.name, internal.is_internal) == ("__consumer_offsets", True)
            assert (invalid.name, invalid.error_code) == ("no/name", 17)
            assert (unknown.name, unknown.error_code, unknown.partitions) == ("nosuch", 3, [])
            assert (topic.error_code, topic.topic_id) == (0, UUID(int=1001))
            # Read, write, create, delete, alter, describe, and both of the configurations.
            assert topic.topic_authorized_operations == 0b1101_1111_1000
            (part,) = topic.partitions
            assert (part.error_code, part.leader_id, part.leader_epoch) == (0, HERE, 7)
            assert part.replica_nodes == [HERE, INSIDE_ONLY, GONE] and part.isr_nodes == [HERE]
            assert part.eligible_leader_replicas == [] == part.last_known_elr
            # Also a live broker that has no address for this client.
            assert part.offline_replicas == [INSIDE_ONLY, GONE]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("leader", "error"),
    [(INSIDE_ONLY, ErrorCode.LISTENER_NOT_FOUND), (GONE, ErrorCode.LEADER_NOT_AVAILABLE)],
)
def test_a_leader_that_the_client_cannot_reach(
    tmp_path: Path, leader: int, error: ErrorCode
) -> None:
    async def main() -> None:
        async with knowing(tmp_path, {"t": 1}, leader=leader) as broker:
            (part,) = ask(broker, "t").topics[0].partitions
            assert (part.error_code, part.leader_id) == (error, -1)

    asyncio.run(main())


def test_a_cursor_of_a_negative_partition_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with knowing(tmp_path, {"t": 1}) as broker:
            answer = ask(broker, "t", cursor=("t", -1))
            assert [(t.name, t.error_code) for t in answer.topics] == [
                ("t", ErrorCode.INVALID_REQUEST)
            ]
            assert answer.topics[0].partitions == [] and answer.next_cursor is None

    asyncio.run(main())


def test_a_page_is_bounded_and_made_in_steps(tmp_path: Path) -> None:
    """Whatever the client asks for, and however large a topic is."""

    async def main() -> None:
        most = describe_topic_partitions.MOST_PARTITIONS
        async with knowing(tmp_path, {"t": most + 5}) as broker:
            grown: list[int] = []
            answer = ask(broker, limit=2**31 - 1, grown=grown)
            assert shown(answer) == [("t", list(range(most)))]
            assert cursor_of(answer) == ("t", most)
            assert len(grown) >= most
            answer = ask(broker, limit=2**31 - 1, cursor=("t", most))
            assert shown(answer) == [("t", list(range(most, most + 5)))]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("names", "limit", "cursor", "expected"),
    [
        ((), 1, None, [HERE]),
        ((), 3, None, [HERE, HERE, GONE]),
        ((), 1, ("b", 1), [GONE]),
        (("b", "a", "nosuch"), 2000, None, [HERE, HERE, GONE, GONE, GONE]),
        (("nosuch",), 2000, None, []),
        (("a", "c"), 2000, None, [HERE, HERE]),
    ],
)
def test_a_page_waits_for_the_leaders_that_it_names(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
    limit: int,
    cursor: tuple[str, int] | None,
    expected: list[int],
) -> None:
    """A page of one partition went over all of the cluster's, and waited 50 ms for their leaders:
    as long for each page of a listing. No other replica can lead the partitions of c."""
    waited: list[int] = []

    async def until_known(*found: Any, **_: Any) -> None:
        waited.extend(found[-1]())

    async def main() -> None:
        async with knowing(tmp_path, {"a": 2, "b": 3, "c": 4}) as broker:
            states = {
                "a": {"isr": (HERE, GONE)},
                "b": {"leader": GONE, "isr": (HERE, GONE)},
                "c": {"leader": GONE, "isr": (GONE,)},
            }
            for name, state in states.items():
                topic = broker.broker.metadata.topic(name)
                assert topic is not None
                for number, partition in topic.partitions.items():
                    topic.partitions[number] = replace(partition, **state)
            monkeypatch.setattr(describe_topic_partitions, "until_known", until_known)
            monkeypatch.setattr(type(broker.broker.followers), "has_sources", True)
            request = ASKED(
                topics=[ASKED.TopicRequest(name) for name in names],
                response_partition_limit=limit,
                cursor=None if cursor is None else ASKED.Cursor(*cursor),
            )
            context = SimpleNamespace(version=0, client_id="", listener_name="PLAINTEXT")
            steps = await describe_topic_partitions.HANDLER.handle(broker.broker, request, context)
            assert waited == expected
            with pytest.raises(StopIteration):
                while True:
                    next(steps)

    asyncio.run(main())
