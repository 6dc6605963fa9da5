"""A topic on tidelog or on Apache Kafka, as the tests of Spark write and read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import confluent_kafka
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from tests.support import java
from tests.support.clients import create_topic

JVM = " ".join(java.START_FAST)
DEADLINE_S = 90.0


@dataclass(frozen=True)
class Topic:
    """A topic on one of the two brokers."""

    bootstrap: str
    name: str

    def create(self, partitions: int = 1, **config: object) -> Topic:
        create_topic(self.bootstrap, self.name, partitions, **config)
        return self

    def write(
        self,
        records: Sequence[tuple[bytes | None, bytes | None]],
        *,
        partition: int = 0,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamps_ms: Sequence[int] | None = None,
        **config: object,
    ) -> Topic:
        """Produce with librdkafka and wait until all is acked."""
        failed: list[object] = []
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 20, **config}
        )
        for index, (key, value) in enumerate(records):
            stamp = {} if timestamps_ms is None else {"timestamp": timestamps_ms[index]}
            producer.produce(
                self.name,
                value,
                key,
                partition,
                on_delivery=lambda error, _: error and failed.append(error),
                headers=list(headers) or None,
                **stamp,
            )
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0 and not failed, failed
        return self

    def options(self, **more: object) -> dict[str, str]:
        given = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.name, **more}
        return {key: str(value) for key, value in given.items() if value is not None}

    def read(self, spark: SparkSession, **options: object) -> DataFrame:
        return spark.read.format("tidelog").options(**self.options(**options)).load()

    def stream(self, spark: SparkSession, **options: object) -> DataFrame:
        defaults = {"startingOffsets": "earliest"}
        given = self.options(**{**defaults, **options})
        return spark.readStream.format("tidelog").options(**given).load()


def numbered(count: int, first: int = 0) -> list[tuple[bytes | None, bytes | None]]:
    return [(b"k%d" % (n % 5), b"v%d" % n) for n in range(first, first + count)]


def delete_records(topic: Topic, before: int) -> None:
    place = confluent_kafka.TopicPartition(topic.name, 0, before)
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.delete_records([place])[place].result(DEADLINE_S)
