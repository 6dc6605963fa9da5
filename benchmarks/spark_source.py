"""How many rows per second does Spark read from a topic, warm, into the noop sink?

`spark_source.py --source tidelog|kafka --bootstrap-server HOST:PORT --topic NAME` reads the whole
topic as a batch with two tasks on two cores and all columns of the stock source, once to warm up
and then some more times, and prints `{"rows_per_s": N}` (the median) as its last line. `tidelog`
is our source on the Spark of this venv; `kafka` is the stock source, on Spark 4.0 in its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

_ROUNDS = 5
_STARTED_AGAIN = "TIDELOG_STOCK_SPARK"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", choices=["tidelog", "kafka"], required=True)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--topic", required=True)
    given = parser.parse_args()
    if given.source == "kafka" and _STARTED_AGAIN not in os.environ:
        start_again_on_stock_spark()
    print(json.dumps(measure(given.source, given.bootstrap_server, given.topic)))


def start_again_on_stock_spark() -> None:
    """Replace this process by the same script on Spark 4.0."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.spark.stock import stock_environment, stock_python

    environment = {**stock_environment(), _STARTED_AGAIN: "1"}
    python = str(stock_python())
    os.execve(python, [python, *sys.argv], environment)


def measure(source: str, bootstrap: str, topic: str) -> dict[str, object]:
    """Rows per second of each round and their median."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        # The topic of the benchmark has one partition: both sources cut it in two.
        "minPartitions": "2",
    }
    if source == "tidelog":
        options["includeEpoch"] = "false"
    rows = spark.read.format(source).options(**options).load()
    count = rows.count()
    found = []
    for _ in range(_ROUNDS + 1):
        begun = time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        found.append(count / (time.perf_counter() - begun))
    spark.stop()
    # The first one warms up.
    warm = found[1:]
    return {"rows": count, "rounds": warm, "rows_per_s": statistics.median(warm)}


if __name__ == "__main__":
    main()
