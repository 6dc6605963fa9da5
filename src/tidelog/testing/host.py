"""The host process of a test's cluster: ``python -m tidelog.testing.host FOLDER``.

Owns the brokers of one ``Cluster`` and the requests of the test process, one line of JSON each: the
name of a method of ``_Requests`` under ``do``, and its arguments. Not the start of a broker: that
is a child of ``tidelog up``, see ``cli/up_child``.

How all processes end: the host kills its brokers by their ids when the test process asks for it,
when the host's standard input ends, or when the host has another parent. The second comes with any
end of the test process; the third matters when a process that the test process forked still holds
the pipe. When the host itself is killed, the standard input of each broker ends, and it stops.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.cli.cluster_secret import make_secret
from tidelog.cli.output import note
from tidelog.cli.refusal import Failed
from tidelog.cli.up_child import START_TIMEOUT_S, Child
from tidelog.cli.up_files import ClusterPlan, why_not_config

if TYPE_CHECKING:
    from tidelog.client.cluster import Cluster
    from tidelog.runtime.tls_files import TlsFiles

PARENT_CHECK_S = 1.0
"""How often the host checks whether the test process is still its parent."""

LINE_BYTES = 1_048_576
"""Limit of one request."""

KEPT = (".log", ".properties")
"""The files that stay when logs are kept."""


class _Requests:
    """The brokers, and one method for each request."""

    def __init__(self, folder: Path) -> None:
        self.keep_logs = True
        """Whether the logs stay; a test process that ends without a stop request leaves them."""
        self._folder = folder
        self._children: dict[int, Child] = {}
        self._paused: set[int] = set()
        self._keys: TlsFiles | None = None
        """Those with which brokers are asked; None without TLS."""

    async def start(self, brokers: int, config: Mapping[str, str]) -> dict[int, str]:
        """Start all brokers, the controller first; return their addresses."""
        if (why_not := why_not_config(config)) is not None:
            raise Failed(why_not)
        if config.get("security.inter.broker.protocol") == "SSL":
            from tidelog.client.encrypting import keys_of

            stores = {x: text for x, text in config.items() if x.startswith("ssl.")}
            self._keys = keys_of("SSL", stores)
        plan = ClusterPlan(self._folder, brokers, configs=config)
        self._children = {member.node_id: Child(plan, member) for member in plan.members()}
        first, *others = self._children.values()
        await first.start([])
        await asyncio.gather(*(child.start(self._controllers()) for child in others))
        await asyncio.gather(*(self._until_it_serves(child) for child in self._children.values()))
        return {node: self._address(child) for node, child in self._children.items()}

    async def kill(self, node: int) -> None:
        """Kill a broker."""
        child = self._child(node)
        child.send_signal(signal.SIGKILL)
        await child.kill()
        self._paused.discard(node)

    async def pause(self, node: int) -> None:
        """Stop a broker's process."""
        self._child(node).send_signal(signal.SIGSTOP)
        self._paused.add(node)

    async def resume(self, node: int) -> None:
        """Continue a broker's process."""
        self._child(node).send_signal(signal.SIGCONT)
        self._paused.discard(node)

    async def restart(self, node: int) -> None:
        """Stop a broker cleanly if it runs, start it, wait until it serves."""
        child = self._child(node)
        if node in self._paused:
            await self.resume(node)
        await child.end()
        try:
            await child.start(self._controllers())
            await self._until_it_serves(child)
        except Failed:
            await child.kill()
            raise

    async def pids(self) -> dict[int, int | None]:
        """Return the process id of each broker that runs."""
        return {node: child.pid for node, child in self._children.items()}

    async def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> None:
        """Create a topic and wait for its leaders."""
        from tidelog.client.admin.topics import TopicSpec, create_topics

        topic = TopicSpec(name, partitions, replication_factor, config)
        async with self._cluster() as cluster:
            if (refused := (await create_topics(cluster, [topic]))[name]) is not None:
                raise Failed(str(refused))
            await cluster.topics([name])

    async def resize(self, topic: str, partitions: int, force: bool) -> None:
        """Grow or shrink a topic."""
        from tidelog.client.admin.topics import create_partitions

        async with self._cluster() as cluster:
            outcomes = await create_partitions(cluster, {topic: partitions}, force=force)
            if (refused := outcomes[topic]) is not None:
                raise Failed(str(refused))

    async def end(self) -> None:
        """Kill all brokers; remove the folder, or all but the logs."""
        await asyncio.gather(*(child.kill() for child in self._children.values()))
        if not self.keep_logs:
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        for path in self._folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.suffix not in KEPT:
                path.unlink(missing_ok=True)

    def _child(self, node: int) -> Child:
        if node not in self._children:
            raise Failed(f"there is no node {node}: the nodes are {sorted(self._children)}")
        return self._children[node]

    def _controllers(self) -> list[tuple[str, int]]:
        ready = self._children[1].ready
        return [ready.controller] if ready is not None and ready.controller is not None else []

    @staticmethod
    async def _until_it_serves(child: Child) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await child.until_it_serves()
        except TimeoutError:
            raise Failed(f"{child.member} received no metadata; see {child.log}") from None

    @staticmethod
    def _address(child: Child) -> str:
        assert child.ready is not None and child.ready.broker is not None
        host, port = child.ready.broker
        return f"{host}:{port}"

    def _cluster(self) -> Cluster:
        from tidelog.client.cluster import Cluster, ClusterSettings

        bootstrap = ",".join(self._address(child) for child in self._children.values())
        return Cluster(bootstrap, ClusterSettings(tls=self._keys))


