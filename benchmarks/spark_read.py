"""How fast does Spark read a topic: our source from tidelog, beside the stock source from Kafka?

100-byte values in two partitions, read by two tasks on `local[2]` into the noop sink. Ours runs on
the Spark of this project; the stock source on Spark 4.0, the newest whose Kafka connector has all
its parts on Maven Central. Each measurement is a process of its own, for a JVM holds one Spark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.spark.stock import stock_environment, stock_python

from benchmarks.java_producer import TUNED, produce
from benchmarks.measuring import Metric
from benchmarks.nodes import Target

SCRIPT = Path(__file__).with_name("spark_source.py")
TOPIC = "to-read-by-spark"
RECORD_BYTES = 100
OURS = "tidelog"


class SparkRead:
    """Rows per second, the best of the warm reads of one session."""

    title = "Spark batch read"
    metrics = (Metric("Spark batch read, 100 B values", "rows/s", "more", goal=1.5),)

    def measure(self, target: Target, quick: bool) -> list[float]:
        count = 1_500_000 if quick else 6_000_000
        if TOPIC not in target.filled:
            target.create_topic(TOPIC, partitions=2)
            produce(target, TOPIC, count, RECORD_BYTES, TUNED)
            target.filled.add(TOPIC)
        ours = target.name == OURS
        python = sys.executable if ours else str(stock_python())
        what = [OURS if ours else "kafka", target.bootstrap, TOPIC, str(count), "4"]
        done = subprocess.run(
            [python, str(SCRIPT), *what],
            env=dict(os.environ) if ours else stock_environment(),
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return [float(json.loads(done.stdout.strip().splitlines()[-1])["rows_per_s"])]


ROWS = (SparkRead(),)
