"""One Spark session for all tests of this folder, and topics on tidelog and on Apache Kafka.

A JVM costs seconds on two cores: tests share the session and take topics and folders of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support import java
from tests.support.compiled_pyspark import compile_pyspark
from tests.support.kafka import KafkaNode
from tests.support.spark_topics import DEADLINE_S, JVM, Topic
from tidelog.pipeline.session import session

# A few rows a query: to compile its code costs more than to interpret it.
LEAN = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    compile_pyspark()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2]; skipped, in one line, only where there is no Java."""
    if java.missing() is not None and "Java" in str(java.missing()):
        pytest.skip(str(java.missing()))
    settings = {**LEAN, "spark.driver.extraJavaOptions": JVM, "spark.sql.shuffle.partitions": "2"}
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    with session("tests", "local[2]", settings, log) as made:
        yield made


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Apache Kafka."""
    if java.missing() is not None:
        pytest.skip(str(java.missing()))
    with KafkaNode(tmp_path_factory.mktemp("kafka")) as node:
        yield node.bootstrap


@pytest.fixture
def topic(bootstrap: str, topic_name: str) -> Topic:
    """A topic of the target that does not exist yet."""
    return Topic(bootstrap, topic_name)


@pytest.fixture
def drain(spark: SparkSession, tmp_path: Path) -> Callable[..., list[dict[str, object]]]:
    """`drain(rows)` reads a stream to its end and returns the rows; the checkpoint stays.

    `drain.last` is the query of the last run.
    """

    def run(rows: DataFrame, checkpoint: str = "checkpoint") -> list[dict[str, object]]:
        found: list[dict[str, object]] = []

        def keep(batch: DataFrame, number: int) -> None:
            found.extend({**row.asDict(), "batch": number} for row in batch.collect())

        query: StreamingQuery = (
            rows.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(DEADLINE_S), "the query does not end"
        finally:
            run.last = query  # type: ignore[attr-defined]
            query.stop()
        return found

    return run
