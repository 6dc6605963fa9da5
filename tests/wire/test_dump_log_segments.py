"""Kafka's own DumpLogSegments reads every kind of file of our logs without a complaint."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.java import ToolRunner
from tests.support.storage_logs import NOW_MS, batch, new_log, records_of, reopen
from tests.support.transactional_logs import end, markers_in, send, send_keys
from tidelog.model.configs.topic import TimestampType, TopicConfigs
from tidelog.model.work import finish
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.control_records import ChangeKind, FenceRecord, change_batch
from tidelog.runtime.disk import RealDisk
from tidelog.storage.checkpoints import PartitionMetadata
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended

pytestmark = pytest.mark.java

SMALL = TopicConfigs(segment_bytes=20_000, index_interval_bytes=500)
COMPLAINTS = re.compile(
    r"(?i)mismatch|not found|corrupt|out of order|invalid|error|exception|is followed by"
)


@pytest.fixture(scope="module")
def tools() -> Iterator[ToolRunner]:
    runner = ToolRunner()
    yield runner
    runner.close()


def dump(tools: ToolRunner, log: PartitionLog, *flags: str, gaps: bool = False) -> str:
    """Run the tool on all segment files of a log; return what it printed, free of complaints."""
    folder = Path(log.path)
    files = sorted(
        str(file)
        for file in folder.iterdir()
        if file.suffix in (".log", ".index", ".timeindex", ".snapshot")
    )
    result = tools.run("kafka-dump-log", "--files", ",".join(files), *flags).check()
    for line in (result.out + result.err).splitlines():
        if line.startswith("Non-consecutive offsets"):
            continue  # the lines below it say where
        jump = re.fullmatch(r"  (-?\d+) is followed by (\d+)", line)
        if jump:
            # The tool counts from -1 in every file, so it always names a file's first offset.
            assert gaps or jump[1] == "-1", line
            continue
        about_batch = line.startswith(("baseOffset", "|", "Dumping"))
        # Of a batch's line only the verdict counts: "isvalid: true".
        assert about_batch or not COMPLAINTS.search(line), line
        assert "isvalid: false" not in line, line
    return result.out


def fill(log: PartitionLog, batches: int = 150) -> None:
    for number in range(batches):
        producer = Producer(41 + number % 2, 3, number // 2 * 4)
        made = batch(4, timestamp=NOW_MS + number * 7, step=3, size=60, producer=producer)
        got = log.append_as_leader(made, number // 60, NOW_MS)
        assert isinstance(got, Appended), got
    log.high_watermark = log.end_offset


def check_all(tools: ToolRunner, log: PartitionLog, *, gaps: bool = False) -> str:
    dump(tools, log, "--index-sanity-check")
    dump(tools, log, "--verify-index-only", gaps=gaps)
    dump(tools, log, gaps=gaps)
    return dump(tools, log, "--deep-iteration", "--print-data-log", gaps=gaps)


def test_a_log_as_a_clean_stop_leaves_it(tools: ToolRunner, tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    log.set_metadata(PartitionMetadata(uuid.UUID(int=7), 2))
    fill(log)
    log.close()
    out = check_all(tools, log)
    assert out.count("| offset:") == 600
    assert "partitionLeaderEpoch: 2" in out
    snapshots = re.findall(r"producerId: (\d+) producerEpoch: (\d+).*lastSequence: (\d+)", out)
    assert ("41", "3", "299") in [tuple(found) for found in snapshots], out[-600:]


def test_a_log_after_a_crash(tools: ToolRunner, tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    fill(log)
    log.resources.files.close()
    path = Path(log.segments[-1].log_path)
    path.write_bytes(path.read_bytes()[:-30])
    log = reopen(tmp_path, SMALL, ending=Ending(recovery_point=100))
    assert log.recovered.cut_bytes
    log.close()
    assert check_all(tools, log).count("| offset:") == 596


@pytest.mark.parametrize("codec", range(1, 5))
def test_compressed_batches_with_append_time(tools: ToolRunner, tmp_path: Path, codec: int) -> None:
    names = ("", "gzip", "snappy", "lz4", "zstd")
    configs = replace(
        SMALL,
        compression_type=names[codec],
        message_timestamp_type=TimestampType.LOG_APPEND_TIME,
    )
    log = new_log(tmp_path, configs)
    for number in range(40):
        # Sent uncompressed or with another codec: the topic's own wins.
        made = batch(5, size=200, codec=number % 5)
        got = log.append_as_leader(made, 0, NOW_MS + number)
        assert isinstance(got, Appended), got
    assert log.append_as_leader(
        change_batch(FenceRecord(ChangeKind.FENCE, 1, 8), leader_epoch=0, timestamp_ms=NOW_MS),
        0,
        NOW_MS + 50,
        from_client=False,
    )
    log.close()
    out = check_all(tools, log)
    assert f"compresscodec: {names[codec]}" in out
    assert "LogAppendTime" in out and "isControl: true" in out


def test_a_compacted_log(tools: ToolRunner, tmp_path: Path) -> None:
    configs = replace(SMALL, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01)
    log = new_log(tmp_path, configs)
    for run in range(3):
        for number in range(300):
            key = b"key-%d" % (number % 40)
            value = None if number % 40 == 7 else b"v" * 80
            made = build_batch(
                [NewRecord(NOW_MS + number, key, value), NewRecord(NOW_MS, b"same", b"x")],
                codec=number % 5,
                producer=Producer(5, run, number * 2),
            )
            assert isinstance(log.append_as_leader(made, run, NOW_MS + number), Appended)
        log.high_watermark = log.end_offset
        log.sync()
        plan = plan_compaction(log, NOW_MS + 1000)
        assert plan is not None
        assert finish(applying(log, compact(RealDisk(), plan), NOW_MS + 1000))
    assert finish(log.housekeeping(2 * NOW_MS)) is None
    kept = len(records_of(log))
    log.close()
    assert check_all(tools, log, gaps=True).count("| offset:") == kept


def test_a_log_with_transactions(tools: ToolRunner, tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    fill(log, 20)
    for sequence in range(3):
        send(log, 7, sequence)
    end(log, 7, committed=False, coordinator_epoch=12)
    opened = send(log, 8, 0, epoch=2)
    end(log, 9, epoch=4, coordinator_epoch=13)
    send(log, 8, 1, epoch=2)
    log.close()
    out = check_all(tools, log)
    assert "endTxnMarker: ABORT coordinatorEpoch: 12" in out
    found = {
        (int(producer), int(epoch)): (int(coordinator), first)
        for producer, epoch, coordinator, first in re.findall(
            r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) "
            r"currentTxnFirstOffset: (\S+)",
            out,
        )
    }
    none = found[41, 3][1]
    assert found[7, 0] == (12, none)
    assert found[9, 4] == (13, none)
    coordinator, first = found[8, 2]
    assert (coordinator, re.sub(r"\D", "", first)) == (-1, str(opened)), found


def test_aborted_transactions_of_a_segment(tools: ToolRunner, tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    send(log, 7, 0)
    send(log, 8, 0)
    end(log, 7, committed=False)
    end(log, 8, committed=False)
    send(log, 8, 1)
    end(log, 8)
    log.close()
    (path,) = Path(log.path).glob("*.txnindex")
    said = tools.run("kafka-dump-log", "--files", str(path)).check().out
    found = [tuple(map(int, re.findall(r": (-?\d+)", line))) for line in said.splitlines()]
    assert [numbers for numbers in found if numbers] == [(0, 7, 0, 2, 1), (0, 8, 1, 3, 4)]


def test_a_compacted_log_with_transactions(tools: ToolRunner, tmp_path: Path) -> None:
    """Aborted records are gone; a marker has a delete horizon, then it is empty or gone."""
    configs = replace(SMALL, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01)
    log = new_log(tmp_path, replace(configs, delete_retention_ms=1000))
    for run in range(3):
        for sequence in range(20):
            send_keys(log, 7, run * 20 + sequence, (f"k{sequence}", "aborted"))
            send_keys(log, 8, run * 20 + sequence, (f"k{sequence}", f"committed {run}"))
            end(log, 7, committed=False)
            end(log, 8)
        log.roll(NOW_MS)
        log.append_as_leader(batch(1, timestamp=NOW_MS, key=b"k"), 0, NOW_MS)
        log.raise_watermark(log.end_offset)
        log.sync()
        now_ms = NOW_MS + run * 1000
        plan = plan_compaction(log, now_ms)
        assert plan is not None
        assert finish(applying(log, compact(RealDisk(), plan), now_ms))
    kept, left = records_of(log), len(markers_in(log))
    assert sum(one.value is not None and one.value.startswith(b"committed") for one in kept) == 20
    assert left == 120 - 20, "those of the first run's aborted records are gone"
    log.close()
    out = check_all(tools, log, gaps=True)
    assert out.count("endTxnMarker: COMMIT") + out.count("endTxnMarker: ABORT") == left
    assert "deleteHorizonMs: OptionalLong[" in out
    indexes = [str(path) for path in sorted(Path(log.path).glob("*.txnindex"))]
    said = tools.run("kafka-dump-log", "--files", ",".join(indexes)).check()
    assert not COMPLAINTS.search(said.out + said.err)


def test_a_wrong_index_is_complained_about(tools: ToolRunner, tmp_path: Path) -> None:
    """The test itself can see: one entry that names another batch is found."""
    log = new_log(tmp_path, SMALL)
    fill(log)
    log.close()
    index = Path(log.segments[0].index_path)
    content = bytearray(index.read_bytes())
    content[3] += 1
    index.write_bytes(content)
    with pytest.raises(AssertionError, match=r"(?i)mismatch"):
        dump(tools, log)
