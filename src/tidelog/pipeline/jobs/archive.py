"""The job `archive`: topics to a lake of Parquet files, each record exactly once.

Owns the order of steps of a batch: the job checks whether the batch is in the lake; the executors
stage files; the driver checks that batch, files and lake fit together, and commits them
(`lake.commit`); then it commits the group's offsets. The batch runs in the driver's own process
under the lake's lock: a dead driver commits nothing. A batch that runs again after a crash finds
its manifest and does nothing, or stages its files again.
"""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.jobs.archive_cluster import ArchiveCluster
from tidelog.pipeline.lag import lag_of
from tidelog.pipeline.lake import chain, files
from tidelog.pipeline.lake.commit import (
    check_nothing_beyond,
    commit,
    lock,
    recover,
    recover_first_version,
)
from tidelog.pipeline.lake.layout import OWN, Layout, folder
from tidelog.pipeline.lake.manifest import (
    Manifest,
    check_bad_files,
    check_files,
    check_follows,
    check_new,
)
from tidelog.pipeline.lake.offsets import Offset, dropped, ends, losses_between
from tidelog.pipeline.lake.spark_checkpoint import CheckpointRefused, SparkCheckpoint
from tidelog.pipeline.options import Mode, parse
from tidelog.pipeline.progress import Reporter
from tidelog.pipeline.spark_errors import in_one_line

_log = logging.getLogger(__name__)

QUERY_NAME = "tidelog-archive"
_CHECK_S = 0.2


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """What to archive and where to. `options` are options of the source.

    `pattern` takes the place of `topics`. `adopt`: continue at the end of the manifests when the
    checkpoint does not fit them. `drop`: topics of the lake that are no longer archived.
    """

    bootstrap_servers: str
    topics: tuple[str, ...]
    lake: str
    checkpoint: str | None = None
    once: bool = False
    adopt: bool = False
    trigger_ms: int = 5000
    compression: str = "zstd"
    roll_bytes: int = files.ROLL_BYTES
    on_bad_record: str = "fail"
    pattern: str = ""
    drop: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def source_options(self) -> dict[str, str]:
        """Of the source, as Spark gets them. The job commits the group's offsets itself."""
        given = {name.lower() for name in self.options}
        return {
            **({} if "startingoffsets" in given else {"startingOffsets": "earliest"}),
            **self.options,
            "kafka.bootstrap.servers": self.bootstrap_servers,
            **self.subscription,
            "columns": ",".join(files.READ_COLUMNS),
            "onBadRecord": self.on_bad_record,
        }

    @property
    def subscription(self) -> dict[str, str]:
        """The option that chooses the topics."""
        if self.pattern:
            return {"subscribePattern": self.pattern}
        return {"subscribe": ",".join(self.topics)}


