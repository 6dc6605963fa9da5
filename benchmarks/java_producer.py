"""How fast do Kafka's own Java producers write, and what does it cost the broker?

Kafka's producer performance test, acks=all and idempotent as by default, one partition. The first
fifth of the records warms the client up and is not counted in its rate. The broker's CPU is that
of its whole process over all records, in seconds per million.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.support.java import run_java

from benchmarks.clusters import ClusterTarget
from benchmarks.measuring import Metric
from benchmarks.nodes import Target

CLIENT_FLAGS = ("-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
STEADY = re.compile(r"steady state records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\)")


@dataclass(frozen=True)
class ProducerRow:
    """One way to call the tool."""

    title: str
    record_bytes: int
    records: int
    quick_records: int
    config: tuple[str, ...] = ()
    goal: float | None = 1.3
    cpu_goal: float = 0.5
    cold: bool = False

    @property
    def metrics(self) -> tuple[Metric, ...]:
        unit = "MB/s" if self.record_bytes >= 1000 else "records/s"
        return (
            Metric(self.title, unit, "more", self.goal),
            Metric(f"broker CPU, {self.title}", "s per million records", "less", self.cpu_goal),
        )

    def measure(self, target: Target | ClusterTarget, quick: bool) -> list[float]:
        """Write to a fresh topic and remove it."""
        count = self.quick_records if quick else self.records
        with target.topic() as topic:
            before = target.cpu_s()
            steady = produce(target, topic, count, self.record_bytes, self.config)
            cpu_s = target.cpu_s() - before
        rate = float(steady[2 if self.record_bytes >= 1000 else 1])
        return [rate, cpu_s / count * 1e6]


def produce(
    target: Target | ClusterTarget,
    topic: str,
    count: int,
    record_bytes: int,
    config: tuple[str, ...],
) -> re.Match[str]:
    """Run the tool once; the match of its line about the steady state."""
    options = [arg for line in config for arg in ("--command-property", line)]
    said = run_java(
        *("kafka-producer-perf-test", "--bootstrap-server", target.bootstrap, "--topic", topic),
        *("--num-records", str(count), "--record-size", str(record_bytes), "--throughput", "-1"),
        *("--warmup-records", str(count // 5), *options),
        deadline_s=300,
        flags=CLIENT_FLAGS,
    ).check()
    found = STEADY.search(said.out)
    assert found is not None and "Exception" not in said.out, said
    return found


TUNED = ("linger.ms=10", "batch.size=131072")
ROWS = (
    ProducerRow("Java producer, 100 B, defaults", 100, 3_000_000, 1_200_000),
    ProducerRow(
        "Java producer, 100 B, linger 10 ms, batch 128 kB", 100, 4_000_000, 1_500_000, TUNED
    ),
    ProducerRow("Java producer, 1 kB, linger 10 ms", 1000, 600_000, 250_000, ("linger.ms=10",)),
)
