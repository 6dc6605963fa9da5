"""Three tidelog brokers for the demo, started as a user starts them: `tidelog up --brokers 3`.

Owns the command's life and what its `cluster.json` says; the data lies in the demo's folder.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BROKERS = 3
_START_DEADLINE_S = 60
_STOP_DEADLINE_S = 60
_CHECK_S = 0.05


@dataclass(frozen=True)
class RunningCluster:
    """A cluster by its `cluster.json`, which is rewritten when a broker is started again."""

    file: Path

    def read(self) -> dict[str, Any]:
        """What the file says now."""
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return str(self.read()["bootstrap"])

    def pid(self, broker: int) -> int | None:
        """A broker's process, None while there is none."""
        (pid,) = [each["pid"] for each in self.read()["brokers"] if each["id"] == broker]
        return None if pid is None else int(pid)


@contextmanager
def running_cluster(folder: Path) -> Iterator[RunningCluster]:
    """Three brokers, once all of them serve; a broker that dies is started again.

    Stopped cleanly at the end. Raises RuntimeError with what it said when it does not come up.
    """
    data, log = folder / "cluster", folder / "cluster.log"
    command = [sys.executable, "-m", "tidelog.cli.main", "up", "--brokers", str(BROKERS)]
    with log.open("wb") as output:
        up = subprocess.Popen(
            [*command, "--port", "0", "--data", str(data), "--restart"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait(up, log)
        yield RunningCluster(data / "cluster.json")
    finally:
        up.send_signal(signal.SIGTERM)
        try:
            up.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            up.kill()
            up.wait()


def _wait(up: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_DEADLINE_S
    while not any(line.startswith("ready ") for line in _lines(log)):
        if up.poll() is not None or time.monotonic() > end:
            said = "\n".join(_lines(log)[-20:])
            raise RuntimeError(f"the cluster did not come up:\n{said}")
        time.sleep(_CHECK_S)


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()
