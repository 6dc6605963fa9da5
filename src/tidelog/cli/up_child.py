"""One process of ``tidelog up``: its file, its start, what it says of itself, its end.

Owns one child, ``tidelog server`` with an input that this process holds open, so that it stops
cleanly even when this process is killed. How many there are and what one's death means is ``up``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidelog.cli.failures import Failed
from tidelog.cli.output import note

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LOG_LINES_SHOWN = 5
MOST_REPLICAS = 3
"""Replication factors default to this, or to the number of brokers where that is smaller."""


def server_properties(
    folder: Path,
    port: int,
    configs: Mapping[str, str],
    node_id: int = 1,
    brokers: int = 1,
    controller: tuple[str, int] | None = None,
) -> str:
    """Return the file of one node; ``configs`` go before what is set here.

    The first node is the controller too, on the port of ``controller`` or on a free one; the others
    find it there.
    """
    replicas = str(min(MOST_REPLICAS, brokers))
    values = {
        "node.id": str(node_id),
        "log.dirs": str(folder / f"broker-{node_id}"),
        "metrics_port": f"{HOST}:0",
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "group.initial.rebalance.delay.ms": "0",
    }
    if node_id == 1:
        at = controller[1] if controller is not None else 0
        values |= {
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{at}",
            "controller.listener.names": "CONTROLLER",
            "metadata.store": f"sqlite:{folder / 'metadata.sqlite'}",
        }
    else:
        assert controller is not None
        values |= {
            "process.roles": "broker",
            "listeners": f"PLAINTEXT://{HOST}:{port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"{controller[0]}:{controller[1]}",
        }
    values.update(configs)
    # Java's properties: a backslash would begin an escape.
    return "".join(
        f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in values.items()
    )


@dataclass(frozen=True, slots=True)
class Ready:
    """What a child's ready line says: its addresses as (host, port)."""

    broker: tuple[str, int]
    controller: tuple[str, int] | None
    metrics: tuple[str, int] | None


def parse_ready(line: str) -> Ready | None:
    """Read a server's ready line; None for any other line."""
    words = line.split()
    if words[:1] != ["ready"]:
        return None
    found = dict(word.partition("=")[::2] for word in words[1:])
    addresses = {}
    for name, text in found.items():
        host, colon, port = text.rpartition(":")
        if colon and port.isdigit():
            addresses[name] = (host, int(port))
    brokers = [at for name, at in addresses.items() if name not in ("CONTROLLER", "metrics")]
    if not brokers:
        return None
    return Ready(brokers[0], addresses.get("CONTROLLER"), addresses.get("metrics"))


class Child:
    """One node. Its addresses stay the same when it is started again."""

    def __init__(
        self, folder: Path, node_id: int, port: int, configs: Mapping[str, str], brokers: int
    ) -> None:
        self.node_id = node_id
        self.ready: Ready | None = None
        """What it said when it was ready last."""
        self._folder = folder
        self._port = port
        self._configs = configs
        self._brokers = brokers
        self._log = folder / f"node-{node_id}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The id of the running process, None when there is none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def address(self) -> tuple[str, int]:
        """Where clients reach it."""
        assert self.ready is not None
        return self.ready.broker

    async def start(self, controller: tuple[str, int] | None) -> None:
        """Start it and wait until it serves. Raises Failed with its own words when it does not."""
        file = self._folder / f"node-{self.node_id}.properties"
        text = server_properties(
            self._folder, self._port, self._configs, self.node_id, self._brokers, controller
        )
        file.write_text(text)
        with self._log.open("ab") as log:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tidelog.cli.main",
                "server",
                str(file),
                "--until-stdin-closes",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # Ctrl-C is for `tidelog up`, which then stops its children.
                start_new_session=True,
            )
        try:
            ready = await asyncio.wait_for(self._read_ready(process), START_TIMEOUT_S)
        except TimeoutError:
            words = self._last_words()
            raise Failed(f"not ready within {START_TIMEOUT_S:.0f} s; {words}") from None
        if ready is None:
            raise Failed(await self.death())
        self.ready = ready
        # Started again it must be found where clients know it.
        self._port = ready.broker[1]

    async def _read_ready(self, process: asyncio.subprocess.Process) -> Ready | None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            found = parse_ready(line.decode("utf-8", "replace"))
            if found is not None:
                return found
        return None

    async def death(self) -> str:
        """Wait until it has ended; return a sentence that says how."""
        assert self._process is not None
        status = await self._process.wait()
        how = f"broker {self.node_id} (pid {self._process.pid}) {_ending(status)}"
        return f"{how}; {self._last_words()}"

    async def end(self) -> None:
        """Stop it cleanly, or kill it when that takes too long."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            note(f"broker {self.node_id} did not stop within {STOP_TIMEOUT_S:.0f} s: killing it")
            process.kill()
            await process.wait()

    def _last_words(self) -> str:
        """Return the child's own error line, or where its log is."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        for line in reversed(lines[-LOG_LINES_SHOWN:]):
            if line.startswith("error: "):
                return line.removeprefix("error: ")
        return f"see {self._log}"


def _ending(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
