"""Bytecode for the modules in PySpark's zip, beside their sources.

Spark's planner starts a Python process for each step of a read (look-up, creation, plan), and puts
that zip in front of the installed package. Python keeps no bytecode of what it imports from a zip,
so each compiles PySpark again: 0.6 s, some hundred times in the tests.
"""

from __future__ import annotations

import compileall
import fcntl
import os
import tempfile
import warnings
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode

import pyspark

ZIP = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"


def compile_pyspark(path: Path = ZIP) -> None:
    """Add the bytecode to the zip, unless it is there; a second process waits meanwhile.

    Before any of Spark's Python has begun: what has read the old zip's directory goes on by that.
    """
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _compile(path)


def _compile(path: Path) -> None:
    with zipfile.ZipFile(path) as found:
        if "pyspark/__init__.pyc" in found.namelist():
            return
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            sources = Path(scratch, "sources")
            found.extractall(sources)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                compileall.compile_dir(
                    sources,
                    quiet=2,
                    legacy=True,
                    stripdir=str(sources),
                    prependdir=str(path),
                    invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
                )
            fresh = Path(scratch, path.name)
            with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as made:
                for file in sorted(sources.rglob("*")):
                    if file.is_file():
                        made.write(file, file.relative_to(sources))
            os.replace(fresh, path)
