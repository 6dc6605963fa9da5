"""Kafka's own group, offset and deletion tools against a real node."""

from __future__ import annotations

import csv
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest

from tests.support import clients
from tests.support.java import ToolResult, ToolRunner
from tests.support.processes import DEADLINE_S, wait_until

pytestmark = pytest.mark.java

Run = Callable[..., ToolResult]
FIRST_TIMESTAMP_MS = 1_700_000_000_000


@pytest.fixture
def run(tools: ToolRunner, bootstrap: str) -> Run:
    """`run(TOOL, ARG...)` with `--bootstrap-server` already there."""
    return lambda tool, *args, **more: tools.run(
        tool, "--bootstrap-server", bootstrap, *args, **more
    )


@pytest.fixture
def ten_records(bootstrap: str, topic_name: str) -> str:
    """A topic of two partitions; partition 0 holds ten records, a second apart."""
    clients.create_topic(bootstrap, topic_name, 2, retention_ms=-1)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(10):
        producer.produce(
            topic_name, f"v{number}", partition=0, timestamp=FIRST_TIMESTAMP_MS + 1000 * number
        )
    assert producer.flush(DEADLINE_S) == 0
    return topic_name


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    position = confluent_kafka.TopicPartition(topic, 0, offset)
    consumer.commit(offsets=[position], asynchronous=False)
    consumer.close()


