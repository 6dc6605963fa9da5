"""The job `archive`: topics to a lake of Parquet files, each record exactly once.

Owns the order of steps of a batch: the executors stage files; the driver checks that batch, files
and lake fit together, moves the files into place and creates the manifest. The batch runs in the
driver's own process under the lake's lock: a driver that dies commits nothing more. A batch that
runs again after a crash finds its manifest and does nothing, or writes the same files again.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.lag import lag_of
from tidelog.pipeline.lake import files
from tidelog.pipeline.lake.layout import OWN, Layout, folder
from tidelog.pipeline.lake.manifest import (
    LakeFile,
    Manifest,
    check_files,
    check_follows,
    check_new,
    check_query,
    commit,
    lock,
    read_manifests,
    recover,
)
from tidelog.pipeline.planning.positions import Pid, Positions, is_sentinel
from tidelog.pipeline.progress import Reporter
from tidelog.pipeline.spark_errors import in_one_line

QUERY_NAME = "tidelog-archive"
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """What to archive and where to. `options` are options of the source."""

    bootstrap_servers: str
    topics: tuple[str, ...]
    lake: str
    checkpoint: str | None = None
    once: bool = False
    trigger_ms: int = 5000
    compression: str = "zstd"
    options: Mapping[str, str] = field(default_factory=dict)


class Archive:
    """One run of the job over a lake that this process has locked."""

    def __init__(self, settings: ArchiveSettings, layout: Layout) -> None:
        self._settings = settings
        self._layout = layout
        self._checkpoint = layout.checkpoint
        if settings.checkpoint:
            self._checkpoint = folder("checkpoint", settings.checkpoint)
        for topic in ",".join(settings.topics).split(","):
            if topic.strip() in OWN:
                raise LakeRefused(
                    f"topic {topic} cannot be archived: a folder of that name is ours"
                )
        manifests = read_manifests(layout)
        self._last = manifests[-1] if manifests else None
        self._ends = {manifest.batch: manifest.end for manifest in manifests}
        self._reached: dict[Pid, int] = {}
        for manifest in manifests:
            self._reach(manifest)
        self.rows = sum(manifest.rows for manifest in manifests)
        self.files = sum(len(manifest.files) for manifest in manifests)
        if manifests and not (self._checkpoint / "metadata").exists():
            raise LakeRefused(
                f"lake {layout.root} holds batches, but there is no checkpoint in"
                f" {self._checkpoint}: name the one that belongs to it, or a new lake"
            )
        if self._last is not None:
            # Before Spark runs a batch: it would call one done that the lake does not take.
            check_query(self._last, _query_id(self._checkpoint))
        self.removed = recover(layout, manifests, self._cut_down())

    @property
    def batch(self) -> int:
        """The last committed batch; -1 before the first."""
        return self._last.batch if self._last else -1

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the streaming query."""
        settings = self._settings
        options = {
            "startingOffsets": "earliest",
            **settings.options,
            "kafka.bootstrap.servers": settings.bootstrap_servers,
            "subscribe": ",".join(settings.topics),
            "columns": ",".join(files.COLUMNS),
        }
        trigger: dict[str, Any] = {"availableNow": True}
        if not settings.once:
            trigger = {"processingTime": f"{settings.trigger_ms} milliseconds"}
        rows = spark.readStream.format("tidelog").options(**options).load()
        return (
            rows.writeStream.queryName(QUERY_NAME)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**trigger)
            .foreachBatch(self.write_batch)
            .start()
        )

    def write_batch(self, rows: DataFrame, batch: int) -> None:
        """Put one micro-batch into the lake, unless it is there already."""
        end = _logged_offset(self._checkpoint, batch)
        if batch <= self.batch:
            if end != self._ends[batch]:
                # An older copy of the checkpoint, or one that lost its last writes.
                raise LakeRefused(
                    f"batch {batch} of the checkpoint does not end where batch {batch} of the lake"
                    " ends: checkpoint and lake do not belong together"
                )
            return
        query_id = _query_id(self._checkpoint)
        start = _logged_offset(self._checkpoint, batch - 1) if batch else None
        if end is None:
            raise LakeRefused(f"the checkpoint has no end of batch {batch}")
        if self._last is not None:
            check_follows(self._last, batch, query_id, start)
        elif batch:
            raise LakeRefused(f"the lake is empty, but its checkpoint is at batch {batch}")
        writer = files.stage(str(self._layout.inflight), self._settings.compression)
        # Spark takes seconds to hand a million null lists to Python; empty ones cost nothing.
        rows = rows.withColumn("headers", sql.expr(files.HEADERS_NOT_NULL))
        staged = rows.mapInArrow(writer, files.STAGED_SCHEMA).collect()
        made = [LakeFile(**{key: row[key] for key in LakeFile.__slots__}) for row in staged]
        check_files(made, start, end)
        check_new(made, self._reached)
        made.sort(key=lambda file: (file.pid, file.first))
        manifest = Manifest(batch, query_id, start, end, tuple(made))
        commit(self._layout, manifest, {row["path"]: Path(row["staged"]) for row in staged})
        self._last = manifest
        self._ends[batch] = end
        self._reach(manifest)
        self.rows += manifest.rows
        self.files += len(made)

    def behind(self, query: StreamingQuery) -> int:
        """Offsets between the end of the lake and the end of the log as the query last saw it."""
        progress = query.lastProgress
        if progress is None or self._last is None:
            return 0
        lag = lag_of(json.dumps(self._last.end.to_json()), progress["sources"][0]["latestOffset"])
        return lag.total if lag else 0

    def _reach(self, manifest: Manifest) -> None:
        for file in manifest.files:
            self._reached[file.pid] = max(self._reached.get(file.pid, 0), file.last + 1)

    def _cut_down(self) -> Positions | None:
        """Where the batch ends that a crash may have cut down; None when none was begun.

        Raises LakeRefused when Spark knows that batch as done: its manifest is missing.
        """
        batch = self.batch + 1
        if (self._checkpoint / "commits" / str(batch)).exists():
            what = f"has no manifest of batch {batch}" if batch else "is empty"
            raise LakeRefused(
                f"the lake {what}, but its checkpoint is at batch {batch} or later:"
                " put the manifests back, or name another lake and checkpoint"
            )
        if not (self._checkpoint / "offsets" / str(batch)).exists():
            return None
        return _logged_offset(self._checkpoint, batch)

    def facts(self) -> dict[str, Any]:
        """What JSON progress carries."""
        return {"batch": self.batch, "rows": self.rows, "files": self.files}


