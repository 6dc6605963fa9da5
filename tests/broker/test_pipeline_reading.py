"""What the source makes of real answers: logs that were cut, leaders that are away or lag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql.pandas.types import from_arrow_schema

from tests.support.lone_broker import LoneBroker, ThreadedBroker
from tests.support.processes import DEADLINE_S, wait_until
from tidelog.client.cluster import Cluster
from tidelog.client.fetching.batches import Fetched
from tidelog.client.metadata import ClusterMetadata, Partition, Topic
from tidelog.client.producing.sender import RecordSender
from tidelog.model.errors import ErrorCode
from tidelog.pipeline import brokers
from tidelog.pipeline.errors import DataLost, PipelineError, TopicChanged
from tidelog.pipeline.lookups import _chosen
from tidelog.pipeline.options import Mode, SourceOptions, parse
from tidelog.pipeline.planning.admission import AdmissionLimits
from tidelog.pipeline.planning.losses import LossKind
from tidelog.pipeline.planning.planner import plan
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.ranges import OffsetRange
from tidelog.pipeline.schema import arrow_schema
from tidelog.pipeline.stream_reader import StreamReader
from tidelog.pipeline.tasks import ReadTask, read_task
from tidelog.protocol.primitives import NO_UUID
from tidelog.records.batch import walk

QUICK = {
    "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "50",
    "kafkaConsumer.pollTimeoutMs": "500",
    "kafka.fetch.max.wait.ms": "50",
}


@dataclass
class Source:
    """A broker of its own and the source's way to it."""

    threaded: ThreadedBroker

    def run(self, work: Callable[[LoneBroker], object]) -> None:
        self.threaded.run(work)

    def options(self, **more: str) -> SourceOptions:
        given = {"kafka.bootstrap.servers": self.threaded.lone.bootstrap, "subscribe": "t"}
        named = {**given, **QUICK, **more}
        return parse({name: value for name, value in named.items() if value}, Mode.STREAM)

    def access(self, **more: str) -> brokers.Brokers:
        return brokers.connect(self.options(**more))

    def write(self, value: bytes, count: int) -> None:
        async def send() -> None:
            async with (
                asyncio.timeout(DEADLINE_S),
                Cluster(self.threaded.lone.bootstrap) as cluster,
                RecordSender(cluster) as sender,
            ):
                for _ in range(count):
                    await (await sender.send("t", value))

        asyncio.run(send())

    def lose_and_grow(self) -> None:
        """The next leader has nothing of epoch 0, and more records than there were."""

        def lose(lone: LoneBroker) -> None:
            lone.broker.partitions.stop("t", 0, delete=True)
            lone.lead("t", epoch=1)

        self.run(lose)
        self.write(b"later", 8)

    def read(
        self, start: int, end: int, *, planned_in: int = -1, topic_id: str = "", **more: str
    ) -> list[tuple[int, bytes]]:
        """The rows of a task of a stream."""
        task = ReadTask(OffsetRange(Pid("t", 0), start, end), topic_id, planned_in, of_stream=True)
        return [
            (row["offset"], row["value"])
            for batch in read_task(self.options(**more), task)
            for row in batch.to_pylist()
        ]

    def planned(self, known: Positions, **more: str) -> tuple[Positions, list[LossKind]]:
        made = plan(known, self.access().settled(self.options(**more), known), AdmissionLimits(), 0)
        return made.end, [loss.kind for loss in made.losses]

    def position(self, offset: int, epoch: int) -> Positions:
        """A position in `t-0` of the topic as it is."""
        found = self.access().glance(self.options())
        pid = next(iter(found.partitions))
        return Positions({pid: offset}, found.topic_ids, {pid: epoch})


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    """Five records of epoch 0 in `t-0`."""
    threaded = ThreadedBroker(tmp_path)
    with threaded:
        made = Source(threaded)
        made.run(lambda lone: lone.lead("t"))
        made.write(b"former", 5)
        try:
            yield made
        finally:
            for key in [each for each in brokers._clusters if threaded.lone.bootstrap in each]:
                brokers._clusters.pop(key)._client.close()


GO_ON = {"failOnDataLoss": "false"}


def test_the_source_goes_back_to_where_a_log_was_cut(source: Source) -> None:
    """P5: the log was cut at 0 and has grown beyond the position again."""
    start = source.position(5, 0)
    assert source.planned(start) == (start, [])
    source.lose_and_grow()
    end, losses = source.planned(start)
    assert (list(end.at.values()), losses) == ([0], [LossKind.REWOUND])
    end, losses = source.planned(end)
    assert (list(end.at.values()), list(end.epochs.values()), losses) == ([8], [1], [])


