"""How fast do stock consumers read, and what does it cost the broker?

The same records of 100 bytes in both nodes, written once by the tuned Java producer and read from
the page cache: by librdkafka assigned to the partition (in C, see `librdkafka.py`), by Kafka's
consumer performance test, by a client that costs nothing, and by eight of those at once.
"""

from __future__ import annotations

import statistics

from tests.support.java import run_java

from benchmarks import fetch_loop, librdkafka
from benchmarks.java_producer import CLIENT_FLAGS, TUNED, produce
from benchmarks.measuring import Metric
from benchmarks.nodes import Target

RECORD_BYTES = 100
TOPIC = "to-read"


COUNT = 4_000_000
"""Also in the quick form: a quarter of it is read in a second, of which CPU has some ten ticks."""


def filled(target: Target) -> int:
    """Fill the topic once; how many records it holds."""
    if TOPIC not in target.filled:
        target.create_topic(TOPIC)
        produce(target, TOPIC, COUNT, RECORD_BYTES, TUNED)
        target.filled.add(TOPIC)
    return COUNT


class LibrdkafkaConsumer:
    """Records per second after the first batch has come; broker CPU per GB of the log fetched."""

    title = "librdkafka consumer"
    cold = False
    metrics = (
        Metric("librdkafka consumer, assigned", "records/s", "more", goal=1.3),
        Metric("broker CPU, librdkafka consumer", "s per GB fetched", "less", goal=0.5),
    )

    def measure(self, target: Target, quick: bool) -> list[float]:
        count = filled(target)
        before = target.cpu_s()
        rate = librdkafka.consume(target.bootstrap, TOPIC, count)
        cpu_s = target.cpu_s() - before
        return [rate, cpu_s / (target.log_bytes(TOPIC) / 1e9)]


class FetchLoop:
    """What the server can give to a client that costs nothing; CPU as above."""

    title = "fetch loop"
    cold = False
    metrics = (
        Metric("fetch loop that decodes no record, 1 MB a time", "records/s", "more", goal=1.3),
        Metric("broker CPU, fetch loop", "s per GB fetched", "less", goal=0.5),
    )
    passes = 5
    """It is soon done: several passes, for CPU is counted in steps of 10 ms."""

    def measure(self, target: Target, quick: bool) -> list[float]:
        count = filled(target)
        before = target.cpu_s()
        rates = [fetch_loop.read_all(target.node.port, TOPIC, count) for _ in range(self.passes)]
        cpu_s = target.cpu_s() - before
        fetched_gb = self.passes * target.log_bytes(TOPIC) / 1e9
        return [statistics.median(rates), cpu_s / fetched_gb]


class EightConsumers:
    """What a server gives when it is the bottleneck: eight fetch loops read the topic at once.

    They share a thread of this process and discard what comes (`fetch_loop.py`): eight stock
    consumers on the clients' cores would be the bottleneck themselves.
    """

    title = "eight consumers, broker saturated"
    cold = False
    metrics = (
        Metric("eight consumers, broker saturated", "records/s", "more"),
        Metric("broker CPU, eight consumers, broker saturated", "s per million records", "less"),
    )
    clients = 8

    def measure(self, target: Target, quick: bool) -> list[float]:
        port, passes = target.node.port, 1 if quick else 3
        steps = fetch_loop.steps(port, TOPIC, filled(target))
        before = target.cpu_s()
        rates = [
            fetch_loop.read_all_at_once(port, TOPIC, steps, self.clients) for _ in range(passes)
        ]
        cpu_s = target.cpu_s() - before
        read = passes * self.clients * steps[-1].following
        return [statistics.median(rates), cpu_s / read * 1e6]


class JavaConsumer:
    """Kafka's tool with its defaults; its own rate of fetching, without joining the group."""

    title = "Java consumer"
    cold = False
    metrics = (
        Metric("Java consumer performance test", "records/s", "more", goal=1.3),
        Metric("broker CPU, Java consumer", "s per GB fetched", "less", goal=0.5),
    )

    def measure(self, target: Target, quick: bool) -> list[float]:
        count = filled(target)
        before = target.cpu_s()
        said = run_java(
            *("kafka-consumer-perf-test", "--bootstrap-server", target.bootstrap),
            *("--topic", TOPIC, "--num-records", str(count), "--hide-header"),
            *("--timeout", "60000"),
            deadline_s=120,
            flags=CLIENT_FLAGS,
        ).check()
        cpu_s = target.cpu_s() - before
        fields = [field.strip() for field in said.out.strip().splitlines()[-1].split(",")]
        return [float(fields[9]), cpu_s / (target.log_bytes(TOPIC) / 1e9)]


ROWS = (LibrdkafkaConsumer(), FetchLoop(), EightConsumers(), JavaConsumer())
