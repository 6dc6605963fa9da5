"""Kafka's own topic, configuration and cluster tools against a real node."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable

import pytest

from tests.support import clients
from tests.support.clients import Record
from tests.support.java import ToolResult, ToolRunner
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import TidelogNode

pytestmark = pytest.mark.java

Run = Callable[..., ToolResult]


@pytest.fixture
def run(tools: ToolRunner, bootstrap: str) -> Run:
    """`run(TOOL, ARG...)` with `--bootstrap-server` already there."""
    return lambda tool, *args, **more: tools.run(
        tool, "--bootstrap-server", bootstrap, *args, **more
    )


def test_create_list_describe_delete(run: Run, topic_name: str) -> None:
    created = run(
        *("kafka-topics", "--create", "--topic", topic_name, "--partitions", "3"),
        *("--replication-factor", "1", "--config", "retention.ms=86400000"),
    )
    assert f"Created topic {topic_name}." in created.check().out
    assert topic_name in run("kafka-topics", "--list").check().out.split()

    said = run("kafka-topics", "--describe", "--topic", topic_name).check().out
    head, *lines = said.splitlines()
    assert re.search(r"TopicId: [A-Za-z0-9_-]{22}\s", head), head
    assert "PartitionCount: 3" in head and "ReplicationFactor: 1" in head
    assert "retention.ms=86400000" in head
    assert [re.search(r"Partition: (\d+)", line).group(1) for line in lines] == ["0", "1", "2"]
    assert all(re.search(r"Leader: 1\s+Replicas: 1\s+Isr: 1", line) for line in lines), said

    run("kafka-topics", "--delete", "--topic", topic_name).check()
    wait_until(
        lambda: topic_name not in run("kafka-topics", "--list").out.split(),
        DEADLINE_S,
        "it is gone",
    )


def test_describe_by_topic_id_and_filters(run: Run, topic_name: str) -> None:
    run("kafka-topics", "--create", "--topic", topic_name, "--partitions", "2").check()
    said = run("kafka-topics", "--describe", "--topic", topic_name).check().out
    topic_id = re.search(r"TopicId: (\S+)", said).group(1)
    again = run("kafka-topics", "--describe", "--topic-id", topic_id)
    assert re.findall(r"Partition: \d+\s+Leader: \d+", again.check().out) == re.findall(
        r"Partition: \d+\s+Leader: \d+", said
    )
    for kind in ("under-replicated", "unavailable", "under-min-isr"):
        found = run("kafka-topics", "--describe", "--topic", topic_name, f"--{kind}-partitions")
        assert not found.check().out.strip()


def test_describe_asks_for_pages_of_partitions(run: Run, node: Node, topic_name: str) -> None:
    """By DescribeTopicPartitions, as Kafka 4's tools do where it is served."""
    run("kafka-topics", "--create", "--topic", topic_name, "--partitions", "5").check()

    def pages() -> int:
        if not isinstance(node, TidelogNode):
            return 0
        url = f"http://127.0.0.1:{node.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
            text = answer.read().decode()
        found = re.search(r'requests_total\{request="DescribeTopicPartitions"\} (\S+)', text)
        return int(float(found[1])) if found else 0

    before = pages()
    said = run(
        *("kafka-topics", "--describe", "--topic", topic_name),
        *("--partition-size-limit-per-response", "2"),
    )
    assert re.findall(r"Partition: (\d+)", said.check().out) == ["0", "1", "2", "3", "4"]
    assert pages() - before == (3 if isinstance(node, TidelogNode) else 0)


def test_alter_grows_and_shrinks_where_order_is_kept(run: Run, topic_name: str, node: Node) -> None:
    run("kafka-topics", "--create", "--topic", topic_name, "--partitions", "1").check()
    alter = ("kafka-topics", "--alter", "--topic", topic_name, "--partitions")
    run(*alter, "4").check()
    wait_until(
        lambda: "PartitionCount: 4" in run("kafka-topics", "--describe", "--topic", topic_name).out,
        DEADLINE_S,
        "four partitions",
    )
    assert run(*alter, "4").status == 1
    shrunk = run(*alter, "2")
    assert shrunk.status == (0 if isinstance(node, TidelogNode) else 1), shrunk
    assert run(*alter, "0").status == 1


def test_a_topic_that_exists(run: Run, topic_name: str) -> None:
    create = ("kafka-topics", "--create", "--topic", topic_name)
    run(*create).check()
    again = run(*create)
    assert again.status == 1 and "TopicExistsException" in again.err and topic_name in again.out
    run(*create, "--if-not-exists").check()


def test_an_unknown_topic(run: Run, topic_name: str) -> None:
    for action in ("--describe", "--delete"):
        said = run("kafka-topics", action, "--topic", topic_name)
        assert said.status == 1 and "does not exist as expected" in said.out, said
        run("kafka-topics", action, "--topic", topic_name, "--if-exists").check()