def committed(bootstrap: str, group: str, topic: str, partition: int = 0) -> int:
    """The committed offset, or a negative number when there is none."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    answer = consumer.committed([confluent_kafka.TopicPartition(topic, partition)], DEADLINE_S)
    consumer.close()
    return int(answer[0].offset)


def test_get_offsets(run: Run, ten_records: str) -> None:
    def offsets(time_ms: object) -> dict[str, str]:
        said = run("kafka-get-offsets", "--topic", ten_records, "--time", str(time_ms)).check()
        lines = [line.split(":") for line in said.out.split()]
        return {partition: offset for topic, partition, offset in lines if topic == ten_records}

    assert offsets(-1) == {"0": "10", "1": "0"} == offsets("latest")
    assert offsets(-2) == {"0": "0", "1": "0"} == offsets("earliest")
    assert offsets(-3)["0"] == "9" == offsets("max-timestamp")["0"]
    # Nothing is tiered: what is on the disk is all there is (ListOffsets v8 and v9).
    assert offsets("earliest-local") == {"0": "0", "1": "0"}
    assert offsets("latest-tiered").get("0", "") == ""
    assert offsets(FIRST_TIMESTAMP_MS)["0"] == "0"
    assert offsets(FIRST_TIMESTAMP_MS + 3500)["0"] == "4"
    assert offsets(FIRST_TIMESTAMP_MS + 9001).get("0", "") == ""


def test_delete_records(run: Run, ten_records: str, tmp_path: Path, bootstrap: str) -> None:
    wanted = tmp_path / "delete.json"
    entry = {"topic": ten_records, "partition": 0, "offset": 6}
    wanted.write_text(json.dumps({"partitions": [entry], "version": 1}))
    said = run("kafka-delete-records", "--offset-json-file", str(wanted)).check()
    assert f"partition: {ten_records}-0\tlow_watermark: 6" in said.out, said
    earliest = run("kafka-get-offsets", "--topic", ten_records, "--time", "-2").check().out
    assert f"{ten_records}:0:6" in earliest.split()
    read = clients.read_kafka_python if clients.kcat_missing() else clients.read_kcat
    got = read(bootstrap, ten_records, 4)
    assert [record.value for record in got] == ["v6", "v7", "v8", "v9"]

    entry["offset"] = 99
    wanted.write_text(json.dumps({"partitions": [entry], "version": 1}))
    said = run("kafka-delete-records", "--offset-json-file", str(wanted))
    assert "OffsetOutOfRange" in said.out + said.err or "out of range" in said.out, said
    wanted.write_text('{"partitions": [')
    said = run("kafka-delete-records", "--offset-json-file", str(wanted))
    assert said.status == 1 and "not a valid JSON" in said.out + said.err, said


def test_consumer_groups_of_an_empty_group(
    run: Run, ten_records: str, topic_name: str, bootstrap: str, tmp_path: Path
) -> None:
    group = f"group-{topic_name}"
    commit(bootstrap, group, ten_records, 4)
    groups = ("kafka-consumer-groups", "--group", group)
    assert group in run("kafka-consumer-groups", "--list").check().out.split()
    listed = run("kafka-consumer-groups", "--list", "--state").check().out
    assert re.search(rf"^{group}\s+Classic\s+Empty", listed, re.MULTILINE | re.IGNORECASE) or (
        re.search(rf"^{group}\s+Empty", listed, re.MULTILINE)
    ), listed
    listed = run("kafka-groups", "--list").check().out
    assert re.search(rf"^{group}\s+Classic\s+\S*", listed, re.MULTILINE), listed

    said = run(*groups, "--describe").check()
    assert re.search(rf"{ten_records}\s+0\s+4\s+10\s+6", said.out), said
    said = run(*groups, "--describe", "--state").check().out
    assert re.search(r"\sEmpty\s+0\s*$", said), said

    def reset(*how: str) -> int:
        run(*groups, "--topic", ten_records, "--reset-offsets", *how, "--execute").check()
        return committed(bootstrap, group, ten_records)

    assert reset("--to-earliest") == 0
    assert reset("--to-latest") == 10
    assert reset("--shift-by", "-3") == 7
    assert reset("--to-offset", "2") == 2
    assert reset("--to-datetime", "2023-11-14T22:13:25.000") == 5
    plan = run(*groups, "--topic", ten_records, "--reset-offsets", "--to-earliest", "--dry-run")
    assert ten_records in plan.check().out and committed(bootstrap, group, ten_records) == 5

    said = run(*groups, "--delete-offsets", "--topic", ten_records).check()
    assert "Successful" in said.out, said
    assert committed(bootstrap, group, ten_records) < 0
    commit(bootstrap, group, ten_records, 1)
    said = run(*groups, "--delete").check()
    assert "was successful" in said.out, said
    wait_until(
        lambda: group not in run("kafka-consumer-groups", "--list").out.split(),
        DEADLINE_S,
        "it is gone",
    )


def test_a_living_group_is_described_and_protected(
    run: Run, ten_records: str, topic_name: str, bootstrap: str
) -> None:
    group = f"group-{topic_name}"
    groups = ("kafka-consumer-groups", "--group", group)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "living",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([ten_records])
    try:
        got = 0
        end = time.monotonic() + DEADLINE_S
        while got < 10 and time.monotonic() < end:
            got += len(consumer.consume(10, 0.5))
        consumer.commit(asynchronous=False)
        said = run(*groups, "--describe").check()
        line = rf"{ten_records}\s+0\s+10\s+10\s+0\s+living-\S+\s+/127.0.0.1\s+living"
        assert re.search(line, said.out), said
        said = run(*groups, "--describe", "--members", "--verbose").check()
        assert re.search(r"living\s+2\s+", said.out), said
        said = run(*groups, "--describe", "--state").check()
        assert re.search(r"range\s+Stable\s+1", said.out), said
        said = run(*groups, "--delete")
        assert "NonEmptyGroup" in said.out + said.err or "not empty" in said.out + said.err, said
        said = run(*groups, "--topic", ten_records, "--reset-offsets", "--to-earliest", "--execute")
        assert "is not inactive" in said.out + said.err or "inactive" in said.out + said.err, said
        said = run(*groups, "--delete-offsets", "--topic", ten_records)
        assert "SubscribedToTopic" in said.out + said.err or "subscribed" in said.out, said
        assert committed(bootstrap, group, ten_records) == 10
    finally:
        consumer.close()


def test_an_unknown_group(run: Run) -> None:
    groups = ("kafka-consumer-groups", "--group", "never-used")
    said = run(*groups, "--describe")
    assert re.search("not found|does not exist", said.out + said.err), said
    said = run(*groups, "--delete")
    assert "GroupIdNotFound" in said.out + said.err, said


def test_offsets_from_a_file(
    run: Run, ten_records: str, topic_name: str, bootstrap: str, tmp_path: Path
) -> None:
    group = f"group-{topic_name}"
    commit(bootstrap, group, ten_records, 0)
    path = tmp_path / "offsets.csv"
    with path.open("w") as file:
        csv.writer(file).writerow([ten_records, 0, 8])
    groups = ("kafka-consumer-groups", "--group", group)
    run(*groups, "--reset-offsets", "--from-file", str(path), "--execute").check()
    assert committed(bootstrap, group, ten_records) == 8
