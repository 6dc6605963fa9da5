"""The parent of Spark's Python workers: it has what they import, and workers share it.

Owns what is done before the first worker is forked; all else is PySpark's.

- PySpark comes from its package instead of from its zip. Spark puts the zip of PySpark first, and
  every worker compiles the modules of a zip again, which takes a second or more. When that zip is
  part of an installed `pyspark` package, the package has the same modules, compiled.
- The modules of a task are imported once, and the collector leaves them alone. A worker collects
  after every task, and would walk some 100,000 objects of modules each time: two thirds of the CPU
  of a task with 1,000 rows.

A fork copies one thread, so no module may start another one before it.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_ZIP = "pyspark.zip"

# What a task of the source or the sink imports, in PySpark and here.
_OF_A_TASK = (
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "tidelog.pipeline.batch_reader",
    "tidelog.pipeline.stream_reader",
    "tidelog.pipeline.lake.files",
    "tidelog.pipeline.sink.writers",
    "pyspark_tidelog",
)

# What keeps numpy's and Arrow's native libraries from starting threads as they are loaded. PySpark
# has one thread for numpy in each worker anyway, unless it is asked for more.
_WITHOUT_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


def prefer_package(path: list[str]) -> list[str]:
    """The import path without the zip, if it holds the package that the zip was made from."""
    folders = set(path)

    def is_needless(entry: str) -> bool:
        place = Path(entry)
        return (
            place.name == _ZIP
            and place.parts[-4:-1] == ("pyspark", "python", "lib")
            and str(place.parents[3]) in folders
        )

    return [entry for entry in path if not is_needless(entry)]


def preload(modules: Sequence[str] = _OF_A_TASK) -> list[str]:
    """Import modules without threads, and keep the garbage collector off all that is there now.

    Returns what cannot be imported here: the worker that needs it reports that with its task.
    """
    missing = []
    before = dict(os.environ)
    os.environ.update(_WITHOUT_THREADS)
    try:
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception:  # of a library that does not fit another one, too
                missing.append(name)
    finally:
        for name in _WITHOUT_THREADS:
            os.environ.pop(name)
        os.environ.update(before)
    gc.collect()
    gc.freeze()
    return missing


if __name__ == "__main__":
    sys.path[:] = prefer_package(sys.path)
    from pyspark.daemon import manager

    preload()
    manager()