def test_impossible_topics(run: Run, topic_name: str) -> None:
    create = ("kafka-topics", "--create", "--topic")
    said = run(*create, topic_name, "--replication-factor", "3")
    assert said.status == 1 and "replication factor" in said.out.lower(), said
    said = run(*create, "no/slash")
    assert said.status == 1 and "no/slash" in said.out, said
    said = run(*create, "x" * 250)
    assert said.status == 1 and "249" in said.out, said
    said = run(*create, topic_name, "--partitions", "0")
    assert said.status == 1, said
    said = run(*create, topic_name, "--config", "retention.ms=soon")
    assert said.status == 1 and "retention.ms" in said.out, said
    said = run(*create, topic_name, "--config", "retention.hours=1")
    assert said.status == 1, said
    assert topic_name not in run("kafka-topics", "--list").out.split()


def test_manual_replica_assignment(run: Run, topic_name: str) -> None:
    create = ("kafka-topics", "--create", "--topic", topic_name, "--replica-assignment")
    assert run(*create, "9,9").status == 1
    run(*create, "1,1,1").check()
    said = run("kafka-topics", "--describe", "--topic", topic_name).check().out
    assert "PartitionCount: 3" in said


def test_topic_configs_with_synonyms(run: Run, topic_name: str) -> None:
    run("kafka-topics", "--create", "--topic", topic_name).check()
    of_topic = ("--entity-type", "topics", "--entity-name", topic_name)
    plain = run("kafka-configs", "--describe", *of_topic).check().out
    assert plain.strip() == f"Dynamic configs for topic {topic_name} are:"

    altered = run(
        *("kafka-configs", "--alter", *of_topic, "--add-config"),
        "retention.ms=1234567,cleanup.policy=[compact,delete],max.message.bytes=2000000",
    )
    assert f"Completed updating config for topic {topic_name}." in altered.check().out
    said = run("kafka-configs", "--describe", *of_topic).check().out
    assert (
        "retention.ms=1234567 sensitive=false "
        "synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=1234567" in said
    ), said
    assert "cleanup.policy=compact,delete" in said
    assert re.search(
        r"max\.message\.bytes=2000000 sensitive=false synonyms=\{"
        r"DYNAMIC_TOPIC_CONFIG:max\.message\.bytes=2000000, "
        r"DEFAULT_CONFIG:message\.max\.bytes=1048588\}",
        said,
    ), said

    whole = run("kafka-configs", "--describe", "--all", *of_topic).check().out
    names = set(re.findall(r"^\s+([a-z.]+)=", whole, re.MULTILINE))
    assert {"segment.bytes", "segment.ms", "min.insync.replicas", "compression.type"} <= names
    assert (
        "segment.bytes=1073741824 sensitive=false "
        "synonyms={DEFAULT_CONFIG:log.segment.bytes=1073741824}" in whole
    ), whole

    run("kafka-configs", "--alter", *of_topic, "--delete-config", "retention.ms").check()
    assert "retention.ms" not in run("kafka-configs", "--describe", *of_topic).check().out


def test_bad_topic_configs_change_nothing(run: Run, topic_name: str) -> None:
    run("kafka-topics", "--create", "--topic", topic_name).check()
    of_topic = ("--entity-type", "topics", "--entity-name", topic_name)
    alter = ("kafka-configs", "--alter", *of_topic, "--add-config")
    for bad in ("retention.ms=soon", "cleanup.policy=wash", "no.such=1", "min.insync.replicas=0"):
        said = run(*alter, f"segment.ms=3600000,{bad}")
        assert said.status == 1, said
        assert bad.split("=")[0] in said.out + said.err, said
    assert "segment.ms" not in run("kafka-configs", "--describe", *of_topic).check().out


def test_broker_configs(run: Run) -> None:
    of_broker = ("--entity-type", "brokers", "--entity-name", "1")
    whole = run("kafka-configs", "--describe", "--all", *of_broker).check().out
    assert "All configs for broker 1 are:" in whole
    assert re.search(r"^\s+node\.id=1 .*STATIC_BROKER_CONFIG:node\.id=1", whole, re.MULTILINE)
    assert re.search(r"^\s+log\.retention\.hours=168 ", whole, re.MULTILINE)
    said = run("kafka-configs", "--alter", *of_broker, "--add-config", "node.id=2")
    assert said.status == 1, said


def test_cluster_and_features(run: Run, tools: ToolRunner, bootstrap: str) -> None:
    said = tools.run("kafka-cluster", "cluster-id", "--bootstrap-server", bootstrap).check().out
    assert re.fullmatch(r"Cluster ID: [A-Za-z0-9_-]{22}\s*", said), said
    said = tools.run("kafka-cluster", "list-endpoints", "--bootstrap-server", bootstrap).check().out
    assert re.search(r"^1\s+127\.0\.0\.1\s+\d+", said, re.MULTILINE), said
    run("kafka-features", "describe").check()
    versions = run("kafka-broker-api-versions").check().out
    assert re.search(r"Produce\(0\): [03] to \d+ \[usable: \d+\]", versions), versions


def test_log_dirs_counts_bytes(run: Run, node: Node, topic_name: str) -> None:
    run("kafka-topics", "--create", "--topic", topic_name).check()
    clients.write_confluent(node.bootstrap, topic_name, [Record("k", "v" * 5000)], "none")
    said = run("kafka-log-dirs", "--describe", "--topic-list", topic_name).check().out
    assert str(node.log_folder()) in said, said
    found = re.search(rf'"partition":"{topic_name}-0","size":(\d+),"offsetLag":0', said)
    assert found and 5000 < int(found.group(1)) < 6000, said
