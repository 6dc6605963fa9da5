"""`format("tidelog")` of writes: as a batch and as a stream, on tidelog and on Apache Kafka."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.support.committed_values import committed_values
from tests.support.handbook import PAGES, blocks
from tests.support.spark_topics import DEADLINE_S, Topic, numbered
from tidelog.partitioning.hashing import hash_of_key
from tidelog.pipeline import write_ordered
from tidelog.pipeline.spark_errors import one_line

pytestmark = pytest.mark.spark

Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def partitions_of(topic: Topic) -> dict[int, list[Record]]:
    """What a topic has, as librdkafka reads it: key, value and headers by partition."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": topic.bootstrap, "group.id": "none", "enable.partition.eof": True}
    )
    listed = consumer.list_topics(topic.name, DEADLINE_S).topics[topic.name].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic.name, part, 0) for part in listed])
    found: dict[int, list[Record]] = {part: [] for part in listed}
    left = set(listed)
    while left:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, f"partitions {left} have no end"
        if message.error() is None:
            record = (message.key(), message.value(), message.headers() or [])
            found[message.partition()].append(record)
        elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
            left.discard(message.partition())
        else:
            raise AssertionError(message.error())
    consumer.close()
    return found


def run(writer: DataStreamWriter, topic: Topic, checkpoint: Path, **options: str) -> None:
    """Run a stream to its end."""
    given = {"kafka.bootstrap.servers": topic.bootstrap, "topic": topic.name, **options}
    query = (
        writer.options(checkpointLocation=str(checkpoint), **given)
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(DEADLINE_S), "the query does not end"
    finally:
        query.stop()


def failure(rows: DataFrame, topic: Topic, **options: str) -> str:
    given = {"kafka.bootstrap.servers": topic.bootstrap, "topic": topic.name, **options}
    with pytest.raises(PySparkException) as failed:
        rows.write.format("tidelog").options(**given).mode("append").save()
    return one_line(failed.value)


@pytest.mark.parametrize("where", ["tidelog", "kafka"])
def test_rows_are_written_where_their_keys_belong(
    spark: SparkSession,
    topic: Topic,
    where: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """Keys by murmur2, nulls, headers; then a stream to two topics and fixed partitions."""
    if where == "kafka":
        topic = Topic(request.getfixturevalue("kafka_bootstrap"), topic.name)
    topic.create(3)
    rows = spark.range(3_000, numPartitions=2).selectExpr(
        "concat('k', id % 50) AS key",
        "if(id = 7, null, cast(id AS string)) AS value",
        "if(id % 2 = 0, array(struct('h' AS key, cast('x' AS binary) AS value)), null) AS headers",
        "id AS other",
    )
    options = {"kafka.bootstrap.servers": topic.bootstrap, "topic": topic.name}
    rows.write.format("tidelog").options(**options, **{"kafka.compression.type": "lz4"}).mode(
        "append"
    ).save()
    found = partitions_of(topic)
    assert sum(map(len, found.values())) == 3_000
    of_key: dict[bytes, list[int]] = {}
    for part, records in found.items():
        for key, value, headers in records:
            assert key is not None and hash_of_key(key) % 3 == part
            number = 7 if value is None else int(value)
            assert headers == ([("h", b"x")] if number % 2 == 0 else [])
            of_key.setdefault(key, []).append(number)
    # Two tasks write beside each other; each keeps its order.
    for key, numbers in of_key.items():
        for half in (range(1_500), range(1_500, 3_000)):
            mine = [number for number in numbers if number in half]
            assert mine == [n for n in half if n % 50 == int(key[1:])]

    other = Topic(topic.bootstrap, f"{topic.name}-other").create(2)
    source = Topic(topic.bootstrap, f"{topic.name}-source").create(1).write(numbered(40))
    copied = source.stream(spark, maxOffsetsPerTrigger=15).selectExpr(
        f"if(offset % 4 = 0, '{other.name}', '{topic.name}') AS topic",
        "value",
        "cast(if(offset % 4 = 0, 1, 2) AS int) AS partition",
    )
    writer = copied.writeStream.format("tidelog").queryName(f"q{where}")
    writer.options(
        checkpointLocation=str(tmp_path / "c"), **{"kafka.bootstrap.servers": topic.bootstrap}
    ).trigger(availableNow=True).start().awaitTermination(DEADLINE_S)
    moved = partitions_of(other)
    assert [value for _, value, _ in moved[1]] == [b"v%d" % n for n in range(0, 40, 4)]
    assert moved[0] == []
    late = [value for _, value, _ in partitions_of(topic)[2] if value and value[:1] == b"v"]
    assert late == [b"v%d" % n for n in range(40) if n % 4]


def test_keys_keep_their_order_through_a_shuffle_and_a_growth(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """The source grows, and so does the target between two runs; rows are shuffled by key."""
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})

    def grow(grown: Topic, count: int) -> None:
        wanted = confluent_kafka.admin.NewPartitions(grown.name, count)
        admin.create_partitions([wanted])[grown.name].result(DEADLINE_S)

    def numbers(first: int) -> list[tuple[bytes | None, bytes | None]]:
        return [(b"k%d" % (n % 40), b"%d" % n) for n in range(first, first + 4_000)]

    source = Topic(topic.bootstrap, f"{topic.name}-source").create(1)
    topic.create(2)
    source.write(numbers(0))
    rows = source.stream(spark, maxOffsetsPerTrigger=1_500).drop("topic", "partition")
    run(write_ordered(rows, tasks=2), topic, tmp_path / "c")
    grow(source, 2)
    grow(topic, 3)
    source.write(numbers(4_000), partition=0)
    run(write_ordered(rows, tasks=2), topic, tmp_path / "c")
    # The homes of 40 keys after a growth from 2 to 3: each key's later rows follow its earlier.
    seen: dict[bytes, list[tuple[int, int]]] = {}
    for part, records in partitions_of(topic).items():
        for key, value, _ in records:
            seen.setdefault(key or b"", []).append((part, int(value or b"")))
    assert sum(map(len, seen.values())) == 8_000 and len(seen) == 40
    for places in seen.values():
        for part in {part for part, _ in places}:
            mine = [number for where, number in places if where == part]
            assert mine == sorted(mine)
        ends = [max(n for part, n in places if part == one) for one in {p for p, _ in places}]
        assert len(ends) <= 2
    assert any(part == 2 for places in seen.values() for part, _ in places)

    batch = Topic(topic.bootstrap, f"{topic.name}-batch").create(2)
    write_ordered(source.read(spark).drop("topic", "partition"), tasks=2).options(
        **{"kafka.bootstrap.servers": batch.bootstrap, "topic": batch.name}
    ).save()
    for records in partitions_of(batch).values():
        for wanted in {key for key, _, _ in records}:
            mine = [int(value or b"") for key, value, _ in records if key == wanted]
            assert mine == sorted(mine) and len(mine) == 200


def test_what_is_wrong_is_said_in_one_line_and_fails_the_job(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.create(1, **{"max.message.bytes": 2_000})
    good = spark.range(3).selectExpr("cast(id AS string) AS value")
    quick = {"kafka.request.timeout.ms": "2000", "kafka.max.block.ms": "2000"}
    assert "the rows have no column value" in failure(good.toDF("v"), topic)
    assert "option topics does not exist for a write" in failure(good, topic, topics="t")
    unreached = failure(good, topic, **{"kafka.bootstrap.servers": "127.0.0.1:1"}, **quick)
    assert "127.0.0.1:1" in unreached
    large = good.selectExpr("repeat('x', 5000) AS value")
    assert "rows of a task were not written" in failure(large, topic)
    assert "MESSAGE_TOO_LARGE" in failure(large, topic)
    beyond = good.selectExpr("value", "cast(9 AS int) AS partition")
    assert f"{topic.name}-9" in failure(beyond, topic)
    nulls = good.selectExpr("value", "cast(null AS string) AS topic")
    with pytest.raises(PySparkException) as failed:
        nulls.write.format("tidelog").option("kafka.bootstrap.servers", topic.bootstrap).mode(
            "append"
        ).save()
    assert "a row has no topic (null)" in one_line(failed.value)
    with pytest.raises(PySparkException) as failed:
        good.write.format("tidelog").option("topic", topic.name).mode("overwrite").save()
    assert "a topic is only appended to" in one_line(failed.value)
    assert partitions_of(topic) == {0: []}
    source = Topic(topic.bootstrap, f"{topic.name}-source").create(1).write(numbered(3))
    lines = source.stream(spark).selectExpr("value", "cast(9 AS int) AS partition")
    with pytest.raises(PySparkException) as failed:
        run(lines.writeStream.format("tidelog"), topic, tmp_path / "c")
    assert f"{topic.name}-9" in one_line(failed.value)


@pytest.mark.parametrize("option", ["", '.option("transactionalId", "arrivals-of-flights")'])
def test_the_example_of_the_handbook(
    spark: SparkSession, topic: Topic, tmp_path: Path, option: str
) -> None:
    """At least once, and exactly once."""
    source = Topic(topic.bootstrap, f"{topic.name}-source").create(2).write(numbered(30))
    topic.create(3)
    (example,) = [block.text for block in blocks() if '"topic", "arrivals"' in block.text]
    assert option in (PAGES / "pipeline.md").read_text()
    example = example.replace("    .start()", f"    {option}.start()")
    for shown, meant in (
        ("localhost:9092", topic.bootstrap),
        ('"arrivals"', f'"{topic.name}"'),
        ("/data/checkpoints", str(tmp_path)),
    ):
        example = example.replace(shown, meant)
    names = {"rows": source.stream(spark, includeHeaders="true")}
    exec(example, names)
    query = names["query"]
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert written(topic) == [b"v%d" % n for n in range(30)]


@pytest.mark.parametrize("where", ["kafka", "tidelog"])
def test_a_stream_is_written_exactly_once(
    spark: SparkSession,
    topic: Topic,
    where: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """A batch runs again after its decision, and another after a task failed; then other queries
    take the sink's id."""
    if where == "kafka":
        topic = Topic(request.getfixturevalue("kafka_bootstrap"), topic.name)
    topic.create(3)
    source = Topic(topic.bootstrap, f"{topic.name}-source").create(2)
    source.write(numbered(50)).write(numbered(50, 50), partition=1)
    rows = source.stream(spark, maxOffsetsPerTrigger=40).select("key", "value")
    sink = {"transactionalId": f"sink-of-{topic.name}"}

    def write(rows: DataFrame, checkpoint: str = "c", **more: str) -> None:
        run(rows.writeStream.format("tidelog"), topic, tmp_path / checkpoint, **{**sink, **more})

    write(rows)
    wanted = [b"v%d" % number for number in range(100)]
    assert written(topic) == wanted
    # Spark does not know that its last batch was written: it runs again, and is passed over.
    last = max((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    source.write(numbered(20, 100))
    wanted += [b"v%d" % number for number in range(100, 120)]
    write(rows)
    assert written(topic) == wanted
    # A task that fails: nothing of its batch is to be seen, and no reader waits.
    source.write(numbered(20, 120))
    failing = rows.selectExpr("key", "value", "cast(if(value = 'v139', 9, 0) AS int) AS partition")
    with pytest.raises(PySparkException) as failed:
        write(failing)
    assert f"{topic.name}-9" in one_line(failed.value)
    assert written(topic) == wanted
    write(rows)
    wanted += [b"v%d" % number for number in range(120, 140)]
    assert written(topic) == wanted
    # Another query.
    with pytest.raises(PySparkException) as failed:
        write(rows, "other")
    assert "belongs to query" in one_line(failed.value)
    write(rows, "other", onNewQuery="reset")
    assert written(topic) == sorted(2 * wanted, key=int_of)
    with pytest.raises(PySparkException) as failed:
        write(rows, "third", transactionalId="")
    assert "option transactionalId is ''" in one_line(failed.value)
    assert "is for streams" in failure(source.read(spark).select("value"), topic, **sink)


def written(topic: Topic) -> list[bytes | None]:
    return sorted(committed_values(topic.bootstrap, topic.name), key=int_of)


def int_of(value: bytes | None) -> int:
    return int((value or b"v-1")[1:])
