"""What a node finds on its disk: another cluster's folder, another node's, torn tails, damage."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition

from tests.support import clients
from tests.support.clients import Record
from tests.support.log_files import batches, segments
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import TidelogNode
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(TARGET == "kafka", reason="tidelog's own lines and its own refusals"),
]

SILENT_POLLS = 3
"""Of half a second each: a broker that took a partition out of service serves none of it."""

OUT_OF_SERVICE = "damaged-0 is out of service"

RECORDS = [Record("k", f"v{number} " + "x" * 200) for number in range(200)]


def refused_start(node: Node) -> str:
    """Start a node that must not come up; the one line that it says."""
    done = subprocess.run(node.command(), capture_output=True, text=True, timeout=DEADLINE_S)
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and len(lines) == 1, done
    return lines[0]


def change_property(node: Node, name: str, value: str) -> None:
    path = node.log_folder() / "meta.properties"
    lines = path.read_text().splitlines()
    assert any(line.startswith(f"{name}=") for line in lines), lines
    changed = [f"{name}={value}" if line.startswith(f"{name}=") else line for line in lines]
    path.write_text("\n".join(changed) + "\n")


def test_a_folder_of_another_cluster(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.stop()
    before = controller_epoch(node)
    change_property(node, "cluster.id", "AnotherClustersIdAAAAA")
    said = refused_start(node)
    assert "AnotherClustersIdAAAAA" in said and "cluster" in said
    # U12: it became the active controller first, and was refused then.
    assert controller_epoch(node) == before > 0


def controller_epoch(node: Node) -> int:
    """What the store of a node that is stopped says."""
    with contextlib.closing(sqlite3.connect(node.folder / "metadata.db")) as store:
        row = store.execute("SELECT data FROM nodes WHERE path = '/controller_epoch'").fetchone()
    return int(row[0])


def test_a_folder_of_another_node(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.stop()
    change_property(node, "node.id", "7")
    assert "7" in refused_start(node)


def test_a_metadata_store_that_is_no_store(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.stop()
    store = node.folder / "metadata.db"
    for path in node.folder.glob("metadata.db*"):
        path.unlink()
    store.write_bytes(b"this is not a database" * 100)
    assert "metadata.db" in refused_start(node)
    assert segments_exist(node), "nothing is deleted for want of metadata"


def segments_exist(node: Node) -> bool:
    return node.log_folder().is_dir()


def filled(node: Node, topic: str) -> Path:
    """A topic with several batches, cleanly stopped; its segment."""
    clients.create_topic(node.bootstrap, topic)
    for first in range(0, len(RECORDS), 20):
        clients.write_confluent(node.bootstrap, topic, RECORDS[first : first + 20], "none")
    return segments(node.log_folder(), topic)[-1]


def test_a_torn_tail_is_cut_and_nothing_else(make_node: Callable[..., Node]) -> None:
    node = make_node()
    path = filled(node, "torn")
    node.kill()
    whole = batches(node.log_folder(), "torn")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 5)
    left = sum(batch.record_count for batch in whole[:-1])
    node.start()
    assert clients.read_confluent(node.bootstrap, "torn", left) == RECORDS[:left]
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.bootstrap, "group.id": "x"})
    assert consumer.get_watermark_offsets(TopicPartition("torn", 0), DEADLINE_S) == (0, left)
    consumer.close()
    clients.write_confluent(node.bootstrap, "torn", RECORDS[left:], "none")
    assert clients.read_confluent(node.bootstrap, "torn", len(RECORDS)) == RECORDS


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_damage_below_the_tail_takes_only_its_partition_out(
    make_node: Callable[..., Node], how: str
) -> None:
    """Named in the log; the partition answers with an error and keeps its file as it is."""
    node = make_node()
    path = filled(node, "damaged")
    filled(node, "sound")
    if how == "killed":
        node.kill()
    else:
        node.stop()
    second = batches(node.log_folder(), "damaged")[0].size_bytes
    raw = bytearray(path.read_bytes())
    raw[second + 100] ^= 0xFF
    path.write_bytes(raw)
    node.start()
    assert clients.read_confluent(node.bootstrap, "sound", len(RECORDS)) == RECORDS
    assert path.read_bytes()[: len(raw)] == raw, "nothing was cut"
    got, error = read_until_error(node, "damaged")
    assert RECORDS[: len(got)] == got, "what is read is right"
    if how == "killed":
        # The start checks everything after the last checkpoint.
        assert error is not None, "the damage is never served"
    wait_until(
        lambda: OUT_OF_SERVICE in node.log.read_text(),
        DEADLINE_S,
        lambda: node.said("names the damage"),
    )


def read_until_error(node: Node, topic: str) -> tuple[list[Record], KafkaError | None]:
    """What a strict consumer gets, and the error that stops it; None when its broker has nothing
    more for it."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "x",
            "check.crcs": True,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )
    got: list[Record] = []
    try:
        consumer.get_watermark_offsets(TopicPartition(topic, 0), DEADLINE_S)
    except confluent_kafka.KafkaException as refused:
        consumer.close()
        return [], refused.args[0]
    consumer.assign([TopicPartition(topic, 0, 0)])
    error: KafkaError | None = None
    silent, end = 0, time.monotonic() + DEADLINE_S
    while silent < SILENT_POLLS and time.monotonic() < end:
        message = consumer.poll(0.5)
        if message is None:
            # Its fetches go on without an error: only the log says that the damage was found.
            silent += OUT_OF_SERVICE in node.log.read_text()
            continue
        silent = 0
        if message.error() is not None:
            error = None if message.error().code() == KafkaError._PARTITION_EOF else message.error()
            break
        got.append(Record(message.key().decode(), message.value().decode()))
        assert len(got) <= len(RECORDS), "more is read than was written"
    consumer.close()
    return got, error


def test_a_full_configuration_survives_a_restart(make_node: Callable[..., Node]) -> None:
    """Topics, their configurations and their ids are the same in the next life."""
    node = make_node()
    assert isinstance(node, TidelogNode)
    clients.create_topic(node.bootstrap, "kept", 3, retention_ms=12345678)
    admin = clients.admin(node.bootstrap)

    def seen() -> tuple[str, int, str]:
        wanted = confluent_kafka.TopicCollection(["kept"])
        described = admin.describe_topics(wanted)["kept"].result(DEADLINE_S)
        resource = confluent_kafka.admin.ConfigResource("topic", "kept")
        configs = admin.describe_configs([resource])[resource].result(DEADLINE_S)
        return str(described.topic_id), len(described.partitions), configs["retention.ms"].value

    before = seen()
    assert before[1:] == (3, "12345678")
    node.restart()
    assert seen() == before
    node.kill()
    node.start()
    assert seen() == before
