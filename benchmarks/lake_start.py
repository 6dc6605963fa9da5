"""Does what a lake costs grow with its history?

Makes a lake of one day and one of `--days` (30) of batches of 5 s over 64 partitions, as manifest
checkpoints of the code's own form, without data files. For each: the time of a start of the archive
job until Spark may begin (best of three, in a process of its own) with its peak memory, the time of
a commit of 64 files with all that belongs to it (median), and what the driver's memory gains over
so many batches. Needs the extra `spark`; Spark itself is not started. Half an hour for a month.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

from tidelog.pipeline.jobs.archive import Archive, ArchiveSettings
from tidelog.pipeline.lake import chain
from tidelog.pipeline.lake.commit import commit
from tidelog.pipeline.lake.layout import Layout, file_name
from tidelog.pipeline.lake.manifest import LakeFile, Manifest
from tidelog.pipeline.lake.offsets import LakePartition, Offset, ends
from tidelog.pipeline.lake.spark_checkpoint import SparkCheckpoint

TOPIC, TOPIC_ID, QUERY = "events", "7a6f3c52-6f0e-4f6e-9d3b-0c9f4d1a2b3c", "q" * 36
PARTITIONS = 64
ROWS = 1000
PER_DAY = 24 * 3600 // 5
DIGEST = "sha256:" + 64 * "7"
COMMITS = 300
DATA = b"PAR1 a file that nobody reads PAR1"


def offset(batch: int) -> Offset:
    positions = {str(part): [batch * ROWS, 12] for part in range(PARTITIONS)}
    topic = {"id": TOPIC_ID, "resizeEpoch": 0, "new": {}, "positions": positions}
    return {"version": 2, "topics": {TOPIC: topic}}


def manifest(batch: int) -> Manifest:
    """Batch 0 says where the lake begins, each further one has a file per partition."""
    if not batch:
        return Manifest(0, QUERY, None, offset(0))
    first, last = (batch - 1) * ROWS, batch * ROWS - 1
    files = []
    for part in range(PARTITIONS):
        home = LakePartition(TOPIC, TOPIC_ID, part)
        times = (1_700_000_000_000 + first, 1_700_000_000_000 + last)
        path = file_name(home, first, last)
        sizes = (ROWS, 50_000, 100_000)
        files.append(LakeFile(path, home, first, last, *sizes, *times, ((12, first),), DIGEST))
    start = offset(batch - 1)
    more = ((), "read_uncommitted", {TOPIC: "delete"})
    return Manifest(batch, QUERY, start, offset(batch), tuple(files), *more)


def build(root: Path, batches: int) -> Layout:
    """A lake of so many batches and a checkpoint of Spark's that fits it."""
    layout = Layout(root)
    for folder in (layout.manifests, layout.inflight):
        folder.mkdir(parents=True)
    total = chain.Summary()
    lines: list[str] = []
    for batch in range(batches - 1):
        made = manifest(batch)
        total.add(made)
        lines.append(made.to_line())
        if len(lines) == chain.FOLD:
            chain.write_checkpoint(layout, batch + 1 - chain.FOLD, total, lines)
            lines = []
    # As many as can lie by themselves: the start has most to read.
    first = batches - 1 - len(lines)
    for batch in range(first, batches):
        layout.manifest(batch).write_text(manifest(batch).to_line() + "\n")
    SparkCheckpoint(layout.checkpoint).adopt(manifest(batches - 1))
    return layout


def start(root: Path) -> None:
    """Print what one start cost, as JSON."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.monotonic()
    job = Archive(ArchiveSettings("127.0.0.1:9", (TOPIC,), str(root)), Layout(root))
    took = time.monotonic() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"s": took, "kib": peak - before, "batch": job.batch, "rows": job.rows}))


def started(root: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--start", str(root)]
    said = [
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        for _ in range(3)
    ]
    return min(said, key=lambda each: each["s"])


def commits(layout: Layout) -> tuple[float, float]:
    """The median of some commits in ms, and what the driver gained in KiB per batch."""
    job = Archive(ArchiveSettings("127.0.0.1:9", (TOPIC,), str(layout.root)), layout)
    times = []
    tracemalloc.start()
    held = 0
    for nth in range(COMMITS):
        made = manifest(job.batch + 1)
        staged = {}
        for number, file in enumerate(made.files):
            staged[file.path] = layout.inflight / f"{number}.staged"
            staged[file.path].write_bytes(DATA)
        begun = time.monotonic()
        ends(made.end)
        commit(layout, made, staged)
        job._total.add(made)
        job._last = made
        chain.fold(layout)
        times.append(time.monotonic() - begun)
        if nth == COMMITS // 2:
            held = tracemalloc.get_traced_memory()[0]
    gained = (tracemalloc.get_traced_memory()[0] - held) / (COMMITS - COMMITS // 2)
    tracemalloc.stop()
    return 1000 * statistics.median(times), gained / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--start", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.start is not None:
        start(given.start)
        return
    print(f"batches of 5 s, {PARTITIONS} partitions")
    print("| history | batches | manifests | start | its memory | commit | gained per batch |")
    print("|---|---|---|---|---|---|---|")
    for days in sorted({1, given.days}):
        folder = Path(tempfile.mkdtemp(prefix="lake-start-"))
        try:
            layout = build(folder / "lake", days * PER_DAY)
            size = sum(each.stat().st_size for each in layout.manifests.iterdir()) / (1 << 20)
            cost = started(layout.root)
            assert cost["batch"] == days * PER_DAY - 1
            ms, kib = commits(layout)
            print(
                f"| {days} d | {days * PER_DAY:,} | {size:,.0f} MiB | {cost['s']:.2f} s"
                f" | {cost['kib'] / 1024:.0f} MiB | {ms:.0f} ms | {kib:.1f} KiB |",
                flush=True,
            )
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
