"""How fast do stock consumers read, and what does it cost the broker?

The same records of 100 bytes in both nodes, written once by the tuned Java producer and read from
the page cache: by librdkafka assigned to the partition, and by Kafka's consumer performance test.
"""

from __future__ import annotations

import time

import confluent_kafka
from tests.support.java import run_java

from benchmarks.java_producer import CLIENT_FLAGS, TUNED, produce
from benchmarks.measuring import Metric
from benchmarks.nodes import Target

RECORD_BYTES = 100
TOPIC = "to-read"


def filled(target: Target, quick: bool) -> int:
    """Fill the topic once; how many records it holds."""
    count = 1_500_000 if quick else 4_000_000
    if TOPIC not in target.filled:
        target.create_topic(TOPIC)
        produce(target, TOPIC, count, RECORD_BYTES, TUNED)
        target.filled.add(TOPIC)
    return count


class LibrdkafkaConsumer:
    """Records per second after the first batch has come; broker CPU per GB of the log fetched."""

    title = "librdkafka consumer"
    metrics = (
        Metric("librdkafka consumer, assigned", "records/s", "more", goal=1.3),
        Metric("broker CPU, librdkafka consumer", "s per GB fetched", "less", goal=0.5),
    )

    def measure(self, target: Target, quick: bool) -> list[float]:
        count = filled(target, quick)
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": target.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "queued.min.messages": 1_000_000,
                "fetch.message.max.bytes": 1 << 20,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
        before = target.cpu_s()
        got = len(consumer.consume(1, 30))
        begun = time.perf_counter()
        first = got
        while got < count:
            messages = consumer.consume(100_000, 1.0)
            assert messages or time.perf_counter() - begun < 120, f"{got} of {count}"
            got += len(messages)
        took_s = time.perf_counter() - begun
        cpu_s = target.cpu_s() - before
        consumer.close()
        return [(count - first) / took_s, cpu_s / (target.log_bytes(TOPIC) / 1e9)]


class JavaConsumer:
    """Kafka's tool with its defaults; its own rate of fetching, without joining the group."""

    title = "Java consumer"
    metrics = (
        Metric("Java consumer performance test", "records/s", "more", goal=1.3),
        Metric("broker CPU, Java consumer", "s per GB fetched", "less", goal=0.5),
    )

    def measure(self, target: Target, quick: bool) -> list[float]:
        count = filled(target, quick)
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


ROWS = (LibrdkafkaConsumer(), JavaConsumer())
