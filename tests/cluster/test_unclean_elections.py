"""Unclean elections on three real brokers: what is lost is listed, to the offset (KIP-704).

One story for all tests. Brokers 2 and 3 are killed, broker 1 alone acknowledges more and is killed
too; 2 and 3 come back. Where an unclean election is allowed, one of them leads; otherwise no broker
leads until broker 1 comes back and truncates what the others never had. It crashes twice more on
the way: when it has noted what it will truncate, and when it has truncated and not yet reported.

A topic of transactions and the log of their states lose the same: the commit of a transaction that
all brokers had, and a whole one. No reader gets half of one, no producer goes on, nothing is open.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import NewTopic

from tests.support.clients import admin, committed_after_a_move
from tests.support.cluster import TidelogCluster, differing_replicas
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import run_tidelog
from tests.support.target import TARGET
from tests.support.transacting import Writer, until_nothing_is_open
from tidelog.broker.data_loss.loss_notes import FILE

pytestmark = [
    pytest.mark.long,
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

COMMON, LOST, NEW = 100, 40, 10
"""Records that all three have, that broker 1 alone acknowledged, and that came after the election.
"""

ALLOWED, FORBIDDEN, COMMANDED = "allowed", "forbidden", "commanded"
LEDGER = "ledger"
OFFSETS, STATES = "__consumer_offsets", "__transaction_state"
GROUP = "readers"


@dataclass
class Told:
    """What was seen on the way."""

    cluster: TidelogCluster
    without_leave: dict[str, int] = field(default_factory=dict)
    on_command: dict[str, Any] = field(default_factory=dict)
    group_offset: int = -1
    fenced: int = 0
    """The error of a producer whose commit is lost."""
    committed: list[str] = field(default_factory=list)
    deaths: list[tuple[int, bool]] = field(default_factory=list)
    unclean_before: list[dict[str, Any]] = field(default_factory=list)
    unclean: list[dict[str, Any]] = field(default_factory=list)


def ask(cluster: TidelogCluster, *words: str, ok: bool = True) -> Any:
    """The JSON of a command, asked of broker 2."""
    command, *rest = words
    at = cluster.brokers[2].bootstrap
    done = run_tidelog(command, *rest, "--bootstrap-server", at, "--json")
    assert (done.returncode == 0) is ok, done
    return json.loads(done.stdout)


def unclean(cluster: TidelogCluster, topic: str) -> list[dict[str, Any]]:
    return list(ask(cluster, "doctor", "unclean", "--topic", topic))


def produce(cluster: TidelogCluster, topic: str, ask: int, first: int, count: int) -> None:
    """Write numbers with acks=all, every one of them acknowledged."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.brokers[ask].bootstrap, "acks": "all", "linger.ms": 1}
    )
    failed: list[str] = []

    def told(error: Any, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, partition=0, on_delivery=told)
    assert producer.flush(DEADLINE_S) == 0
    assert not failed, failed


def group(cluster: TidelogCluster, ask: int) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.brokers[ask].bootstrap,
            "group.id": GROUP,
            "enable.auto.commit": False,
        }
    )


def commit(cluster: TidelogCluster, ask: int, offset: int) -> None:
    consumer = group(cluster, ask)
    place = confluent_kafka.TopicPartition(ALLOWED, 0, offset)
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


def committed(cluster: TidelogCluster, ask: int) -> int:
    consumer = group(cluster, ask)
    place = confluent_kafka.TopicPartition(ALLOWED, 0)
    (found,) = committed_after_a_move(consumer, [place])
    consumer.close()
    return int(found.offset)


def until_leader(cluster: TidelogCluster, topic: str, ask: int, leaders: set[int]) -> None:
    wait_until(
        lambda: int(cluster.partitions(topic, ask)[0].leader) in leaders,
        DEADLINE_S,
        f"{topic} is led by one of {leaders}",
        0.05,
    )


def dies_at(cluster: TidelogCluster, point: str) -> tuple[int, bool]:
    """Let broker 1 come back and die at a point; its exit status, and whether a note is left."""
    node = cluster.brokers[1]
    node.run_with("tests.support.dying_server", {"TIDELOG_DIES_AT": point})
    node.launch()
    return node.program.wait(DEADLINE_S), bool((node.log_folder() / FILE).read_bytes())


def start(folder: Path) -> TidelogCluster:
    config = {
        "broker.session.timeout.ms": 3000,
        "unclean.leader.election.enable": "true",
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 3,
        "transaction.state.log.min.isr": 1,
    }
    return TidelogCluster(folder, config=config)


def transact(writer: Writer, value: str) -> None:
    writer.begin()
    writer.write([value], (0,))
    writer.commit()


