"""How long does a partition take to move, and what do its producers notice?

A partition of one replica moves to another of the three brokers while a librdkafka producer sends
it 1000 records a second; nothing is throttled. Its time is from the request to the moment when
each broker names the target as the only replica in sync.
"""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka
import kafka
from confluent_kafka.admin import NewTopic
from tests.support import clients
from tests.support.processes import wait_until

from benchmarks.clusters import ClusterTarget, describe
from benchmarks.measuring import Metric
from benchmarks.three_nodes import Acks

MOVED_BYTES, QUICK_BYTES = 1_000_000_000, 200_000_000
VALUE_BYTES = 10_000
REST_RECORDS = 5_000
"""Acknowledged before the move, for the latency at rest."""


class TimedAcks(Acks):
    """The same producer, with the seconds that each acknowledgement took."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.latencies: list[float] = []
        super().__init__(bootstrap, topic, {"linger.ms": 0, "acks": "all"})

    def _answered(self, error: confluent_kafka.KafkaError | None, message: Any) -> None:
        if error is None:
            self.latencies.append(message.latency())
        super()._answered(error, message)


def p99_ms(latencies: list[float]) -> float:
    """The 99th percentile in milliseconds."""
    return sorted(latencies)[int(len(latencies) * 0.99)] * 1000


class MovePartition:
    """Seconds, the producer's p99 meanwhile and beside its p99 at rest, CPU of all processes."""

    title = "three nodes: move a partition under load"
    cold = False
    metrics = (
        Metric("three nodes: move a partition of 1 GB under load", "s", "less"),
        Metric("three nodes: p99 of a producer while its partition moves", "ms", "less", goal=1.0),
        Metric("three nodes: the same p99, times that at rest", "x", "less"),
        Metric("CPU of the servers, a move of 1 GB under load", "s", "less"),
    )

    def measure(self, target: ClusterTarget, quick: bool) -> list[float]:
        size = QUICK_BYTES if quick else MOVED_BYTES
        python = kafka.KafkaAdminClient(bootstrap_servers=target.bootstrap.split(","))
        try:
            with target.name_of_topic() as topic:
                admin = clients.admin(target.bootstrap)
                config = {"file.delete.delay.ms": "1000"}
                wanted = NewTopic(topic, 1, replica_assignment=[[1]], config=config)
                admin.create_topics([wanted], request_timeout=60)[topic].result(60)
                wait_until(lambda: _is_on(target, topic, 1), 60, "it is led")
                _fill(target.bootstrap, topic, size)
                target.node.settle()
                acks = TimedAcks(target.bootstrap, topic)
                try:
                    acks.until_more(REST_RECORDS)
                    resting = len(acks.latencies)
                    cpu_s, begun = target.cpu_s(), time.monotonic()
                    asked = {kafka.TopicPartition(topic, 0): [2]}
                    refused = [x for x in python.alter_partition_reassignments(asked).values() if x]
                    assert not refused, refused
                    wait_until(lambda: _is_on(target, topic, 2), 300, "it has moved", 0.01)
                    took_s, cpu_s = time.monotonic() - begun, target.cpu_s() - cpu_s
                    acks.until_more(200)
                finally:
                    acks.stop()
                assert not acks.failed, acks.failed[:3]
                # The first seconds of a client and of its connections are not its rest.
                rest = p99_ms(acks.latencies[resting // 2 : resting])
                moving = p99_ms(acks.latencies[resting:])
                return [took_s, moving, moving / rest, cpu_s]
        finally:
            python.close()


def _is_on(target: ClusterTarget, topic: str, broker: int) -> bool:
    """Whether each broker names this one as the leader and the only replica in sync."""
    for node in target.node.brokers.values():
        if describe(node.port, topic)[1].get(0) != (broker, [broker]):
            return False
    return True


def _fill(bootstrap: str, topic: str, size: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 10, "batch.size": 1_000_000}
    )
    value = bytes(VALUE_BYTES)
    for _ in range(size // VALUE_BYTES):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(120) == 0


ROWS = (MovePartition(),)
