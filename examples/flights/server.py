"""A tidelog server for the demo: one process with both roles, its data in the demo's folder."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelog.client.blocking import BlockingCluster
from tidelog.client.errors import ClientError

_START_DEADLINE_MS = 20_000
_STOP_DEADLINE_S = 20


@contextmanager
def running_server(folder: Path) -> Iterator[str]:
    """Its bootstrap address, once it answers; it is stopped cleanly at the end.

    Raises RuntimeError with the end of its log when it does not come up.
    """
    broker, controller = _free_ports(2)
    bootstrap = f"127.0.0.1:{broker}"
    file = folder / "server.properties"
    file.write_text(
        "process.roles=broker,controller\n"
        "node.id=1\n"
        f"listeners=PLAINTEXT://{bootstrap},CONTROLLER://127.0.0.1:{controller}\n"
        f"advertised.listeners=PLAINTEXT://{bootstrap}\n"
        "controller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers=127.0.0.1:{controller}\n"
        f"metadata.store=sqlite:{folder / 'metadata.db'}\n"
        f"log.dirs={folder / 'log'}\n"
        "offsets.topic.replication.factor=1\n"
    )
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "tidelog.cli.main", "server", str(file)],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(bootstrap, folder / "server.log")
            yield bootstrap
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(_STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait(bootstrap: str, log: Path) -> None:
    try:
        BlockingCluster(bootstrap, open_timeout_ms=_START_DEADLINE_MS).close()
    except ClientError as error:
        said = log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"the server did not come up: {error}\n{said}") from None


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports
