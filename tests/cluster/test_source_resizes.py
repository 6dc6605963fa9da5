"""The Spark source through growth, shrinking, removal and growth again, on real processes.

No JVM: the calls are Spark's (tests/spark has Spark itself). The order that the source promises is
that of `(batch, offset)` and of `(epoch, offset)`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.support.clients import admin
from tests.support.cluster import TidelogCluster
from tests.support.micro_batches import MicroBatches, Row
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.resizes import resize
from tests.support.target import TARGET
from tidelog.client.cluster import ClusterSettings
from tidelog.partitioning.hashing import hash_of_key, partition_of
from tidelog.pipeline import brokers, resized_topics
from tidelog.pipeline.errors import DataLost, PipelineError
from tidelog.pipeline.planning.positions import Pid

pytestmark = [
    pytest.mark.long(40),
    pytest.mark.skipif(TARGET != "tidelog", reason="growing and shrinking is tidelog's"),
]

TOPIC = "t"
INITIAL = 2
KEYS = [b"key-%d" % number for number in range(40)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TidelogCluster]:
    config = {
        "auto.create.topics.enable": "false",
        "retired.check.interval.ms": "200",
        "retired.purge.delay.ms": "0",
    }
    with TidelogCluster(tmp_path, config=config) as started:
        yield started


class Writer:
    """Writes numbered records, each where linear hashing puts its key."""

    def __init__(self, cluster: TidelogCluster) -> None:
        self._cluster = cluster
        self._numbers: dict[bytes, int] = defaultdict(int)
        self.sent: list[tuple[bytes, bytes]] = []
        self.count = INITIAL

    def write(self, records: int = 400) -> None:
        failed: list[object] = []
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._cluster.bootstrap, "acks": "all"}
        )
        for number in range(records):
            key = KEYS[number % len(KEYS)]
            value = b"%d" % self._numbers[key]
            home = partition_of(hash_of_key(key), INITIAL, self.count)
            producer.produce(
                TOPIC, value, key, home, on_delivery=lambda error, _: error and failed.append(error)
            )
            producer.poll(0)
            self._numbers[key] += 1
            self.sent.append((key, value))
        assert producer.flush(DEADLINE_S) == 0 and not failed, failed

    def resize(self, count: int) -> None:
        resize(self._cluster.bootstrap, TOPIC, count)
        self.count = count


def options(cluster: TidelogCluster, **more: str) -> dict[str, str]:
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "fetchOffset.retryIntervalMs": "200",
    }
    return {**given, **more}


def out_of_order(rows: list[Row], *, by_epoch: bool = False) -> list[str]:
    """Records that come before an earlier one of their key, by batch or by resize epoch."""
    found = []
    last: dict[bytes, int] = {}
    for row in sorted(rows, key=lambda row: (row.epoch if by_epoch else row.batch, row.offset)):
        if int(row.value) <= last.get(row.key, -1):
            found.append(f"{row} after {last[row.key]}")
        last[row.key] = int(row.value)
    return found


def check(stream: MicroBatches, writer: Writer) -> None:
    assert sorted((row.key, row.value) for row in stream.rows) == sorted(writer.sent)
    assert out_of_order(stream.rows) == []
    assert out_of_order(stream.rows, by_epoch=True) == []


def test_a_checkpoint_from_before_the_first_resize_is_read_on_in_order(
    cluster: TidelogCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 -> 5 -> 3 with data at each count, and a driver that dies after every other plan."""
    cluster.create_topic(TOPIC, INITIAL)
    writer = Writer(cluster)
    writer.write()
    live = MicroBatches(options(cluster, maxOffsetsPerTrigger="300"))
    with monkeypatch.context() as patched:
        # A topic that was never resized costs no further request.
        for name in ("describe_fences", "describe_former"):
            patched.setattr(resized_topics, name, None)
        patched.setattr(brokers, "describe_former", None)
        assert live.run() and live.run(), "the checkpoint is from before the first resize"
    assert live.offsets[-1]["topics"][TOPIC]["resizeEpoch"] == 0
    for count in (5, 3):
        writer.resize(count)
        writer.write()
        live.run(die=True)
    live.drain(die=True)
    check(live, writer)
    assert {row.epoch for row in live.rows} == {0, 1, 2}
    # One that sees all of it afterwards reads level by level.
    late = MicroBatches(options(cluster))
    assert late.drain() >= 4
    check(late, writer)
    # The same history without gates: what they are for.
    ungated = MicroBatches(
        options(cluster, gates="off", columns="key,value,partition,offset,epoch")
    )
    with pytest.raises(AssertionError, match="a key came from two partitions"):
        ungated.drain()
    some = options(cluster, assign='{"t":[1,4]}')
    del some["subscribe"]
    alone = MicroBatches(some)
    with pytest.raises(PipelineError, match="names t-1, whose keys were in t-3"):
        alone.run()


