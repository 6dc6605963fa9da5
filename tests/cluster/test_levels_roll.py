"""A loaded cluster of three is rolled from level 1.0 to 1.4, to 1.5 and to 1.6, and back by one.

Two bounces raise it (docs/design/levels.md): the first brings new code, which does
not differ here, the second the new level; a third one lowers it by one. Controllers are raised
first and lowered last. A producer, an idempotent one and a group work on meanwhile.

A move waits for a broker that is off until the end of the roll; another one is carried out at each
level (KIP-455). Below level 1.2 targets stand among the replicas in LeaderAndIsr.

Of two controllers on a ZooKeeper each stands by for the other while the roll is between them.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import NewTopic

from tests.support.acked_stream import GroupReader, Writer, settled
from tests.support.clients import admin
from tests.support.cluster import TidelogCluster, differing_replicas
from tests.support.own_time import WaitedAt
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.public_stream import PublicStream
from tests.support.resizes import resize
from tests.support.server import run_tidelog
from tests.support.target import TARGET
from tests.support.zookeeper import ZooKeeper, needed
from tidelog.model.topics import TRANSACTIONS_TOPIC

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(100),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

PARTITIONS = 3
TOPIC = "rolled"
MOVING, HERE, THERE = "moving", [1, 2], [3, 4]
OFF = 4
"""A broker without the topics that are loaded: it starts when all others have been rolled."""
RECORDS = 200
LEVEL = "inter.broker.protocol.version"
SENTENCE = "transactions come with inter.broker.protocol.version 1.6"
"""What a client gets below that level."""


class PunctualWriter(Writer):
    """A writer that notes when each partition's acknowledgements come."""

    def __init__(self, cluster: TidelogCluster, name: str, *, idempotent: bool) -> None:
        self.times: dict[int, list[float]] = {p: [] for p in range(PARTITIONS)}
        # A load that is there all the time, not one that keeps two cores from restarting anything.
        super().__init__(
            cluster.bootstrap, TOPIC, name, PARTITIONS, idempotent=idempotent, per_s=60
        )

    def _answered(
        self, number: int, error: confluent_kafka.KafkaError | None, message: object
    ) -> None:
        self.times[number % PARTITIONS].append(time.monotonic())
        super()._answered(number, error, message)

    def longest_silence_s(self, waited: WaitedAt) -> float:
        """The longest time without an acknowledgement of some partition, less what servers and
        client waited for a processor within it."""
        return max(
            waited.own_s(before, after)
            for times in self.times.values()
            for before, after in itertools.pairwise(times)
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TidelogCluster]:
    # A client that still asks after a deleted topic would create it again, as with Kafka.
    config = {LEVEL: "1.0", "auto.create.topics.enable": "false"}
    with TidelogCluster(tmp_path, brokers=4, config=config) as started:
        yield started


@pytest.fixture
def waited(cluster: TidelogCluster) -> Iterator[WaitedAt]:
    with WaitedAt(cluster.pids) as noted:
        yield noted


def rolled(cluster: TidelogCluster, level: str, *, controller_first: bool) -> float:
    """Restart every process with a level, one by one; the seconds that the longest took."""
    brokers = [node for node in cluster.brokers.values() if node.running_pid is not None]
    nodes = [*cluster.controllers, *brokers]
    longest_s = 0.0
    for node in nodes if controller_first else nodes[::-1]:
        begun = time.monotonic()
        node.configure({LEVEL: level})
        node.restart()
        # As an operator does: the next one only when all replicas are in sync again.
        cluster.until_in_sync(TOPIC, 3)
        longest_s = max(longest_s, time.monotonic() - begun)
    return longest_s


def ids_on_disk(cluster: TidelogCluster, topic: str) -> set[str]:
    """What `partition.metadata` of a topic's replicas says; a replica without one says nothing."""
    found = set()
    for node in cluster.brokers.values():
        if node.running_pid is None:
            continue
        folders = [node.log_folder() / f"{topic}-{p}" for p in range(PARTITIONS)]
        assert all(folder.is_dir() for folder in folders), folders
        files = [folder / "partition.metadata" for folder in folders]
        found |= {file.read_text() if file.exists() else "" for file in files}
    return found