def tell(cluster: TidelogCluster) -> Told:
    told = Told(cluster)
    brokers = cluster.brokers
    places = [[1, 2, 3]]
    forbidden = {"unclean.leader.election.enable": "false"}
    client = admin(cluster.bootstrap)
    topics = ((ALLOWED, {}), (FORBIDDEN, forbidden), (COMMANDED, forbidden), (LEDGER, {}))
    for topic, config in topics:
        wanted = NewTopic(topic, 1, replica_assignment=places, config=config)
        client.create_topics([wanted])[topic].result(DEADLINE_S)
        cluster.until_in_sync(topic, 3)
        if topic != LEDGER:
            produce(cluster, topic, 1, 0, COMMON)
    commit(cluster, 1, 5)
    transact(Writer(cluster, "settled", LEDGER), "settled")
    undecided = Writer(cluster, "undecided", LEDGER)
    undecided.begin()
    undecided.write(["undecided"], (0,))
    for topic in (OFFSETS, STATES):
        cluster.until_in_sync(topic, 3)

    for node_id in (2, 3):
        brokers[node_id].kill()
    for topic in (ALLOWED, FORBIDDEN, COMMANDED, LEDGER, OFFSETS, STATES):
        alone = lambda topic=topic: list(cluster.partitions(topic, 1)[0].isrs) == [1]  # noqa: E731
        wait_until(alone, DEADLINE_S, f"broker 1 alone in the ISR of {topic}", 0.05)
    commit(cluster, 1, 9)
    undecided.write(["more"], (0,))
    undecided.commit()
    transact(Writer(cluster, "late", LEDGER), "late")
    for topic in (ALLOWED, FORBIDDEN, COMMANDED):
        produce(cluster, topic, 1, COMMON, LOST)
    # At once: what was acknowledged last must not depend on what was written since.
    brokers[1].kill()

    brokers[2].start()
    brokers[3].start()
    until_leader(cluster, ALLOWED, 2, {2, 3})
    for topic in (LEDGER, OFFSETS):
        until_leader(cluster, topic, 2, {2, 3})
    told.without_leave = {
        topic: int(cluster.partitions(topic, 2)[0].leader)
        for topic in (FORBIDDEN, COMMANDED, STATES)
    }
    elect = ("elect-leaders", "--election-type", "unclean", "--partition", "0", "--topic")
    told.on_command = ask(cluster, *elect, COMMANDED)
    # The topic is created with unclean elections forbidden, as Kafka does it.
    ask(cluster, *elect, STATES)
    for topic in (COMMANDED, STATES):
        until_leader(cluster, topic, 2, {2, 3})
    told.group_offset = committed(cluster, 2)
    for topic in (ALLOWED, COMMANDED):
        produce(cluster, topic, 2, 1000, NEW)
    told.fenced = undecided.refusal("not to be seen", 0)
    transact(Writer(cluster, "undecided", LEDGER), "begun again")
    until_nothing_is_open(cluster, LEDGER)
    told.committed = committed_values(cluster, LEDGER)
    lossy = ",".join((ALLOWED, COMMANDED, LEDGER, OFFSETS, STATES))
    wait_until(
        lambda: all(each["handled"] for each in unclean(cluster, lossy)),
        DEADLINE_S,
        "every loss handled",
        0.1,
    )
    told.unclean_before = unclean(cluster, ".*")

    told.deaths = [dies_at(cluster, point) for point in ("cut", "report")]
    brokers[1].run_with("tidelog.cli.main", {})
    brokers[1].start()
    for topic in (ALLOWED, FORBIDDEN, COMMANDED, LEDGER, OFFSETS, STATES):
        cluster.until_in_sync(topic, 3)
    for topic in (ALLOWED, COMMANDED):
        wait_until(
            lambda topic=topic: unclean(cluster, topic)[0]["lost"],  # type: ignore[misc]
            DEADLINE_S,
            f"what {topic} lost is reported",
            0.1,
        )
    told.unclean = unclean(cluster, ".*")
    return told


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    with start(tmp_path_factory.mktemp("unclean")) as cluster:
        yield tell(cluster)


def of(elections: list[dict[str, Any]], topic: str) -> dict[str, Any]:
    (election,) = (each for each in elections if each["topic"] == topic)
    return election


def test_it_died_between_note_and_cut_and_between_cut_and_report(told: Told) -> None:
    assert told.deaths == [(-9, True), (-9, True)]


@pytest.mark.parametrize("topic", [ALLOWED, COMMANDED])
def test_exactly_what_was_lost_is_listed(told: Told, topic: str) -> None:
    election = of(told.unclean, topic)
    assert election["leader"] in (2, 3)
    assert election["log_end_offset"] == COMMON
    assert election["lost_offsets"] == LOST
    (lost,) = election["lost"]
    assert (lost["from_offset"], lost["to_offset"]) == (COMMON, COMMON + LOST)
    assert lost["replicas"] == [1]
    assert lost["epochs"] == [election["log_end_epoch"]]
    assert lost["epochs"][0] < election["leader_epoch"]
    assert election["handled"]
    assert not election["flagged"]
    assert election["missing_replicas"] == []


@pytest.mark.parametrize("topic", [ALLOWED, COMMANDED])
def test_before_the_replica_comes_back_it_is_said_to_be_missing(told: Told, topic: str) -> None:
    election = of(told.unclean_before, topic)
    assert election["lost"] == []
    assert election["log_end_offset"] == COMMON
    assert election["missing_replicas"] == [1]


