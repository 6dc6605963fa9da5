"""One broker as a real process, whatever its make: ephemeral ports, ready, killed, started again.

`server.py` and `kafka.py` say how to start tidelog and Apache Kafka. Tests and the benchmark take a
`Node` and never ask which it is.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

from tests.support.processes import DEADLINE_S, Program, wait_until


class Node:
    """A broker (and its controller) on one data folder.

    Its ports stay the same over restarts. Used as a context it is started, and killed at the end.
    """

    name = "a node"
    start_deadline_s = DEADLINE_S

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "server.log"
        self.port = port
        self.bootstrap = f"127.0.0.1:{port}"
        self.started_in_s = 0.0
        self.cores: frozenset[int] = frozenset()
        """Where the process may run, from its start on; empty for everywhere."""

        self._launched_at = 0.0
        self._program: Program | None = None

    def command(self) -> list[str]:
        """The command line that runs the node in the foreground."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """What the process finds in its environment beside our own."""
        return {}

    def log_folder(self) -> Path:
        """The folder of the partitions (`log.dirs`)."""
        return self.data

    @property
    def program(self) -> Program:
        """The running process; AssertionError when there is none."""
        assert self._program is not None, f"{self.name} was not started"
        return self._program

    @property
    def running_pid(self) -> int | None:
        """The id of its process, None while none runs."""
        if self._program is None or self._program.exit_status() is not None:
            return None
        return self._program.pid

    def start(self) -> None:
        """Start it and wait until it names a controller; AssertionError with its log otherwise.

        Afterwards `started_in_s` holds the seconds from the start to the first such answer.
        """
        self.launch()
        self.until_ready()

    def launch(self) -> None:
        """Start it and wait for nothing."""
        self._launched_at = time.monotonic()
        self._program = Program(self.command(), self.log, self.environment())
        if self.cores:
            os.sched_setaffinity(self._program.pid, self.cores)

    def until_ready(self) -> None:
        """Wait until the launched process names a controller, as `start` does."""
        wait_until(self._ready_or_ended, self.start_deadline_s, lambda: self.said("is ready"), 0.01)
        if self.program.exit_status() is not None:
            raise AssertionError(self.said("came up"))
        self.started_in_s = time.monotonic() - self._launched_at

    def _ready_or_ended(self) -> bool:
        return self.program.exit_status() is not None or answers_metadata(self.port)

    def kill(self) -> None:
        """kill -9 now."""
        self.program.kill()

    def stop(self, deadline_s: float = DEADLINE_S) -> int:
        """SIGTERM; the exit status."""
        return self.program.stop(deadline_s)

    def restart(self) -> None:
        """A clean stop and a start on the same folder and port."""
        self.stop()
        self.start()

    def said(self, expected: str) -> str:
        """A sentence for a failure: what was expected, and the end of its log."""
        log = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"{self.name} on {self.bootstrap} {expected}; its log ends:\n{log[-4000:]}"

    def __enter__(self) -> Node:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._program is not None and self._program.exit_status() is None:
            self._program.kill()


def answers_metadata(port: int, timeout_s: float = 1.0) -> bool:
    """Whether Metadata v1 on 127.0.0.1:port names at least one broker and a controller."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            # API key 3, version 1, correlation id, client id "ready?", no topics.
            body = struct.pack(">hhih", 3, 1, 1, 6) + b"ready?" + struct.pack(">i", 0)
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = receive_frame(connection)
    except OSError:
        return False
    brokers = struct.unpack_from(">i", answer, 4)[0]
    position = 8
    for _ in range(brokers):
        position += 4
        position += 2 + struct.unpack_from(">h", answer, position)[0] + 4
        position += 2 + max(0, struct.unpack_from(">h", answer, position)[0])
    return brokers > 0 and struct.unpack_from(">i", answer, position)[0] >= 0


def receive_frame(connection: socket.socket) -> bytes:
    """One answer without its length; ConnectionError when the peer closes first."""
    length = struct.unpack(">i", _receive(connection, 4))[0]
    return _receive(connection, length)


def _receive(connection: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        piece = connection.recv(count - len(got))
        if not piece:
            raise ConnectionError(f"closed after {len(got)} of {count} bytes")
        got += piece
    return got
