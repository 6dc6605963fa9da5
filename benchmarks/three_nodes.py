"""What do three brokers do and cost, beside three of Apache Kafka?

Topics have three replicas and the producers wait for all of them. CPU is that of all processes,
the controller included.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping

import confluent_kafka
from tests.support import clients
from tests.support.processes import SIGCONT, SIGSTOP, wait_until

from benchmarks.clusters import ClusterTarget, create
from benchmarks.java_producer import TUNED, ProducerRow
from benchmarks.latency import LatencyAtOneThousand
from benchmarks.measuring import Metric

MANY = 1000
"""Partitions of the large topic (docs/design/speed.md)."""


class LeaderKilled:
    """kill -9 of a partition's leader under a librdkafka producer at 1000 records/s.

    The longest time between two acknowledgements, everything at its default settings. Afterwards
    the broker is started again and its replicas are in sync.
    """

    title = "three nodes: leader killed"
    cold = True
    metrics = (
        Metric("three nodes: leader killed, longest gap between acks", "s", "less", limit=1.0),
    )

    def measure(self, target: ClusterTarget, quick: bool) -> list[float]:
        with target.topic() as topic:
            acks = Acks(target.bootstrap, topic)
            try:
                acks.until_more(1500)
                killed = target.node.brokers[target.leader(topic)]
                before = len(acks.times) - 1
                killed.kill()
                acks.until_over(before)
            finally:
                acks.stop()
            killed.start()
            wait_until(lambda: target.in_sync(topic), 60, "in sync again")
        return [acks.longest_gap_s(before)]


class LeaderStopped:
    """SIGSTOP of a partition's leader: it is not dead, and closes no connection.

    As above, but that the producer asks again after a request's 1 s: with librdkafka's defaults it
    waits 60 s for an answer, whoever leads.
    """

    title = "three nodes: leader stopped"
    cold = True
    metrics = (
        Metric(
            "three nodes: leader stopped, longest gap between acks, requests time out after 1 s",
            *("s", "less"),
            limit=4.0,
        ),
    )

    def measure(self, target: ClusterTarget, quick: bool) -> list[float]:
        with target.topic() as topic:
            acks = Acks(target.bootstrap, topic, {"socket.timeout.ms": 1000})
            try:
                acks.until_more(1500)
                stopped = target.node.brokers[target.leader(topic)].program
                before = len(acks.times) - 1
                stopped.send(SIGSTOP)
                try:
                    acks.until_over(before)
                finally:
                    stopped.send(SIGCONT)
            finally:
                acks.stop()
            wait_until(lambda: target.in_sync(topic), 60, "in sync again")
        return [acks.longest_gap_s(before)]


class Acks:
    """A producer in a thread at 1000 records/s, and when each acknowledgement came."""

    def __init__(
        self, bootstrap: str, topic: str, settings: Mapping[str, object] | None = None
    ) -> None:
        self.times: list[float] = []
        self.failed: list[str] = []
        self._stopping = threading.Event()
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "log_level": 0, **(settings or {})}
        )
        self._thread = threading.Thread(target=self._run, args=(topic,))
        self._thread.start()

    def _run(self, topic: str) -> None:
        begun = time.monotonic()
        for number in itertools.count():
            # Also while it is ahead of its rate it takes the answers.
            while not self._stopping.is_set() and time.monotonic() - begun < number / 1000:
                self._producer.poll(0.001)
            if self._stopping.is_set():
                return
            self._producer.produce(topic, b"x" * 100, on_delivery=self._answered)

    def _answered(self, error: confluent_kafka.KafkaError | None, _: object) -> None:
        if error is None:
            self.times.append(time.monotonic())
        else:
            self.failed.append(str(error))

    def until_more(self, count: int) -> None:
        """Wait until so many more records were acknowledged."""
        wanted = len(self.times) + count
        wait_until(lambda: len(self.times) >= wanted, 60, f"acks; {self.failed[:3]}", 0.01)

    def until_over(self, before: int) -> None:
        """Wait until the gap after an acknowledgement is over: it goes on for some time."""
        wait_until(lambda: self.times[-1] > self.times[before] + 0.5, 60, "an ack", 0.01)
        self.until_more(1500)

    def longest_gap_s(self, before: int) -> float:
        """The longest time between two acknowledgements from that one on."""
        pairs = itertools.pairwise(self.times[before:])
        return max(after - earlier for earlier, after in pairs)

    def stop(self) -> None:
        """Stop sending, and wait for the last acknowledgements."""
        self._stopping.set()
        self._thread.join()
        self._producer.flush(30)


class ThreeFromNothing:
    """Three brokers and a controller on empty folders: start, memory, CPU while nothing happens.

    Kafka's formatting is not counted. Memory and CPU of a broker are the mean of the three; then
    the same with the large topic, of which each broker has every replica.
    """

    title = "three nodes: start, memory and CPU at rest"
    cold = True
    metrics = (
        Metric("three nodes: start to first metadata of all", "s", "less", limit=2.0),
        Metric("three nodes: resident memory of an idle broker", "MB", "less", limit=80),
        Metric("three nodes: CPU of an idle broker", "% of a core", "less"),
        Metric(f"three nodes: memory of a broker, {MANY} replicas", "MB", "less"),
        Metric(f"three nodes: CPU of an idle broker, {MANY} replicas", "% of a core", "less"),
    )

    def measure(self, target: ClusterTarget, quick: bool) -> list[float]:
        with target.another() as cluster:
            started_s = cluster.start()
            cluster.settle()
            values = [started_s, cluster.resident_bytes() / 1e6, cluster.cpu_at_rest() * 100]
            # Held in a name: a client that is collected gives up its requests.
            admin = clients.admin(cluster.bootstrap)
            create(admin, "many", MANY)
            del admin
            wait_until(lambda: cluster.all_led("many", MANY), 120, "many has leaders", 0.2)
            cluster.settle()
            return [*values, cluster.resident_bytes() / 1e6, cluster.cpu_at_rest() * 100]


class CreateLargeTopic:
    """Seconds from the request until every broker names a leader of each partition, and until
    each of these leaders serves: Kafka names them before they have made their logs."""

    title = "three nodes: create a large topic"
    cold = False
    metrics = (
        Metric(f"three nodes: create {MANY} partitions × 3, all led", "s", "less", limit=2.0),
        Metric("the same, until each leader tells its end offset", "s", "less", goal=2.0),
    )

    def measure(self, target: ClusterTarget, quick: bool) -> list[float]:
        admin = clients.admin(target.bootstrap)
        admin.list_topics(timeout=30)
        with target.name_of_topic() as name:
            begun = time.monotonic()
            create(admin, name, MANY)
            wait_until(lambda: target.node.all_led(name, MANY), 120, "all led")
            named_s = time.monotonic() - begun
            wait_until(lambda: target.node.all_served(name, MANY), 120, "all served")
            return [named_s, time.monotonic() - begun]


VERSION_ROWS = (
    ProducerRow(
        "three nodes: Java producer, 100 B, defaults",
        *(100, 2_000_000, 600_000),
        goal=2.0,
        cpu_goal=0.25,
    ),
    ProducerRow(
        "three nodes: Java producer, 100 B, linger 10 ms, batch 128 kB",
        *(100, 3_000_000, 1_000_000, TUNED),
        goal=None,
    ),
    LatencyAtOneThousand("three nodes: "),
)
"""What two versions of tidelog are compared by, too."""

ROWS = (*VERSION_ROWS, CreateLargeTopic(), LeaderKilled(), LeaderStopped(), ThreeFromNothing())
