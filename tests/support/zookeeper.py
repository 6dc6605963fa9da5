"""A real ZooKeeper for the tests, from the jars that the PySpark wheel brings.

Started, killed and started again on the same data; ended by its own id.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import socket
import sys
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.support.java import START_FAST, missing
from tests.support.lone_broker import until
from tests.support.processes import DEADLINE_S, Program, free_ports, wait_until
from tidelog.metadata.zookeeper import ZookeeperStore

TICK_MS = 500
JARS = ("zookeeper", "slf4j-api", "metrics-core", "snappy", "netty")
ALL = sys.maxsize

PATIENT_SESSION_S = 30.0
"""Of a session that is to last where its expiry is not what is tested: a busy machine may keep a
server or a client from its turn for seconds."""


class ZooKeeper:
    """One server on 127.0.0.1; used as a context it ends with the block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self.port,) = free_ports(1)
        self.program: Program | None = None

    @property
    def address(self) -> str:
        """host:port, to which a chroot may be added."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers. JavaUnavailable's reasons are the caller's to ask."""
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        config = self.folder / "zoo.cfg"
        config.write_text(
            f"tickTime={TICK_MS}\ndataDir={data}\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            "4lw.commands.whitelist=srvr\nminSessionTimeout=1000\nmaxSessionTimeout=40000\n"
        )
        command = [
            "java",
            *START_FAST,
            "-Xmx256m",
            "-Dzookeeper.extendedTypesEnabled=true",
            # Processes are killed here, machines are not: no session is to wait for a disk.
            "-Dzookeeper.forceSync=no",
            "-cp",
            _class_path(),
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(config),
        ]
        self.program = Program(command, self.folder / "zookeeper.log")
        wait_until(self._answers, DEADLINE_S, "ZooKeeper answers")

    def _answers(self) -> bool:
        assert self.program is not None
        if self.program.exit_status() is not None:
            raise AssertionError(f"ZooKeeper ended:\n{self.program.output()[-2000:]}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                # "ruok" is answered before sessions are; a session asked for then is forgotten.
                probe.sendall(b"srvr")
                return b"Mode:" in b"".join(iter(partial(probe.recv, 4096), b""))
        except OSError:
            return False

    def kill(self) -> None:
        """kill -9."""
        if self.program is not None:
            self.program.kill()

    def content(self, path: str) -> str | None:
        """What a node holds, None when there is none; by a session of its own."""
        client = KazooClient(hosts=self.address)
        client.start(DEADLINE_S)
        try:
            return str(client.get(path)[0].decode())
        except NoNodeError:
            return None
        finally:
            client.stop()
            client.close()

    def __enter__(self) -> ZooKeeper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.program is not None:
            self.program.__exit__()


def needed() -> None:
    """Skip the test where no ZooKeeper can be started, and say why."""
    why = missing()
    if why is not None:
        pytest.skip(why)


class Door:
    """The way to a server. It accepts the next `unheard` connections and reads nothing.

    So does ZooKeeper when it is greeted while it starts.
    """

    def __init__(self, port: int, unheard: int) -> None:
        self.unheard = unheard
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> str:
        """Start to listen; return the address."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        self.reset()

    def reset(self) -> None:
        """End every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self.unheard:
            self.unheard -= 1
            return
        there, to_there = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(to_there)
        await asyncio.gather(_pump(reader, to_there), _pump(there, writer))


def _class_path() -> str:
    """Only what it needs: all of PySpark's jars double the time of a start. It logs nothing."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "jars"
    return os.pathsep.join(
        str(jar) for name in JARS for jar in sorted(folder.glob(f"{name}-*.jar"))
    )


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(4096):
            writer.write(piece)
    writer.close()


async def end_session(store: ZookeeperStore, door: Door, server: ZooKeeper) -> None:
    """End a session from outside: any client with its id and password may close it.

    Its owner would take it back at once: the way is shut until it is over.
    """
    assert store._client is not None
    session = store._client.client_id
    door.unheard = ALL
    door.reset()
    await until(lambda: not store.reachable, DEADLINE_S)
    second = KazooClient(hosts=server.address, client_id=session)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, second.start, DEADLINE_S)
    await loop.run_in_executor(None, second.stop)
    await loop.run_in_executor(None, second.close)
    door.unheard = 0
    door.reset()
