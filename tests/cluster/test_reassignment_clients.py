"""AlterPartitionReassignments and ListPartitionReassignments by other clients (KIP-455).

Kafka's tool, its AdminClient and kafka-python; confluent-kafka has no such calls. A move that must
not end copies more than one fetch under a throttle of 1 byte/s. One cluster for all tests; each
leaves no move.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import kafka
import pytest
from confluent_kafka.admin import NewTopic
from kafka import errors

from tests.support import clients, java
from tests.support.cluster import TidelogCluster
from tests.support.java import ToolResult, ToolRunner
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import run_tidelog
from tests.support.target import TARGET
from tidelog.client.connecting.connection import connect
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

pytestmark = [
    pytest.mark.long(60),
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

UNKNOWN = 77
PLANNED = 10_000
SOURCE = Path(__file__).with_name("Reassignments.java")

Run = Callable[..., ToolResult]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    with TidelogCluster(tmp_path_factory.mktemp("moves"), brokers=4) as started:
        yield started


def create(cluster: TidelogCluster, topic: str, replicas: Mapping[int, Sequence[int]]) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    made = kafka.admin.NewTopic(
        topic, replica_assignments={k: list(v) for k, v in replicas.items()}
    )
    admin.create_topics([made])
    admin.close()
    cluster.until_in_sync(topic, len(replicas[0]))


@pytest.fixture
def topic(cluster: TidelogCluster, topic_name: str) -> str:
    """Two empty partitions on brokers 1 and 2."""
    create(cluster, topic_name, {0: [1, 2], 1: [2, 1]})
    return topic_name


@pytest.fixture
def held(cluster: TidelogCluster, topic: str) -> Iterator[None]:
    """Targets of the first partition do not get all of its records."""
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap)
    for _ in range(6):
        producer.send(topic, b"v" * 500_000, partition=0)
    producer.close()
    configure = ("configs", "--bootstrap-server", cluster.bootstrap, "--alter", "--broker-defaults")
    rate = "reassignment.throttled.rate"
    assert run_tidelog(*configure, "--add-config", f"{rate}=1").returncode == 0
    yield
    assert run_tidelog(*configure, "--delete-config", rate).returncode == 0


def until_placed(cluster: TidelogCluster, topic: str, wanted: Mapping[int, Sequence[int]]) -> None:
    """Wait for the replicas, all of them in sync."""

    def placed() -> bool:
        found = cluster.partitions(topic)
        return all(
            list(found[index].replicas) == list(replicas)
            and set(found[index].isrs) == set(replicas)
            for index, replicas in wanted.items()
        )

    wait_until(placed, DEADLINE_S, f"the replicas of {topic} are {wanted}", 0.1)


# --- kafka-python --------------------------------------------------------------------------------


@pytest.fixture
def python(cluster: TidelogCluster) -> Iterator[kafka.KafkaAdminClient]:
    made = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    yield made
    made.close()


def test_kafka_python_moves_and_lists_and_cancels(
    cluster: TidelogCluster, python: kafka.KafkaAdminClient, topic: str, held: None
) -> None:
    first, second = (kafka.TopicPartition(topic, index) for index in (0, 1))
    done = python.alter_partition_reassignments({first: [4, 1], second: [3, 2]})
    assert done == {first: None, second: None}
    until_placed(cluster, topic, {1: [3, 2]})
    move = {"replicas": [4, 1, 2], "adding_replicas": [4], "removing_replicas": [2]}
    for asked in ([first, second], {topic: [0]}, None):
        assert python.list_partition_reassignments(asked) == {first: move}
    assert python.list_partition_reassignments({topic: [1], "none": [0]}) == {}
    assert python.alter_partition_reassignments({first: None, second: None}) == {
        first: None,
        second: errors.NoReassignmentInProgressError,
    }
    assert python.list_partition_reassignments() == {}


def test_kafka_python_gets_the_error_of_each_partition(
    cluster: TidelogCluster, python: kafka.KafkaAdminClient, topic: str
) -> None:
    first, second = (kafka.TopicPartition(topic, index) for index in (0, 1))
    absent, nowhere = kafka.TopicPartition(topic, 2), kafka.TopicPartition("none", 0)
    for bad in ([1, -1], [1, 1], [1, UNKNOWN]):
        asked = {first: bad, second: [2, 1], absent: [1], nowhere: [1]}
        assert python.alter_partition_reassignments(asked) == {
            first: errors.InvalidReplicationAssignmentError,
            second: None,
            absent: errors.UnknownTopicOrPartitionError,
            nowhere: errors.UnknownTopicOrPartitionError,
        }
    until_placed(cluster, topic, {0: [1, 2], 1: [2, 1]})


# --- each broker ---------------------------------------------------------------------------------


def test_every_broker_answers_for_the_controller(cluster: TidelogCluster, topic: str) -> None:
    """Each error with its sentence; an empty list, which the clients above do not send, too."""
    alter = messages.AlterPartitionReassignmentsRequest
    rows = [
        alter.ReassignablePartition(0, []),
        alter.ReassignablePartition(1, None),
        alter.ReassignablePartition(2, [1]),
    ]
    asked = alter(topics=[alter.ReassignableTopic(topic, rows)])

    async def ask(broker: int) -> tuple[Any, Any, Any]:
        host, port = cluster.brokers[broker].bootstrap.split(":")
        connection = await connect(host, int(port), client_id="test")
        try:
            found = [
                await connection.send(request, 0, DEADLINE_S * 1000)
                for request in (
                    asked,
                    alter(topics=None),
                    messages.ListPartitionReassignmentsRequest(),
                )
            ]
        finally:
            connection.close("asked")
        return found[0], found[1], found[2]

    for broker in cluster.brokers:
        altered, cancelled, listed = asyncio.run(ask(broker))
        assert altered.error_code == ErrorCode.NONE
        found = [(row.error_code, row.error_message) for row in altered.responses[0].partitions]
        none, empty = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.INVALID_REPLICA_ASSIGNMENT
        absent = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [error for error, _ in found] == [empty, none, absent]
        assert all(sentence for _, sentence in found)
        assert (cancelled.error_code, cancelled.responses) == (none, [])
        assert (listed.error_code, listed.topics) == (ErrorCode.NONE, [])


# --- Java's AdminClient --------------------------------------------------------------------------


def ask_java(cluster: TidelogCluster, *words: str) -> list[str]:
    """Run ``Reassignments.java``; return its lines."""
    why = java.missing()
    if why is not None:
        pytest.skip(why)
    # A program of one source file: its path takes the place of the class's name.
    done = java.run_java(str(SOURCE), cluster.bootstrap, *words).check()
    return sorted(done.out.splitlines())


@pytest.mark.java
def test_the_java_admin_client(cluster: TidelogCluster, topic: str, held: None) -> None:
    words = (f"{topic}-0=4,1", f"{topic}-1=1,{UNKNOWN}", f"{topic}-2=1", "none-0=1", "list")
    assert ask_java(cluster, *words) == [
        f"moves {topic}-0 [4, 1, 2] +[4] -[2]",
        "none-0 UnknownTopicOrPartitionException: There is no topic none.",
        f"{topic}-0 done",
        f"{topic}-1 InvalidReplicaAssignmentException: The replica assignment cannot be used: "
        f"there is no broker {UNKNOWN}, alive or in any assignment.",
        f"{topic}-2 UnknownTopicOrPartitionException: There is no partition {topic}-2.",
    ]
    cancels = (f"{topic}-0=null", f"{topic}-1=null", "list")
    assert ask_java(cluster, *cancels) == [
        f"{topic}-0 done",
        f"{topic}-1 NoReassignmentInProgressException: {topic}-1 is not being reassigned.",
    ]


# --- Kafka's tool --------------------------------------------------------------------------------


class Tool:
    """``kafka-reassign-partitions`` against one cluster, with plan files in a folder."""

    def __init__(self, tools: ToolRunner, bootstrap: str, folder: Path) -> None:
        self._tools = tools
        self._bootstrap = bootstrap
        self._folder = folder

    def run(self, *words: str, status: int = 0) -> str:
        done = self._tools.run(
            "kafka-reassign-partitions", "--bootstrap-server", self._bootstrap, *words
        )
        assert done.status == status, done
        return done.out

    def file(self, document: object) -> str:
        path = self._folder / f"{len(list(self._folder.iterdir()))}.json"
        path.write_text(json.dumps(document))
        return str(path)

    def plan(self, topic: str, replicas: Mapping[int, Sequence[int]]) -> tuple[str, str]:
        """Return the option that names a plan."""
        rows = [
            {"topic": topic, "partition": index, "replicas": list(some)}
            for index, some in replicas.items()
        ]
        return "--reassignment-json-file", self.file({"version": 1, "partitions": rows})


@pytest.fixture
def tool(tools: ToolRunner, cluster: TidelogCluster, tmp_path: Path) -> Tool:
    return Tool(tools, cluster.bootstrap, tmp_path)


@pytest.mark.java
def test_the_tool_generates_executes_and_verifies(
    cluster: TidelogCluster, tool: Tool, topic: str
) -> None:
    topics = tool.file({"topics": [{"topic": topic}], "version": 1})
    said = tool.run("--generate", "--topics-to-move-json-file", topics, "--broker-list", "3,4")
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    now, proposed = ([row["replicas"] for row in each["partitions"]] for each in found)
    assert now == [[1, 2], [2, 1]] and {3, 4} == {x for row in proposed for x in row}
    plan = tool.plan(topic, dict(enumerate(proposed)))
    said = tool.run("--execute", *plan)
    assert "Successfully started partition reassignments for" in said, said
    until_placed(cluster, topic, dict(enumerate(proposed)))
    said = tool.run("--verify", *plan)
    for index in (0, 1):
        assert f"Reassignment of partition {topic}-{index} is completed." in said, said
    assert tool.run("--list").strip() == "No partition reassignments found."


@pytest.mark.java
def test_the_tool_lists_changes_and_cancels(
    cluster: TidelogCluster, tool: Tool, topic: str, held: None
) -> None:
    plan = tool.plan(topic, {0: [4, 1]})
    tool.run("--execute", *plan)
    said = tool.run("--list")
    assert re.search(rf"{topic}-0: replicas: 4,1,2\.\s+adding: 4\.\s+removing: 2\.", said), said
    assert f"Reassignment of partition {topic}-0 is still in progress." in tool.run(
        "--verify", *plan
    )
    # Another plan is refused while one runs, but for --additional.
    other = tool.plan(topic, {0: [4, 2], 1: [1, 3]})
    said = tool.run("--execute", *other, status=1)
    assert "there is an existing partition assignment" in said, said
    tool.run("--execute", "--additional", *other)
    until_placed(cluster, topic, {1: [1, 3]})
    assert re.search(rf"{topic}-0: replicas: 4,2,1\.", tool.run("--list"))
    said = tool.run("--cancel", *other)
    assert f"Successfully cancelled partition reassignment for: {topic}-0" in said, said
    assert tool.run("--list").strip() == "No partition reassignments found."
    until_placed(cluster, topic, {0: [1, 2]})


@pytest.mark.java
def test_the_throttle_of_the_tool_limits_and_is_removed(
    cluster: TidelogCluster, tool: Tool, tools: ToolRunner, topic: str
) -> None:
    plan = tool.plan(topic, {0: [3, 1]})

    def configs(kind: str, name: str) -> str:
        return tools.run(
            *("kafka-configs", "--bootstrap-server", cluster.bootstrap, "--describe"),
            *("--entity-type", kind, "--entity-name", name),
        ).out

    assert "throttle limit was set to 1000000" in tool.run(
        "--execute", "--throttle", "1000000", *plan
    )
    assert "leader.replication.throttled.rate=1000000" in configs("brokers", "1")
    assert "leader.replication.throttled.replicas=0:1,0:2" in configs("topics", topic)
    until_placed(cluster, topic, {0: [3, 1]})
    said = tool.run("--verify", *plan)
    assert f"Clearing topic-level throttles on topic {topic}" in said, said
    assert "throttled" not in configs("brokers", "1") + configs("topics", topic)


@pytest.mark.java
def test_the_tool_sends_a_plan_of_10000_partitions_in_one_request(
    cluster: TidelogCluster, tool: Tool, topic_name: str
) -> None:
    """Where each partition is already: what counts is the length of both requests."""
    names = [f"{topic_name}-{number}" for number in range(10)]
    admin = clients.admin(cluster.bootstrap)
    made = [NewTopic(name, PLANNED // 10, replication_factor=1) for name in names]
    for done in admin.create_topics(made, request_timeout=DEADLINE_S).values():
        done.result(DEADLINE_S)
    rows = [
        {"topic": name, "partition": index, "replicas": part.replicas}
        for name in names
        for index, part in cluster.partitions(name).items()
    ]
    assert len(rows) == PLANNED
    plan = ("--reassignment-json-file", tool.file({"version": 1, "partitions": rows}))
    said = tool.run("--execute", *plan)
    assert "Successfully started partition reassignments for" in said, said[-2000:]
    said = tool.run("--verify", *plan)
    assert said.count("is completed.") == PLANNED
