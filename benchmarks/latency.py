"""How long does an acknowledgement take at 1000 records a second?

Kafka's producer performance test, throttled, acks=all, no linger, so that the broker is what is
measured and not the client's waiting.
"""

from __future__ import annotations

import re

from tests.support.java import run_java

from benchmarks.clusters import ClusterTarget
from benchmarks.java_producer import CLIENT_FLAGS
from benchmarks.measuring import Metric
from benchmarks.nodes import Target

LATENCIES = re.compile(
    r"steady state records sent, .*?([\d.]+) ms avg latency.*?"
    r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th"
)


class LatencyAtOneThousand:
    """Mean, 95th and 99th percentile in milliseconds; the tool knows whole ones only."""

    cold = False

    def __init__(self, where: str = "") -> None:
        self.title = f"{where}latency at 1000 records/s"
        self.metrics = (
            Metric(f"{where}latency at 1000/s, acks=all: mean", "ms", "less"),
            Metric(f"{where}latency at 1000/s, acks=all: p95", "ms", "less"),
            Metric(f"{where}latency at 1000/s, acks=all: p99", "ms", "less", goal=1.0),
        )

    def measure(self, target: Target | ClusterTarget, quick: bool) -> list[float]:
        count = 9_000 if quick else 20_000
        with target.topic() as topic:
            said = run_java(
                *("kafka-producer-perf-test", "--bootstrap-server", target.bootstrap),
                *("--topic", topic, "--num-records", str(count), "--record-size", "100"),
                *("--throughput", "1000", "--warmup-records", "4000"),
                *("--command-property", "linger.ms=0"),
                deadline_s=120,
                flags=CLIENT_FLAGS,
            ).check()
        found = LATENCIES.search(said.out)
        assert found is not None, said
        return [float(found[1]), float(found[3]), float(found[4])]


ROWS = (LatencyAtOneThousand(),)