def created_and_deleted(cluster: TidelogCluster, name: str) -> None:
    """A topic is deleted, and created again under its name: at every level, also at once."""
    client = admin(cluster.bootstrap)
    cluster.create_topic(name, PARTITIONS)
    client.delete_topics([name], operation_timeout=DEADLINE_S)[name].result(DEADLINE_S)
    wanted = NewTopic(name, PARTITIONS, 3)
    client.create_topics([wanted])[name].result(DEADLINE_S)
    cluster.until_in_sync(name, 3)


class Moves:
    """The topic whose partition 0 moves during the whole roll, and partition 1 at each level."""

    def __init__(self, cluster: TidelogCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.sent = 0
        # A broker that is off is known as long as it is in an assignment.
        assignment = f"1:2,1:2,{OFF}:1"
        self._run("topics", "--create", "--topic", MOVING, "--replica-assignment", assignment)
        self.send()

    def _run(self, *words: str) -> str:
        done = run_tidelog(*words, "--bootstrap-server", self.cluster.bootstrap)
        assert done.returncode == 0, done
        return done.stdout

    def send(self) -> None:
        """Write to both partitions; each record is acknowledged by all in sync."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.cluster.bootstrap, "acks": "all", "linger.ms": 5}
        )
        for number in range(2 * RECORDS):
            producer.produce(MOVING, b"v" * 100, partition=number % 2)
        assert producer.flush(DEADLINE_S) == 0
        self.sent += RECORDS

    def start(self, partition: int, targets: list[int]) -> None:
        row = {"topic": MOVING, "partition": partition, "replicas": targets}
        plan = self.folder / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
        self._run(
            *("reassign-partitions", "--execute", "--additional"),
            *("--reassignment-json-file", str(plan)),
        )

    def running(self) -> list[tuple[int, list[int]]]:
        """The moves that the cluster lists: partition and targets."""
        found = json.loads(self._run("reassign-partitions", "--list"))
        return [(x["partition"], x["replicas"]) for x in found.get("partitions", ())]

    def until_at(self, partition: int, replicas: list[int]) -> None:
        """Wait until a partition has these replicas, in sync, and no broker another one."""

        def is_there() -> bool:
            found = self.cluster.partitions(MOVING)[partition]
            hosts = [
                node_id
                for node_id, node in self.cluster.brokers.items()
                if (node.log_folder() / f"{MOVING}-{partition}").is_dir()
            ]
            return (
                found.replicas == replicas
                and sorted(found.isrs) == sorted(replicas)
                and hosts == sorted(replicas)
            )

        wait_until(is_there, DEADLINE_S, f"{MOVING}-{partition} is at {replicas}, only there")

    def until_joined(self, target: int) -> None:
        """Wait until the target that is alive has joined the move that waits for the other."""

        def has_joined() -> bool:
            found = self.cluster.partitions(MOVING)[0]
            return found.replicas == [*HERE, target] and target in found.isrs

        wait_until(has_joined, DEADLINE_S, f"broker {target} has joined {MOVING}-0")

    def at_a_level(self, targets: list[int]) -> None:
        """Move partition 1 while partition 0 waits, and write to both."""
        waiting = [(0, THERE)]
        assert self.running() == waiting
        self.start(1, targets)
        self.until_at(1, targets)
        self.send()
        self.until_joined(THERE[0])
        assert self.running() == waiting

    def end(self) -> None:
        """Let the broker start for which partition 0 waits: its move ends."""
        self.cluster.brokers[OFF].start()
        self.until_at(0, THERE)
        assert self.running() == []
        self.send()
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.cluster.bootstrap, "group.id": "offsets"}
        )
        for partition in (0, 1):
            where = confluent_kafka.TopicPartition(MOVING, partition)
            assert consumer.get_watermark_offsets(where, DEADLINE_S) == (0, self.sent)
        consumer.close()


def test_a_loaded_cluster_goes_up_from_1_0_to_1_4_and_one_level_back(
    cluster: TidelogCluster, waited: WaitedAt, tmp_path: Path
) -> None:
    moves = Moves(cluster, tmp_path)
    assert cluster.brokers[OFF].stop() == 0
    moves.start(0, THERE)
    cluster.create_topic(TOPIC, PARTITIONS, min_insync_replicas=2)
    writers = [
        PunctualWriter(cluster, "plain", idempotent=False),
        PunctualWriter(cluster, "once", idempotent=True),
    ]
    reader = GroupReader(cluster.bootstrap, TOPIC, "group")
    for each in (*writers, reader):
        each.start()
    created_and_deleted(cluster, "at-1.0")
    assert ids_on_disk(cluster, TOPIC) == {""}
    moves.at_a_level([3])
    took_s = [rolled(cluster, "1.0", controller_first=True)]
    assert ids_on_disk(cluster, TOPIC) == {""}
    moves.at_a_level([1, 2])
    took_s.append(rolled(cluster, "1.4", controller_first=True))
    (written,) = ids_on_disk(cluster, TOPIC)
    assert written.startswith("version: 0\ntopic_id: ")
    assert len(ids_on_disk(cluster, "at-1.0")) == 1
    created_and_deleted(cluster, "at-1.4")
    moves.at_a_level([3])
    took_s.append(rolled(cluster, "1.3", controller_first=False))
    assert ids_on_disk(cluster, TOPIC) == {written}
    created_and_deleted(cluster, "at-1.3")
    assert ids_on_disk(cluster, "at-1.3") == {""}
    moves.at_a_level([2, 3])
    cluster.brokers[OFF].configure({LEVEL: "1.3"})
    moves.end()
    settled(cluster.bootstrap, TOPIC, PARTITIONS, writers, reader, cluster.batches_of(TOPIC))
    for writer in writers:
        gap_s = writer.longest_silence_s(waited)
        print(f"{writer.state()}, longest gap {gap_s:.2f} s, restarts took {took_s} s")
        assert gap_s <= max(took_s), cluster.said("refused nothing for longer than a restart")
    for node in cluster.brokers.values():
        assert node.stop() == 0, node.said("stopped cleanly")
    for topic, partitions in ((TOPIC, PARTITIONS), (MOVING, 2)):
        wrong = differing_replicas(cluster, topic, partitions)
        assert not wrong, "\n".join(wrong)


def epochs_on_disk(cluster: TidelogCluster, topic: str) -> list[set[str]]:
    """The partition epochs in the replicas' `partition.metadata`, by partition; "" for none."""
    found: list[set[str]] = [set() for _ in range(PARTITIONS)]
    for node in cluster.brokers.values():
        for partition in range(PARTITIONS):
            file = node.log_folder() / f"{topic}-{partition}" / "partition.metadata"
            fields = dict(line.split(": ", 1) for line in file.read_text().splitlines())
            found[partition].add(fields.get("partition_epoch", ""))
    return found


def refused_at(cluster: TidelogCluster, level: str, why: str) -> None:
    """The controller does not start at a level, says why, and goes on at the one that it had."""
    node = cluster.controller
    before = node.config[LEVEL]
    assert node.stop() == 0
    node.configure({LEVEL: level})
    node.launch()
    program = node.program
    wait_until(lambda: program.exit_status() is not None, DEADLINE_S, "the controller has ended")
    assert program.exit_status() != 0
    assert f"{level} is refused: {why}" in node.said("named the topic")
    node.configure({LEVEL: before})
    node.start()


def test_a_loaded_cluster_goes_up_to_1_5_and_back_until_it_is_resized(tmp_path: Path) -> None:
    config = {LEVEL: "1.4", "auto.create.topics.enable": "false"}
    with (
        TidelogCluster(tmp_path, config=config) as cluster,
        WaitedAt(cluster.pids) as waited,
    ):
        cluster.create_topic(TOPIC, PARTITIONS, min_insync_replicas=2)
        writers = [
            PunctualWriter(cluster, "plain", idempotent=False),
            PunctualWriter(cluster, "once", idempotent=True),
        ]
        reader = GroupReader(cluster.bootstrap, TOPIC, "group", metadata_ms=1_000)
        public = PublicStream(cluster.bootstrap, TOPIC, "public")
        for each in (*writers, reader, public):
            each.start()
        created_and_deleted(cluster, "at-1.4")
        assert epochs_on_disk(cluster, TOPIC) == [{""}] * PARTITIONS
        took_s = [rolled(cluster, "1.4", controller_first=True)]
        took_s.append(rolled(cluster, "1.5", controller_first=True))
        # All replicas of a partition have adopted its epoch, and each partition has its own.
        epochs = epochs_on_disk(cluster, TOPIC)
        assert [len(each) for each in epochs] == [1] * PARTITIONS
        assert len(set.union(*epochs)) == PARTITIONS and "" not in set.union(*epochs)
        created_and_deleted(cluster, "at-1.5")
        born = epochs_on_disk(cluster, "at-1.5")
        assert [len(each) for each in born] == [1] * PARTITIONS
        assert min(map(int, set.union(*born))) > max(map(int, set.union(*epochs)))
        # Nothing was resized: the way back is open.
        took_s.append(rolled(cluster, "1.4", controller_first=False))
        assert epochs_on_disk(cluster, TOPIC) == epochs
        created_and_deleted(cluster, "back-at-1.4")
        assert epochs_on_disk(cluster, "back-at-1.4") == [{""}] * PARTITIONS
        took_s.append(rolled(cluster, "1.5", controller_first=True))
        assert epochs_on_disk(cluster, TOPIC) == epochs
        # Once it was resized, no controller below 1.5 becomes active.
        resize(cluster.bootstrap, TOPIC, 2 * PARTITIONS)
        refused_at(cluster, "1.4", f"topics ({TOPIC}) were resized")
        cluster.until_in_sync(TOPIC, 3)
        public.settle()
        # It followed the growth, although it had begun below level 1.5.
        assert max(partition for partition, _ in public.acked.values()) >= PARTITIONS
        # The stock group reads the new partitions too: each partition has one fence.
        grown = 2 * PARTITIONS
        batches_of = cluster.batches_of(TOPIC)
        settled(cluster.bootstrap, TOPIC, grown, writers, reader, batches_of, fences=grown)
        for writer in writers:
            gap_s = writer.longest_silence_s(waited)
            print(f"{writer.state()}, longest gap {gap_s:.2f} s, restarts took {took_s} s")
            assert gap_s <= max(took_s), cluster.said("refused nothing for longer than a restart")
        for node in cluster.brokers.values():
            assert node.stop() == 0, node.said("stopped cleanly")
        wrong = differing_replicas(cluster, TOPIC, grown)
        assert not wrong, "\n".join(wrong)


class Transactions(threading.Thread):
    """A transactional producer that waits until it may begin, then commits transactions with a
    record for each partition; `committed` and `aborted` have their numbers."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True, name="transactions")
        self.topic = topic
        self.config = {
            "bootstrap.servers": bootstrap,
            "transactional.id": "rolled",
            "linger.ms": 0,
            "log_level": 0,
        }
        self.refused = 0
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.ended = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            producer = self._first()
            for number in itertools.count():
                if self.ended.is_set():
                    break
                producer = self._one(producer, number)
        except BaseException as error:
            self.error = error

    def _first(self) -> confluent_kafka.Producer:
        while not self.ended.is_set():
            producer = confluent_kafka.Producer(self.config)
            try:
                producer.init_transactions(DEADLINE_S)
            except confluent_kafka.KafkaException as error:
                refusal = confluent_kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED
                if error.args[0].code() != refusal or SENTENCE not in error.args[0].str():
                    raise
                self.refused += 1
            else:
                return producer
        raise AssertionError("it never began")

    def _one(self, producer: confluent_kafka.Producer, number: int) -> confluent_kafka.Producer:
        try:
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(self.topic, f"t:{number}".encode(), partition=partition)
            producer.commit_transaction(DEADLINE_S)
            self.committed.append(number)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(DEADLINE_S)
            self.aborted.append(number)
        return producer

    def went_on(self, cluster: TidelogCluster) -> None:
        """Wait for another three commits."""
        goal = len(self.committed) + 3
        wait_until(
            lambda: self.error is not None or len(self.committed) >= goal,
            DEADLINE_S,
            "transactions are committed",
        )
        assert self.error is None, cluster.said(f"no error: {self.error!r}")

    def finish(self) -> None:
        self.ended.set()
        self.join(DEADLINE_S)
        assert not self.is_alive() and self.error is None, self.error


def committed_in(cluster: TidelogCluster, topic: str) -> list[list[int]]:
    """The numbers of the transactions that a reader of committed records gets, by partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "committed",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    found = []
    for partition in range(PARTITIONS):
        where = confluent_kafka.TopicPartition(topic, partition, 0)
        consumer.assign([where])
        _, end = consumer.get_watermark_offsets(where, DEADLINE_S)
        numbers: list[int] = []
        wait_until(
            lambda numbers=numbers, where=where, end=end: _all_read(consumer, where, end, numbers),
            DEADLINE_S,
            f"{where} is read up to {end}: nothing is open",
        )
        found.append(numbers)
    consumer.close()
    return found


def _all_read(
    consumer: confluent_kafka.Consumer,
    where: confluent_kafka.TopicPartition,
    end: int,
    numbers: list[int],
) -> bool:
    for message in consumer.consume(500, 0.2):
        assert message.error() is None, message.error()
        numbers.append(int(message.value().decode().partition(":")[2]))
    (position,) = consumer.position([where])
    return bool(position.offset >= end)


def test_a_loaded_cluster_goes_up_to_1_6_and_transactions_begin(tmp_path: Path) -> None:
    config = {
        LEVEL: "1.5",
        "auto.create.topics.enable": "false",
        "transaction.state.log.num.partitions": 4,
        "transaction.state.log.replication.factor": 3,
        "transaction.state.log.min.isr": 2,
    }
    with TidelogCluster(tmp_path, config=config) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, min_insync_replicas=2)
        cluster.create_topic("of-transactions", PARTITIONS, min_insync_replicas=2)
        writer = PunctualWriter(cluster, "once", idempotent=True)
        reader = GroupReader(cluster.bootstrap, TOPIC, "group")
        transactions = Transactions(cluster.bootstrap, "of-transactions")
        for each in (writer, reader, transactions):
            each.start()
        wait_until(lambda: transactions.refused >= 2, DEADLINE_S, "it is refused, and waits")
        lines = [
            line
            for node in cluster.brokers.values()
            for line in node.program.output().splitlines()
            if f"is refused: {SENTENCE}" in line
        ]
        assert 1 <= len(lines) <= len(cluster.brokers), "one line for each client of a broker"
        # The level of the controller lets all brokers begin, before one is restarted with it.
        controller = cluster.controller
        controller.configure({LEVEL: "1.6"})
        controller.restart()
        transactions.went_on(cluster)
        for node in cluster.brokers.values():
            node.configure({LEVEL: "1.6"})
            node.restart()
            cluster.until_in_sync(TOPIC, 3)
            transactions.went_on(cluster)
        # What is open would hold readers back.
        refused_at(cluster, "1.5", "this cluster has offered transactions")
        transactions.went_on(cluster)
        transactions.finish()
        got = committed_in(cluster, "of-transactions")
        assert got == [transactions.committed] * PARTITIONS
        batches_of = cluster.batches_of(TOPIC)
        settled(cluster.bootstrap, TOPIC, PARTITIONS, [writer], reader, batches_of)
        # The way back that the line names.
        client = admin(cluster.bootstrap)
        deleted = client.delete_topics([TRANSACTIONS_TOPIC], operation_timeout=DEADLINE_S)
        deleted[TRANSACTIONS_TOPIC].result(DEADLINE_S)
        rolled(cluster, "1.5", controller_first=False)


