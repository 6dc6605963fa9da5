"""The parent of Spark's Python workers, for a test that kills executors at named steps of a file.

A daemon module of Spark's (`spark.python.daemon.module`). The first worker that comes to a step
kills its executor's JVM with SIGKILL, and itself; `TIDELOG_EXECUTOR_KILLS` is the folder where each
step that was struck has a file, so that it is struck once.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tidelog.pipeline.lake import files
from tidelog.pipeline.worker_daemon import prefer_package

FOLDER = "TIDELOG_EXECUTOR_KILLS"
# Step -> from which offset of a partition on.
STEPS = {"writing": 0, "staged": 500}


def strike(step: str, reached: int, executor: int) -> None:
    """Kill the executor, unless the step was struck before."""
    if reached < STEPS[step]:
        return
    try:
        Path(os.environ[FOLDER], step).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(executor, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def arm(executor: int) -> None:
    """Kill the executor of this process id within a file, and before it reports to its driver."""
    add, finish = files._DataFile.add, files._DataFile.finish

    def adding(self: Any, batch: Any) -> None:
        add(self, batch)
        strike("writing", self.last, executor)

    def finishing(self: Any) -> dict[str, Any]:
        said = finish(self)
        strike("staged", self.last, executor)
        return said

    files._DataFile.add, files._DataFile.finish = adding, finishing  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.path[:] = prefer_package(sys.path)
    arm(os.getppid())
    from pyspark.daemon import manager

    manager()
