"""Groups of stock clients against a lone broker: librdkafka, kafka-python and aiokafka.

The cluster tests do the same with real processes; here a failure shows the broker's own state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.support.group_broker import GroupBroker, statistics
from tests.support.lone_broker import ThreadedBroker
from tests.support.processes import DEADLINE_S

PARTITIONS = 4
CONFIG = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "5",
}


@contextmanager
def serving(folder: Path) -> Iterator[tuple[ThreadedBroker, GroupBroker]]:
    threaded = ThreadedBroker(folder)
    lone = threaded.lone = GroupBroker(folder, CONFIG)
    with threaded:
        threaded.run(lambda _: lone.lead("t", PARTITIONS) and None)
        known = any(folder.glob("__consumer_offsets-*"))
        if known:
            threaded.run(lambda _: lone.lead_offsets(epoch=1, partitions=5) and None)
        yield threaded, lone


def until(condition: Callable[[], object], seconds: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"


def fill(bootstrap: str, count: int = 40) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce("t", str(number), partition=number % PARTITIONS)
    assert producer.flush(DEADLINE_S) == 0


def consumer(bootstrap: str, **config: object) -> confluent_kafka.Consumer:
    made = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 60_000,
            "heartbeat.interval.ms": 100,
            "enable.auto.commit": False,
            **config,
        }
    )
    made.subscribe(["t"])
    return made


def read(members: list[confluent_kafka.Consumer], count: int) -> list[str]:
    got: list[str] = []

    def all_there() -> bool:
        for member in members:
            for message in member.consume(100, 0.02):
                assert message.error() is None, message.error()
                got.append(message.value().decode())
        return len(got) >= count

    until(all_there)
    return got


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_librdkafka_shares_commits_and_hands_over(tmp_path: Path, strategy: str) -> None:
    with serving(tmp_path) as (_, lone):
        fill(lone.bootstrap)
        options = {"partition.assignment.strategy": strategy}
        members = [consumer(lone.bootstrap, **options) for _ in range(2)]
        assert sorted(map(int, read(members, 40))) == list(range(40))
        until(lambda: [m.poll(0.02) for m in members] and all(
            len(m.assignment()) == 2 for m in members
        ))  # fmt: skip
        for member in members:
            member.commit(asynchronous=False)
        members[0].close()
        until(lambda: members[1].poll(0.02) or len(members[1].assignment()) == PARTITIONS)
        members[1].close()
    with serving(tmp_path) as (_, lone):
        asked = [confluent_kafka.TopicPartition("t", at) for at in range(PARTITIONS)]
        other = consumer(lone.bootstrap)
        found = other.committed(asked, timeout=DEADLINE_S)
        assert [each.offset for each in found] == [10] * PARTITIONS
        fill(lone.bootstrap, 4)
        assert len(read([other], 4)) == 4
        other.close()


def test_librdkafkas_static_member_comes_back_without_a_rebalance(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, lone):
        fill(lone.bootstrap)
        members = [consumer(lone.bootstrap, **{"group.instance.id": f"i{at}"}) for at in range(2)]
        read(members, 40)
        tables = lone.coordinator.tables
        generations = [t.get("g").generation for t in tables() if t.get("g")]  # type: ignore[union-attr]
        members[1].close()
        members[1] = consumer(lone.bootstrap, **{"group.instance.id": "i1"})
        until(lambda: [m.poll(0.02) for m in members] and len(members[1].assignment()) == 2)
        assert [t.get("g").generation for t in tables() if t.get("g")] == generations  # type: ignore[union-attr]
        for member in members:
            member.close()


def test_kafka_python_and_its_admin(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, lone):
        fill(lone.bootstrap)
        member = kafka.KafkaConsumer(
            "t",
            bootstrap_servers=lone.bootstrap,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        got: list[int] = []
        until(
            lambda: (
                got.extend(
                    int(record.value) for batch in member.poll(200).values() for record in batch
                )
                or len(got) >= 40
            )
        )
        assert sorted(got) == list(range(40))
        member.commit()
        admin = AdminClient({"bootstrap.servers": lone.bootstrap})
        shown = admin.describe_consumer_groups(["g"])["g"].result()
        assert shown.state.name == "STABLE"
        assert len(shown.members[0].assignment.topic_partitions) == PARTITIONS
        with pytest.raises(confluent_kafka.KafkaException, match=r"NON_EMPTY|not empty"):
            admin.delete_consumer_groups(["g"])["g"].result()
        member.close()
        listed = admin.list_consumer_groups().result().valid
        assert [(g.group_id, g.state.name) for g in listed] == [("g", "EMPTY")]
        admin.delete_consumer_groups(["g"])["g"].result()
        assert admin.list_consumer_groups().result().valid == []


def test_aiokafka(tmp_path: Path) -> None:
    async def story(bootstrap: str) -> None:
        members = [
            aiokafka.AIOKafkaConsumer(
                "t",
                bootstrap_servers=bootstrap,
                group_id="g",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=100,
                session_timeout_ms=60_000,
            )
            for _ in range(2)
        ]
        await asyncio.gather(*(member.start() for member in members))
        got: list[int] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(got) < 40:
                for member in members:
                    for batch in (await member.getmany(timeout_ms=50)).values():
                        got.extend(int(record.value or b"") for record in batch)
        assert sorted(got) == list(range(40))
        for member in members:
            await member.commit()
            await member.stop()

    with serving(tmp_path) as (_, lone):
        fill(lone.bootstrap)
        asyncio.run(story(lone.bootstrap))
        assert statistics(lone.coordinator)["groups"] == 1
