"""Kafka's own producers and consumers: console, performance tests, verifiable ones, compaction."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import clients
from tests.support.java import ToolRunner, start_java
from tests.support.log_files import batches, log_bytes
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, Program, wait_until
from tests.support.server import TidelogNode
from tests.support.target import TARGET

pytestmark = [pytest.mark.java, pytest.mark.long(60)]

COMPACTION_PAUSES_S = (3, 12, 48)
"""A cleaner that looks every 0.2 s has been over 5 MB by then, on a busy machine later."""


def test_console_producer_and_group_of_the_console_consumer(
    tools: ToolRunner, bootstrap: str, topic_name: str
) -> None:
    """The topic is created by the producer's first look at it."""
    at = ("--bootstrap-server", bootstrap, "--topic", topic_name)
    lines = "".join(f"line {number}\n" for number in range(50))
    tools.run("kafka-console-producer", *at, stdin=lines).check()
    read = ("kafka-console-consumer", *at, "--group", f"console-{topic_name}", "--from-beginning")
    first = tools.run(*read, "--max-messages", "20", "--timeout-ms", "90000").check()
    rest = tools.run(*read, "--max-messages", "30", "--timeout-ms", "90000").check()
    assert first.out + rest.out == lines, "the group goes on where it committed"


@pytest.mark.parametrize("options", [(), ("acks=1",), ("acks=0",), ("compression.type=lz4",)])
def test_producer_and_consumer_performance(
    tools: ToolRunner, bootstrap: str, topic_name: str, options: tuple[str, ...]
) -> None:
    clients.create_topic(bootstrap, topic_name, 3)
    config = [arg for option in options for arg in ("--command-property", option)]
    said = tools.run(
        *("kafka-producer-perf-test", "--bootstrap-server", bootstrap, "--topic", topic_name),
        *("--num-records", "60000", "--record-size", "100", "--throughput", "-1", *config),
    ).check()
    assert re.search(r"^60000 records sent, ", said.out, re.MULTILINE), said
    assert "Exception" not in said.out + said.err, said
    said = tools.run(
        *("kafka-consumer-perf-test", "--bootstrap-server", bootstrap, "--topic", topic_name),
        *("--num-records", "60000", "--timeout", "90000", "--hide-header"),
    ).check()
    fields = [field.strip() for field in said.out.strip().splitlines()[-1].split(",")]
    assert int(fields[4]) >= 60000, said


PERFORMANCE = ("--num-records", "10", "--record-size", "10", "--throughput", "-1")


def test_a_transactional_producer_is_served(
    tools: ToolRunner, bootstrap: str, topic_name: str
) -> None:
    clients.create_topic(bootstrap, topic_name, 3)
    said = tools.run(
        *("kafka-producer-perf-test", "--bootstrap-server", bootstrap, "--topic", topic_name),
        *(*PERFORMANCE, "--transactional-id", topic_name),
    ).check()
    assert re.search(r"^10 records sent, ", said.out, re.MULTILINE), said


@pytest.mark.skipif(TARGET == "kafka", reason="Apache Kafka has transactions")
def test_below_level_1_6_a_transactional_producer_is_refused_at_once(
    tools: ToolRunner, tmp_path: Path, topic_name: str
) -> None:
    with TidelogNode(tmp_path / "node", {"inter.broker.protocol.version": "1.5"}) as node:
        said = tools.run(
            *("kafka-producer-perf-test", "--bootstrap-server", node.bootstrap),
            *("--topic", topic_name, *PERFORMANCE, "--transactional-id", "tx"),
        )
    refusal = "transactions come with inter.broker.protocol.version 1.6"
    assert said.status == 1 and refusal in said.err, said


def events(program: Program) -> list[dict[str, object]]:
    """The JSON lines that a verifiable client has printed so far."""
    lines = program.output().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """`start(TOOL, ARG...)`; what still runs at the end of the test is killed."""
    running: list[Program] = []

    def begin(tool: str, *args: str) -> Program:
        running.append(start_java(tool, *args, log=tmp_path / f"{tool}-{len(running)}.out"))
        return running[-1]

    yield begin
    for program in running:
        program.__exit__()


