"""How many requests of a single record each does a node answer, and at what cost?

librdkafka, acks=all, one record in a batch, five requests in flight, one partition.
"""

from __future__ import annotations

import time

import confluent_kafka

from benchmarks.measuring import Metric
from benchmarks.nodes import Target


class OneRecordRequests:
    """Requests per second as the client sees them; milliseconds of broker CPU per 1000."""

    title = "requests of one record"
    cold = False
    metrics = (
        Metric("requests of one record (librdkafka, 5 in flight)", "1/s", "more", goal=3.0),
        Metric("broker CPU, requests of one record", "ms per 1000", "less", goal=0.5),
    )

    def measure(self, target: Target, quick: bool) -> list[float]:
        count = 25_000 if quick else 60_000
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": target.bootstrap,
                "acks": "all",
                "batch.num.messages": 1,
                "linger.ms": 0,
                "max.in.flight.requests.per.connection": 5,
                "queue.buffering.max.messages": count + 1000,
            }
        )
        value = b"x" * 100
        with target.topic() as topic:
            for _ in range(500):
                producer.produce(topic, value, partition=0)
            assert producer.flush(60) == 0
            before, begun = target.cpu_s(), time.perf_counter()
            for _ in range(count):
                producer.produce(topic, value, partition=0)
            assert producer.flush(120) == 0
            took_s = time.perf_counter() - begun
            cpu_s = target.cpu_s() - before
        return [count / took_s, cpu_s / count * 1e6]


ROWS = (OneRecordRequests(),)
