"""A broker with two log directories in this process, and a disk that holds what copies write."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.lone_broker import LoneBroker, Peer
from tests.support.storage_logs import QuickDisk, QuickFile
from tidelog.broker.handlers import alter_replica_log_dirs, describe_log_dirs
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, Router
from tidelog.protocol import messages
from tidelog.runtime.disk import Buffer, RealFile
from tidelog.runtime.seams import Seams


class HeldFile(QuickFile):
    disk: HeldDisk

    def write_at(self, position: int, chunks: Iterable[Buffer]) -> int:  # type: ignore[override]
        self.disk.reach(self.path)
        return super().write_at(position, chunks)  # type: ignore[arg-type]


class HeldDisk(QuickDisk):
    """Holds each thread that writes to a copy, or refuses it, until it is let go."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.held = threading.Event()
        self.error: OSError | None = None

    def reach(self, path: str) -> None:
        if "-future/" in path and path.endswith(".log"):
            self.held.set()
            if self.error is not None:
                raise self.error
            assert self.may_go.wait(30)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        plain = super().open(path, create=create, read_only=read_only)
        file = HeldFile(plain.path, plain._fd)
        file.disk = self
        return file


class Broker(LoneBroker):
    """A broker with two log directories."""

    def __init__(
        self,
        folder: Path,
        disk: QuickDisk | None = None,
        helper: Executor | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        self.one, self.two = f"{folder}/one", f"{folder}/two"
        seams = Seams(disk=disk or QuickDisk(), processes=helper)
        own = {"log.dirs": f"{self.one},{self.two}", **(config or {})}
        super().__init__(folder, own, seams)

    def router(self, extra: Iterable[Handler] = ()) -> Router:
        return super().router([alter_replica_log_dirs.HANDLER, describe_log_dirs.HANDLER, *extra])

    def place(self, hosted: HostedPartition) -> str:
        return self.broker.partitions.directory_of(hosted).path

    def other(self, hosted: HostedPartition) -> str:
        return self.two if self.place(hosted) == self.one else self.one


@asynccontextmanager
async def started(broker: Broker) -> AsyncIterator[Peer]:
    await broker.start()
    peer = await Peer.connect(broker.port)
    try:
        yield peer
    finally:
        peer.writer.close()
        await broker.stop()


async def alter(peer: Peer, path: str, topic: str = "t", partition: int = 0) -> ErrorCode:
    request = messages.AlterReplicaLogDirsRequest
    asked = request(
        [request.AlterReplicaLogDir(path, [request.AlterReplicaLogDirTopic(topic, [partition])])]
    )
    answer = await peer.ask(asked, 2)
    return ErrorCode(answer.results[0].partitions[0].error_code)
