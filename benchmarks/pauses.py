"""The longest time that a server leaves a small request unanswered, seen by a process of its own.

`Pauses(port)` asks for the supported versions every 10 ms; `longest_s()` is what the answers since
the last call took at most. Its own process, for the one that measures is busy itself.
"""

from __future__ import annotations

import select
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from tests.support.node import receive_frame

ROOT = Path(__file__).resolve().parent.parent
INTERVAL_S = 0.01
ASK = struct.pack(">ihhih", 10, 18, 0, 1, 0)
"""ApiVersions v0 with an empty client id: no handler waits for anything to answer it."""


class Pauses:
    """A probe of one port of this machine; used as a context it ends with the block."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.pauses", str(port)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def longest_s(self) -> float:
        """The longest answer since the last call, in seconds; waits for the one under way."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the probe."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Ask for ever; a line on standard input asks for the longest seconds since the last."""
    longest = 0.0
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        while True:
            begun = time.perf_counter()
            connection.sendall(ASK)
            receive_frame(connection)
            longest = max(longest, time.perf_counter() - begun)
            if select.select([sys.stdin], [], [], INTERVAL_S)[0]:
                if not sys.stdin.readline():
                    return
                print(longest, flush=True)
                longest = 0.0


if __name__ == "__main__":
    main()
