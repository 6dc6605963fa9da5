"""A stream from topic to topic, exactly once, as a program of its own that a test kills.

`sink_job.py BOOTSTRAP SOURCE TARGET FOLDER` writes what the source has, in batches of 40 offsets,
and ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.killed_sink import FILE, KilledSink
from tests.support.spark_topics import JVM
from tidelog.pipeline.session import session


def main(bootstrap: str, source: str, target: str, folder: str) -> None:
    settings = {"spark.driver.extraJavaOptions": JVM}
    servers = {"kafka.bootstrap.servers": bootstrap}
    with session("sink", "local[2]", settings, Path(folder) / "spark.log") as spark:
        spark.dataSource.register(KilledSink)
        rows = (
            spark.readStream.format("tidelog")
            .options(**servers, subscribe=source, startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", 40)
            .load()
        )
        query = (
            rows.select("key", "value")
            .writeStream.format(FILE)
            .options(**servers, topic=target, transactionalId=f"sink-of-{target}")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