@pytest.mark.java
def test_two_controllers_on_a_zookeeper_go_up_a_level_and_back(tmp_path: Path) -> None:
    needed()
    with (
        ZooKeeper(tmp_path / "zookeeper") as server,
        TidelogCluster(
            tmp_path,
            config={LEVEL: "1.3"},
            controllers=2,
            store=f"zookeeper://{server.address}/rolled",
        ) as cluster,
        WaitedAt(cluster.pids) as waited,
    ):
        cluster.create_topic(TOPIC, PARTITIONS, min_insync_replicas=2)
        writer = PunctualWriter(cluster, "once", idempotent=True)
        reader = GroupReader(cluster.bootstrap, TOPIC, "group")
        for each in (writer, reader):
            each.start()
        created_and_deleted(cluster, "at-1.3")
        took_s = [rolled(cluster, "1.4", controller_first=True)]
        (written,) = ids_on_disk(cluster, TOPIC)
        assert written.startswith("version: 0\ntopic_id: ")
        assert len(ids_on_disk(cluster, "at-1.3")) == 1
        created_and_deleted(cluster, "at-1.4")
        took_s.append(rolled(cluster, "1.3", controller_first=False))
        assert ids_on_disk(cluster, TOPIC) == {written}
        created_and_deleted(cluster, "back-at-1.3")
        assert ids_on_disk(cluster, "back-at-1.3") == {""}
        batches_of = cluster.batches_of(TOPIC)
        settled(cluster.bootstrap, TOPIC, PARTITIONS, [writer], reader, batches_of)
        gap_s = writer.longest_silence_s(waited)
        print(f"{writer.state()}, longest gap {gap_s:.2f} s, restarts took {took_s} s")
        assert gap_s <= max(took_s), cluster.said("refused nothing for longer than a restart")