async def _respond(requests: _Requests, request: dict[str, Any]) -> dict[str, Any]:
    """Do what a request asks for; return the response."""
    what = request.pop("do")
    try:
        return {"result": await getattr(requests, what)(**request)}
    except (Failed, OSError) as error:
        return {"error": str(error)}
    except Exception as error:
        if not type(error).__module__.startswith("tidelog."):
            raise
        # A client's error: its text is one line for a user.
        return {"error": str(error)}


async def _work(requests: _Requests, lines: asyncio.Queue[bytes]) -> None:
    """Respond to one request after another until one asks for the end."""
    while True:
        request = json.loads(await lines.get())
        if request["do"] == "stop":
            requests.keep_logs = request["keep_logs"]
            return
        print(json.dumps(await _respond(requests, request)), flush=True)
        # The first topic must not wait for this import.
        import tidelog.client.admin.topics  # noqa: F401


async def _read(lines: asyncio.Queue[bytes]) -> None:
    """Queue the lines of the standard input until it ends."""
    reader = asyncio.StreamReader(LINE_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await reader.readline():
        lines.put_nowait(line)


async def _until_the_parent_changes() -> None:
    parent = os.getppid()
    while True:
        await asyncio.sleep(PARENT_CHECK_S)
        if os.getppid() != parent:
            return


async def run(folder: Path) -> None:
    """Serve requests until the test process asks for the end, or has ended; then end all."""
    requests = _Requests(folder)
    lines: asyncio.Queue[bytes] = asyncio.Queue()
    reading = asyncio.ensure_future(_read(lines))
    working = asyncio.ensure_future(_work(requests, lines))
    orphaned = asyncio.ensure_future(_until_the_parent_changes())
    try:
        await asyncio.wait([reading, working, orphaned], return_when=asyncio.FIRST_COMPLETED)
        if reading.done() and not orphaned.done() and lines.qsize():
            # The last line, a request for the end, and the end of the input came together.
            await asyncio.wait([working, orphaned], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (reading, working, orphaned):
            task.cancel()
        ended = await asyncio.gather(reading, working, orphaned, return_exceptions=True)
        await requests.end()
        for error in ended:
            if isinstance(error, Exception):
                note(f"{type(error).__name__}: {error}")


def main(folder: Path) -> None:
    """Create the secret of the cluster, then serve."""
    make_secret(str(folder))
    asyncio.run(run(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
