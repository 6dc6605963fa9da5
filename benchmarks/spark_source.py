"""How many rows per second does Spark read from a topic, warm, into the noop sink?

`spark_source.py --source tidelog|kafka --bootstrap-server HOST:PORT --topic NAME` reads the whole
topic as a batch with two tasks on two cores and all columns of the stock source, once to warm up
and then some more times, and prints `{"rows_per_s": N}` (the median) as its last line, with the CPU
seconds of driver and workers (not of the broker) beside it: they move less on a busy machine.
`tidelog` is our source on the Spark of this venv; `kafka` is the stock source, on Spark 4.0 in its
own.
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
    rows.write.format("noop").mode("overwrite").save()  # warms up
    found = []
    cpu_before = family_cpu_s()
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        found.append(count / (time.perf_counter() - begun))
    cpu_s = family_cpu_s() - cpu_before
    spark.stop()
    return {
        "rows": count,
        "rounds": found,
        "cpu_s_per_million_rows": 1e6 * cpu_s / (count * _ROUNDS),
        "rows_per_s": statistics.median(found),
    }


def family_cpu_s() -> float:
    """CPU seconds of this process, its ended children and all its living descendants.

    By parents, not by /proc/PID/task/PID/children: a JVM starts Python workers from any thread.
    """
    found: dict[int, tuple[int, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks = sum(int(field) for field in fields[11:15])
        found[int(stat.parent.name)] = (int(fields[1]), ticks / os.sysconf("SC_CLK_TCK"))
    family = {os.getpid()}
    grown = 0
    while len(family) > grown:
        grown = len(family)
        family |= {pid for pid, (parent, _) in found.items() if parent in family}
    return sum(found[pid][1] for pid in family)


if __name__ == "__main__":
    main()
