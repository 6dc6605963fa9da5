"""Reads a topic with Spark and times it; run by `spark_read.py`, under one of two Sparks.

`spark_source.py FORMAT BOOTSTRAP TOPIC ROWS READS`: a batch read of the whole topic into the noop
sink on `local[2]`, READS times in one session; the first reads warm it up. The last line is
`{"rows_per_s": the best of the second half}`. Imports nothing but pyspark: the other Spark's venv
has no more.
"""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession


def main(source: str, bootstrap: str, topic: str, rows: int, reads: int) -> None:
    """Read, time, print."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "2g")
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    topic_rows = spark.read.format(source).options(**options).load()
    took_s = []
    for _ in range(reads):
        begun = time.perf_counter()
        topic_rows.select("value").write.format("noop").mode("overwrite").save()
        took_s.append(time.perf_counter() - begun)
    counted = topic_rows.count()
    assert counted == rows, f"{counted} of {rows} rows"
    print(json.dumps({"rows_per_s": rows / min(took_s[reads // 2 :]), "took_s": took_s}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
