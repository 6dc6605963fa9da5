"""`format("tidelog")` as batch and stream, on tidelog and on Apache Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support import old_checkpoint
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.spark_topics import Topic, delete_records, numbered
from tidelog.pipeline.errors import DataLost, TopicChanged
from tidelog.pipeline.lag import LagListener, lag_of
from tidelog.pipeline.options import Mode, parse
from tidelog.pipeline.planning.positions import Pid
from tidelog.pipeline.planning.ranges import OffsetRange
from tidelog.pipeline.spark_errors import one_line
from tidelog.pipeline.tasks import ReadTask, read_task

pytestmark = pytest.mark.spark

Drain = Callable[..., list[dict[str, object]]]

LATEST = {"startingOffsetsByTimestampStrategy": "latest"}


@pytest.mark.parametrize("where", ["tidelog", "kafka"])
def test_a_batch_read_gives_what_was_written(
    spark: SparkSession, topic: Topic, where: str, request: pytest.FixtureRequest
) -> None:
    """All compressions, keys and values that are null, headers; then both ends of a read."""
    if where == "kafka":
        topic = Topic(request.getfixturevalue("kafka_bootstrap"), topic.name)
    topic.create(2)
    wanted = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        records = [(b"k", codec.encode() * 20), (None, b"no key"), (b"gone", None)]
        topic.write(
            records, headers=[("h", codec.encode()), ("null", None)], **{"compression.type": codec}
        )
        wanted += [(key, value, codec.encode()) for key, value in records]
    rows = topic.read(spark, includeHeaders="true").orderBy("partition", "offset").collect()
    assert [(row.key, row.value, row.headers[0].value) for row in rows] == wanted
    assert [row.offset for row in rows] == list(range(15))
    assert {(row.topic, row.partition, row.timestampType, row.epoch) for row in rows} == {
        (topic.name, 0, 0, 0)
    }
    assert rows[0].headers[1].key == "null" and rows[0].headers[1].value is None
    some = topic.read(
        spark,
        startingOffsets=json.dumps({topic.name: {"0": 4, "1": -2}}),
        endingOffsets=json.dumps({topic.name: {"0": 9, "1": -1}}),
        columns="offset,value",
        minPartitions=3,
    )
    assert some.columns == ["value", "offset"]
    assert some.rdd.getNumPartitions() == 3
    assert sorted(row.offset for row in some.collect()) == [4, 5, 6, 7, 8]


def test_times_patterns_and_assignments(spark: SparkSession, topic: Topic) -> None:
    # Timestamps of 1970: retention must not look at them.
    topic.create(2, retention_ms=-1).write(numbered(4), timestamps_ms=[1000, 2000, 3000, 4000])
    topic.write(numbered(1), partition=1, timestamps_ms=[9000])

    def offsets(**options: object) -> list[tuple[int, int]]:
        found = topic.read(spark, **options).select("partition", "offset").collect()
        return sorted((row.partition, row.offset) for row in found)

    assert offsets(startingTimestamp=2500, endingTimestamp=3500) == [(0, 2)]
    by_partition = json.dumps({topic.name: {"0": 4000, "1": 1}})
    assert offsets(startingOffsetsByTimestamp=by_partition) == [(0, 3), (1, 0)]
    assert offsets(subscribe=None, subscribePattern=f"{topic.name[:-1]}.") == [
        (0, 0), (0, 1), (0, 2), (0, 3), (1, 0),
    ]  # fmt: skip
    assert offsets(subscribe=None, assign=json.dumps({topic.name: [1]})) == [(1, 0)]
    with pytest.raises(PySparkException) as failed:
        offsets(startingTimestamp=5000)
    assert "no record at or after 5000 ms" in one_line(failed.value)
    assert "option startingTimestamp: " in one_line(failed.value)
    assert offsets(startingTimestamp=5000, startingOffsetsByTimestampStrategy="latest") == [(1, 0)]
    # Nothing to read is zero rows, not an error: a start after the end, a window without records.
    assert offsets(startingTimestamp=9999, startingOffsetsByTimestampStrategy="latest") == []
    assert offsets(startingTimestamp=4500, endingTimestamp=4600, **LATEST) == []
    whole = json.dumps({topic.name: {"0": 4, "1": 1}})
    empty = topic.read(spark, startingOffsets=whole)
    assert empty.count() == 0 and empty.select("value").where("offset > 3").collect() == []
    assert topic.read(spark, startingOffsets=whole, columns="offset").groupBy().count().collect()


def test_nothing_to_read_is_zero_rows(spark: SparkSession, topic: Topic, drain: Drain) -> None:
    topic.create(2)
    for columns in ({}, {"columns": "offset"}, {"includeHeaders": "true"}):
        rows = topic.read(spark, minPartitions=4, **columns)
        assert rows.count() == 0 and rows.collect() == [] and rows.distinct().count() == 0
    assert topic.read(spark, endingTimestamp=1).union(topic.read(spark)).count() == 0
    assert drain(topic.stream(spark)) == []
    for options, line in (
        ({"startingOffsets": (9, 0), "endingOffsets": (3, 1)}, "names 9 for"),
        ({"startingOffsets": (10**6, 0)}, "whose log ends at 0"),
        ({"startingTimestamp": 9, "endingTimestamp": 8}, "after endingTimestamp 8"),
    ):
        given = {
            name: json.dumps({topic.name: dict(enumerate(each))}) if "Off" in name else each
            for name, each in options.items()
        }
        with pytest.raises(PySparkException) as failed:
            topic.read(spark, **given).collect()
        assert line in one_line(failed.value)
    beyond = json.dumps({topic.name: {"0": 10**6, "1": 0}})
    assert topic.read(spark, startingOffsets=beyond, failOnDataLoss="false").count() == 0
    with pytest.raises(PySparkException) as failed:
        drain(topic.stream(spark, startingOffsets=beyond), "beyond")
    assert "1000000" in one_line(failed.value)


def test_a_trigger_that_would_read_nothing_is_refused(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    rows = topic.create().write(numbered(3)).stream(spark)
    sink = rows.writeStream.foreachBatch(lambda batch, _: batch.count())
    query = sink.option("checkpointLocation", str(tmp_path / "once")).trigger(once=True).start()
    with pytest.raises(PySparkException) as failed:
        query.awaitTermination(DEADLINE_S)
    assert "set trigger(availableNow=True)" in one_line(failed.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"startingOffset": "earliest"}, "option startingOffset does not exist"),
        ({"subscribe": "no-such-topic"}, "topic no-such-topic does not exist"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    spark: SparkSession, topic: Topic, options: dict[str, str], line: str
) -> None:
    quick = {"fetchOffset.numRetries": "0", "kafka.request.timeout.ms": "2000"}
    with pytest.raises(PySparkException) as failed:
        topic.create().read(spark, **quick, **options).collect()
    # Spark hands options on in lower case.
    assert line.lower() in one_line(failed.value).lower()


@pytest.mark.parametrize("where", ["tidelog", "kafka"])
def test_a_stream_is_limited_resumes_and_commits_to_its_group(
    spark: SparkSession, topic: Topic, drain: Drain, where: str, request: pytest.FixtureRequest
) -> None:
    if where == "kafka":
        topic = Topic(request.getfixturevalue("kafka_bootstrap"), topic.name)
    topic.create(2).write(numbered(60)).write(numbered(30), partition=1)
    stream = topic.stream(
        spark, maxOffsetsPerTrigger=45, **{"kafka.group.id": f"{topic.name}-group"}
    )
    first = drain(stream)
    assert [sum(row["batch"] == number for row in first) for number in range(4)] == [0, 45, 45, 0]
    progress = drain.last.lastProgress  # type: ignore[attr-defined]
    source = progress["sources"][0]
    lag = lag_of(source["endOffset"], source["latestOffset"])
    assert lag is not None and lag.total == 0
    topic.write(numbered(5, 60))
    again = drain(stream)
    assert sorted(row["value"] for row in again) == sorted(b"v%d" % n for n in range(60, 65))
    # Spark commits a batch when the next one is in its log, and the source the last one of a run.
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": topic.bootstrap, "group.id": f"{topic.name}-group"}
    )
    parts = [confluent_kafka.TopicPartition(topic.name, number) for number in (0, 1)]
    assert [part.offset for part in consumer.committed(parts, timeout=DEADLINE_S)] == [65, 30]
    consumer.close()
    topic.write(numbered(5, 65))
    from_group = topic.read(
        spark, startingOffsets="group", **{"kafka.group.id": f"{topic.name}-group"}
    )
    assert from_group.count() == 5


def test_aborted_transactions_of_apache_kafka(
    spark: SparkSession, kafka_bootstrap: str, topic_name: str, drain: Drain
) -> None:
    """What was aborted is left out when that is asked for."""
    topic = Topic(kafka_bootstrap, topic_name).create()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka_bootstrap, "transactional.id": topic_name}
    )
    producer.init_transactions(DEADLINE_S)
    for values, ends in (("ab", True), ("cd", False), ("e", True)):
        producer.begin_transaction()
        for value in values:
            producer.produce(topic.name, value)
        producer.flush(DEADLINE_S)
        end = producer.commit_transaction if ends else producer.abort_transaction
        end(DEADLINE_S)
    level = "kafka.isolation.level"
    committed = {level: "read_committed"}
    assert {row.value for row in topic.read(spark, **committed).collect()} == {b"a", b"b", b"e"}
    assert topic.read(spark, **{level: "read_uncommitted"}).count() == 5
    assert [row["value"] for row in drain(topic.stream(spark, **committed))] == [b"a", b"b", b"e"]


def test_a_run_that_ends_does_not_wait_for_more(
    spark: SparkSession, topic: Topic, drain: Drain
) -> None:
    """AvailableNow reads all that was there, also what is less than minOffsetsPerTrigger."""
    topic.create().write(numbered(25))
    rows = drain(topic.stream(spark, minOffsetsPerTrigger=10, maxOffsetsPerTrigger=20))
    assert [row["offset"] for row in rows] == list(range(25))


def test_new_records_of_a_new_partition_are_read(
    spark: SparkSession, topic: Topic, drain: Drain
) -> None:
    topic.create(1).write(numbered(3))
    stream = topic.stream(spark)
    assert len(drain(stream)) == 3
    grown = confluent_kafka.admin.NewPartitions(topic.name, 2)
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.create_partitions([grown])[topic.name].result(DEADLINE_S)
    topic.write(numbered(2), partition=1)
    # Its first record is the fence of its birth.
    assert [(row["partition"], row["offset"]) for row in drain(stream)] == [(1, 1), (1, 2)]


def created_again(topic: Topic, partitions: int = 1) -> None:
    """Delete a topic and create another one of its name."""
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.delete_topics([topic.name])[topic.name].result(DEADLINE_S)

    def created() -> bool:
        try:
            topic.create(partitions)
        except confluent_kafka.KafkaException:
            return False
        return True

    # A deletion takes its time.
    wait_until(created, DEADLINE_S, "the topic can be created again", 0.2)


def test_a_topic_that_is_created_again_is_another_one(
    spark: SparkSession, topic: Topic, drain: Drain
) -> None:
    """P13: refused, or, when losses are not, read from its start while the others go on."""
    other = Topic(topic.bootstrap, f"{topic.name}-other").create().write(numbered(2))
    topic.create().write(numbered(3))
    both = {"subscribe": None, "subscribePattern": f"{topic.name}.*"}
    stream = topic.stream(spark, **both)
    drain(stream)
    created_again(topic)
    topic.write(numbered(5))
    other.write(numbered(2, 2))
    with pytest.raises(PySparkException) as failed:
        drain(stream)
    assert "deleted and created again" in one_line(failed.value)
    rows = drain(topic.stream(spark, failOnDataLoss="false", **both))
    assert sorted((row["topic"], row["offset"]) for row in rows) == [
        *((topic.name, offset) for offset in range(5)),
        (other.name, 2),
        (other.name, 3),
    ]


def test_a_checkpoint_of_commit_02f3bcb_is_continued(
    spark: SparkSession, bootstrap: str, drain: Drain, tmp_path: Path
) -> None:
    """P23: also a batch that was not finished, with a partition that is new in it."""
    old_checkpoint.fill(bootstrap)
    old_checkpoint.grow(bootstrap)
    checkpoint = old_checkpoint.unpack(tmp_path, bootstrap)
    last = max(int(path.name) for path in checkpoint.glob("offsets/[0-9]*"))
    assert not (checkpoint / "commits" / str(last)).exists()
    old_checkpoint.produce(bootstrap, 0, 4, 5)
    stream = Topic(bootstrap, old_checkpoint.TOPIC).stream(spark)
    rows = [(row["partition"], row["offset"], row["batch"]) for row in drain(stream)]
    assert sorted(rows) == [(0, 3, last), (0, 4, last + 1), (1, 0, last)]
    log = (checkpoint / "offsets" / f"{last + 1}").read_text().splitlines()[-1]
    written = json.loads(log)["topics"][old_checkpoint.TOPIC]
    assert written["positions"] == {"0": [5, written["positions"]["0"][1]], "1": [1, -1]}
    assert written["positions"]["0"][1] >= 0, "the leader epoch"
    assert drain(stream) == []


def test_data_lost_to_retention(spark: SparkSession, topic: Topic, drain: Drain) -> None:
    topic.create().write(numbered(10))
    stream = topic.stream(spark, startingOffsets=json.dumps({topic.name: {"0": 0}}))
    drain(stream)
    topic.write(numbered(10, 10))
    delete_records(topic, 15)
    with pytest.raises(PySparkException) as failed:
        drain(stream)
    assert "offsets 10 to 14 were removed before they were read" in one_line(failed.value)
    rows = drain(topic.stream(spark, failOnDataLoss="false"))
    assert [row["offset"] for row in rows] == [15, 16, 17, 18, 19]
    late = {"endingOffsets": json.dumps({topic.name: {"0": 99}})}
    with pytest.raises(PySparkException) as failed:
        topic.read(spark, **late).collect()
    assert "names 99 for" in one_line(failed.value)
    assert topic.read(spark, failOnDataLoss="false", **late).count() == 5
    start = json.dumps({topic.name: {"0": 3}})
    with pytest.raises(PySparkException) as failed:
        topic.read(spark, startingOffsets=start).collect()
    assert "offsets 3 to 14 were removed" in one_line(failed.value)
    assert topic.read(spark, startingOffsets=start, failOnDataLoss="false").count() == 5


def test_a_task_of_a_log_that_is_another_by_now(topic: Topic) -> None:
    """Truncated after the plan, or created again: the task does not wait and mixes nothing."""
    topic.create().write(numbered(5))
    quick = {"kafkaConsumer.pollTimeoutMs": 500, "failOnDataLoss": "false"}

    def read(end: int, topic_id: str = "", **options: object) -> int:
        parsed = parse(topic.options(**{**quick, **options}), Mode.BATCH)
        task = ReadTask(OffsetRange(Pid(topic.name, 0), 0, end), topic_id)
        return sum(batch.num_rows for batch in read_task(parsed, task))

    assert read(20) == 5
    with pytest.raises(DataLost, match="the log ends at 5, before the position 20"):
        read(20, failOnDataLoss="true")
    with pytest.raises(TopicChanged, match="was deleted or created again before it was read"):
        read(5, "an id of before")


def test_the_lag_listener(spark: SparkSession, topic: Topic, tmp_path: Path, drain: Drain) -> None:
    topic.create().write(numbered(20))
    seen: list[int] = []
    listener = LagListener(lambda name, lag: seen.append(lag.total))
    spark.streams.addListener(listener)
    try:
        drain(topic.stream(spark, maxOffsetsPerTrigger=10))
        wait_until(lambda: 0 in seen, DEADLINE_S, "a lag of 0 is reported")
    finally:
        spark.streams.removeListener(listener)
    assert sorted(set(seen), reverse=True) == [20, 10, 0]