def test_verifiable_producer_and_consumer(
    bootstrap: str, topic_name: str, start: Callable[..., Program]
) -> None:
    clients.create_topic(bootstrap, topic_name, 3)
    at = ("--bootstrap-server", bootstrap, "--topic", topic_name)
    producer = start("kafka-verifiable-producer", *at, "--max-messages", "5000", "--acks", "-1")
    consumer = start(
        *("kafka-verifiable-consumer", *at, "--group-id", f"group-{topic_name}"),
        *("--max-messages", "5000", "--verbose"),
    )
    assert producer.wait(DEADLINE_S) == 0, producer.output()[-2000:]
    sent = [e for e in events(producer) if e["name"] == "producer_send_success"]
    assert len(sent) == 5000
    assert consumer.wait(DEADLINE_S) == 0, consumer.output()[-2000:]
    seen = events(consumer)
    data = [e for e in seen if e["name"] == "record_data"]
    assert {(e["partition"], e["offset"], e["value"]) for e in sent} == {
        (e["partition"], e["offset"], e["value"]) for e in data
    }
    assert all(e["success"] for e in seen if e["name"] == "offsets_committed")


def test_verifiable_consumers_share_and_hand_over(
    bootstrap: str, topic_name: str, start: Callable[..., Program]
) -> None:
    """Two members share four partitions; when one is killed the other takes over all."""
    clients.create_topic(bootstrap, topic_name, 4)
    at = ("--bootstrap-server", bootstrap, "--topic", topic_name)
    join = ("kafka-verifiable-consumer", *at, "--group-id", f"group-{topic_name}")

    def assigned(member: Program) -> int:
        changes = [e for e in events(member) if e["name"].startswith("partitions_")]
        if not changes or changes[-1]["name"] != "partitions_assigned":
            return 0
        return len(changes[-1]["partitions"])

    first = start(*join, "--session-timeout", "6000")
    wait_until(lambda: assigned(first) == 4, DEADLINE_S, "the first member has all")
    second = start(*join, "--session-timeout", "6000")
    wait_until(lambda: assigned(first) == assigned(second) == 2, DEADLINE_S, "they share")
    first.kill()
    wait_until(lambda: assigned(second) == 4, DEADLINE_S, "the second has all")


def test_log_compaction_tester(tools: ToolRunner, make_node: Callable[..., Node]) -> None:
    """The tool alone passes without any compaction: so the log must have shrunk by half."""
    node = make_node(
        {
            "log.segment.bytes": 1 << 20,
            "log.cleaner.backoff.ms": 200,
            "log.cleaner.min.cleanable.ratio": 0.01,
            "num.partitions": 1,
        }
    )
    records = 300_000
    shares: list[float] = []
    for pause_s in COMPACTION_PAUSES_S:
        before = set(node.log_folder().glob("log-cleaner-test-*-0"))
        said = tools.run(
            *("kafka-log-compaction-tester", "--bootstrap-server", node.bootstrap),
            # The tool itself sleeps, in seconds, between writing and reading.
            *("--messages", str(records), "--duplicates", "30", "--percent-deletes", "5"),
            *("--sleep", str(pause_s)),
            deadline_s=6 * DEADLINE_S,
        ).check()
        assert "Data verification is completed" in said.out, said
        (folder,) = set(node.log_folder().glob("log-cleaner-test-*-0")) - before
        topic = folder.name.removesuffix("-0")
        left = batches(node.log_folder(), topic)
        assert left[-1].base_offset + left[-1].last_offset_delta == records - 1
        written_bytes = left[-1].size_bytes / left[-1].record_count * records
        shares.append(
            max(
                sum(batch.record_count for batch in left) / records,
                log_bytes(node.log_folder(), topic) / written_bytes,
            )
        )
        if shares[-1] < 0.5:
            break
    assert shares[-1] < 0.5, shares
