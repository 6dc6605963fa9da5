"""``tidelog up``: a development cluster with one command.

Owns the processes it starts: their files under the data folder, their ports, ``cluster.json``, the
ready line, and that all of them end with it. Each child is ``tidelog server`` with an input that
this process holds open, so that children stop cleanly even when this process is killed.

In this version the cluster is one process with both roles.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tidelog.cli.connecting import key_values
from tidelog.cli.failures import Failed, WrongUsage
from tidelog.cli.output import note, say
from tidelog.runtime.disk import RealDisk

NODE_ID = 1
HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
RESTART_AFTER_S = 1.0
"""How long a child that died is left alone before ``--restart`` starts it: no tight loop."""

LOG_LINES_SHOWN = 5


@click.command("up")
@click.option("--brokers", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--controllers", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Where everything is kept; started again on it, the cluster has the same data.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=9092, show_default=True)
@click.option("--store", default="sqlite", show_default=True, help="sqlite or zookeeper://…")
@click.option("--config", multiple=True, metavar="NAME=VALUE", help="A server configuration.")
@click.option("--restart", is_flag=True, help="Start a child again that has died.")
def command(
    brokers: int,
    controllers: int,
    data: Path,
    port: int,
    store: str,
    config: tuple[str, ...],
    restart: bool,
) -> None:
    """Run a development cluster until Ctrl-C or SIGTERM."""
    for option, count in (("--brokers", brokers), ("--controllers", controllers)):
        if count > 1:
            raise WrongUsage(f"{option} {count}: this version runs one process; take {option} 1")
    if store.startswith("zookeeper:"):
        raise WrongUsage(f"--store {store}: this version keeps its metadata in sqlite only")
    if store != "sqlite":
        raise WrongUsage(f"--store {store!r} is unknown: take sqlite")
    folder = data.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"{data} cannot be made a data folder: {error.strerror}") from None
    configs = key_values(config, "--config")
    held = RealDisk().lock(str(folder / "up.lock"))
    if held is None:
        raise Failed(f"another `tidelog up` runs on {data}: stop it, or take another --data")
    try:
        asyncio.run(_Up(folder, port, configs, restart=restart).run())
    finally:
        held.close()


def server_properties(folder: Path, port: int, configs: dict[str, str]) -> str:
    """Return the file of the one node; ``configs`` go before what is set here."""
    values = {
        "process.roles": "broker,controller",
        "node.id": str(NODE_ID),
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:0",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / f"broker-{NODE_ID}"),
        "metadata.store": f"sqlite:{folder / 'metadata.sqlite'}",
        "metrics_port": f"{HOST}:0",
        "default.replication.factor": "1",
        "offsets.topic.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "0",
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
    controller: tuple[str, int]
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
    if not brokers or "CONTROLLER" not in addresses:
        return None
    return Ready(brokers[0], addresses["CONTROLLER"], addresses.get("metrics"))


def cluster_json(ready: Ready, pid: int) -> dict[str, Any]:
    """Return what ``cluster.json`` holds (the design's "Commands and interfaces")."""
    host, port = ready.broker
    return {
        "bootstrap": f"{host}:{port}",
        "brokers": [
            {
                "id": NODE_ID,
                "host": host,
                "port": port,
                "pid": pid,
                "metrics_port": ready.metrics[1] if ready.metrics else None,
            }
        ],
        "controllers": [{"id": NODE_ID, "port": ready.controller[1], "pid": pid}],
    }


class _Up:
    """The running cluster."""

    def __init__(self, folder: Path, port: int, configs: dict[str, str], *, restart: bool) -> None:
        self._folder = folder
        self._port = port
        self._configs = configs
        self._restart = restart
        self._log = folder / f"node-{NODE_ID}.log"
        self._cluster_file = folder / "cluster.json"
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Start, wait for a signal or the death of the child, stop. Raises Failed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        # A file of a former run would send scripts to ports that are another's now.
        self._cluster_file.unlink(missing_ok=True)
        first = True
        while True:
            child = await self._start()
            try:
                ready = await self._until_ready(child)
                if ready is not None:
                    self._write_cluster_json(ready, child.pid)
                    bootstrap = f"{ready.broker[0]}:{ready.broker[1]}"
                    if first:
                        say(f"ready bootstrap={bootstrap}")
                    else:
                        note(f"broker {NODE_ID} is back, pid {child.pid}, bootstrap {bootstrap}")
                    sys.stdout.flush()
                    # Started again it must be found where clients know it.
                    self._port = ready.broker[1]
                    first = False
                died = not await self._until_stop_or_death(child)
            finally:
                await self._end(child)
            if not died:
                return
            said = f"broker {NODE_ID} (pid {child.pid}) {_ending(child.returncode)}"
            if first or not self._restart:
                raise Failed(f"{said}; {self._last_words()}")
            note(f"{said}; starting it again")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), RESTART_AFTER_S)
                return

    async def _start(self) -> asyncio.subprocess.Process:
        file = self._folder / f"node-{NODE_ID}.properties"
        file.write_text(server_properties(self._folder, self._port, self._configs))
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tidelog.cli.main",
                "server",
                str(file),
                "--until-stdin-closes",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # Ctrl-C is for this process, which then stops its child.
                start_new_session=True,
            )

    async def _until_ready(self, child: asyncio.subprocess.Process) -> Ready | None:
        """Wait for the ready line; None when a signal or the child's death came before."""
        reading = asyncio.get_running_loop().create_task(self._read_ready(child))
        stopping = asyncio.get_running_loop().create_task(self._stop.wait())
        done, pending = await asyncio.wait(
            [reading, stopping], timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        if not done:
            raise Failed(f"not ready within {START_TIMEOUT_S:.0f} s; {self._last_words()}")
        return reading.result() if reading in done else None

    async def _read_ready(self, child: asyncio.subprocess.Process) -> Ready | None:
        assert child.stdout is not None
        while line := await child.stdout.readline():
            found = parse_ready(line.decode("utf-8", "replace"))
            if found is not None:
                return found
        return None

    async def _until_stop_or_death(self, child: asyncio.subprocess.Process) -> bool:
        """Wait; True when it was told to stop, False when the child has died."""
        dying = asyncio.get_running_loop().create_task(child.wait())
        stopping = asyncio.get_running_loop().create_task(self._stop.wait())
        _, pending = await asyncio.wait([dying, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return self._stop.is_set()

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        if child.returncode is not None:
            return
        child.terminate()
        try:
            await asyncio.wait_for(child.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            note(f"broker {NODE_ID} did not stop within {STOP_TIMEOUT_S:.0f} s: killing it")
            child.kill()
            await child.wait()

    def _write_cluster_json(self, ready: Ready, pid: int) -> None:
        # Replaced as a whole: a script never reads half of it.
        temporary = self._cluster_file.with_suffix(".json.tmp")
        temporary.write_text(json.dumps(cluster_json(ready, pid), indent=2) + "\n")
        os.replace(temporary, self._cluster_file)

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