def test_a_task_reads_nothing_of_what_a_later_leader_wrote_over_its_range(source: Source) -> None:
    """P5: its batch was planned in epoch 0; the next plan goes back and reads it once."""
    assert len(source.read(0, 5, planned_in=0)) == 5
    source.lose_and_grow()
    assert source.read(0, 5, planned_in=0, **GO_ON) == []
    assert source.read(3, 5, planned_in=0, **GO_ON) == []
    for start in (0, 3):
        with pytest.raises(DataLost, match="the log ends at 0, before the position 5"):
            source.read(start, 5, planned_in=0)
    # Version 1 knew no epochs.
    assert source.read(0, 5) == [(n, b"later") for n in range(5)]


def test_another_leader_that_has_all_is_read_on(source: Source) -> None:
    start = source.position(3, 0)
    source.run(lambda lone: lone.lead("t", epoch=1))
    source.write(b"later", 3)
    assert len(source.read(3, 5, planned_in=0)) == 2
    assert len(source.read(0, 8, planned_in=1)) == 8
    # What is cut off is the rest alone.
    assert [offset for offset, _ in source.read(3, 8, planned_in=0, **GO_ON)] == [3, 4]
    end, losses = source.planned(start)
    assert (list(end.at.values()), list(end.epochs.values()), losses) == ([8], [1], [])