def test_a_group_lets_retired_partitions_go_and_the_next_ones_go_on(
    cluster: TidelogCluster,
) -> None:
    """retired.purge=drained: what the stream commits is what the cluster waits for."""
    cluster.create_topic(TOPIC, INITIAL, retired_purge="drained")
    writer = Writer(cluster)
    stream = MicroBatches(options(cluster, **{"kafka.group.id": "archive"}))
    writer.write()
    stream.drain()
    for is_last in (False, True):
        writer.resize(5)
        writer.write()
        stream.run()
        writer.resize(3)
        # No group has read them: they stay.
        assert sorted(cluster.partitions(TOPIC)) == list(range(5))
        if is_last:
            # Drivers die before they commit, and no other data comes: an empty batch lets Spark
            # commit the one before it.
            while "drainsReported" not in stream.offsets[-1]:
                assert stream.run(die=True)
            assert stream.run()
        else:
            writer.write()
            stream.drain()
        wait_until(lambda: len(cluster.partitions(TOPIC)) == 3, DEADLINE_S, "retirees are removed")
        check(stream, writer)
        stream.drain(die=True)
    ends = stream.offsets[-1]["topics"][TOPIC]["positions"]
    assert sorted(ends) == [str(number) for number in range(5)], "no position is forgotten"
    # Removed partitions are no loss for a reader that begins now, nor are their numbers in use.
    late = MicroBatches(options(cluster))
    late.drain()
    assert out_of_order(late.rows) == []


def test_what_was_removed_unread_is_a_loss_and_said(cluster: TidelogCluster) -> None:
    """One stream had begun to read the partitions, another was away all the time."""
    cluster.create_topic(TOPIC, INITIAL)
    writer = Writer(cluster)
    writer.write()
    begun = MicroBatches(options(cluster))
    away = MicroBatches(options(cluster))
    begun.drain()
    away.drain()
    writer.resize(4)
    writer.write()
    begun.drain()
    writer.write()
    writer.resize(2)
    client = admin(cluster.bootstrap)
    last = {number: confluent_kafka.TopicPartition(TOPIC, number, -1) for number in (2, 3)}
    for result in client.delete_records(list(last.values())).values():
        result.result(DEADLINE_S)
    wait_until(lambda: len(cluster.partitions(TOPIC)) == 2, DEADLINE_S, "retirees are removed")
    for stream in (begun, away):
        with pytest.raises(DataLost, match="t-2: the partition was removed after a shrink"):
            stream.drain()
    kept = MicroBatches(options(cluster, failOnDataLoss="false"), away.offsets, away.rows)
    kept.drain()
    homes = {key: partition_of(hash_of_key(key), INITIAL, 4) for key in KEYS}
    lost = [row for row in kept.rows if homes[row.key] >= 2 and row.epoch == 1]
    assert not lost and out_of_order(kept.rows) == []
    writer.resize(4)
    writer.write()
    kept.drain(die=True)
    assert out_of_order(kept.rows) == []
    assert {row.value for row in kept.rows if row.epoch == 3} == {
        value for _, value in writer.sent[-400:]
    }


@pytest.mark.parametrize(
    ("look", "poll_ms"),
    [("former", 120_000), ("fences", 120_000), ("fences", 1_000)],
    ids=["before its fences", "before a fetch", "before a fetch that gives up"],
)
@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
def test_a_partition_is_removed_between_two_requests_of_a_task(
    cluster: TidelogCluster,
    monkeypatch: pytest.MonkeyPatch,
    look: str,
    poll_ms: int,
    is_read: bool,
) -> None:
    """Its range ends with the seal. A task waited an hour for brokers that know the partition."""
    quick = partial(ClusterSettings, default_api_timeout_ms=2_000)
    monkeypatch.setattr(brokers, "ClusterSettings", quick)
    cluster.create_topic(TOPIC, INITIAL)
    writer = Writer(cluster)
    given = options(cluster, **{"kafkaConsumer.pollTimeoutMs": str(poll_ms)})
    stream = MicroBatches(given)
    writer.resize(3)
    writer.write()
    if is_read:
        stream.drain()
    writer.resize(2)
    sought, client = getattr(brokers.Brokers, look), admin(cluster.bootstrap)

    def and_removed(access: brokers.Brokers, pid: Pid, *more: Any) -> Any:
        found = sought(access, pid, *more)
        if pid.partition == 2 and len(cluster.partitions(TOPIC)) == 3:
            retired = confluent_kafka.TopicPartition(TOPIC, 2, -1)
            client.delete_records([retired])[retired].result(DEADLINE_S)
            wait_until(lambda: len(cluster.partitions(TOPIC)) == 2, DEADLINE_S, "it is removed")
        return found

    monkeypatch.setattr(brokers.Brokers, look, and_removed)
    if is_read:
        stream.drain()
        check(stream, writer)
    else:
        with pytest.raises(DataLost, match="t-2: the partition was removed after a shrink"):
            stream.drain()
    assert len(cluster.partitions(TOPIC)) == 2
