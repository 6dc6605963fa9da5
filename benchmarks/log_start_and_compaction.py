"""How long a start, a recovery and a compaction take.

Not a test. Run: ``python benchmarks/log_start_and_compaction.py``. CPU seconds of this process;
the files lie in the page cache. Two shared cores with a load of 7:

| work                                                        |                               |
|-------------------------------------------------------------|-------------------------------|
| create 1000 logs and begin an epoch in each                 | 0.78 s                        |
| stop with 1000 logs cleanly                                 | 0.55 s                        |
| start with 1000 logs after a clean stop                     | 0.33 s                        |
| recover 528 MB of 16 kB batches                             | 0.54 s, 975 MB/s              |
| recover 51 MB of batches of one record                      | 1.6 s, 32 MB/s                |
| compact 101 MB, 825 k records of 100 bytes to 100 k         | 2.0 s, 412 k records/s        |
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.records.builder import NO_PRODUCER, NewRecord, Producer, build_batch
from tidelog.runtime.disk import RealDisk
from tidelog.runtime.seams import Seams
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import plan_compaction
from tidelog.storage.directory.log_directory import LogDirectory, open_directory
from tidelog.storage.log.partition_log import PartitionLog

NOW_MS = 1_700_000_000_000
LOGS = 1000
KILLED_BYTES = 128 * 2**20


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        start_of_many(folder)
        recovery(folder, "one batch of 16 kB after another", 160, 30_000)
        recovery(folder, "one record after another", 1, 300_000)
        for value_bytes, producers in ((46, 0), (46, 50), (1_000, 50), (16_000, 50)):
            start_after_a_kill(folder, value_bytes, producers)
        compaction(folder)


def timed(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def opened(path: str, configs: TopicConfigs) -> LogDirectory:
    found = open_directory(Seams(), path, cluster_id="c", node_id=1, boot_id="b")
    assert isinstance(found, LogDirectory), found
    finish(found.recording_life("b", durability="replicated"))
    found.load(lambda _: configs)
    return found


def start_of_many(folder: str) -> None:
    path = f"{folder}/many"
    configs = TopicConfigs()
    found = opened(path, configs)
    batch = build_batch([NewRecord(NOW_MS, b"k", bytes(100))] * 20)
    logs: list[PartitionLog] = []

    def create() -> None:
        for number in range(LOGS):
            logs.append(found.create(TopicPartition("t", number), configs))
            logs[-1].begin_epoch(0)

    print(f"create {LOGS} logs and begin an epoch in each: {timed(create):.2f} s")
    for log in logs:
        for _ in range(5):
            log.append_as_leader(batch, 0, NOW_MS)
    print(f"stop with {LOGS} logs cleanly: {timed(found.close):.2f} s of CPU")
    print(f"start with {LOGS} logs: {timed(lambda: opened(path, configs)):.2f} s")


def recovery(folder: str, label: str, count: int, batches: int) -> None:
    path = f"{folder}/crashed"
    configs = TopicConfigs()
    found = opened(path, configs)
    log = found.create(TopicPartition("t", 0), configs)
    batch = build_batch([NewRecord(NOW_MS, None, bytes(100))] * count)
    for _ in range(batches):
        log.append_as_leader(batch, 0, NOW_MS)
    size = log.size
    found.resources.files.close()
    found._lock.close()
    took = timed(lambda: opened(path, configs))
    print(f"recover {size / 1e6:.0f} MB, {label}: {took:.2f} s, {size / 1e6 / took:.0f} MB/s")
    shutil.rmtree(path)


def start_after_a_kill(folder: str, value_bytes: int, producers: int) -> None:
    """Load two partitions of 64 MiB of batches of one record, nothing of them synced."""
    path = f"{folder}/killed"
    configs = TopicConfigs()
    found = opened(path, configs)
    written = count = 0
    for number in range(2):
        log = found.create(TopicPartition("t", number), configs)
        sequences = [0] * max(1, producers)
        while log.size < KILLED_BYTES // 2:
            chosen = count % len(sequences)
            who = Producer(chosen, 0, sequences[chosen]) if producers else NO_PRODUCER
            record = NewRecord(NOW_MS, None, bytes(value_bytes))
            log.append_as_leader(build_batch([record], producer=who), 0, NOW_MS)
            sequences[chosen] += 1
            count += 1
        written += log.size
    found.resources.files.close()
    found._lock.close()
    took = timed(lambda: opened(path, configs))
    print(
        f"start after a kill, {count} batches of {written / count:.0f} bytes, "
        f"{producers} producers: {took:.2f} s"
    )
    shutil.rmtree(path)


def compaction(folder: str) -> None:
    path = Path(folder) / "compacted"
    configs = TopicConfigs(cleanup_policy=frozenset({"compact"}), segment_bytes=32 * 2**20)
    found = opened(str(path), configs)
    log = found.create(TopicPartition("t", 0), configs)
    chance = random.Random(1)
    for _ in range(6_000):
        records = [
            NewRecord(NOW_MS, b"key-%08d" % chance.randrange(100_000), bytes(100))
            for _ in range(150)
        ]
        log.append_as_leader(build_batch(records), 0, NOW_MS)
    log.high_watermark = log.end_offset
    log.sync()
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    begin = time.process_time()
    result = compact(RealDisk(), plan)
    took = time.process_time() - begin
    print(
        f"compact {result.bytes_read / 1e6:.0f} MB, {result.records_read} records of 100 bytes to "
        f"{result.records_kept}: {took:.1f} s, {result.records_read / took / 1e3:.0f} k records/s"
    )


if __name__ == "__main__":
    main()
