"""Programs of others that rest on transactions, on three real brokers (KIP-98, KIP-447).

kafka-python, Kafka's copier while a broker is killed, Kafka Streams that is killed itself, and
Kafka's tools. One cluster for all tests, which leave all brokers running and in sync. librdkafka,
aiokafka and Java's producer are in `test_transactions_cluster.py`. A silent broker counts as dead
after 3 s.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka import IsolationLevel
from kafka.structs import OffsetAndMetadata

from tests.support import transaction_calls
from tests.support.cluster import TidelogCluster
from tests.support.java import ToolRunner, missing, start_java
from tests.support.processes import DEADLINE_S, Program, wait_until
from tests.support.target import TARGET
from tests.support.transacting import ends, until_nothing_is_open
from tests.support.transaction_calls import PARTITIONS
from tidelog.groups.placement import partition_for
from tidelog.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(35),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

STATE_PARTITIONS = 4
BACK_OFF_MS = 1000
"""The back-off of kafka-python's producers: ten times its default."""

COUNT_STREAM = Path(__file__).with_name("CountStream.java")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    config = {
        "broker.session.timeout.ms": 3000,
        "transaction.state.log.num.partitions": STATE_PARTITIONS,
        "transaction.state.log.min.isr": 2,
    }
    with TidelogCluster(tmp_path_factory.mktemp("transactions"), config=config) as started:
        yield started


@pytest.fixture
def topic(cluster: TidelogCluster, topic_name: str) -> str:
    cluster.create_topic(topic_name, PARTITIONS, min_insync_replicas=2)
    return topic_name


@pytest.fixture
def source(cluster: TidelogCluster, topic_name: str) -> str:
    cluster.create_topic(f"{topic_name}-source", PARTITIONS, min_insync_replicas=2)
    return f"{topic_name}-source"


def read(cluster: TidelogCluster, topic: str, isolation: str = "read_committed") -> list[str]:
    """All values of a topic in order of value, once nothing is open in it."""
    until_nothing_is_open(cluster, topic)
    return asyncio.run(transaction_calls.read(cluster.bootstrap, topic, isolation))


def fill(cluster: TidelogCluster, topic: str, rows: list[tuple[str, str]]) -> None:
    """Write rows of key and value outside of transactions, to one partition after another."""
    made = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for number, (key, value) in enumerate(rows):
        made.produce(topic, value, key, partition=number % PARTITIONS)
    assert made.flush(DEADLINE_S) == 0


def committed(cluster: TidelogCluster, topic: str) -> int:
    """How far readers of committed records get in all partitions together."""
    return sum(ends(cluster.bootstrap, topic, IsolationLevel.READ_COMMITTED).values())


def until_committed(cluster: TidelogCluster, topic: str, offsets: int) -> None:
    """Wait until readers get so far."""
    wait_until(
        lambda: committed(cluster, topic) >= offsets,
        DEADLINE_S,
        f"readers of {topic} get as far as {offsets}",
    )


def of_kafka_python(cluster: TidelogCluster, transactional_id: str) -> kafka.KafkaProducer:
    made = kafka.KafkaProducer(
        bootstrap_servers=cluster.bootstrap.split(","),
        transactional_id=transactional_id,
        retry_backoff_ms=BACK_OFF_MS,
    )
    made.init_transactions()
    return made


def write(made: kafka.KafkaProducer, topic: str, value: str) -> None:
    for partition in range(PARTITIONS):
        made.send(topic, value.encode(), partition=partition)


def test_transactions_of_kafka_python(cluster: TidelogCluster, topic: str) -> None:
    first = of_kafka_python(cluster, topic)
    for number in range(4):
        first.begin_transaction()
        write(first, topic, f"{number}")
        first.flush()
        (first.abort_transaction if number % 2 else first.commit_transaction)()
    first.begin_transaction()
    write(first, topic, "fenced")
    first.flush()
    second = of_kafka_python(cluster, topic)
    with pytest.raises(kafka.errors.ProducerFencedError):
        first.commit_transaction()
    second.begin_transaction()
    write(second, topic, "last")
    second.commit_transaction()
    first.close(timeout=0)
    second.close(timeout=DEADLINE_S)
    assert read(cluster, topic) == [x for x in ("0", "2", "last") for _ in range(PARTITIONS)]
    assert len(read(cluster, topic, "read_uncommitted")) == 6 * PARTITIONS


