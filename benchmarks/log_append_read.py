"""What one append and one read of the log cost, in CPU microseconds, beside the bare system call.

Not a test. Run: ``python benchmarks/log_append_read.py``. Each line: the best of five rounds, on a
page cache that never has to wait for the disk. "Bare" writes or reads the same bytes and does
nothing else. Two shared cores with a load of 4 to 8 (compare the columns, not the numbers):

| work                                     |   us | bare system call |
|------------------------------------------|------|------------------|
| append one record of 100 bytes           |  8.3 |              1.1 |
| append one record, idempotent            | 11.5 |              1.1 |
| append one batch of 16 kB                | 19.9 |              8.1 |
| append one batch of 16 kB, idempotent    | 22.4 |             11.2 |
| append one batch of 1 MB                 |  338 |              252 |
| append one batch of 1 MB, idempotent     |  410 |              325 |
| read 1 MB of 16 kB batches, in order     |  194 |              179 |
| read 1 MB of one-record batches, in order|  163 |              148 |

With the file replaced by one that drops what it is given, an append takes 5.7 us, of which the
CRC of 16 kB is 1.2.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable

from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.runtime.seams import Seams
from tidelog.storage.directory.log_directory import LogDirectory, open_directory
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended

NOW_MS = 1_700_000_000_000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'work':44} {'us':>8}")
        for label, count, size, repeats in (
            ("one record of 100 bytes", 1, 100, 20_000),
            ("one batch of 16 kB", 160, 100, 8_000),
            ("one batch of 1 MB", 1000, 1000, 100),
        ):
            report(f"append {label}", *append(folder, count, size, repeats, idempotent=False))
            report(f"append {label}, idempotent", *append(folder, count, size, repeats))
        for label, count, batches in (("16 kB", 160, 2000), ("one record", 1, 100_000)):
            report(f"read 1 MB of {label} batches, in order", *read(folder, count, batches))


def report(label: str, ours_us: float, bare_us: float) -> None:
    print(f"{label:44} {ours_us:8.2f}   bare system call {bare_us:8.2f}")


def append(
    folder: str, count: int, size: int, repeats: int, idempotent: bool = True
) -> tuple[float, float]:
    """CPU of one append, and of the one pwritev under it."""
    rounds = []
    for number in range(5):
        log = fresh(folder)
        made = [
            memoryview(
                bytearray(
                    build_batch(
                        [NewRecord(NOW_MS, None, bytes(size))] * count,
                        producer=Producer(7, 0, at * count) if idempotent else Producer(),
                    )
                )
            )
            for at in range(repeats if idempotent else 1)
        ] * (1 if idempotent else repeats)
        begin = time.process_time()
        for batch in made:
            log.append_as_leader(batch, number, NOW_MS)
        rounds.append((time.process_time() - begin) / repeats * 1e6)
        assert log.end_offset == count * repeats
        log.resources.files.close()
    return min(rounds), bare_write(folder, made)


def bare_write(folder: str, made: list[memoryview]) -> float:
    """CPU of writing the same buffers without looking at them."""
    rounds = []
    for _ in range(5):
        fd = os.open(f"{folder}/bare", os.O_CREAT | os.O_RDWR | os.O_TRUNC)
        prefix = bytes(16)
        begin = time.process_time()
        at = 0
        for batch in made:
            at += os.pwritev(fd, (prefix, batch[16:]), at)
        rounds.append((time.process_time() - begin) / len(made) * 1e6)
        os.close(fd)
    return min(rounds)


def read(folder: str, count: int, batches: int) -> tuple[float, float]:
    """CPU of one read of about 1 MB, one after another through the log, and of the pread."""
    log = fresh(folder)
    made = memoryview(bytearray(build_batch([NewRecord(NOW_MS, None, bytes(100))] * count)))
    for _ in range(batches):
        assert isinstance(log.append_as_leader(made, 0, NOW_MS), Appended)
    path = log.segments[0].log_path

    def ours() -> int:
        offset = reads = 0
        while offset < log.end_offset:
            data = log.read(offset, 1024 * 1024, log.end_offset)
            assert isinstance(data, memoryview)
            offset += len(data) // len(made) * count
            reads += 1
        return reads

    def bare() -> int:
        fd = os.open(path, os.O_RDONLY)
        at = reads = 0
        while data := os.pread(fd, 1024 * 1024, at):
            at += len(data)
            reads += 1
        os.close(fd)
        return reads

    return best(ours), best(bare)


def best(work: Callable[[], int]) -> float:
    rounds = []
    for _ in range(5):
        begin = time.process_time()
        times = work()
        rounds.append((time.process_time() - begin) / times * 1e6)
    return min(rounds)


def fresh(folder: str) -> PartitionLog:
    path = tempfile.mkdtemp(dir=folder)
    found = open_directory(Seams(), path, cluster_id="c", node_id=1, boot_id="b")
    assert isinstance(found, LogDirectory), found
    return found.create(TopicPartition("t", 0), TopicConfigs(max_message_bytes=2**30))


if __name__ == "__main__":
    main()
