"""The stock Kafka source: Spark 4.0 with its own connector, in a venv and with jars of its own.

4.0 is the newest Spark whose Kafka connector has all its parts on Maven Central. The venv is made
on first use, from a lock file with hashes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.support.java import ROOT, class_path

LOCK_FILE = Path(__file__).with_name("requirements-spark40.lock")
VENV = ROOT / ".venv-spark40"
# Not inside the venv: uv locks a file of that name there itself.
LOCK = ROOT / ".tools" / "venv-spark40.lock"
_INSTALL_DEADLINE_S = 540


def stock_python() -> Path:
    """The interpreter that has pyspark 4.0; its venv is made when the lock file is new."""
    python = VENV / "bin" / "python"
    ready = VENV / ".ready"
    digest = hashlib.sha256(LOCK_FILE.read_bytes()).hexdigest()
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if ready.exists() and ready.read_text() == digest:
            return python
        _run(sys.executable, "-m", "venv", "--without-pip", str(VENV))
        install = [sys.executable, "-m", "uv", "pip", "install", "-q"]
        _run(*install, "--python", str(python), "--require-hashes", "-r", str(LOCK_FILE))
        ready.write_text(digest)
    return python


def stock_environment() -> dict[str, str]:
    """The environment for a script on `stock_python()` that uses `format("kafka")`.

    Raises JavaUnavailable where Java or Maven is missing.
    """
    jars = class_path("spark-kafka").replace(os.pathsep, ",")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SPARK")}
    return {
        **kept,
        "PYSPARK_PYTHON": str(stock_python()),
        "PYSPARK_SUBMIT_ARGS": f"--jars {jars} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=_INSTALL_DEADLINE_S)
