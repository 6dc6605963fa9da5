"""Groups of stock clients: sharing, handing over, static members, commits that survive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.support import clients
from tests.support.clients import Record
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, wait_until

RECORDS = 60
PARTITIONS = 4


@pytest.fixture
def topic(bootstrap: str, topic_name: str) -> str:
    """A topic of four partitions with fifteen records in each."""
    clients.create_topic(bootstrap, topic_name, PARTITIONS)
    fill(bootstrap, topic_name)
    return topic_name


def fill(bootstrap: str, topic: str, first: int = 0) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True}
    )
    for number in range(first, first + RECORDS):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(DEADLINE_S) == 0


class Member:
    """A librdkafka consumer with its assignment and everything it read."""

    def __init__(self, bootstrap: str, group: str, topic: str, **config: object) -> None:
        self.assigned: set[int] = set()
        self.rebalances = 0
        self.got: list[str] = []
        names = {name.replace("_", "."): value for name, value in config.items()}
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 30_000,
                "heartbeat.interval.ms": 500,
                "enable.auto.commit": False,
                **names,
            }
        )
        self.consumer.subscribe([topic], on_assign=self._given, on_revoke=self._taken)

    def _given(
        self, consumer: confluent_kafka.Consumer, parts: list[confluent_kafka.TopicPartition]
    ) -> None:
        self.rebalances += 1
        numbers = {part.partition for part in parts}
        self.assigned = self.assigned | numbers if self._cooperative else numbers

    def _taken(
        self, consumer: confluent_kafka.Consumer, parts: list[confluent_kafka.TopicPartition]
    ) -> None:
        self.assigned -= {part.partition for part in parts}

    _cooperative = False

    def poll(self) -> None:
        for message in self.consumer.consume(500, 0.1):
            assert message.error() is None, message.error()
            self.got.append(message.value().decode())


class CooperativeMember(Member):
    """The same with incremental rebalances."""

    _cooperative = True


def poll_until(members: list[Member], condition: Callable[[], bool], what: str) -> None:
    def step() -> bool:
        for member in members:
            member.poll()
        return condition()

    wait_until(step, DEADLINE_S, what, pause_s=0)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_share_and_hand_over(bootstrap: str, topic: str, strategy: str) -> None:
    kind = CooperativeMember if strategy == "cooperative-sticky" else Member
    options = {"partition_assignment_strategy": strategy}
    group = f"group-{topic}"
    first = kind(bootstrap, group, topic, **options)
    poll_until([first], lambda: len(first.got) == RECORDS, "the first reads all")
    first.consumer.commit(asynchronous=False)
    second = kind(bootstrap, group, topic, **options)
    both = [first, second]
    poll_until(
        both, lambda: len(first.assigned) == len(second.assigned) == 2, "both have two partitions"
    )
    assert first.assigned | second.assigned == set(range(PARTITIONS))
    fill(bootstrap, topic, RECORDS)
    poll_until(both, lambda: len(first.got) + len(second.got) == 2 * RECORDS, "both read")
    assert sorted(map(int, first.got + second.got)) == list(range(2 * RECORDS))
    for member in both:
        member.consumer.commit(asynchronous=False)
    first.consumer.close()
    poll_until([second], lambda: len(second.assigned) == PARTITIONS, "the second has all")
    second.consumer.close()


def test_a_static_member_comes_back_without_a_rebalance(bootstrap: str, topic: str) -> None:
    group = f"group-{topic}"
    first = Member(bootstrap, group, topic, group_instance_id="one")
    second = Member(bootstrap, group, topic, group_instance_id="two")
    both = [first, second]
    poll_until(both, lambda: len(first.assigned) == len(second.assigned) == 2, "they share")
    poll_until(both, lambda: len(first.got) + len(second.got) >= RECORDS, "they read all")
    before, rebalances = set(second.assigned), first.rebalances
    second.consumer.commit(asynchronous=False)
    second.consumer.close()
    again = Member(bootstrap, group, topic, group_instance_id="two")
    poll_until([first, again], lambda: len(again.assigned) == 2, "it has its partitions back")
    assert again.assigned == before and first.rebalances == rebalances
    first.consumer.close()
    again.consumer.close()


def test_a_second_life_fences_the_static_member(bootstrap: str, topic: str) -> None:
    group = f"group-{topic}"
    first = Member(bootstrap, group, topic, group_instance_id="one")
    poll_until([first], lambda: len(first.assigned) == PARTITIONS, "it has all")
    second = Member(bootstrap, group, topic, group_instance_id="one")
    poll_until([second], lambda: len(second.assigned) == PARTITIONS, "the new life has all")

    def fenced() -> bool:
        with pytest.raises(confluent_kafka.KafkaException) as failure:
            while True:
                message = first.consumer.poll(0.5)
                if message is not None and message.error() is not None:
                    raise confluent_kafka.KafkaException(message.error())
        code = failure.value.args[0].code()
        return code in (
            confluent_kafka.KafkaError.FENCED_INSTANCE_ID,
            confluent_kafka.KafkaError._FATAL,
        )

    assert fenced()
    first.consumer.close()
    second.consumer.close()


@pytest.mark.kill
def test_commits_survive_kill_and_clean_stop(make_node: Callable[..., Node]) -> None:
    node = make_node()
    clients.create_topic(node.bootstrap, "resumed", PARTITIONS)
    fill(node.bootstrap, "resumed")
    read = read_one_run(node, "earliest")
    for end in (node.kill, node.stop):
        end()
        node.start()
        fill(node.bootstrap, "resumed", len(read))
        # Without a committed offset this member gets an error instead of a place to begin.
        read += read_one_run(node, "error")
    assert sorted(read) == list(range(3 * RECORDS))


def read_one_run(node: Node, auto_offset_reset: str) -> list[int]:
    """Read what one `fill` wrote, and commit."""
    member = Member(node.bootstrap, "resuming", "resumed", auto_offset_reset=auto_offset_reset)
    poll_until([member], lambda: len(member.got) >= RECORDS, "one run is read")
    member.consumer.commit(asynchronous=False)
    member.consumer.close()
    return [int(value) for value in member.got]


def test_kafka_python_group_resumes(bootstrap: str, topic: str) -> None:
    def read(count: int) -> list[int]:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=f"group-{topic}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=count,
        )
        got: list[int] = []
        end = time.monotonic() + DEADLINE_S
        while len(got) < count and time.monotonic() < end:
            for messages in consumer.poll(500, max_records=count - len(got)).values():
                got += [int(message.value) for message in messages]
        consumer.commit()
        consumer.close()
        return got

    assert sorted(read(25) + read(35)) == list(range(RECORDS))


def test_aiokafka_group_shares_and_resumes(bootstrap: str, topic: str) -> None:
    async def run() -> list[int]:
        options = {
            "bootstrap_servers": bootstrap,
            "group_id": f"group-{topic}",
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 500,
        }
        got: list[int] = []
        first = aiokafka.AIOKafkaConsumer(topic, **options)
        second = aiokafka.AIOKafkaConsumer(topic, **options)
        await first.start()
        await second.start()
        async with asyncio.timeout(DEADLINE_S):
            while not (len(first.assignment()) == len(second.assignment()) == 2):
                for member in (first, second):
                    await member.getmany(timeout_ms=50, max_records=1)
            for member in (first, second):
                await member.seek_to_beginning()
            while len(got) < RECORDS:
                for member in (first, second):
                    for messages in (await member.getmany(timeout_ms=100)).values():
                        got += [int(message.value) for message in messages]
            for member in (first, second):
                await member.commit()
                await member.stop()
            third = aiokafka.AIOKafkaConsumer(topic, **options)
            await third.start()
            committed = [await third.committed(part) for part in third.assignment()]
            await third.stop()
        assert committed == [RECORDS // PARTITIONS] * PARTITIONS
        return got

    assert sorted(asyncio.run(run())) == list(range(RECORDS))


def test_kcat_balanced_group(bootstrap: str, topic: str) -> None:
    reason = clients.kcat_missing()
    if reason is not None:
        pytest.skip(reason)
    said = clients.kcat(
        *("-b", bootstrap, "-q", "-X", "auto.offset.reset=earliest", "-c", str(RECORDS)),
        *("-G", f"group-{topic}", topic),
    )
    assert sorted(map(int, said.split())) == list(range(RECORDS))
    assert clients.read_confluent(bootstrap, topic, 15)[0] == Record(None, "0")
