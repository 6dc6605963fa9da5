"""How fast does Spark read a topic: our source from tidelog, beside the stock source from Kafka?

The 100-byte values that the consumers read, by two tasks on `local[2]` into the noop sink. The
reading itself is `spark_source.py`, a process of its own for each measurement, for a JVM holds one
Spark. Ours runs on the Spark of this project; the stock source on Spark 4.0, the newest whose
Kafka connector has all its parts on Maven Central.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import clients
from tests.support.processes import wait_until

from benchmarks.clusters import ClusterTarget, create
from benchmarks.consumer_throughput import RECORD_BYTES, TOPIC, filled
from benchmarks.java_producer import TUNED, produce
from benchmarks.measuring import Metric
from benchmarks.nodes import Target

SCRIPT = Path(__file__).with_name("spark_source.py")
MICRO_BATCHES = Path(__file__).with_name("micro_batches.py")
PARTITIONS = 8
ROWS_PER_BATCH = 10_000
BATCHES, QUICK_BATCHES = 200, 60


class SparkRead:
    """Rows per second, the median of the warm reads of one session; CPU of all its processes."""

    title = "Spark batch read"
    cold = True
    metrics = (
        Metric("Spark batch read, 100 B values", "rows/s", "more", goal=1.5),
        Metric("CPU of Spark itself, batch read", "s per million rows", "less"),
    )

    def measure(self, target: Target, quick: bool) -> list[float]:
        filled(target)
        source = "tidelog" if target.name == "tidelog" else "kafka"
        measured = _last_line(SCRIPT, source, target.bootstrap, TOPIC)
        return [float(measured["rows_per_s"]), float(measured["cpu_s_per_million_rows"])]


class MicroBatches:
    """The median time of small micro-batches on three brokers, and their CPU."""

    title = "Spark micro-batches"
    cold = True
    metrics = (
        Metric("Spark micro-batch of 10,000 rows, 8 partitions", "ms", "less", goal=1.0),
        Metric("CPU of Spark itself, micro-batches", "s", "less", goal=1.0),
    )

    def measure(self, target: ClusterTarget, quick: bool) -> list[float]:
        count = ROWS_PER_BATCH * (QUICK_BATCHES if quick else BATCHES)
        source = "tidelog" if target.name == "tidelog" else "kafka"
        with target.name_of_topic() as name:
            create(clients.admin(target.bootstrap), name, PARTITIONS)
            wait_until(lambda: target.in_sync(name, PARTITIONS), 120, f"{name} is in sync")
            produce(target, name, count, RECORD_BYTES, TUNED)
            measured = _last_line(MICRO_BATCHES, source, target.bootstrap, name)
        assert measured["rows"] == count, measured
        return [float(measured["median_ms"]), float(measured["cpu_s"])]


def _last_line(script: Path, source: str, bootstrap: str, topic: str) -> dict[str, Any]:
    done = subprocess.run(
        [
            *(sys.executable, str(script), "--source", source),
            *("--bootstrap-server", bootstrap, "--topic", topic),
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    measured: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


ROWS = (SparkRead(),)
CLUSTER_ROWS = (MicroBatches(),)
