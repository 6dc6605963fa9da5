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

from benchmarks.consumer_throughput import TOPIC, filled
from benchmarks.measuring import Metric
from benchmarks.nodes import Target

SCRIPT = Path(__file__).with_name("spark_source.py")


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
        done = subprocess.run(
            [
                *(sys.executable, str(SCRIPT), "--source", source),
                *("--bootstrap-server", target.bootstrap, "--topic", TOPIC),
            ],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout.strip().splitlines()[-1])
        return [float(found["rows_per_s"]), float(found["cpu_s_per_million_rows"])]


ROWS = (SparkRead(),)
