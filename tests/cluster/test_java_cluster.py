"""Kafka's own tools against three real brokers, while brokers die and come back.

One cluster for all tests, which leave all brokers running and in sync. A silent broker counts as
dead after 3 s instead of 6; everything else is at its default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import clients
from tests.support.clients import Record
from tests.support.cluster import TidelogCluster
from tests.support.java import ToolResult, ToolRunner, missing, start_java
from tests.support.processes import DEADLINE_S, Program, wait_until
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.java,
    pytest.mark.kill,
    pytest.mark.long(65),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

Run = Callable[..., ToolResult]
SESSION_MS = 3000
FILTERS = ("under-replicated", "at-min-isr", "under-min-isr", "unavailable")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    why = missing()
    if why is not None:
        pytest.skip(why)
    config = {"broker.session.timeout.ms": SESSION_MS}
    with TidelogCluster(tmp_path_factory.mktemp("cluster"), config=config) as started:
        yield started


@pytest.fixture
def run(tools: ToolRunner, cluster: TidelogCluster) -> Run:
    """`run(TOOL, ARG...)` with `--bootstrap-server` already there."""
    return lambda tool, *args, **more: tools.run(
        tool, "--bootstrap-server", cluster.bootstrap, *args, **more
    )


def create(run: Run, topic: str, assignment: str, *config: str) -> None:
    """Create a topic with the replicas where `1:2:3,2:3:1` wants them."""
    configs = [word for each in config for word in ("--config", each)]
    run(
        *("kafka-topics", "--create", "--topic", topic, "--replica-assignment", assignment),
        *configs,
    ).check()


def listed(run: Run, kind: str, topic: str) -> set[int]:
    """The partitions that `--describe --KIND-partitions` shows."""
    said = run("kafka-topics", "--describe", f"--{kind}-partitions", "--topic", topic).check().out
    return {int(number) for number in re.findall(r"Partition: (\d+)", said)}


def states(run: Run, topic: str) -> list[set[int]]:
    """What each of `FILTERS` shows."""
    return [listed(run, kind, topic) for kind in FILTERS]


def test_describe_says_what_is_wrong_while_brokers_are_dead(
    run: Run, cluster: TidelogCluster
) -> None:
    all_three, one_each = "shared", "single"
    create(run, all_three, "1:2:3,2:3:1,3:1:2", "min.insync.replicas=2")
    create(run, one_each, "1,2,3")
    cluster.until_in_sync(all_three, 3)
    cluster.until_in_sync(one_each, 1)
    every, none = {0, 1, 2}, set[int]()
    # A single replica is at its minimum of one by birth.
    assert states(run, all_three) == [none, none, none, none]
    assert states(run, one_each) == [none, every, none, none]

    cluster.brokers[3].kill()
    wait_until(
        lambda: states(run, all_three) == [every, every, none, none],
        DEADLINE_S,
        "one replica is missing",
    )
    wait_until(
        lambda: listed(run, "unavailable", one_each) == {2}, DEADLINE_S, "partition 2 has no leader"
    )

    cluster.brokers[2].kill()
    wait_until(
        lambda: states(run, all_three) == [every, none, every, none], DEADLINE_S, "two are missing"
    )
    wait_until(
        lambda: listed(run, "unavailable", one_each) == {1, 2}, DEADLINE_S, "two have no leader"
    )
    said = run("kafka-topics", "--describe", "--topic", all_three).check().out
    assert re.findall(r"Leader: (\d+)\s+Replicas: (\S+)\s+Isr: (\S+)", said) == [
        ("1", "1,2,3", "1"),
        ("1", "2,3,1", "1"),
        ("1", "3,1,2", "1"),
    ]

    cluster.brokers[2].start()
    cluster.brokers[3].start()
    cluster.until_in_sync(all_three, 3)
    wait_until(
        lambda: states(run, all_three) == [none, none, none, none], DEADLINE_S, "all is well again"
    )
    wait_until(lambda: not listed(run, "unavailable", one_each), DEADLINE_S, "each has its leader")


def leaders(cluster: TidelogCluster, topic: str) -> list[int]:
    return [part.leader for _, part in sorted(cluster.partitions(topic).items())]


def test_preferred_leaders_are_elected(run: Run, cluster: TidelogCluster, tmp_path: Path) -> None:
    topic = "preferred"
    create(run, topic, "1:2:3,2:3:1,3:1:2")
    cluster.until_in_sync(topic, 3)
    assert leaders(cluster, topic) == [1, 2, 3]
    cluster.brokers[1].kill()
    wait_until(
        lambda: leaders(cluster, topic) == [2, 2, 3], DEADLINE_S, "broker 2 leads partition 0"
    )
    refused = run(
        *("kafka-leader-election", "--election-type", "preferred"),
        *("--topic", topic, "--partition", "0"),
    )
    assert "PreferredLeaderNotAvailable" in refused.out + refused.err, refused
    cluster.brokers[1].start()
    cluster.until_in_sync(topic, 3)
    assert leaders(cluster, topic) == [2, 2, 3]
    wanted = tmp_path / "elect.json"
    wanted.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0}]}))
    said = run(
        *("kafka-leader-election", "--election-type", "preferred"),
        *("--path-to-json-file", str(wanted)),
    ).check()
    assert re.search(rf"Successfully completed.*{topic}-0", said.out), said
    wait_until(lambda: leaders(cluster, topic) == [1, 2, 3], DEADLINE_S, "the preferred ones lead")
    again = run(
        *("kafka-leader-election", "--election-type", "preferred"), "--all-topic-partitions"
    ).check()
    assert f"{topic}-0" not in re.sub("Valid replica already elected.*", "", again.out), again


def test_an_unclean_leader_is_elected_on_request_only(run: Run, cluster: TidelogCluster) -> None:
    topic = "unclean"
    create(run, topic, "1:2", "unclean.leader.election.enable=false", "min.insync.replicas=1")
    cluster.until_in_sync(topic, 2)
    clients.write_confluent(cluster.bootstrap, topic, [Record("k", "both")], "none")
    cluster.brokers[2].kill()
    cluster.until_in_sync(topic, 1)
    clients.write_confluent(cluster.bootstrap, topic, [Record("k", "one alone")], "none")
    cluster.brokers[1].kill()
    cluster.brokers[2].start()
    wait_until(
        lambda: listed(run, "unavailable", topic) == {0}, DEADLINE_S, "the partition has no leader"
    )
    elect = (
        *("kafka-leader-election", "--election-type", "unclean"),
        *("--topic", topic, "--partition", "0"),
    )
    # The last member of the ISR may come back until its session has timed out.
    wait_until(
        lambda: "Successfully completed" in run(*elect).out,
        DEADLINE_S,
        "an election on request",
        0.5,
    )
    wait_until(lambda: leaders(cluster, topic) == [2], DEADLINE_S, "broker 2 leads")
    assert clients.read_confluent(cluster.bootstrap, topic, 1) == [Record("k", "both")]
    cluster.brokers[1].start()
    cluster.until_in_sync(topic, 2)
    for each in ("shared", "preferred"):
        cluster.until_in_sync(each, 3)


def test_log_dirs_and_configs_of_three_brokers(run: Run, cluster: TidelogCluster) -> None:
    topic = "copied"
    create(run, topic, "1:2:3,2:3:1")
    cluster.until_in_sync(topic, 3)
    clients.write_confluent(cluster.bootstrap, topic, [Record("k", "v" * 5000)] * 20, "none")

    def sizes() -> dict[int, dict[str, int]]:
        said = run("kafka-log-dirs", "--describe", "--topic-list", topic).check().out
        (line,) = [line for line in said.splitlines() if line.startswith("{")]
        found = json.loads(line)["brokers"]
        return {
            broker["broker"]: {
                part["partition"]: part["size"]
                for folder in broker["logDirs"]
                for part in folder["partitions"]
            }
            for broker in found
        }

    wait_until(
        lambda: len({tuple(sorted(each.items())) for each in sizes().values()}) == 1,
        DEADLINE_S,
        "all replicas have the same size",
    )
    found = sizes()
    assert sorted(found) == [1, 2, 3]
    assert sum(found[1].values()) > 20 * 5000

    entity = ("kafka-configs", "--entity-type", "topics", "--entity-name", topic)
    run(*entity, "--alter", "--add-config", "min.insync.replicas=3").check()
    assert "min.insync.replicas=3" in run(*entity, "--describe").check().out
    wait_until(lambda: listed(run, "at-min-isr", topic) == {0, 1}, DEADLINE_S, "brokers know it")
    broker = ("kafka-configs", "--entity-type", "brokers", "--entity-name", "2")
    run(*broker, "--alter", "--add-config", "log.retention.ms=123456789").check()
    assert "log.retention.ms=123456789" in run(*broker, "--describe").check().out
    other = ("kafka-configs", "--entity-type", "brokers", "--entity-name", "3")
    assert "log.retention.ms=123456789" not in run(*other, "--describe").check().out


def test_questions_about_features_that_are_off_and_about_controllers(
    run: Run, cluster: TidelogCluster
) -> None:
    topic = "produced"
    create(run, topic, "2:1:3")
    run(
        *("kafka-console-producer", "--topic", topic),
        *("--command-property", "enable.idempotence=true"),
        stdin="a\nb\n",
    ).check()
    said = run("kafka-metadata-quorum", "describe", "--status").check().out
    (leader,) = re.findall(r"^LeaderId:\s+(\d+)$", said, re.MULTILINE)
    assert leader == "100", said
    assert re.search(rf'^CurrentVoters:\s+\[\{{"id": {leader}[,}}]', said, re.MULTILINE), said
    assert re.search(r"^CurrentObservers:\s+\[\]$", said, re.MULTILINE), said
    said = run("kafka-metadata-quorum", "describe", "--replication").check().out
    assert [line.split()[-1] for line in said.splitlines() if line.strip()][1:] == ["Leader"], said
    refused = run("kafka-acls", "--list")
    assert "SecurityDisabledException" in refused.out + refused.err, refused
    users = ("kafka-configs", "--entity-type", "users", "--describe")
    assert run(*users).check().out.strip() == ""
    assert "alice" not in run(*users, "--entity-name", "alice").check().out
    listed_ones = run("kafka-transactions", "list").check().out.splitlines()
    assert [line.split()[0] for line in listed_ones] == ["TransactionalId"]
    said = (
        run(*("kafka-transactions", "describe-producers", "--topic", topic, "--partition", "0"))
        .check()
        .out
    )
    head, (*known,) = said.splitlines()[0], said.splitlines()[1:]
    assert head.split()[:2] == ["ProducerId", "ProducerEpoch"]
    (line,) = known
    assert line.split()[1] == "0", said


def test_a_transactional_producer_of_java_commits(
    run: Run, tools: ToolRunner, cluster: TidelogCluster
) -> None:
    create(run, "transacted", "1:2")
    said = tools.run(
        *("kafka-producer-perf-test", "--topic", "transacted", "--num-records", "1"),
        *("--record-size", "1", "--throughput", "-1", "--transactional-id", "tx"),
        *("--producer-props", f"bootstrap.servers={cluster.bootstrap}"),
    ).check()
    assert re.search(r"^1 records sent, ", said.out, re.MULTILINE), said
    (_, row) = run("kafka-transactions", "list").check().out.splitlines()
    assert row.split()[0] == "tx" and row.split()[-1] == "CompleteCommit", row


def events(program: Program) -> list[dict[str, object]]:
    """The JSON lines that a verifiable client has printed so far."""
    lines = program.output().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def named(program: Program, name: str) -> list[dict[str, object]]:
    return [event for event in events(program) if event["name"] == name]


def coordinator(run: Run, group: str) -> int:
    """The coordinator of a group, as kafka-consumer-groups shows it; -1 when it cannot say."""
    said = run("kafka-consumer-groups", "--describe", "--state", "--group", group)
    found = re.search(r"127\.0\.0\.1:\d+ +\((\d+)\)", said.out)
    return int(found.group(1)) if found else -1


def test_verifiable_clients_while_the_coordinator_is_killed(
    run: Run, cluster: TidelogCluster, tmp_path: Path
) -> None:
    topic, group, count = "verified", "verifiers", 4000
    create(run, topic, "1:2:3,2:3:1,3:1:2", "min.insync.replicas=2")
    cluster.until_in_sync(topic, 3)
    at = ("--bootstrap-server", cluster.bootstrap, "--topic", topic)
    # Of itself the tool tries nothing again.
    settings = tmp_path / "producer.properties"
    settings.write_text("retries=2147483647\nenable.idempotence=true\n")
    produce = (
        *("kafka-verifiable-producer", *at, "--max-messages", str(count)),
        *("--acks", "-1", "--throughput", "500"),
        # Keys: without them batches choose, and a partition may have nothing to commit.
        *("--repeating-keys", "100", "--command-config", str(settings)),
    )
    consume = (
        *("kafka-verifiable-consumer", *at, "--group-id", group),
        *("--max-messages", str(count), "--verbose"),
    )
    with (
        start_java(*consume, log=tmp_path / "consumer.out") as consumer,
        start_java(*produce, log=tmp_path / "producer.out") as producer,
    ):
        wait_until(
            lambda: len(named(consumer, "record_data")) > 300, DEADLINE_S, "both are at work"
        )
        killed = coordinator(run, group)
        assert killed in cluster.brokers
        cluster.brokers[killed].kill()
        wait_until(lambda: coordinator(run, group) not in (-1, killed), DEADLINE_S, "it has moved")
        said = run("kafka-consumer-groups", "--describe", "--group", group).check().out
        assert len(re.findall(rf"{group}\s+{topic}\s+\d\s+\d+", said)) == 3, said
        cluster.brokers[killed].start()
        assert producer.wait(DEADLINE_S) == 0, producer.output()[-2000:]
        sent = named(producer, "producer_send_success")
        assert len(sent) == count and not named(producer, "producer_send_error")
        written = {(e["partition"], e["offset"], e["value"]) for e in sent}
        assert len(written) == count

        def read() -> set[tuple[object, object, object]]:
            found = named(consumer, "record_data")
            return {(e["partition"], e["offset"], e["value"]) for e in found}

        # It ends by itself after so many records, also of those that it read twice.
        wait_until(
            lambda: consumer.exit_status() is not None or written <= read(),
            DEADLINE_S,
            "all is read",
            0.5,
        )
        committed = [e for e in named(consumer, "offsets_committed") if e["success"]]
        assert read() <= written and committed
        twice = len(named(consumer, "record_data")) - len(read())
        assert len(written - read()) <= twice, "what is missing is what the count was used up by"
    cluster.until_in_sync(topic, 3)
