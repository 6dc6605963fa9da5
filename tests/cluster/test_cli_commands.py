"""The commands against a running server: what they print, change, and how they fail.

Runs against Apache Kafka too (`TIDELOG_TEST_TARGET=kafka`): the flags and what they do are Kafka's.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import NewPartitions

from tests.support.clients import admin, create_topic
from tests.support.command_runs import Said, said_by
from tests.support.processes import DEADLINE_S, free_ports, wait_until
from tests.support.server import run_tidelog, tidelog_command

pytestmark = pytest.mark.long(60)


Tide = Callable[..., Said]


@pytest.fixture
def tide(bootstrap: str, capfd: pytest.CaptureFixture[str]) -> Tide:
    """Run a command in this process against the shared node."""

    return lambda *arguments: said_by(bootstrap, capfd, *arguments)


def produce(bootstrap: str, topic: str, text: str, *arguments: str) -> Said:
    """`tidelog produce` in a process of its own, for it reads a real standard input."""
    done = run_tidelog(
        "produce", "--bootstrap-server", bootstrap, "--topic", topic, *arguments, stdin=text
    )
    return Said(done.returncode, done.stdout, done.stderr)


# Topics


def test_a_topic_from_creation_to_deletion(tide: Tide, topic_name: str) -> None:
    created = tide(
        "topics",
        "--create",
        "--topic",
        topic_name,
        "--partitions",
        "2",
        "--config",
        "retention.ms=5000",
    )
    assert created.good() == f"Created topic {topic_name}.\n"
    assert topic_name in tide("topics", "--list").good().splitlines()
    assert topic_name in tide("topics", "--list", "--json").json()
    (shown,) = tide("topics", "--describe", "--topic", topic_name, "--json").json()
    assert shown["partition_count"] == 2
    assert shown["configs"] == {"retention.ms": "5000"}
    assert [item["partition"] for item in shown["partitions"]] == [0, 1]
    assert all(item["leader"] == 1 and item["isr"] == [1] for item in shown["partitions"])
    table = tide("topics", "--describe", "--topic", topic_name).good()
    assert f"Topic: {topic_name}  TopicId: {shown['topic_id']}  PartitionCount: 2" in table
    assert table.splitlines()[1].split() == [
        "Partition", "Leader", "Replicas", "Isr", "Offline", "LeaderEpoch",
    ]  # fmt: skip
    (same,) = tide("topics", "--describe", "--topic-id", shown["topic_id"], "--json").json()
    assert same["topic"] == topic_name
    stranger = ("topics", "--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAABA")
    tide(*stranger).failed("AAAAAAAAAAAAAAAAAAAABA", "UNKNOWN_TOPIC_ID")
    assert tide(*stranger, "--if-exists", "--json").json() == []
    tide("topics", "--alter", "--topic", topic_name, "--partitions", "3").good()
    (shown,) = tide("topics", "--describe", "--topic", topic_name, "--json").json()
    assert shown["partition_count"] == 3
    assert tide("topics", "--delete", "--topic", topic_name).good() == (
        f"Deleted topic {topic_name}.\n"
    )
    wait_until(
        lambda: topic_name not in tide("topics", "--list").good().splitlines(),
        DEADLINE_S,
        "it is gone",
    )


def test_a_pattern_deletes_what_was_agreed_to_and_no_internal_topic(
    tide: Tide, bootstrap: str, topic_name: str
) -> None:
    names = [f"{topic_name}-{letter}" for letter in "ab"]
    for name in names:
        create_topic(bootstrap, name)
    pattern = f"{topic_name}-.*"
    # Without a terminal: the topics are listed, and none is deleted.
    tide("topics", "--delete", "--topic", pattern).failed(*names, "--yes")
    listed = tide("topics", "--list").good().splitlines()
    assert set(names) <= set(listed)
    internal = [name for name in listed if name.startswith("__")]
    also = f"{pattern},__.*"
    deleted = tide("topics", "--delete", "--topic", also, "--yes").good()
    assert deleted == "".join(f"Deleted topic {name}.\n" for name in names)
    wait_until(
        lambda: not set(names) & set(tide("topics", "--list").good().splitlines()),
        DEADLINE_S,
        "they are gone",
    )
    assert set(internal) <= set(tide("topics", "--list").good().splitlines())


def test_what_topics_refuse(tide: Tide, bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name, 2)
    tide("topics", "--create", "--topic", topic_name).failed("already exists", "--if-not-exists")
    again = tide("topics", "--create", "--topic", topic_name, "--if-not-exists", "--json")
    assert again.json() == {"topic": topic_name, "created": False}
    bad_name = tide("topics", "--create", "--topic", "no spaces")
    bad_name.failed("'no spaces'", "character", status=2)
    fresh = topic_name + "-x"
    tide(
        "topics", "--create", "--topic", fresh, "--partitions", "1", "--replication-factor", "9"
    ).failed("INVALID_REPLICATION_FACTOR")
    tide("topics", "--create", "--topic", fresh, "--config", "no.such.config=1").failed(
        "no.such.config"
    )
    tide("topics", "--create", "--topic", fresh, "--config", "retention.ms=soon").failed(
        "retention.ms"
    )
    shrunk = tide("topics", "--alter", "--topic", topic_name, "--partitions", "1")
    shrunk.failed("INVALID_PARTITIONS")
    assert "1.5" not in shrunk.err and "grows only" not in shrunk.err
    for action in ("--describe", "--delete"):
        tide("topics", action, "--topic", fresh).failed("does not exist", fresh)
        assert tide("topics", action, "--topic", fresh, "--if-exists").status == 0


def test_a_topic_grows_and_shrinks_and_describe_shows_how(
    tide: Tide, bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name, 2)
    alter = ("topics", "--alter", "--topic", topic_name, "--partitions")
    tide(*alter, "4").good()
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic_name, b"of a writer without a count", partition=3)
    assert producer.flush(DEADLINE_S) == 0

    client = admin(bootstrap)

    def is_refused() -> bool:
        asked = client.create_partitions([NewPartitions(topic_name, 3)], validate_only=True)
        # A heartbeat from before the write says that there is no writer.
        return "wrote to it" in str(asked[topic_name].exception(DEADLINE_S))

    wait_until(is_refused, DEADLINE_S, "a heartbeat has named the writer", 0.1)
    tide(*alter, "3").failed("POLICY_VIOLATION", "--force")
    assert tide("topics", "--list", "--force").status == 2
    assert tide(*alter, "3", "--force").good() == f"Topic {topic_name} now has 3 partitions.\n"
    (shown,) = tide("topics", "--describe", "--topic", topic_name, "--json").json()
    counts = ("initial_partition_count", "undeleted_partition_count", "partition_count")
    assert [shown[count] for count in counts] == [2, 3, 4]
    assert shown["resize_epoch"] == 2
    child, retired = shown["partitions"][2:]
    assert (child["parent"], child["birth_epoch"], child["retirement_epoch"]) == (0, 1, None)
    assert [(each["kind"], each["offset"]) for each in child["fences"]] == [
        ("fence", 0),
        ("fence", 1),
    ]
    assert (retired["survivor"], retired["retirement_epoch"]) == (1, 2)
    assert [each["kind"] for each in retired["fences"]] == ["fence", "seal"]
    assert retired["held_records"] == 1
    table = tide("topics", "--describe", "--topic", topic_name).good()
    assert "UndeletedPartitionCount: 3" in table
    assert "Retired: partition 3 in resize epoch 2, its keys are in partition 1 now: 1 rec" in table


def test_names_that_no_request_can_carry(tide: Tide) -> None:
    tide("topics", "--describe", "--topic", "x" * 40_000).failed("does not exist")
    tide("groups", "--describe", "--group", "x" * 40_000).failed()


# Configurations


def test_configurations_of_a_topic(tide: Tide, bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    tide(
        "configs", "--alter", "--topic", topic_name,
        "--add-config", "cleanup.policy=[compact,delete],max.message.bytes=2000",
    ).good()  # fmt: skip
    (shown,) = tide("configs", "--describe", "--topic", topic_name, "--json").json()
    values = {entry["name"]: entry["value"] for entry in shown["configs"]}
    assert values == {"cleanup.policy": "compact,delete", "max.message.bytes": "2000"}
    tide(
        "configs", "--alter", "--entity-type", "topics", "--entity-name", topic_name,
        "--delete-config", "cleanup.policy",
    ).good()  # fmt: skip
    table = tide("configs", "--describe", "--topic", topic_name).good()
    assert "max.message.bytes" in table
    assert "cleanup.policy" not in table
    (everything,) = tide("configs", "--describe", "--topic", topic_name, "--all", "--json").json()
    sources = {entry["name"]: entry["source"] for entry in everything["configs"]}
    assert sources["max.message.bytes"] == "DYNAMIC_TOPIC_CONFIG"
    assert sources["cleanup.policy"] == "DEFAULT_CONFIG"


def test_what_configurations_refuse(tide: Tide, bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    alter = ("configs", "--alter", "--topic", topic_name)
    tide(*alter, "--add-config", "cleanup.policy=burn").failed("cleanup.policy", "INVALID_CONFIG")
    tide(*alter, "--add-config", "no.such=1").failed("no.such")
    # U18: it said that it was done.
    tide(*alter, "--delete-config", "no.such").failed("no.such", "not set")
    tide(*alter, "--add-config", "retention.ms=5").good()
    both = tide(*alter, "--delete-config", "retention.ms,segment.bytes")
    both.failed("segment.bytes", "nothing was changed")
    assert "retention.ms" in tide("configs", "--describe", "--topic", topic_name).good()
    tide("configs", "--describe", "--topic", topic_name + "-x").failed("does not exist")
    tide("configs", "--describe", "--broker", "77").failed("no broker '77'")


def test_configurations_of_a_broker(tide: Tide) -> None:
    (shown,) = tide("configs", "--describe", "--broker", "1", "--all", "--json").json()
    names = {entry["name"] for entry in shown["configs"]}
    assert {"log.dirs", "num.partitions", "log.retention.ms"} <= names


# Records


def test_keys_headers_and_nulls_go_through(tide: Tide, bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    said = produce(
        bootstrap, topic_name, "h:1,g:2\tk1=v1\n\tk2=NULL\n\tNULL=v3\n",
        "--property", "parse.key=true", "--property", "key.separator==",
        "--property", "parse.headers=true", "--property", "null.marker=NULL",
        "--compression-codec", "lz4", "--json",
    )  # fmt: skip
    assert said.json() == {"sent": 3, "failed": 0}
    read = tide(
        "consume", "--topic", topic_name, "--from-beginning", "--max-messages", "3", "--json"
    )
    found = [json.loads(line) for line in read.good().splitlines()]
    assert [(r["offset"], r["key"], r["value"], r["headers"]) for r in found] == [
        (0, "k1", "v1", [["h", "1"], ["g", "2"]]),
        (1, "k2", None, []),
        (2, None, "v3", []),
    ]
    lines = tide(
        "consume", "--topic", topic_name, "--partition", "0", "--offset", "1",
        "--max-messages", "2", "--property", "print.key=true", "--property", "print.offset=true",
    )  # fmt: skip
    assert lines.good() == "Offset:1\tk2\tnull\nOffset:2\tnull\tv3\n"
    assert lines.err == "Processed a total of 2 messages\n"


def test_many_lines_keep_their_order(tide: Tide, bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    text = "".join(f"{number}\n" for number in range(20_000))
    assert produce(bootstrap, topic_name, text).status == 0
    read = tide("consume", "--topic", topic_name, "--from-beginning", "--max-messages", "20000")
    assert read.good() == text


def test_nothing_after_a_bad_line_is_written(tide: Tide, bootstrap: str, topic_name: str) -> None:
    """U4: what was written around a bad line depended on the chunks that were read."""
    create_topic(bootstrap, topic_name)
    keyed = ("--property", "parse.key=true", "--property", "key.separator==")
    good = [f"k{number}={number}" for number in range(50_000)]
    text = "\n".join([*good[:30_000], "bad", *good[30_000:]]) + "\n"
    said = produce(bootstrap, topic_name, text, *keyed)
    said.failed("line 30001", "key.separator", "30,000 records were written", "nothing from that")
    ends = tide(
        "consume", "--topic", topic_name, "--from-beginning", "--timeout-ms", "1500",
        "--format", "%o %k=%s\\n",
    ).good().splitlines()  # fmt: skip
    assert ends == [f"{number} {line}" for number, line in enumerate(good[:30_000])]
    ignored = produce(
        bootstrap, topic_name, "bad\na=1\n", *keyed, "--property", "ignore.error=true"
    )
    assert ignored.status == 1
    assert ignored.err.splitlines()[0].startswith("line 1: ")
    assert ignored.err.splitlines()[1] == (
        "error: 1 line could not be parsed; 1 record was written"
    )


def test_producing_says_how_many_were_written_and_makes_no_topic(
    bootstrap: str, topic_name: str
) -> None:
    """U9 and U18: nothing was said, and a mistyped topic came into being."""
    create_topic(bootstrap, topic_name)
    said = produce(bootstrap, topic_name, "a\nb\n")
    assert said.status == 0
    assert said.err.startswith(f"2 records were written to {topic_name} in "), said
    produce(bootstrap, topic_name + "x", "a\n").failed(
        "does not exist", f"did you mean '{topic_name}'?", "--create-topic"
    )
    one_each = produce(bootstrap, topic_name, "c\nd\n", "--sync", "--json")
    assert one_each.json() == {"sent": 2, "failed": 0}


def test_an_interrupted_producer_says_how_many_were_written(
    tide: Tide, bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name)
    command = tidelog_command("produce", "--bootstrap-server", bootstrap, "--topic", topic_name)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as producer:
        try:
            assert producer.stdin is not None
            producer.stdin.write(b"a\nb\nnot ended")
            producer.stdin.flush()
            read = tide("consume", "--topic", topic_name, "--from-beginning", "--max-messages", "2")
            assert read.good() == "a\nb\n"
            producer.send_signal(signal.SIGINT)
            status = producer.wait(DEADLINE_S)
        finally:
            producer.kill()
        assert producer.stderr is not None
        said = producer.stderr.read().decode()
    assert (status, said) == (130, f"interrupted: 2 records were written to {topic_name}\n")


def test_reading_begins_at_the_requested_place(tide: Tide, bootstrap: str, topic_name: str) -> None:
    """U9: from the end, from a time, of several partitions, as a format says."""
    create_topic(bootstrap, topic_name, 3)
    for partition in "012":
        lines = "".join(f"{partition}{number}\n" for number in range(4))
        produce(bootstrap, topic_name, lines, "--partition", partition)

    def read(*arguments: str) -> list[str]:
        said = tide("consume", "--topic", topic_name, "--timeout-ms", "1500", *arguments)
        return sorted(said.good().splitlines())

    assert read("--offset", "-1") == ["03", "13", "23"]
    assert read("--offset", "-2", "--partition", "0,2") == ["02", "03", "22", "23"]
    assert read("--offset", "-9", "--partition", "1") == ["10", "11", "12", "13"]
    two = read(
        "--partition", "0", "--partition", "1", "--offset", "3", "--format", "%t-%p@%o=%s;\\n"
    )
    assert two == [f"{topic_name}-0@3=03;", f"{topic_name}-1@3=13;"]
    assert len(read("--from-datetime", "2024-06-01T00:00:00")) == 12
    assert read("--from-datetime", str(int(time.time() * 1000) + 3_600_000)) == []


def test_records_are_deleted_by_offset_and_by_kafkas_file(
    tide: Tide, bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    """No command did this: the refusals that advise it named Kafka's tool."""
    create_topic(bootstrap, topic_name, 2)
    for partition in ("0", "1"):
        assert produce(bootstrap, topic_name, "a\nb\nc\n", "--partition", partition).status == 0
    at = ("delete-records", "--topic", topic_name, "--partition")
    assert tide(*at, "0", "--offset", "2").good().split()[-3:] == [topic_name, "0", "2"]
    file = tmp_path / "offsets.json"
    rows = [{"topic": topic_name, "partition": x, "offset": at} for x, at in ((0, 9), (1, -1))]
    file.write_text(json.dumps({"partitions": rows, "version": 1}))
    said = tide("delete-records", "--offset-json-file", str(file), "--json")
    assert said.status == 1 and "(OFFSET_OUT_OF_RANGE); name an offset" in said.err
    shown = json.loads(said.out)
    assert shown["deleted"] == [{"topic": topic_name, "partition": 1, "low_watermark": 3}]
    assert [each["partition"] for each in shown["refused"]] == [0]
    left = tide("consume", "--topic", topic_name, "--from-beginning", "--max-messages", "1")
    assert left.good() == "c\n"
    tide(*at, "7", "--offset", "1").failed(f"{topic_name}-7", "UNKNOWN_TOPIC_OR_PARTITION")