def test_transactions_back_to_back_cost_no_back_off(cluster: TidelogCluster, topic: str) -> None:
    """A broker that answers CONCURRENT_TRANSACTIONS while markers are on their way costs most
    transactions the back-off of their client."""
    made = of_kafka_python(cluster, topic)
    times = []
    for _ in range(30):
        begun = time.monotonic()
        made.begin_transaction()
        write(made, topic, "x")
        made.commit_transaction()
        times.append(time.monotonic() - begun)
    made.close(timeout=DEADLINE_S)
    assert statistics.median(times) < BACK_OFF_MS / 1000, times
    assert len(read(cluster, topic)) == 30 * PARTITIONS


def test_kafka_python_copies_with_the_generation_of_its_member(
    cluster: TidelogCluster, topic: str, source: str
) -> None:
    count = 30
    fill(cluster, source, [("", str(number)) for number in range(count)])
    made = of_kafka_python(cluster, topic)
    member = kafka.KafkaConsumer(
        source,
        bootstrap_servers=cluster.bootstrap.split(","),
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    copied = 0
    end = time.monotonic() + DEADLINE_S
    while copied < count:
        assert time.monotonic() < end
        # With a shorter one a member may leave its group: see docs/operating/clients.md.
        polled = member.poll(5000)
        made.begin_transaction()
        for records in polled.values():
            for record in records:
                made.send(topic, record.value, partition=record.partition)
                copied += 1
        positions = {
            place: OffsetAndMetadata(records[-1].offset + 1, "", -1)
            for place, records in polled.items()
        }
        made.send_offsets_to_transaction(positions, member.group_metadata())
        made.commit_transaction()
    assert sum(member.committed(place) for place in member.assignment()) == count
    of_former = member.group_metadata()
    member.close()
    made.begin_transaction()
    write(made, topic, "of a former member")
    with pytest.raises(kafka.errors.CommitFailedError):
        made.send_offsets_to_transaction(positions, of_former)
    made.abort_transaction()
    made.close(timeout=DEADLINE_S)
    assert read(cluster, topic) == sorted(str(number) for number in range(count))


def copier(cluster: TidelogCluster, source: str, topic: str, name: str, log: Path) -> Program:
    """Kafka's own program of consume-transform-produce; it aborts some transactions by chance."""
    return start_java(
        "kafka-transactional-message-copier",
        *("--broker-list", cluster.bootstrap, "--consumer-group", topic),
        *("--input-topic", source, "--input-partition", "-1", "--output-topic", topic),
        *("--transactional-id", name, "--transaction-timeout", "5000"),
        *("--transaction-size", "50", "--enable-random-aborts"),
        *("--group-mode", "--use-group-metadata"),
        log=log,
    )


@pytest.mark.java
def test_kafkas_copier_copies_each_record_once_through_a_kill(
    cluster: TidelogCluster, topic: str, source: str, tmp_path: Path
) -> None:
    why = missing()
    if why is not None:
        pytest.skip(why)
    values = [f"{number:05}" for number in range(9_000)]
    fill(cluster, source, [("", value) for value in values])
    names = [f"{topic}-{number}" for number in range(2)]
    log = tmp_path / "copier.out"
    copiers = [copier(cluster, source, topic, name, log) for name in names]
    try:
        until_committed(cluster, topic, 1_000)
        state = partition_for(names[0], STATE_PARTITIONS)
        victim = cluster.brokers[cluster.leader(TRANSACTIONS_TOPIC, state)]
        victim.kill()
        victim.start()
        # A copier ends once it has read all partitions that are its own to their ends.
        wait_until(
            lambda: all(each.exit_status() is not None for each in copiers),
            2 * DEADLINE_S,
            lambda: f"both end, {committed(cluster, topic)}: {log.read_text()[-2000:]}",
        )
    finally:
        for each in copiers:
            each.kill()
    for each in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC, topic, source):
        cluster.until_in_sync(each, 3)
    assert read(cluster, topic) == values
    until_nothing_is_open(cluster, OFFSETS_TOPIC)