def test_without_leave_the_partition_waits_and_loses_nothing(told: Told) -> None:
    """Promise 17: allowed by configuration or command only."""
    assert told.without_leave == {FORBIDDEN: -1, COMMANDED: -1, STATES: -1}
    assert told.on_command["elected"] == [{"topic": COMMANDED, "partition": 0}]
    assert not [each for each in told.unclean if each["topic"] == FORBIDDEN]
    assert read(told.cluster, FORBIDDEN) == list(range(COMMON + LOST))


@pytest.mark.parametrize("topic", [ALLOWED, COMMANDED])
def test_what_is_left_is_what_the_unclean_leader_had(told: Told, topic: str) -> None:
    assert read(told.cluster, topic) == [*range(COMMON), *range(1000, 1000 + NEW)]


def test_the_groups_are_what_is_left_of_their_log(told: Told) -> None:
    assert told.group_offset == 5
    election = of(told.unclean, OFFSETS)
    assert election["handled"]
    assert election["lost_offsets"] >= 1


def test_transactions_are_whole_or_gone(told: Told) -> None:
    """Promise 33: also where the log of their states has lost a commit."""
    assert told.fenced in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    assert told.committed == ["settled", "begun again"]
    assert committed_values(told.cluster, LEDGER) == told.committed
    for topic in (LEDGER, STATES):
        election = of(told.unclean, topic)
        assert election["handled"]
        assert election["lost_offsets"] >= 1


def test_topics_describe_says_so(told: Told) -> None:
    (shown,) = ask(told.cluster, "topics", "--describe", "--topic", ALLOWED)
    (partition,) = shown["partitions"]
    assert (partition["unclean"], partition["lost_offsets"]) == (False, LOST)
    at = told.cluster.bootstrap
    done = run_tidelog("topics", "--describe", "--topic", ALLOWED, "--bootstrap-server", at)
    assert f"Unclean: partition 0: {LOST} committed offsets were lost" in done.stdout
    (shown,) = ask(told.cluster, "topics", "--describe", "--topic", FORBIDDEN)
    assert (shown["partitions"][0]["unclean"], shown["partitions"][0]["lost_offsets"]) == (False, 0)


def test_the_doctor_prints_a_table(told: Told) -> None:
    at = told.cluster.bootstrap
    done = run_tidelog("doctor", "unclean", "--bootstrap-server", at, "--topic", ALLOWED)
    assert done.returncode == 0, done
    header, row = (line.split() for line in done.stdout.splitlines())
    assert header[:3] == ["Partition", "Leader", "Epoch"]
    assert row[0] == f"{ALLOWED}-0"
    assert f"{COMMON}-{COMMON + LOST - 1}" in row
    page = run_tidelog("doctor", "--bootstrap-server", at)
    assert "lost committed records" in page.stdout
    assert page.returncode == 0, "nothing is wrong any more"


def test_it_is_counted_and_leaves_audit_lines(told: Told) -> None:
    cluster = told.cluster
    lost = sum(each["lost_offsets"] for each in told.unclean)
    assert metric(cluster.controller.metrics_port, "tidelog_controller_committed_offsets_lost") == (
        lost
    )
    elections = metric(
        cluster.controller.metrics_port, "tidelog_controller_unclean_elections_on_record"
    )
    assert elections == len(told.unclean)
    cut = metric(cluster.brokers[1].metrics_port, "tidelog_committed_offsets_lost_total")
    assert 0 <= cut <= lost, "this life's share of it"
    # The whole log: on a busy machine more than its end has come since.
    said = cluster.controller.log.read_text()
    assert f"committed records of {ALLOWED}-0 lost: offsets {COMMON} to {COMMON + LOST - 1}" in said
    assert f"unclean election of {COMMANDED}-0" in said
    assert f"unclean election of {FORBIDDEN}-0" not in said


def test_all_replicas_are_the_same_in_the_end(told: Told) -> None:
    cluster = told.cluster
    for node in cluster.brokers.values():
        assert node.stop() == 0, node.said("stopped cleanly")
    topics = (ALLOWED, FORBIDDEN, COMMANDED, LEDGER, STATES)
    wrong = [line for topic in topics for line in differing_replicas(cluster, topic, 1)]
    assert not wrong, "\n".join(wrong)


def read(cluster: TidelogCluster, topic: str) -> list[int]:
    """All values of a topic, in order."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "any", "enable.auto.commit": False}
    )
    place = confluent_kafka.TopicPartition(topic, 0, 0)
    _, end = consumer.get_watermark_offsets(place, timeout=DEADLINE_S)
    consumer.assign([place])
    found: list[int] = []
    while len(found) < end:
        (message,) = consumer.consume(1, timeout=DEADLINE_S)
        found.append(int(message.value()))
    consumer.close()
    return found


def committed_values(cluster: TidelogCluster, topic: str) -> list[str]:
    """All values of committed transactions, in order."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "any",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[str] = []
    while True:
        (message,) = consumer.consume(1, timeout=DEADLINE_S)
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            break
        found.append(message.value().decode())
    consumer.close()
    return found


def metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found, f"{name} is missing in\n{text}"
    return float(found[1])
