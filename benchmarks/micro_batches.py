"""What does a small micro-batch cost: 10,000 rows over 8 partitions, 200 times?

`micro_batches.py --source tidelog|kafka --bootstrap-server HOST:PORT --topic NAME` reads the topic
as a stream into the noop sink, 10,000 offsets a batch, and prints `{"median_ms": N, "cpu_s": N}` as
its last line: the median time of a batch, and the CPU seconds of driver and workers in all batches.
`tidelog` is our source on the Spark of this venv; `kafka` is the stock source, on Spark 4.0 in its
own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.spark_source import family_cpu_s, start_again_on_stock_spark

_ROWS_PER_BATCH = 10_000
_STARTED_AGAIN = "TIDELOG_STOCK_SPARK"
# The first batches start workers and warm the JVM up.
_WARM_UP = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", choices=["tidelog", "kafka"], required=True)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--conf", action="append", default=[], help="a setting of Spark")
    given = parser.parse_args()
    if given.source == "kafka" and _STARTED_AGAIN not in os.environ:
        start_again_on_stock_spark()
    print(json.dumps(measure(given.source, given.bootstrap_server, given.topic, given.conf)))


def measure(source: str, bootstrap: str, topic: str, conf: list[str]) -> dict[str, object]:
    """The batches of one run over the whole topic."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.streaming.numRecentProgressUpdates", "10000")
    # As the pages advise; the stock source has no Python workers.
    ours = ["spark.python.daemon.module=tidelog.pipeline.worker_daemon"]
    for setting in [*(ours if source == "tidelog" else []), *conf]:
        name, _, value = setting.partition("=")
        builder = builder.config(name, value)
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(_ROWS_PER_BATCH),
    }
    rows = spark.readStream.format(source).options(**options).load()
    with tempfile.TemporaryDirectory() as folder:
        cpu_before = family_cpu_s()
        query = (
            rows.writeStream.format("noop")
            .option("checkpointLocation", folder)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        cpu_s = family_cpu_s() - cpu_before
        batches = [p for p in query.recentProgress if p["numInputRows"]]
    times = [batch["durationMs"]["triggerExecution"] for batch in batches][_WARM_UP:]
    phases: dict[str, list[int]] = {}
    for batch in batches[_WARM_UP:]:
        for name, ms in batch["durationMs"].items():
            phases.setdefault(name, []).append(ms)
    spark.stop()
    return {
        "batches": len(batches),
        "rows": sum(batch["numInputRows"] for batch in batches),
        "cpu_s": cpu_s,
        "phases_ms": {name: statistics.median(ms) for name, ms in phases.items()},
        "median_ms": statistics.median(times),
    }


if __name__ == "__main__":
    main()
