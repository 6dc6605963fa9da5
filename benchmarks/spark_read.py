"""How fast does Spark read a topic: our source from tidelog, beside the stock source from Kafka?

The reading itself is `spark_source.py`, run in a process of its own for each measurement, because a
JVM holds one Spark. It prints `{"rows_per_s": N}` as its last line; where it is not there, neither
is this row.
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
    """Rows per second of a batch read to the noop sink, warm, 100-byte values."""

    title = "Spark batch read"
    metrics = (Metric("Spark batch read, 100 B values", "rows/s", "more", goal=1.5),)

    def measure(self, target: Target, quick: bool) -> list[float]:
        filled(target, quick)
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
        return [float(json.loads(done.stdout.strip().splitlines()[-1])["rows_per_s"])]


ROWS = (SparkRead(),) if SCRIPT.exists() else ()