def test_reading_ends_after_silence(tide: Tide, bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    produce(bootstrap, topic_name, "a\nb\n")
    read = tide("consume", "--topic", topic_name, "--from-beginning", "--timeout-ms", "1500")
    assert read.good() == "a\nb\n"


def test_properties_come_from_a_file_as_with_kafkas_tools(
    tide: Tide, bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    create_topic(bootstrap, topic_name)
    producer, consumer = tmp_path / "producer.properties", tmp_path / "consumer.properties"
    producer.write_text("client.id=me\nacks=1\ncompression.type=lz4\n")
    produce(bootstrap, topic_name, "a\nb\nc\n", "--producer.config", str(producer)).good()
    consumer.write_text(f"group.id=group-{topic_name}\nauto.offset.reset=earliest\n")
    read = ("consume", "--topic", topic_name, "--consumer.config", str(consumer))
    assert tide(*read, "--max-messages", "2").good() == "a\nb\n"
    rest = tide(*read, "--command-property", "client.id=me", "--max-messages", "1")
    assert rest.good() == "c\n"
    (shown,) = tide(
        "groups", "--describe", "--group", f"group-{topic_name}", "--timeout", "9000", "--json"
    ).json()
    assert [row["lag"] for row in shown["offsets"]] == [0]


def test_what_producing_and_consuming_refuse(tide: Tide, bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name, max_message_bytes=1000)
    produce(bootstrap, topic_name, "x" * 2000 + "\n").failed(
        "1 of 1 records", "MESSAGE_TOO_LARGE", "max.message.bytes"
    )
    produce(
        bootstrap, topic_name, "k=v\nbad\nk=w\n",
        "--property", "parse.key=true", "--property", "key.separator==",
    ).failed("line 2", "key.separator")  # fmt: skip
    tide("consume", "--topic", topic_name + "-x", "--from-beginning").failed("does not exist")
    tide("consume", "--topic", topic_name, "--partition", "7").failed("no partition 7")
    tide("consume", "--topic", topic_name, "--partition", "0", "--offset", "999").failed(
        "OFFSET_OUT_OF_RANGE", "--from-beginning"
    )


# Groups


def consume_as(tide: Tide, topic: str, group: str, count: int) -> list[str]:
    said = tide(
        "consume", "--topic", topic, "--group", group, "--from-beginning",
        "--max-messages", str(count),
    )  # fmt: skip
    return said.good().splitlines()


def lags(tide: Tide, group: str) -> dict[int, tuple[int, int]]:
    (shown,) = tide("groups", "--describe", "--group", group, "--json").json()
    return {row["partition"]: (row["current_offset"], row["lag"]) for row in shown["offsets"]}


def test_a_group_goes_on_where_it_was(tide: Tide, bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    produce(bootstrap, topic_name, "".join(f"{number}\n" for number in range(10)))
    assert consume_as(tide, topic_name, topic_name, 4) == ["0", "1", "2", "3"]
    assert lags(tide, topic_name) == {0: (4, 6)}
    assert consume_as(tide, topic_name, topic_name, 6) == ["4", "5", "6", "7", "8", "9"]
    table = tide("groups", "--describe", "--group", topic_name)
    assert table.good().splitlines()[1].split()[:6] == [
        topic_name,
        topic_name,
        "0",
        "10",
        "10",
        "0",
    ]
    assert "no active members" in table.err
    assert topic_name in tide("groups", "--list").good().splitlines()
    states = tide("groups", "--describe", "--group", topic_name, "--state").good()
    assert "Empty" in states
    assert topic_name in tide("groups", "--list", "--state", "empty").good()
    assert topic_name not in tide("groups", "--list", "--state", "Stable").good()


def test_a_group_that_reads_whole_batches_commits_them(
    tide: Tide, bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name)
    for text in ("0\n1\n2\n", "3\n4\n"):
        produce(bootstrap, topic_name, text)
    assert consume_as(tide, topic_name, topic_name, 3) == ["0", "1", "2"]
    assert lags(tide, topic_name) == {0: (3, 2)}
    assert consume_as(tide, topic_name, topic_name, 1) == ["3"]
    assert lags(tide, topic_name) == {0: (4, 1)}


def test_resetting_a_group(tide: Tide, bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    produce(bootstrap, topic_name, "".join(f"{number}\n" for number in range(10)))
    between = datetime.now(UTC).isoformat()
    wait_until(lambda: datetime.now(UTC).isoformat() > between, 5, "the clock moves")
    time_between = time.monotonic()
    wait_until(lambda: time.monotonic() > time_between + 0.01, 5, "some milliseconds pass")
    produce(bootstrap, topic_name, "".join(f"{number}\n" for number in range(5)))
    consume_as(tide, topic_name, topic_name, 3)

    def reset(*how: str) -> int:
        named = ("--group", topic_name, "--topic", topic_name)
        said = tide("groups", "--reset-offsets", *named, *how, "--json").json()
        (row,) = said["offsets"]
        assert said["executed"] is ("--execute" in how)
        offset: int = row["new_offset"]
        return offset

    assert reset("--to-latest") == 15
    assert lags(tide, topic_name) == {0: (3, 12)}, "a dry run changes nothing"
    for how, offset in [
        (("--to-earliest",), 0),
        (("--to-offset", "7"), 7),
        (("--shift-by", "-2"), 5),
        (("--shift-by", "1"), 6),
        (("--to-current",), 6),
        (("--to-datetime", between), 10),
        (("--by-duration", "P1D"), 0),
        (("--to-latest",), 15),
    ]:
        assert reset(*how, "--execute") == offset, how
        assert lags(tide, topic_name) == {0: (offset, 15 - offset)}, how


def test_deleting_offsets_and_groups(tide: Tide, bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name, 2)
    # Unlike the groups of other tests: one of those would be suggested.
    name = topic_name.upper()
    group = ("--group", name)
    tide(
        "groups", "--reset-offsets", *group, "--topic", topic_name, "--to-latest", "--execute"
    ).good()
    assert set(lags(tide, name)) == {0, 1}
    tide("groups", "--delete-offsets", *group, "--topic", f"{topic_name}:1").good()
    assert set(lags(tide, name)) == {0}
    assert tide("groups", "--delete", *group).good() == f"Deleted group {name}.\n"
    tide("groups", "--delete", *group).failed("does not exist", "--list")
    tide("groups", "--describe", *group).failed("does not exist")


def test_a_group_with_members_is_left_alone_and_leaves_cleanly(
    tide: Tide, bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name)
    produce(bootstrap, topic_name, "a\nb\n")
    with subprocess.Popen(
        tidelog_command(
            "consume", "--bootstrap-server", bootstrap, "--topic", topic_name,
            "--group", topic_name, "--from-beginning",
        ),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as reader:  # fmt: skip
        try:
            assert reader.stdout is not None
            assert [reader.stdout.readline(), reader.stdout.readline()] == ["a\n", "b\n"]
            (shown,) = tide("groups", "--describe", "--group", topic_name, "--json").json()
            assert (shown["state"], len(shown["members"])) == ("Stable", 1)
            assert shown["members"][0]["partitions"] == [[topic_name, 0]]
            members = "groups", "--describe", "--group", topic_name, "--members"
            assert tide(*members).good().split()[-1] == "1"
            assert tide(*members, "--verbose").good().split()[-1] == f"{topic_name}-0"
            tide(
                "groups", "--reset-offsets", "--group", topic_name, "--topic", topic_name,
                "--to-earliest", "--execute",
            ).failed("stop its consumers")  # fmt: skip
            tide("groups", "--delete", "--group", topic_name).failed("NON_EMPTY_GROUP")
            reader.send_signal(signal.SIGINT)
            _, err = reader.communicate(timeout=DEADLINE_S)
        finally:
            if reader.poll() is None:
                reader.kill()
    assert reader.returncode == 0
    assert err == "Processed a total of 2 messages\n"
    (shown,) = tide("groups", "--describe", "--group", topic_name, "--json").json()
    assert (shown["state"], shown["members"]) == ("Empty", [])
    assert lags(tide, topic_name) == {0: (2, 0)}


# The doctor, and addresses where nothing is


def test_the_doctor_finds_nothing_wrong(tide: Tide, bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    said = tide("doctor")
    assert said.good().startswith("Cluster ")
    assert "all lead, all in sync" in said.out
    assert said.out.splitlines()[1].split()[4:6] == ["Version", "Level"]
    shown = tide("doctor", "--json").json()
    assert shown["healthy"] is True
    assert all(finding["level"] != "bad" for finding in shown["findings"])


def test_an_address_where_nothing_listens() -> None:
    (port,) = free_ports(1)
    begun = time.monotonic()
    done = run_tidelog("topics", "--bootstrap-server", f"127.0.0.1:{port}", "--list")
    Said(done.returncode, done.stdout, done.stderr).failed(
        f"127.0.0.1:{port}", "--bootstrap-server"
    )
    assert time.monotonic() - begun < 20


@contextmanager
def peer(answer: bytes | None) -> Iterator[int]:
    """A server that answers everything with the same bytes, or with nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                # A client that has its responses may have closed the connection.
                with suppress(ConnectionError):
                    if answer is not None:
                        connection.recv(1000)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for connection in held:
            connection.close()
        thread.join(DEADLINE_S)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x08" + b"?" * 8, None]
)
def test_a_peer_that_is_no_broker(answer: bytes | None) -> None:
    with peer(answer) as port:
        done = run_tidelog("topics", "--bootstrap-server", f"127.0.0.1:{port}", "--list")
        Said(done.returncode, done.stdout, done.stderr).failed(f"127.0.0.1:{port}")


def test_output_into_a_pipe_that_ends_early(bootstrap: str) -> None:
    command = tidelog_command("topics", "--bootstrap-server", bootstrap, "--describe")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        assert process.wait(timeout=DEADLINE_S) == 0
    assert err == b"", err.decode()


def test_an_input_that_cannot_be_read(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    command = tidelog_command("produce", "--bootstrap-server", bootstrap, "--topic", topic_name)
    with open(os.devnull, "wb") as only_written:
        done = subprocess.run(
            command, stdin=only_written, capture_output=True, text=True, timeout=DEADLINE_S
        )
    Said(done.returncode, done.stdout, done.stderr).failed("standard input cannot be read")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_output_onto_a_full_disk(bootstrap: str) -> None:
    command = tidelog_command("topics", "--bootstrap-server", bootstrap, "--list", "--json")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (1, b"error: No space left on device\n")


def test_the_module_and_the_script_are_the_same() -> None:
    for module in ("tidelog.cli.main", "tidelog"):
        done = subprocess.run(
            [sys.executable, "-m", module, "--version"],
            capture_output=True, text=True, timeout=DEADLINE_S, check=True,
        )  # fmt: skip
        assert done.stdout.startswith("tidelog ")
