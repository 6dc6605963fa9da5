"""The example of consume, transform, produce, which is killed while it runs: each record once.

The same tests run on tidelog and on Apache Kafka. It is killed with SIGKILL, stopped with SIGSTOP
for longer than its time-outs, and the broker that coordinates it is killed and starts again
(tidelog's).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import clients
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import TidelogNode
from tests.support.transaction_nodes import MAKES, transaction_node
from tidelog import Consumer, Producer, TopicPartition

pytestmark = [pytest.mark.java, pytest.mark.kill, pytest.mark.long(120)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "consume_transform_produce.py"
PARTITIONS = 3
RECORDS = 3_000


@pytest.fixture(params=MAKES)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    with transaction_node(request.param, tmp_path / request.param) as started:
        yield started


def kills_of(node: Node) -> list[str]:
    """What is killed or stopped, one after another.

    Not the only broker of Apache Kafka: where it is killed with a transaction open, and that times
    out while it starts again, its coordinator skips the markers of partitions whose leader it does
    not know yet. The id is Empty then, and the partitions stay open: readers wait for ever.
    """
    kills = ["copier", "copier", "broker", "copier", "stop"]
    return [kill for kill in kills if kill != "broker" or isinstance(node, TidelogNode)]


class Copier:
    """The example as a process."""

    def __init__(self, bootstrap: str, source: str, target: str, errors: Path) -> None:
        self._errors = errors.open("a")
        self._command = [
            sys.executable, str(EXAMPLE), bootstrap, source, target, str(RECORDS),
        ]  # fmt: skip
        self.process = self.again()

    def again(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stderr=self._errors)

    def has_ended(self) -> bool:
        """Whether it is done; one that ended otherwise is started again."""
        status = self.process.poll()
        if status:
            self.process = self.again()
        return status == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def close(self) -> None:
        self.kill()
        self._errors.close()


def reader(node: Node, topic: str, isolation: str) -> Consumer:
    made = Consumer(
        bootstrap_servers=node.bootstrap,
        isolation_level=isolation,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    made.assign([TopicPartition(topic, each) for each in range(PARTITIONS)])
    return made


def written(watch: Consumer) -> int:
    """How far a topic is written, control records and aborted ones included."""
    return sum(watch.end_offsets(sorted(watch.assignment())).values())


def values_of(node: Node, topic: str, count: int) -> dict[bytes, list[int]]:
    """The numbers of each key in a topic, in the order of the log; all there is."""
    values: dict[bytes, list[int]] = {}
    with reader(node, topic, "read_committed") as made:
        left = count
        deadline = time.monotonic() + DEADLINE_S
        while left > 0 and time.monotonic() < deadline:
            for records in made.poll(500).values():
                left -= len(records)
                for record in records:
                    values.setdefault(record.key, []).append(int(record.value.split(b"-")[1]))
        assert not made.poll(1_000), "more than was expected"
    return values


def test_each_record_once_through_kills(node: Node, topic_name: str, tmp_path: Path) -> None:
    source, target = f"{topic_name}-in", f"{topic_name}-out"
    for topic in (source, target):
        clients.create_topic(node.bootstrap, topic, PARTITIONS, retention_ms=-1)
    with Producer(bootstrap_servers=node.bootstrap) as producer:
        for number in range(RECORDS):
            key = b"k%d" % (number % 17)
            producer.send(source, b"v-%d" % number, key, partition=number % PARTITIONS)
    copier = Copier(node.bootstrap, source, target, tmp_path / "errors")
    watch = reader(node, target, "read_uncommitted")
    watch.poll(0)
    try:

        def goes_on(since: int) -> None:
            def is_so() -> bool:
                return copier.has_ended() or written(watch) > since

            wait_until(is_so, 2 * DEADLINE_S, f"it goes on from {since}", 0.02)

        for kill in kills_of(node):
            goes_on(written(watch))
            if copier.has_ended():
                break
            if kill == "copier":
                copier.kill()
                copier.process = copier.again()
            elif kill == "broker":
                node.kill()
                node.start()
            else:
                os.kill(copier.process.pid, signal.SIGSTOP)
                other = Copier(node.bootstrap, source, target, tmp_path / "errors")
                goes_on(written(watch))
                os.kill(copier.process.pid, signal.SIGCONT)
                # The one that slept is fenced, and ends with a sentence.
                status = copier.process.wait(2 * DEADLINE_S)
                assert status in (0, 1), status
                copier.close()
                copier = other
        wait_until(copier.has_ended, 3 * DEADLINE_S, "all is done", 0.05)
    finally:
        copier.close()
        watch.close()
    values = values_of(node, target, RECORDS)
    numbers = sorted(number for some in values.values() for number in some)
    assert numbers == list(range(RECORDS)), (tmp_path / "errors").read_text()[-2_000:]
    of_key = {b"k%d" % key: list(range(key, RECORDS, 17)) for key in range(17)}
    assert {key: sorted(some) for key, some in values.items()} == of_key