@pytest.mark.parametrize("bounds_are_older", [True, False])
def test_a_position_that_a_leader_refuses_is_asked_for_again(
    source: Source, bounds_are_older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: out of range, and a moment later within the log: nothing is skipped."""
    access = source.access()
    right, grown = access.bounds, []

    def bounds(pid: Pid, options: SourceOptions, *, readable: bool = True) -> tuple[int, int]:
        found = right(pid, options, readable=readable)
        if not grown:
            grown.append(found)
            source.write(b"late", 3)
        return found if bounds_are_older else right(pid, options, readable=readable)

    monkeypatch.setattr(access, "bounds", bounds)
    assert source.read(6, 8, **GO_ON) == [(6, b"late"), (7, b"late")]
    assert grown == [(0, 5)]


def test_a_position_beyond_the_end_is_lost_when_it_stays_there(source: Source) -> None:
    assert source.read(0, 9, **GO_ON) == [(n, b"former") for n in range(5)]
    assert source.read(7, 9, **GO_ON) == []
    with pytest.raises(DataLost, match="the log ends at 5, before the position 9"):
        source.read(0, 9)
    # Unknown epochs: asked twice before it is believed.
    end, losses = source.planned(source.position(7, -1))
    assert (list(end.at.values()), losses) == ([5], [LossKind.REWOUND])


def test_a_range_of_another_topic_id_ends_its_batch(source: Source) -> None:
    """P13: the batch is in the checkpoint, and its topic is gone for good."""
    assert source.read(0, 5, topic_id="of before", **GO_ON) == []
    with pytest.raises(TopicChanged, match="deleted or created again"):
        source.read(0, 5, topic_id="of before")


def test_a_partition_without_a_leader_holds_up_nothing_else(source: Source) -> None:
    """P21: its position stays; when it has a leader again, it is read on."""
    start = source.position(2, 0)
    options = {"subscribe": "t,u"}
    source.run(lambda lone: lone.lead("u", leader=-1))
    seen = source.access().settled(source.options(**options), start)
    (silent,) = seen.silent
    known = Positions(
        {**start.at, silent: 4},
        {**start.topic_ids, "u": silent.topic_id},
        {**start.epochs, silent: 0},
    )
    made = plan(known, seen, AdmissionLimits(), 0)
    assert sorted(made.end.at.values()) == [4, 5] and set(made.held) == {silent}
    with pytest.raises(PipelineError, match="u-0 cannot be read"):
        source.access().snapshot(source.options(**options, **{"fetchOffset.numRetries": "0"}))
    source.run(lambda lone: lone.lead("u", epoch=1))
    seen = source.access().settled(source.options(**options), known)
    assert not seen.silent


def test_a_topic_that_is_not_there_yet_is_asked_for_again(source: Source) -> None:
    """P4: a broker that does not know a topic yet returns an error."""
    patient = source.options(subscribe="late", **{"fetchOffset.numRetries": "1000"})
    access = source.access()
    right, looks = access._look_up, []

    def look(*args: object, **more: object) -> object:
        looks.append(args)
        return right(*args, **more)  # type: ignore[arg-type]

    access._look_up = look  # type: ignore[method-assign, assignment]
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(access.snapshot, patient)
        wait_until(lambda: len(looks) > 1, DEADLINE_S, "the topic is looked for again")
        source.run(lambda lone: lone.lead("late"))
        assert [pid.topic for pid in found.result(DEADLINE_S).partitions] == ["late"]
    with pytest.raises(PipelineError, match="topic never does not exist"):
        access.snapshot(source.options(subscribe="never"))
    with pytest.raises(PipelineError, match="topic never does not exist"):
        access.settled(source.options(subscribe="t,never"), source.position(5, 0))


def test_a_topic_in_error_does_not_drop_out_of_a_pattern() -> None:
    """P4: it stays unread, with its positions, and the others go on."""
    led = {0: Partition(0, 1, 0, (1,), (1,), ())}
    view = ClusterMetadata(
        topics={
            "t1": Topic("t1", NO_UUID, False, {}, int(ErrorCode.LEADER_NOT_AVAILABLE)),
            "t2": Topic("t2", NO_UUID, False, led),
        }
    )
    options = parse({"kafka.bootstrap.servers": "h:1", "subscribePattern": "t.*"}, Mode.STREAM)
    chosen, unread, missing = _chosen(view, options.subscription)
    assert list(chosen) == ["t2"] and not missing
    assert unread == {"t1": "LEADER_NOT_AVAILABLE"}


def reader(source: Source, **more: str) -> StreamReader:
    options = source.options(**more)
    return StreamReader(options, from_arrow_schema(arrow_schema(options.columns)))


def places(offset: dict[str, Any]) -> list[tuple[str, int]]:
    return [(pid.topic, at) for pid, at in sorted(Positions.from_json(offset).at.items())]


BOTH = {"subscribe": "t,u", "startingOffsets": "earliest"}


def test_a_stream_reads_the_rest_while_a_partition_has_no_leader(source: Source) -> None:
    """P21: onOutage=wait goes on, onOutage=fail and a run that ends do not hide it."""
    source.run(lambda lone: lone.lead("u"))
    stream = reader(source, **BOTH)
    start = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    assert places(start) == [("t", 0), ("u", 0)]
    source.run(lambda lone: lone.lead("u", leader=-1, epoch=1))
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert places(end) == [("t", 5), ("u", 0)]
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) is end
    with pytest.raises(PipelineError, match=r"u-0 cannot be read: .*\(onOutage=fail\)"):
        strict = reader(source, **BOTH, onOutage="fail")
        strict.latestOffset(start, strict.getDefaultReadLimit())
    ending = reader(source, **BOTH)
    ending.prepareForTriggerAvailableNow()
    assert ending.latestOffset(start, ending.getDefaultReadLimit()) == end
    with pytest.raises(
        PipelineError, match=r"u-0 cannot be read: .* all other partitions were read"
    ):
        ending.latestOffset(end, ending.getDefaultReadLimit())


def test_a_start_by_time_after_the_target_is_no_loss(source: Source) -> None:
    """P14: records come between the look at the ends and the look-up by time."""
    stream = reader(source, startingTimestamp="1")
    access = source.access()
    right = access.offsets_at

    def late(times: Mapping[Pid, int], options: SourceOptions) -> dict[Pid, int]:
        source.write(b"late", 3)
        return dict.fromkeys(right(times, options), 7)

    access.offsets_at = late  # type: ignore[method-assign]
    stream.prepareForTriggerAvailableNow()
    start = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    assert places(start) == [("t", 7)]
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert places(end) == [("t", 8)]
    source.write(b"later", 1)
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) is end, "the run has its target"


def test_a_topic_that_is_dropped_is_no_loss_and_is_read_on_when_it_comes_back(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """Its position is kept, also while others move on, and a new topic joins at its start."""
    for topic in ("u", "v"):
        source.run(lambda lone, topic=topic: lone.lead(topic))
    limit = reader(source).getDefaultReadLimit()
    stream = reader(source, subscribe="t,u", startingOffsets="earliest")
    end = stream.latestOffset(stream.latestOffset(stream.initialOffset(), limit), limit)
    assert places(end) == [("t", 5), ("u", 0)]
    source.write(b"while it is away", 2)
    only = reader(source, subscribe="u")
    assert only.latestOffset(end, limit) is end, "a batch is not made for it alone"
    assert "t-0 is no longer read: its position 5 is kept" in caplog.text
    without = reader(source, subscribePattern="[uv]", subscribe="")
    moved = without.latestOffset(end, limit)
    assert places(moved) == [("t", 5), ("u", 0), ("v", 0)]
    assert moved["topics"]["t"]["dropped"] == [0] and "dropped" not in moved["topics"]["u"]
    assert without.partitions(end, moved) == []
    committed: list[list[str]] = []
    source.access().commit = lambda _, positions, __=None: committed.append(  # type: ignore[method-assign]
        sorted(pid.topic for pid in positions.at)
    )
    reader(source, subscribe="u", **{"kafka.group.id": "g"}).commit(moved)
    assert committed == [["u", "v"]]
    back = reader(source, subscribe="t,u,v")
    again = back.latestOffset(moved, limit)
    assert places(again) == [("t", 7), ("u", 0), ("v", 0)]
    assert "dropped" not in again["topics"]["t"]
    (task,) = back.partitions(moved, again)
    assert (task.range.start, task.range.end) == (5, 7)


def test_a_damaged_batch_is_one_bad_row_of_its_task(source: Source) -> None:
    """As of a broker of Kafka whose disk rots: tidelog's does not serve it. The good ones around it
    come as ever; without quarantine the task fails in one line."""
    access = source.access()
    right = access.fetch
    begun: list[int] = []

    def torn(part: OffsetRange, options: SourceOptions, epoch: int = -1) -> Iterator[Fetched]:
        begun.append(part.start)
        for fetched in right(part, options, epoch):
            data = bytearray(fetched.records)
            for position, header in walk(bytes(data)):
                if header.base_offset == 2:
                    data[position + header.size - 1] ^= 0x40
            yield replace(fetched, records=memoryview(data))

    access.fetch = torn  # type: ignore[method-assign]
    with pytest.raises(PipelineError, match="t-0: batch at offset 2 has a wrong checksum"):
        source.read(0, 5)
    begun.clear()
    task = ReadTask(OffsetRange(Pid("t", 0), 0, 5), "", of_stream=True)
    options = source.options(onBadRecord="quarantine", columns="offset,value")
    rows = [row for batch in read_task(options, task) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["value"] for row in rows] == [b"former", b"former", None, b"former", b"former"]
    assert rows[2]["badTo"] == 3 and rows[2]["badRaw"] and not rows[1]["badRaw"]
    assert begun == [0, 2, 3]


def test_a_run_that_ends_commits_its_last_batch_to_its_group(source: Source) -> None:
    """Spark commits a batch when the next one begins: after the last one of a run none does."""
    group = {"startingOffsets": "earliest", "kafka.group.id": "g"}
    committed: list[list[int]] = []

    def commit(name: str, positions: Positions, timeout_s: float | None = None) -> None:
        committed.append(list(positions.at.values()))

    source.access().commit = commit  # type: ignore[method-assign]
    for ends, wanted in ((False, []), (True, [[5]])):
        stream = reader(source, **group)
        if ends:
            stream.prepareForTriggerAvailableNow()
        start = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        assert places(end) == [("t", 5)] and not committed
        assert stream.latestOffset(end, stream.getDefaultReadLimit()) is end
        assert committed == wanted


def test_a_batch_is_planned_from_its_two_offsets(source: Source) -> None:
    """P16: a loss within it is one part of one task, reported by that task."""
    known = source.position(5, 0)
    (pid,) = known.at
    start = replace(known, at={pid: 0}).to_json()
    split = {"maxRecordsPerPartition": "2", "failOnDataLoss": "false"}
    tasks = reader(source, **split).partitions(start, known.to_json())
    assert [(task.range.start, task.range.end, task.leader_epoch) for task in tasks] == [
        (0, 1, 0),
        (1, 3, 0),
        (3, 5, 0),
    ]
    place = confluent_kafka.TopicPartition("t", 0, 3)
    admin = AdminClient({"bootstrap.servers": source.threaded.lone.bootstrap})
    admin.delete_records([place])[place].result(DEADLINE_S)
    (task,) = reader(source, **split).partitions(start, known.to_json())
    assert (task.lost_from, task.range.start, task.range.end) == (0, 3, 5)
