"""Run by Spark 4.0's own Python: the stock Kafka source and sink against a topic.

`stock_job.py BOOTSTRAP TOPIC CHECKPOINT` writes ten keyed rows as a batch and ten as a stream,
reads all of them back as a batch and as a stream, and prints what it saw as one line of JSON.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# A few rows a query: to compile its code costs more than to interpret it.
LEAN = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def main(bootstrap: str, topic: str, checkpoint: str) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.extraJavaOptions", JVM)
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    spark = builder.config(map=LEAN).getOrCreate()
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    rows = spark.range(10).selectExpr(
        "concat('k', id) AS key", "concat('batch', id) AS value", "cast(id % 2 AS int) AS partition"
    )
    sink = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    rows.write.format("kafka").options(**sink).save()
    batch = spark.read.format("kafka").options(**options).load()
    first = batch.count()
    copied = (
        spark.readStream.format("kafka")
        .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger="4")
        .load()
        .selectExpr("key", "replace(cast(value AS string), 'batch', 'stream') AS value")
        .writeStream.format("kafka")
        .options(**sink, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    copied.awaitTermination(90)
    seen: list[str] = []

    def keep(part: DataFrame, _: int) -> None:
        seen.extend(row.value for row in part.selectExpr("cast(value AS string) value").collect())

    query = (
        spark.readStream.format("kafka")
        .options(**options, startingOffsets="earliest")
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", f"{checkpoint}-read")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(90)
    print(json.dumps({"spark": spark.version, "batch": first, "stream": sorted(seen)}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
