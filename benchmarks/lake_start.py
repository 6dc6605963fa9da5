"""Does what a lake costs grow with its history?

Makes lakes of one and of 30 days (`--days 1 30`), batches of 5 s over 64 partitions, as manifest
checkpoints of the code's own form, without data files. For each: the time of a start of the archive
job until Spark may begin (best of three, in a process of its own) with its peak memory, the time of
a commit of 64 files with all that belongs to it (median), and what the driver's memory gains over
so many batches. Needs the extra `spark`; Spark itself is not started. Some ten minutes for a month.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import repeat
from pathlib import Path

from tidelog.pipeline.jobs.archive import Archive, ArchiveSettings
from tidelog.pipeline.lake import chain
from tidelog.pipeline.lake.commit import commit
from tidelog.pipeline.lake.layout import Layout, file_name
from tidelog.pipeline.lake.manifest import LakeFile, Manifest
from tidelog.pipeline.lake.offsets import LakePartition, Offset
from tidelog.pipeline.lake.spark_checkpoint import SparkCheckpoint
from tidelog.pipeline.lake.summary import Summary, SummaryPart

TOPIC, TOPIC_ID, QUERY = "events", "7a6f3c52-6f0e-4f6e-9d3b-0c9f4d1a2b3c", "q" * 36
PARTITIONS = 64
ROWS = 1000
TIME_MS = 1_700_000_000_000
_SAMPLE = 777_777
PER_DAY = 24 * 3600 // 5
DIGEST = "sha256:" + 64 * "7"
COMMITS = 50
DATA = b"PAR1 a file that is never read PAR1"


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
        times = (TIME_MS + first, TIME_MS + last)
        path = file_name(home, first, last)
        sizes = (ROWS, 50_000, 100_000)
        files.append(LakeFile(path, home, first, last, *sizes, *times, ((12, first),), DIGEST))
    start = offset(batch - 1)
    more = ((), "read_uncommitted", {TOPIC: "delete"})
    return Manifest(batch, QUERY, start, offset(batch), tuple(files), *more)


def _numbers(batch: int) -> list[str]:
    """What differs between two manifests."""
    first, end = (batch - 1) * ROWS, batch * ROWS
    times = [str(TIME_MS + first), str(TIME_MS + end - 1)]
    names = [f"{first:020d}", f"{end - 1:020d}"]
    return [*names, *times, str(first), str(end - 1), str(end), f'"batch":{batch},']


@cache
def template() -> Callable[[int], str]:
    """`manifest(batch).to_line()`, quicker: numbers are put into a line that was made once."""
    made = manifest(_SAMPLE).to_line()
    tokens = _numbers(_SAMPLE)
    # Literals and numbers take turns; longer numbers come first.
    pieces = re.split("(" + "|".join(map(re.escape, tokens)) + ")", made)
    places = [tokens.index(piece) for piece in pieces[1::2]]

    def line(batch: int) -> str:
        numbers = _numbers(batch)
        pieces[1::2] = [numbers[place] for place in places]
        return "".join(pieces)

    assert line(4321) == manifest(4321).to_line()
    return line


def summary(batch: int) -> Summary:
    """The sums over the batches up to this one."""
    end = batch * ROWS
    parts = {
        LakePartition(TOPIC, TOPIC_ID, part): SummaryPart(0, end, end, end, batch)
        for part in range(PARTITIONS)
    }
    return Summary(batch, end * PARTITIONS, batch * PARTITIONS, parts)


def fold(root: Path, nth: int) -> None:
    """Write the nth manifest checkpoint."""
    line = template()
    first, end = nth * chain.FOLD, (nth + 1) * chain.FOLD
    lines = [line(batch) if batch else manifest(0).to_line() for batch in range(first, end)]
    chain.write_checkpoint(Layout(root), first, summary(end - 1), lines)


def build(root: Path, batches: int) -> Layout:
    """A lake of so many batches and a checkpoint of Spark's that fits it."""
    layout = Layout(root)
    for folder in (layout.manifests, layout.inflight):
        folder.mkdir(parents=True)
    # The newest manifest lies by itself.
    whole = (batches - 1) // chain.FOLD
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(fold, repeat(root), range(whole), chunksize=16):
            pass
    first = whole * chain.FOLD
    for batch in range(first, batches):
        layout.manifest(batch).write_text(manifest(batch).to_line() + "\n")
    SparkCheckpoint(layout.checkpoint).adopt(manifest(batches - 1))
    return layout


def resident_kib(peak: bool) -> int:
    """Resident memory of this process, now or at its highest since the mark was put down."""
    name = "VmHWM" if peak else "VmRSS"
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if name in each)
    return int(line.split()[1])


def start(root: Path) -> None:
    """Print what one start cost, as JSON."""
    Path("/proc/self/clear_refs").write_text("5")  # puts the mark down
    before = resident_kib(peak=False)
    begun = time.monotonic()
    job = Archive(ArchiveSettings("127.0.0.1:9", (TOPIC,), str(root)), Layout(root))
    took = time.monotonic() - begun
    gained = resident_kib(peak=True) - before
    print(json.dumps({"s": took, "kib": gained, "batch": job.batch, "rows": job.rows}))


def started(root: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--start", str(root)]
    said = [
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        for _ in range(3)
    ]
    return min(said, key=lambda each: each["s"])


def commits(layout: Layout) -> tuple[float, float]:
    """The median of some commits in ms, and what the driver gains in KiB per batch after them."""
    job = Archive(ArchiveSettings("127.0.0.1:9", (TOPIC,), str(layout.root)), layout)
    times = [_commit(job, layout) for _ in range(COMMITS)]
    tracemalloc.start()
    _commit(job, layout)
    held = tracemalloc.get_traced_memory()[0]
    for _ in range(COMMITS):
        _commit(job, layout)
    gained = tracemalloc.get_traced_memory()[0] - held
    tracemalloc.stop()
    return 1000 * statistics.median(times), gained / COMMITS / 1024


def _commit(job: Archive, layout: Layout) -> float:
    """One batch as the job commits it, once its files are staged; seconds."""
    made = manifest(job.batch + 1)
    staged = {}
    for number, file in enumerate(made.files):
        staged[file.path] = layout.inflight / f"{number}.staged"
        staged[file.path].write_bytes(DATA)
    begun = time.monotonic()
    commit(layout, made, staged)
    job._total.add(made)
    job._last = made
    chain.fold(layout)
    return time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, nargs="+", default=[1, 30])
    parser.add_argument("--start", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.start is not None:
        start(given.start)
        return
    print(f"batches of 5 s, {PARTITIONS} partitions")
    print("| history | batches | manifests | start | its memory | commit | gained per batch |")
    print("|---|---|---|---|---|---|---|")
    for days in given.days:
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