class Archive:
    """One run of the job over a lake that this process has locked."""

    def __init__(self, settings: ArchiveSettings, layout: Layout) -> None:
        self._settings = settings
        self._layout = layout
        checkpoint = layout.checkpoint
        if settings.checkpoint:
            checkpoint = folder("checkpoint", settings.checkpoint)
        self._checkpoint = SparkCheckpoint(checkpoint)
        options = parse(settings.source_options, Mode.STREAM)
        self._subscription = options.subscription
        _check_names(options.subscription.topics)
        self._skips_losses = not options.fail_on_data_loss
        self._isolation = "read_committed" if options.read_committed else "read_uncommitted"
        self._cluster = ArchiveCluster(options)
        chain.fold(layout)
        self._total, self._last = chain.summary(layout)
        self.adopted = False
        self.removed = recover(layout)
        self._check_start()

    def _check_start(self) -> None:
        """Refuse a checkpoint that does not continue the lake, before Spark runs a batch.

        Otherwise Spark would mark a batch as done that the lake refuses.
        """
        last = self._last
        try:
            self._checkpoint.check_fits(last)
        except CheckpointRefused:
            if not self._settings.adopt or last is None:
                raise
            check_nothing_beyond(self._layout, self._total.bounds)
            self._checkpoint.adopt(last)
            self.adopted = True
        if last is not None and not self._skips_losses:
            self._check_left_out(last.end)
        if last is None or last.version == 1:
            begun = self.batch + 1
            cut_down = (
                self._checkpoint.offset(begun) if self._checkpoint.logged() >= begun else None
            )
            end = None if last is None else last.end
            self.removed += recover_first_version(self._layout, self._total.bounds, end, cut_down)

    def _check_left_out(self, end: Offset) -> None:
        """Refuse to leave out a topic of the lake, unless it was dropped, now or before."""
        gone = {home.topic for home in dropped(end)} | set(self._settings.drop)
        left_out = [
            topic
            for topic in sorted(set(end["topics"]) - gone)
            if not self._subscription.chooses(topic, 0)
        ]
        if left_out:
            whole = ",".join([*left_out, *self._subscription.topics])
            raise LakeRefused(
                f"the lake and its checkpoint have {', '.join(left_out)}, too: name all of its "
                f"topics (-t {whole}), or another lake; --drop {','.join(left_out)} ends the"
                " archiving of it, and keeps what the lake has"
            )

    @property
    def batch(self) -> int:
        """The last committed batch; -1 before the first."""
        return self._total.batch

    @property
    def rows(self) -> int:
        """The records in the lake."""
        return self._total.rows

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the streaming query."""
        settings = self._settings
        # The job commits, after the batch is in the lake.
        options = {**settings.source_options, "commitGroupOffsets": "false"}
        trigger: dict[str, Any] = {"availableNow": True}
        if not settings.once:
            trigger = {"processingTime": f"{settings.trigger_ms} milliseconds"}
        rows = spark.readStream.format("tidelog").options(**options).load()
        return (
            rows.writeStream.queryName(QUERY_NAME)
            .option("checkpointLocation", self._checkpoint.uri)
            .trigger(**trigger)
            .foreachBatch(self.write_batch)
            .start()
        )

    def write_batch(self, rows: DataFrame, batch: int) -> None:
        """Put one micro-batch into the lake, unless it is there already."""
        end = self._checkpoint.offset(batch)
        last = self._last
        # Spark repeats a batch that it has not marked as done.
        if last is not None and batch <= last.batch:
            if batch < last.batch or end != last.end:
                # An older copy of the checkpoint, or one that lost its last writes.
                raise LakeRefused(
                    f"batch {batch} of the checkpoint does not end where batch {last.batch} of the"
                    " lake ends: checkpoint and lake do not belong together"
                )
            self._cluster.commit(last.end)
            return
        query_id = self._checkpoint.query_id()
        start = self._checkpoint.offset(batch - 1) if batch else None
        if end is None:
            raise LakeRefused(f"the checkpoint has no end of batch {batch}")
        check_follows(last, batch, query_id, start)
        # Of a pattern they are known only now.
        _check_names(end["topics"])
        gone = {home.topic for home in dropped(end)}
        policies = self._cluster.policies(sorted(set(end["topics"]) - gone))
        writer = files.stage(
            str(self._layout.inflight), self._settings.compression, self._settings.roll_bytes
        )
        # Spark takes seconds to hand a million null lists to Python; empty ones cost nothing.
        rows = rows.withColumn("headers", sql.expr(files.HEADERS_NOT_NULL))
        lines = rows.mapInArrow(writer, files.STAGED_SCHEMA).collect()
        staged = files.Staged.of((row["line"] for row in lines), ends(end))
        check_files(staged.files, start, end)
        check_new(staged.files, self._total.reached)
        check_bad_files(staged.bad, start, end)
        for bad in staged.bad:
            _log.warning(
                "%s: %d bad records from offset %d on, kept in %s: %s",
                *(bad.home, bad.rows, bad.first, bad.path, bad.reason),
            )
        losses = (*losses_between(start, end), *staged.losses)
        manifest = Manifest(
            *(batch, query_id, start, end, staged.files, losses, self._isolation, policies),
            bad=staged.bad,
        )
        commit(self._layout, manifest, staged.places)
        self._total.add(manifest)
        self._last = manifest
        chain.fold(self._layout)
        # Last, and it may fail: what the lake has, its manifests alone say (0052).
        self._cluster.commit(manifest.end)

    def lag(self, query: StreamingQuery) -> int:
        """Offsets between the end of the lake and the end of the log as the query last saw it."""
        progress = query.lastProgress
        if progress is None or self._last is None:
            return 0
        lag = lag_of(json.dumps(self._last.end), progress["sources"][0]["latestOffset"])
        return lag.total if lag else 0

    def facts(self) -> dict[str, Any]:
        """What JSON progress carries."""
        total = self._total
        return {"batch": self.batch, "rows": self.rows, "files": total.files, "bad": total.bad}

    def close(self) -> None:
        """Commit the group's offsets if that has not succeeded yet, and close the connections."""
        try:
            if self._last is not None:
                self._cluster.commit_last(self._last.end)
        finally:
            self._cluster.close()


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
    with lock(layout), _signals() as signalled, closing(Archive(settings, layout)) as archive:
        before = archive.rows
        if archive.removed:
            reporter.say(f"removed {len(archive.removed)} files of an interrupted batch")
        if archive.adopted:
            reporter.say(f"created a checkpoint at the end of batch {archive.batch} of the lake")
        if archive.batch >= 0:
            reporter.say(f"resuming after batch {archive.batch} with {before:,} records")
        with in_one_line():
            query = archive.start(spark)
        with reporter:
            try:
                with in_one_line():
                    while not (signalled() or stop()):
                        _report(reporter, archive, query)
                        if query.awaitTermination(_CHECK_S):
                            break
            finally:
                query.stop()
            _report(reporter, archive, query)
        return {**archive.facts(), "new_rows": archive.rows - before}


def _check_names(topics: Iterable[str]) -> None:
    for topic in topics:
        if topic in OWN:
            raise LakeRefused(
                f"topic {topic} cannot be archived: the lake uses a folder of that name"
            )


def _report(reporter: Reporter, archive: Archive, query: StreamingQuery) -> None:
    lag = archive.lag(query)
    reporter.update(archive.rows, archive.rows + lag, lag=lag, **archive.facts())


@contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Whether SIGTERM or SIGINT came; only the main thread can be asked to listen."""
    came: list[float] = []

    def note(number: int, frame: object) -> None:
        came.append(time.monotonic())

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:
        before = {}
    try:
        yield lambda: bool(came)
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)
