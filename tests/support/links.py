"""The network between real processes as proxies: one listener per directed link.

A process that should reach another is given the address of the link between them. What flows can
be stopped for each direction between two ends, delayed, or reset. Knows nothing of what is said.

Bytes that are held are kept and go on when the link heals, as TCP would send them again; so is the
end of a connection: no process beyond a cut learns that another one died.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.support.processes import DEADLINE_S

PIECE_BYTES = 64 * 1024
T = TypeVar("T")

End = str
"""One end of a link: "client", "controller", or a broker's number."""


@dataclass
class _Flow:
    """What flows from one end to another, over whoever's connections."""

    going: asyncio.Event = field(default_factory=asyncio.Event)
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        self.going.set()


class Network:
    """All links of one cluster, served by a thread of their own; used as a context it closes."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._flows: dict[tuple[End, End], _Flow] = {}
        self._open: dict[tuple[End, End], set[asyncio.StreamWriter]] = {}
        self._servers: list[asyncio.Server] = []
        self._pumps: set[asyncio.Task[None]] = set()

    def link(self, source: End, target: End, port: int) -> int:
        """Make the link by which `source` reaches `target` at 127.0.0.1:port; return its port."""
        return self._run(self._link(source, target, port))

    def cut(self, source: End, target: End) -> None:
        """What `source` sends to `target` stands still, answers included; the other way flows."""
        self._loop.call_soon_threadsafe(lambda: self._flow(source, target).going.clear())

    def delay(self, source: End, target: End, seconds: float) -> None:
        """Each piece that `source` sends to `target` takes so much longer, in order."""
        self._loop.call_soon_threadsafe(
            lambda: setattr(self._flow(source, target), "delay_s", seconds)
        )

    def heal(self, end: End, others: Iterable[End]) -> None:
        """Between these everything flows again, without delay; what stood still arrives."""

        def heal() -> None:
            for pair in [(end, other) for other in others] + [(other, end) for other in others]:
                self._flow(*pair).delay_s = 0.0
                self._flow(*pair).going.set()

        others = list(others)
        self._loop.call_soon_threadsafe(heal)

    def count(self, end: End) -> int:
        """How many connections from and to an end there are, each side of a link for itself."""

        async def count() -> int:
            return sum(len(open_) for link, open_ in self._open.items() if end in link)

        return self._run(count())

    def reset(self, end: End) -> int:
        """Reset every connection from and to an end; how many there were."""

        async def reset() -> int:
            found = [w for link, open_ in self._open.items() if end in link for w in open_]
            for writer in found:
                _reset(writer)
            return len(found)

        return self._run(reset())

    def close(self) -> None:
        """Close all links and end the thread."""

        async def close() -> None:
            for server in self._servers:
                server.close()
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)

        self._run(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def _flow(self, source: End, target: End) -> _Flow:
        return self._flows.setdefault((source, target), _Flow())

    async def _link(self, source: End, target: End, port: int) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(source, target, port, reader, writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=PIECE_BYTES)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _serve(
        self,
        source: End,
        target: End,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        open_ = self._open.setdefault((source, target), set())
        forth, back = self._flow(source, target), self._flow(target, source)
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        ours = {writer}
        open_.add(writer)
        try:
            if not (forth.going.is_set() and back.going.is_set()):
                # A connection needs both directions: a cut one opens none, and a process that
                # waits for it gets an error in the end.
                await forth.going.wait()
                await back.going.wait()
                raise ConnectionResetError
            there, to_there = await asyncio.open_connection("127.0.0.1", port, limit=PIECE_BYTES)
            ours.add(to_there)
            open_.add(to_there)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, to_there, forth))
                both.create_task(_pump(there, writer, back))
        except (OSError, ExceptionGroup):
            # One side is gone: the other side closes at once, as when a process was killed.
            for each in ours:
                _reset(each)
        finally:
            open_ -= ours
            self._pumps.discard(task)
            for each in ours:
                each.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: _Flow) -> None:
    """Carry bytes one way until the end of them, which is carried too."""
    piece = b"-"
    while piece:
        piece = await reader.read(PIECE_BYTES)
        await flow.going.wait()
        if flow.delay_s:
            await _arrival(flow.delay_s)
            await flow.going.wait()
        if piece:
            writer.write(piece)
            await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _arrival(after_s: float) -> None:
    """Wait until what was sent now arrives: the delay is the fault, not a wait for something."""
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()
    timer = loop.call_later(after_s, arrived.set_result, None)
    try:
        await arrived
    finally:
        timer.cancel()


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