def stream(cluster: TidelogCluster, source: str, topic: str, folder: Path) -> Program:
    """An application of Kafka Streams with exactly_once_v2 that writes each count of each key."""
    state = folder / "state"
    return start_java(
        *(str(COUNT_STREAM), cluster.bootstrap, topic, source, topic, str(state)),
        log=folder / "stream.out",
        set_name="streams",
    )


@pytest.mark.java
def test_counts_of_kafka_streams_equal_a_recount_after_a_kill(
    cluster: TidelogCluster, topic: str, source: str, tmp_path: Path
) -> None:
    why = missing()
    if why is not None:
        pytest.skip(why)
    keys = [f"key-{number % 30}" for number in range(3_000)]
    rows = [(key, "x") for key in keys]
    half = len(rows) // 2
    fill(cluster, source, rows[:half])
    with stream(cluster, source, topic, tmp_path) as first:
        until_committed(cluster, topic, 1)
        first.kill()
    with stream(cluster, source, topic, tmp_path):
        fill(cluster, source, rows[half:])
        until_committed(cluster, topic, half)
        counted: list[str] = []

        def has_all() -> bool:
            counted[:] = read(cluster, topic)
            return len(counted) >= len(rows)

        wait_until(has_all, DEADLINE_S, lambda: f"all are counted, not only {len(counted)}", 0.5)
    seen: Counter[str] = Counter()
    expected = []
    for key in keys:
        seen[key] += 1
        expected.append(f"{key}={seen[key]}")
    assert counted == sorted(expected)


@pytest.mark.java
def test_kafkas_tools_with_transactions(
    cluster: TidelogCluster, tools: ToolRunner, topic: str
) -> None:
    addressed = ("--bootstrap-server", cluster.bootstrap)
    sent = tools.run(
        *("kafka-producer-perf-test", *addressed, "--topic", topic, "--num-records", "3000"),
        *("--record-size", "10", "--throughput", "-1", "--transaction-duration-ms", "50"),
        *("--transactional-id", topic),
    ).check()
    assert re.search(r"^3000 records sent, ", sent.out, re.MULTILINE), sent
    made = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic}-open"}
    )
    made.init_transactions(DEADLINE_S)
    made.begin_transaction()
    made.produce(topic, b"open", partition=0)
    assert made.flush(DEADLINE_S) == 0
    consumed = tools.run(
        *("kafka-console-consumer", *addressed, "--topic", topic, "--from-beginning"),
        *("--isolation-level", "read_committed", "--max-messages", "3000"),
    ).check()
    assert len(consumed.out.splitlines()) == 3000 and "open" not in consumed.out
    listed = tools.run("kafka-transactions", *addressed, "list").check().out.splitlines()
    rows = {words[0]: words for words in map(str.split, listed[1:])}
    assert rows[topic][3] == "CompleteCommit" and rows[f"{topic}-open"][3] == "Ongoing"
    for node_id in cluster.brokers:
        # The tool asks this broker for all replicas that it has, whoever leads them.
        hanging = tools.run(
            *("kafka-transactions", *addressed, "find-hanging", "--broker-id", str(node_id)),
            *("--max-transaction-timeout", "0"),
        ).check()
        assert len(hanging.out.splitlines()) == 1, hanging
    made.abort_transaction(DEADLINE_S)
    until_nothing_is_open(cluster, topic)
    state = partition_for(topic, STATE_PARTITIONS)
    folder = cluster.brokers[1].log_folder() / f"{TRANSACTIONS_TOPIC}-{state}"
    (segment,) = folder.glob("*.log")
    dumped = tools.run("kafka-dump-log", "--transaction-log-decoder", "--files", str(segment))
    assert f'"transactionalId":"{topic}"' in dumped.check().out, dumped
