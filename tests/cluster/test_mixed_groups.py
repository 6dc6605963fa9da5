"""Groups of public consumers and Java's: members join and leave, each record is read once."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.support import clients
from tests.support.java import start_java
from tests.support.processes import DEADLINE_S, Program, wait_until
from tidelog import Consumer, TopicPartition

pytestmark = [pytest.mark.java, pytest.mark.long(60)]

PARTITIONS = 6
RECORDS = 60

MOST_REBALANCES = 4
"""Rebalances of one change of the members: a cooperative group needs two, and a look for more
partitions may come between."""

JAVA_NAMES = {
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


class JavaMember:
    """Kafka's verifiable consumer, which prints each record and each assignment."""

    def __init__(self, bootstrap: str, topic: str, strategy: str, log: Path) -> None:
        options = {
            "--bootstrap-server": bootstrap,
            "--topic": topic,
            "--group-id": f"g-{topic}",
            "--reset-policy": "earliest",
            "--assignment-strategy": JAVA_NAMES[strategy],
        }
        words = [word for option in options.items() for word in option]
        self.program: Program = start_java(
            "kafka-verifiable-consumer", *words, "--verbose", "--enable-autocommit", log=log
        )

    def said(self) -> list[dict[str, Any]]:
        lines = [line for line in self.program.output().splitlines() if line.startswith("{")]
        # The last line may be half written.
        return [json.loads(line) for line in lines if line.endswith("}")]

    def values(self) -> list[str]:
        return [each["value"] for each in self.said() if each["name"] == "record_data"]

    def rebalances(self) -> int:
        return sum(each["name"] == "partitions_assigned" for each in self.said())

    def assigned(self, topic: str) -> set[TopicPartition]:
        """What it has, by all that it was given and gave up."""
        mine: set[TopicPartition] = set()
        for each in self.said():
            named = {TopicPartition(topic, one["partition"]) for one in each.get("partitions", ())}
            if each["name"] == "partitions_assigned":
                mine |= named
            elif each["name"] == "partitions_revoked":
                mine -= named
        return mine


class Group:
    """The members of one group, which are polled in turn, and what all of them read."""

    def __init__(self, bootstrap: str, topic: str, strategy: str, folder: Path) -> None:
        self.bootstrap, self.topic, self.strategy = bootstrap, topic, strategy
        self.folder = folder
        self.ours: list[Consumer] = []
        self.java: list[JavaMember] = []
        self.read: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.written = 0
        self.changes = 0

    def join(self) -> None:
        self.changes += 1
        self.ours.append(
            Consumer(
                self.topic,
                bootstrap_servers=self.bootstrap,
                group_id=f"g-{self.topic}",
                auto_offset_reset="earliest",
                heartbeat_interval_ms=200,
                partition_assignment_strategy=[self.strategy],
            )
        )

    def java_joins(self) -> None:
        self.changes += 1
        log = self.folder / f"java-{self.changes}.out"
        self.java.append(JavaMember(self.bootstrap, self.topic, self.strategy, log))

    def leave(self) -> None:
        self.changes += 1
        self.ours.pop(0).close()

    def java_leaves(self) -> None:
        self.changes += 1
        gone = self.java.pop()
        # The others must go on meanwhile.
        gone.program.send(signal.SIGTERM)
        self.until(lambda: gone.program.exit_status() is not None, "the Java member has left")
        self.ended.update(gone.values())

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def step() -> bool:
            for each in self.ours:
                for records in each.poll(20).values():
                    self.read.update(record.value.decode() for record in records)
            return condition()

        wait_until(step, DEADLINE_S, lambda: f"{what}: {self.state()}", pause_s=0)

    def all_read(self) -> Counter[str]:
        found = self.read + self.ended
        for each in self.java:
            found.update(each.values())
        return found

    def state(self) -> str:
        shares = [sorted(each.partition for each in c.assignment()) for c in self.ours]
        theirs = [sorted(x.partition for x in j.assigned(self.topic)) for j in self.java]
        return f"{len(self.all_read())} of {self.written} read, ours {shares}, Java's {theirs}"

    def is_shared(self) -> bool:
        """Whether each member has its even share, and each partition one owner."""
        shares = [c.assignment() for c in self.ours] + [j.assigned(self.topic) for j in self.java]
        everything = [each for share in shares for each in share]
        sizes = {len(share) for share in shares}
        return len(everything) == len(set(everything)) == PARTITIONS and max(sizes) - min(sizes) < 2

    def settle(self) -> None:
        """Wait for even shares, write, and let every record be read."""
        self.until(self.is_shared, "even shares")
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap})
        for number in range(self.written, self.written + RECORDS):
            producer.produce(self.topic, str(number), partition=number % PARTITIONS)
        assert producer.flush(DEADLINE_S) == 0
        self.written += RECORDS
        self.until(lambda: len(self.all_read()) == self.written, "every record is read")

    def end(self) -> None:
        for each in self.ours:
            each.close()
        for member in self.java:
            member.program.kill()


@pytest.mark.parametrize("strategy", JAVA_NAMES)
def test_members_join_and_leave_and_each_record_is_read_once(
    bootstrap: str, topic_name: str, tmp_path: Path, strategy: str
) -> None:
    clients.create_topic(bootstrap, topic_name, PARTITIONS)
    group = Group(bootstrap, topic_name, strategy, tmp_path)
    try:
        group.join()
        group.settle()
        group.java_joins()
        group.settle()
        group.join()
        group.settle()
        # The leader leaves, and Java's member or the second of ours leads.
        group.leave()
        group.settle()
        group.java_leaves()
        group.settle()
        group.java_joins()
        group.settle()
        times = group.all_read()
        assert set(times.values()) == {1}, times.most_common(5)
        last = group.ours[0].metrics()["consumer-metrics"]["rebalance-total"]
        assert last <= MOST_REBALANCES * group.changes, group.state()
        assert group.java[0].rebalances() <= MOST_REBALANCES
    finally:
        group.end()
