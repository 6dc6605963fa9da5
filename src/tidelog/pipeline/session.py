"""The Spark session of the jobs.

Owns its settings; a master or setting that spark-submit or the caller gives wins. Spark's own
Python workers run the interpreter of this process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.spark_errors import one_line

_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Jobs handle up to some millions of rows: 200 tasks per shuffle cost more than they save.
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.python.daemon.module": "tidelog.pipeline.worker_daemon",
    # Between Spark and its Python workers: cheaper than TCP, and no port that others can reach.
    "spark.python.unix.domain.socket.enabled": "true",
}


def is_submitted() -> bool:
    """Whether spark-submit started this process: master and settings are its own then."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def session(
    name: str,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[SparkSession]:
    """A session for one job, stopped at its end.

    `log` receives the output of Spark's JVM, which otherwise goes to standard error, after a line
    that Spark starts: the first word of its own comes seconds later. Raises PipelineError.
    """
    if log is None:
        print(f"{name}: starting Spark, which takes some seconds", file=sys.stderr, flush=True)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # A machine with two network cards or none: driver and executors of a local master meet here.
    if not is_submitted():
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    elif not is_submitted():
        builder = builder.master("local[*]")
    wanted = dict(settings or {}) if is_submitted() else {**_DEFAULTS, **(settings or {})}
    for key, value in wanted.items():
        builder = builder.config(key, value)
    try:
        with _error_output_to(log):
            spark = builder.getOrCreate()
    except (Py4JJavaError, PySparkException) as error:
        raise PipelineError(f"Spark does not start: {one_line(error)}") from error
    for key, value in _DEFAULTS.items():
        if key.startswith("spark.sql.") and not spark.sparkContext.getConf().contains(key):
            spark.conf.set(key, value)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _error_output_to(log: Path | None) -> Iterator[None]:
    """Processes that start within write their standard error to a file: the JVM inherits it."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as out:
            os.dup2(out.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
