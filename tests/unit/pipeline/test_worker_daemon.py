"""Which entries of the import path Spark's Python workers keep, and what they share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tidelog.pipeline.worker_daemon import prefer_package

ZIP = "/venv/site-packages/pyspark/python/lib/pyspark.zip"


def test_the_zip_goes_where_its_package_is_installed() -> None:
    assert prefer_package([ZIP, "/x", "/venv/site-packages"]) == ["/x", "/venv/site-packages"]


def test_the_zip_stays_where_it_is_all_there_is() -> None:
    assert prefer_package([ZIP, "/x"]) == [ZIP, "/x"]
    other = "/opt/spark/python/lib/pyspark.zip"
    assert prefer_package([other, "/venv/site-packages"]) == [other, "/venv/site-packages"]


PRELOADED = """
import gc, os, sys
from tidelog.pipeline.worker_daemon import preload

environment = dict(os.environ)
assert preload() == [], "a task imports what is not there"
assert os.environ == environment, "workers and what they start get the environment of the daemon"
assert "tidelog.pipeline.tasks" in sys.modules and "pyarrow" in sys.modules
assert "numpy.random" not in sys.modules, "all workers would draw the same numbers"
threads = os.listdir("/proc/self/task")
assert len(threads) == 1, f"a fork copies one of these threads: {threads}"
child = os.fork()
if not child:
    # What a worker does after each task: its objects are few, and the modules are none of them.
    os._exit(0 if len(gc.get_objects()) < 2_000 < gc.get_freeze_count() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_workers_share_the_modules_of_a_task_and_collect_none_of_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELOADED], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_a_module_that_cannot_be_imported_keeps_no_worker_from_starting(tmp_path: Path) -> None:
    """Nor one that fails otherwise, as libraries do that were built for another numpy."""
    (tmp_path / "does_not_fit.py").write_text("raise ValueError('numpy.dtype size changed')")
    tried = (
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        "from tidelog.pipeline.worker_daemon import preload\n"
        "print(*preload(['no_such_module', 'does_not_fit', 'json']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", tried], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["no_such_module", "does_not_fit"]
