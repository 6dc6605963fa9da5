"""The parent of Spark's Python workers: it has what they import, and workers share it.

Owns what is done before the first worker is forked; all else is PySpark's.

- PySpark comes from its package instead of from its zip. Spark puts the zip of PySpark first, and
  every worker compiles the modules of a zip again, which takes a second or more. When that zip is
  part of an installed `pyspark` package, the package has the same modules, compiled.
- The modules of a task are imported once, and the collector leaves them alone. A worker collects
  after every task, and would walk some 100,000 objects of modules each time: two thirds of the CPU
  of a task with 1,000 rows.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

_ZIP = "pyspark.zip"

# What a task of the source imports, in PySpark and here.
_OF_A_TASK = (
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "tidelog.pipeline.batch_reader",
    "tidelog.pipeline.stream_reader",
    "tidelog.pipeline.lake.files",
    "pyspark_tidelog",
)


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
    """Import modules, and keep the garbage collector off everything that is there now.

    Returns what cannot be imported here: the worker that needs it reports that with its task. No
    thread may run afterwards, since a fork copies none.
    """
    missing = []
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    gc.collect()
    gc.freeze()
    return missing


if __name__ == "__main__":
    sys.path[:] = prefer_package(sys.path)
    from pyspark.daemon import manager

    preload()
    manager()
