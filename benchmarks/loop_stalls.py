"""How long does each operation of storage hold the event loop, at the size of a large partition?

Run: ``python -m benchmarks.loop_stalls [--mib 1024] [--producers 100000] [--against COMMIT]``.
Each line is the longest step that the loop does itself, in ms of wall time without the time that
the thread waited for a processor; the work of threads and helper processes is not included. With
``--against`` the same operations run first on the code of that commit (16f51e7 or later, which has
these packages), in their own process ("before"). The page cache is warm, so a cold read is one of
bytes whose CRC this process has not checked yet.
Result: benchmarks/NOTES.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.records.batch import read_header
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.compression import Codec
from tidelog.runtime.seams import Seams
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.directory.log_directory import LogDirectory, open_directory
from tidelog.storage.log.syncing import run_all
from tidelog.storage.log.time_lookup import Allowance

ROOT = Path(__file__).resolve().parent.parent
NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("t", 0)
BATCH_BYTES = 16 * 1024
MIB = 1024 * 1024


class Bench:
    """One log of ``mib`` MiB in segments of a quarter of it, with ``producers`` producers."""

    def __init__(self, folder: str, mib: int, producers: int) -> None:
        self.path = folder
        self.bytes = mib * MIB
        self.producers = producers
        self.longest_ms: dict[str, float] = {}
        self.configs = TopicConfigs(segment_bytes=self.bytes // 4, retention_ms=-1)
        self.directory = self.open()
        self.log: Any = self.directory.create(PARTITION, self.configs)

    def open(self) -> LogDirectory:
        """Open the directory as a start does, which is a thread's work."""
        found = open_directory(Seams(), self.path, cluster_id="c", node_id=1, boot_id="b")
        assert isinstance(found, LogDirectory), found
        finish(found.recording_life("b", durability="replicated"))
        found.load(lambda _: self.configs)
        return found

    def fill(self) -> None:
        """Append batches of 16 kB until the size is reached; each has a time of its own."""
        record = bytes(BATCH_BYTES - 200)
        at = 0
        while sum(segment.size for segment in self.log.segments) < self.bytes:
            batch = build_batch([NewRecord(NOW_MS + at, b"%d" % (at % 5000), record)])
            self.log.append_as_leader(batch, 0, NOW_MS + at)
            at += 1
        made = read_header(build_batch([NewRecord(NOW_MS, None, None)]))
        for number in range(self.producers):
            own = made._replace(producer_id=number, producer_epoch=0, base_sequence=0)
            self.log.producers.note(own, number, NOW_MS)
        self.log.high_watermark = self.log.end_offset
        self.sync()

    def sync(self) -> None:
        """Sync as group commit does; the part of the loop is measured as "sync, snapshot"."""
        with self.measured("sync and snapshot of the producers"):
            pending = self.log.unsynced()
        if pending is not None:
            run_all([pending])
            with self.measured("sync and snapshot of the producers"):
                self.log.synced(pending)

    def reopen(self) -> None:
        """Stop cleanly, and start again."""
        self.directory.close(1)
        self.directory = self.open()
        self.log = self.directory.logs[PARTITION]
        self.log.high_watermark = self.log.end_offset

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Keep the longest of what is done under one name."""
        queued, begun = _queued_s(), time.monotonic()
        try:
            yield
        finally:
            took_ms = 1000 * (time.monotonic() - begun - (_queued_s() - queued))
            self.longest_ms[name] = max(self.longest_ms.get(name, 0.0), took_ms)

    def search(self, name: str, timestamp: int) -> None:
        """Look up a time, in pieces."""
        self._in_pieces(name, self.log.search_time(timestamp, Allowance()))

    def _in_pieces(self, name: str, pieces: Any) -> None:
        made = None
        while True:
            with self.measured(name):
                try:
                    call = pieces.send(made)
                except StopIteration:
                    return
            made = None if call is None else call()  # a thread's

    def run(self) -> None:
        """Do everything once, in an order in which nothing undoes what is still needed."""
        self.fill()
        end = self.log.end_offset
        self.reopen()
        self.search("first look-up by time after a start", NOW_MS + end // 2)
        self.search("look-up by time, again", NOW_MS + end // 3)
        self.reopen()
        with self.measured("load of an index: first read of a closed segment"):
            self.log.read(end // 3, 1)
        with self.measured("cold read of 1 MB"):
            self.log.read(end // 2, MIB)
        with self.measured("cold read of 50 MB"):
            self.log.read(end // 8, 50 * MIB)
        self._append_many_records()
        with self.measured("roll"):
            self.log.roll(NOW_MS)
        self.sync()
        self._compact()
        self._append_unsynced(self.bytes // 8)
        last, middle = self.log.end_offset - 1, self.log.end_offset * 2 // 3
        self._in_pieces("truncation by a record, much unsynced", self.log.truncation(last, NOW_MS))
        self._in_pieces("truncation to the middle", self.log.truncation(middle, NOW_MS))
        self._append_unsynced(self.bytes // 2)  # compaction has left little
        self.sync()
        self.log.configure(replace(self.configs, retention_bytes=self.bytes // 4))
        self._in_pieces("retention", self.log.housekeeping(NOW_MS + 10**7, at_most=8))
        self.sync()
        again = "retention, when a sync has made its snapshot durable"
        self._in_pieces(again, self.log.housekeeping(NOW_MS + 10**7, at_most=8))
        self.sync()
        with self.measured("removal of what retention renamed"):
            removal = self.directory.due_removal()
        if removal is not None:
            removal.run()  # a thread's
            self.directory.removed(removal)
        self.directory.close(1)
        for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
            Path(self.path, name).unlink()
        with self.measured("recovery of all that is left (a thread's, in all)"):
            self.directory = self.open()
        self.log = self.directory.logs[PARTITION]
        self._append_unsynced(self.bytes // 8)
        restart = self.log.restart(self.log.end_offset + 1000, NOW_MS)
        self._in_pieces("restart at another offset", restart)
        self.directory.close(1)

    def _append_unsynced(self, size: int) -> None:
        """Append so many bytes, which no sync covers."""
        end = sum(segment.size for segment in self.log.segments) + size
        while sum(segment.size for segment in self.log.segments) < end:
            batch = build_batch([NewRecord(NOW_MS, None, bytes(BATCH_BYTES))])
            self.log.append_as_leader(batch, 0, NOW_MS)
        self.log.high_watermark = self.log.end_offset

    def _append_many_records(self) -> None:
        """One batch of 300,000 small records, and a look-up of the last one."""
        last = NOW_MS + 10**6
        records = [NewRecord(last + (at == 299_999), b"k", None) for at in range(300_000)]
        batch = build_batch(records, codec=Codec.ZSTD)
        self.log.append_as_leader(batch, 0, last)
        self.log.high_watermark = self.log.end_offset
        self.search("look-up by time in a batch of 300,000 records", last + 1)

    def _compact(self) -> None:
        self.log.high_watermark = self.log.end_offset
        compacted = replace(self.configs, cleanup_policy=frozenset({"compact"}))
        self.log.configure(replace(compacted, min_cleanable_dirty_ratio=0.0))
        with self.measured("plan of a compaction"):
            plan = plan_compaction(self.log, NOW_MS)
        assert plan is not None
        result = compact(self.log.resources.disk, plan)  # a helper's
        self._in_pieces("swap of a compaction", applying(self.log, result, NOW_MS))
        self.log.configure(self.configs)


def _queued_s() -> float:
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def measure(mib: int, producers: int) -> dict[str, float]:
    """Return the longest piece of each operation, in ms, on the code that is imported."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder, mib, producers)
        bench.run()
    return bench.longest_ms


def before(commit: str, mib: int, producers: int) -> dict[str, float]:
    """Return the same of another commit, from a process that imports its code."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "-C", str(ROOT), "archive", commit, "src"]
        packed = subprocess.run(command, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        environment = {**os.environ, "PYTHONPATH": f"{folder}/src"}
        own = [sys.executable, __file__, "--mib", str(mib), "--producers", str(producers), "--json"]
        done = subprocess.run(own, check=True, capture_output=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print a table of both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--producers", type=int, default=100_000)
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.json:
        print(json.dumps(measure(asked.mib, asked.producers)))
        return
    old = before(asked.against, asked.mib, asked.producers) if asked.against else {}
    new = measure(asked.mib, asked.producers)
    print(f"| ms of the loop, {asked.mib} MiB, {asked.producers} producers | before | after |")
    print("|---|---|---|")
    for name, took_ms in new.items():
        earlier = f"{old[name]:.1f}" if name in old else ""
        print(f"| {name} | {earlier} | {took_ms:.1f} |")


if __name__ == "__main__":
    main()
