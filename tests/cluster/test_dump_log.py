"""Kafka's DumpLogSegments reads our files without a complaint: logs, indexes, snapshots, groups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from tests.support import clients
from tests.support.clients import COMPRESSIONS
from tests.support.java import ToolResult, ToolRunner
from tests.support.node import Node
from tests.support.processes import DEADLINE_S

pytestmark = pytest.mark.java

RECORDS_PER_COMPRESSION = 400
TOPIC = "dumped"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A log folder with several segments of every compression, left by a clean stop."""
    from tests.support.target import new_node

    with new_node(tmp_path_factory.mktemp("dump")) as node:
        clients.create_topic(
            node.bootstrap, TOPIC, segment_bytes=1 << 20, index_interval_bytes=1024
        )
        for compression in COMPRESSIONS:
            write_incompressible(node, compression)
        commit_an_offset(node)
        node.stop()
        yield node.log_folder()


def write_incompressible(node: Node, compression: str) -> None:
    """About 1 MB that no compression makes smaller, so that every one fills a segment."""
    import random

    random_bytes = random.Random(compression)
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "compression.type": compression,
            "enable.idempotence": True,
            "batch.size": 20_000,
        }
    )
    for number in range(RECORDS_PER_COMPRESSION):
        producer.produce(
            TOPIC,
            key=f"{compression}-{number}",
            value=random_bytes.randbytes(2_500),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0 and not failures, failures


def commit_an_offset(node: Node) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.bootstrap, "group.id": "dump"})
    position = confluent_kafka.TopicPartition(TOPIC, 0, 7)
    consumer.commit(offsets=[position], asynchronous=False)
    consumer.close()


def files(folder: Path, pattern: str) -> str:
    found = sorted((folder / f"{TOPIC}-0").glob(pattern))
    assert found, f"no {pattern} in {folder / f'{TOPIC}-0'}"
    return ",".join(str(path) for path in found)


def complaints(said: ToolResult) -> str:
    """What the tool itself wrote to stderr.

    The tools share a JVM (`ToolRunner`): a thread of the client of an earlier one, whose broker is
    gone, may still warn there. This tool has no client.
    """
    return re.sub(r"(?m)^\[[^]]+\] \w+ org\.apache\.kafka\.clients\..*\n?", "", said.err).strip()


def test_every_record_is_read(folder: Path, tools: ToolRunner) -> None:
    logs = files(folder, "*.log")
    assert logs.count(",") >= 3, "the topic has several segments"
    said = tools.run("kafka-dump-log", "--deep-iteration", "--files", logs).check()
    keys = re.findall(r"^\| offset: (\d+) ", said.out, re.MULTILINE)
    assert [int(offset) for offset in keys] == list(
        range(RECORDS_PER_COMPRESSION * len(COMPRESSIONS))
    )
    assert "isvalid: false" not in said.out
    # The tool expects every file to begin at offset 0, and says so of each that does not.
    expected = r"Non-consecutive offsets in \S+\n  -1 is followed by \d+(\n|$)"
    assert not re.sub(expected, "", complaints(said)), said.err


@pytest.mark.parametrize("pattern", ["*.index", "*.timeindex"])
def test_indexes_are_sound(folder: Path, tools: ToolRunner, pattern: str) -> None:
    said = tools.run("kafka-dump-log", "--index-sanity-check", "--files", files(folder, pattern))
    assert said.check().out.count("passed sanity check") == files(folder, pattern).count(",") + 1
    said = tools.run("kafka-dump-log", "--verify-index-only", "--files", files(folder, pattern))
    assert "Mismatches" not in said.check().out and "non-consecutive" not in said.out, said.out
    assert "Found timestamp mismatch" not in said.out and "out of order" not in said.out, said.out
    assert not complaints(said), said.err


def test_producer_snapshots_are_read(folder: Path, tools: ToolRunner) -> None:
    said = tools.run("kafka-dump-log", "--files", files(folder, "*.snapshot")).check()
    assert "producerId:" in said.out and "lastSequence" in said.out, said.out


def test_the_offsets_topic_is_decoded(folder: Path, tools: ToolRunner) -> None:
    logs = [str(path) for path in folder.glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    said = tools.run(
        "kafka-dump-log", "--offsets-decoder", "--print-data-log", "--files", ",".join(logs)
    ).check()
    assert '"group":"dump"' in said.out and '"offset":7' in said.out, said.out


def test_checkpoints_have_kafkas_form(folder: Path) -> None:
    """Version, count, then the lines; `log-start-offset-checkpoint` names only moved starts."""
    for name, least in (
        ("recovery-point-offset-checkpoint", 1),
        ("replication-offset-checkpoint", 1),
        ("log-start-offset-checkpoint", 0),
    ):
        version, count, *lines = (folder / name).read_text().splitlines()
        assert version == "0" and int(count) == len(lines) >= least, name
        assert all(re.fullmatch(r"\S+ \d+ \d+", line) for line in lines), name
    version, count, *lines = (
        (folder / f"{TOPIC}-0" / "leader-epoch-checkpoint").read_text().splitlines()
    )
    assert version == "0" and int(count) == len(lines) == 1
    metadata = (folder / f"{TOPIC}-0" / "partition.metadata").read_text()
    assert re.match(r"version: 0\ntopic_id: [A-Za-z0-9_-]{22}(\n|$)", metadata), metadata
