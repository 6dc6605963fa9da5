"""Each setting of a consumer and a producer reaches the part that it is for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tidelog.aio import Consumer, Producer
from tidelog.aio.consumer_settings import ConsumerSettings
from tidelog.client.errors import ConfigurationRefused, ConnectionLost, GaveUp, WrongState
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.fetching.resets import OffsetReset
from tidelog.client.groups.group_member import GroupMember
from tidelog.client.groups.self_assigned import SelfAssigned
from tidelog.client.offsets import IsolationLevel
from tidelog.protocol import messages


def cluster() -> ScriptedCluster:
    return ScriptedCluster(view_of(topic("t", [1, 2], ordered=False)))


def test_the_settings_of_a_member_and_of_its_reader() -> None:
    async def main() -> None:
        consumer = Consumer(
            "t",
            cluster=cluster(),
            group_id="g",
            group_instance_id="i",
            session_timeout_ms=21_000,
            max_poll_interval_ms=22_000,
            heartbeat_interval_ms=2_300,
            metadata_max_age_ms=24_000,
            partition_assignment_strategy="cooperative-sticky",
            enable_ordered_delivery=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            auto_commit_interval_ms=25,
            fetch_max_wait_ms=26,
            fetch_min_bytes=27,
            fetch_max_bytes=28,
            max_partition_fetch_bytes=29,
            fetch_buffer_bytes=30,
        )
        consumer.pause(("t", 0))  # type: ignore[arg-type]
        reader = await consumer.ready()
        member: Any = reader.member
        assert isinstance(member, GroupMember)
        assert (member.group, member._instance_id, member.topics) == ("g", "i", ["t"])
        assert member._session_timeout_ms == 21_000
        assert member._rebalance_timeout_ms == member._max_poll_interval_ms == 22_000
        assert member._heartbeat_interval_ms == reader.step_ms == 2_300
        assert member._partition_check_ms == 24_000
        assert member.is_cooperative
        assert not any(str(each).startswith("tidelog.") for each in member._offered)
        fetcher: Any = reader.fetcher
        assert fetcher._options == FetchOptions(26, 27, 28, 29)
        assert fetcher._prefetch_bytes == 30
        assert fetcher._reset is OffsetReset.NONE is reader.lookup.resets.policy
        assert fetcher._isolation is IsolationLevel.READ_COMMITTED
        assert reader.commits.auto_ms == 25 and not reader.generation.is_aware
        assert reader.controls.paused == {("t", 0)}
        member.leave = member_leaves
        await consumer.close()

    asyncio.run(main())


async def member_leaves() -> None:
    """It never joined."""


def test_a_consumer_is_a_member_only_with_a_group_and_a_subscription() -> None:
    async def main() -> None:
        for settings, assigns in (({}, False), ({"group_id": "g"}, True), ({}, True)):
            consumer = Consumer(cluster=cluster(), **settings)  # type: ignore[arg-type]
            if assigns:
                consumer.assign([("t", 0)])  # type: ignore[list-item]
            else:
                consumer.subscribe(["t"])
            member = (await consumer.ready()).member
            assert isinstance(member, SelfAssigned)
            assert member.group == settings.get("group_id", "") and member.topics == (
                [] if assigns else ["t"]
            )
            assert (await consumer.ready()).commits.auto_ms == (5_000 if settings else None)
            await consumer.close()

    asyncio.run(main())


def test_checks_of_consumer_settings_that_go_together() -> None:
    settings = ConsumerSettings(
        heartbeat_interval_ms=9, session_timeout_ms=10, request_timeout_ms=3, group_id="g"
    )
    assert settings.of_cluster().request_timeout_ms == 3
    assert settings.of_cluster().default_api_timeout_ms == 60_000
    assert settings.auto_commit_ms == 5_000
    for wrong in (
        {"heartbeat_interval_ms": 10, "session_timeout_ms": 10},
        {"group_instance_id": "i"},
        {"partition_assignment_strategy": ()},
        {"partition_assignment_strategy": ("range", "none")},
    ):
        with pytest.raises(ConfigurationRefused):
            ConsumerSettings(**wrong)


def test_the_life_of_a_producer() -> None:
    async def main() -> None:
        at = cluster()
        producer = Producer(cluster=at)
        with pytest.raises(WrongState, match="not started"):
            await producer.flush()
        await producer.start()
        sender = producer.sender
        await producer.start()
        assert producer.sender is sender
        assert await producer.partitions_for("t") == {0, 1}
        with pytest.raises(ConfigurationRefused, match="a partition must be from 0"):
            await producer.send("t", b"v", partition=-1)
        with pytest.raises(ConfigurationRefused, match="a time in ms must be from 0"):
            await producer.send("t", b"v", timestamp_ms=-1)
        waits: list[asyncio.Future[Any]] = []

        def never(*_: Any) -> asyncio.Future[Any]:
            waits.append(asyncio.get_running_loop().create_future())
            return waits[-1]

        at.answers = {
            messages.ProduceRequest: never,
            messages.InitProducerIdRequest: lambda *_: messages.InitProducerIdResponse(
                error_code=0, producer_id=7, producer_epoch=0
            ),
        }
        sent = await producer.send("t", b"v", b"k")
        with pytest.raises(GaveUp, match="not all records have an outcome"):
            await producer.flush(0.01)
        assert not sent.done()
        await producer.close(0.01)
        assert isinstance(sent.exception(), WrongState)
        await producer.close()
        for call in (producer.start, producer.flush):
            with pytest.raises(WrongState, match="closed: open another one"):
                await call()

    asyncio.run(main())


def test_a_producer_that_reaches_no_broker_closes_its_connections() -> None:
    class Gone(ScriptedCluster):
        is_closed = False

        async def open(self, timeout_ms: int | None = None) -> None:
            raise ConnectionLost("gone")

        async def close(self) -> None:
            self.is_closed = True

    async def main() -> None:
        at = Gone(view_of())
        with pytest.raises(ConnectionLost):
            await Producer(cluster=at).start()
        assert at.is_closed

    asyncio.run(main())


def test_serializers_get_keys_and_values_of_any_kind() -> None:
    producer = Producer(cluster=cluster(), key_serializer=str.encode, value_serializer=repr_bytes)
    assert producer.encoded("t", 5, "k", None) == (b"5", b"k", [])
    assert producer.encoded("t", b"x", None, [("h", b"1")]) == (b"b'x'", None, [("h", b"1")])
    plain = Producer(cluster=cluster())
    assert plain.encoded("t", b"v", None, None) == (b"v", None, [])
    assert plain.encoded("t", bytearray(b"v"), b"k", {"h": None}) == (b"v", b"k", [("h", None)])
    with pytest.raises(TypeError, match="the value of a record must be bytes, not int"):
        plain.encoded("t", 5, None, None)


def repr_bytes(value: Any) -> bytes:
    return repr(value).encode()
