"""The archive job whose driver is killed with SIGKILL at a named step of its fourth batch.

`python killed_job.py STEP archive ...`, also as the file of spark-submit. What of a batch is
durable at a step is in docs/internals/pipeline.md.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext

from tidelog.pipeline.__main__ import run
from tidelog.pipeline.jobs import archive
from tidelog.pipeline.lake import chain, commit, files

BATCHES = 3

# Step -> whose function is called there, its name, which call of a batch, and whether after it.
STEPS: dict[str, tuple[Any, str, int, bool]] = {
    "begun": (files, "stage", 1, False),
    "staged": (commit, "_check_absent", 1, False),
    "drafted": (commit, "_link_files", 1, False),
    "half linked": (os, "link", 2, False),
    "linked": (commit, "_link_manifest", 1, False),
    "in the lake": (commit, "_link_manifest", 1, True),
    "cleaned up": (chain, "fold", 1, False),
}


def die() -> None:
    """kill -9 of the driver: its JVM, which is this process's child or parent, and this process."""
    gateway = SparkContext._gateway
    started = getattr(gateway, "proc", None)
    os.kill(os.getppid() if started is None else started.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def arm(step: str) -> None:
    """Have this process killed at the step, after so many whole batches."""
    owner, name, nth, after = STEPS[step]
    commits = calls = 0
    real_commit, real = archive.commit, getattr(owner, name)

    def committing(*args: Any) -> None:
        nonlocal commits, calls
        commits, calls = commits + 1, 0
        real_commit(*args)

    def counted(*args: object, **more: object) -> object:
        nonlocal calls
        calls += commits >= BATCHES + (step != "begun")
        if calls == nth and not after:
            die()
        done = real(*args, **more)
        if calls == nth:
            die()
        return done

    archive.commit = committing
    patch: Callable[..., None] = setattr
    patch(owner, name, counted)


if __name__ == "__main__":
    arm(sys.argv[1])
    sys.exit(run(sys.argv[2:]))