def run(
    spark: SparkSession,
    settings: ArchiveSettings,
    reporter: Reporter,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run the job until it is done (`once`), `stop` says so, or SIGTERM or Ctrl-C comes.

    Returns what was archived in all. Raises PipelineError, one line.
    """
    layout = Layout.at(settings.lake)
    with lock(layout), _signals() as signalled:
        archive = Archive(settings, layout)
        before = archive.rows
        if archive.removed:
            reporter.say(f"removed {len(archive.removed)} files of a batch that was cut down")
        if archive.batch >= 0:
            reporter.say(f"resuming after batch {archive.batch} with {before:,} records")
        with in_one_line():
            query = archive.start(spark)
        with reporter:
            try:
                with in_one_line():
                    while not (signalled() or stop()):
                        _report(reporter, archive, query)
                        if query.awaitTermination(_LOOK_S):
                            break
            finally:
                query.stop()
            _report(reporter, archive, query)
        return {**archive.facts(), "new_rows": archive.rows - before}


def _report(reporter: Reporter, archive: Archive, query: StreamingQuery) -> None:
    behind = archive.behind(query)
    reporter.update(archive.rows, archive.rows + behind, lag=behind, **archive.facts())


def _query_id(checkpoint: Path) -> str:
    """The id that Spark gave the query of a checkpoint. Raises LakeRefused."""
    path = checkpoint / "metadata"
    try:
        return str(json.loads(path.read_text())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        raise LakeRefused(f"{path} cannot be read: it is no checkpoint of Spark's") from None


def _logged_offset(checkpoint: Path, batch: int) -> Positions | None:
    """The end of a batch in Spark's offset log; None for the sentinel.

    Raises LakeRefused for a log of a form that this code does not know.
    """
    path = checkpoint / "offsets" / str(batch)
    try:
        version, _, offset = path.read_text().splitlines()
        parsed = json.loads(offset)
    except (OSError, ValueError):
        raise LakeRefused(f"the offset log {path} cannot be read") from None
    if version != "v1":
        raise LakeRefused(f"the offset log {path} has the unknown form {version}")
    return None if is_sentinel(parsed) else Positions.from_json(parsed)


@contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Whether SIGTERM or SIGINT came; only the main thread can be asked to listen."""
    came: list[float] = []

    def note(number: int, frame: object) -> None:
        came.append(time.monotonic())

    try:
        before = {each: signal.signal(each, note) for each in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:
        before = {}
    try:
        yield lambda: bool(came)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
