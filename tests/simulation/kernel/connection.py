"""Both ends of a simulated TCP connection: asyncio transports over an unreliable wire.

Owns order, windows, flow control and the ways in which a connection ends. Does not own delays,
cuts and addresses (``network.py``).

The path of a byte: ``write`` -> outgoing (the process's own buffer) -> wire (in flight, kept in
order) -> incoming (the receiver's kernel) -> protocol. The wire and incoming together never hold
more than the window, so a receiver that does not read stops its sender.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.simulation.kernel.loop import CURRENT, Owner
from tests.simulation.kernel.trace import fingerprint

if TYPE_CHECKING:
    from tests.simulation.kernel.network import Network

HIGH_WATER_BYTES = 64 * 1024
"""asyncio's default limit at which a transport asks its protocol to pause writing."""

READ_BYTES = 64 * 1024
"""Most bytes handed to a protocol at once."""

FIN = "fin"
RESET = "reset"


class SimulatedSocket:
    """What ``get_extra_info("socket")`` gives: addresses, and options that do nothing."""

    family = 2
    type = 1

    def __init__(self, name: tuple[str, int], peer: tuple[str, int] | None = None) -> None:
        self._name = name
        self._peer = peer

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def getpeername(self) -> tuple[str, int] | None:
        return self._peer

    def setsockopt(self, *_arguments: Any) -> None:
        """Nothing: the simulated wire has no options."""

    def getsockopt(self, *_arguments: Any) -> int:
        return 0

    def fileno(self) -> int:
        return -1


class Endpoint(asyncio.Transport):
    """One end of a connection, owned by one process (or by the test)."""

    peer: Endpoint

    def __init__(self, network: Network, host: str, name: tuple[str, int], peer_name: Any) -> None:
        super().__init__()
        self.network = network
        self.host = host
        self.name = name
        self.owner: Owner | None = CURRENT.get()
        self.context = contextvars.copy_context()
        self.protocol: Any = None
        self.window = network.profile.draw_window(network.rng)
        self.lost = False
        """No callback comes any more, nothing is sent any more."""
        self.wire: deque[bytes | str] = deque()
        self.last_arrival = 0.0
        self._socket = SimulatedSocket(name, peer_name)
        self._outgoing: deque[bytes] = deque()
        self._outgoing_bytes = 0
        self._in_flight = 0
        self._incoming: deque[bytes | str] = deque()
        self._incoming_bytes = 0
        self._started = False
        self._closing = False
        self._eof_sent = False
        self._fin_wanted = False
        self._reading = True
        self._deliver_scheduled = False
        self._writing_paused = False
        self._high = HIGH_WATER_BYTES
        self._low = HIGH_WATER_BYTES // 4

    def __hash__(self) -> int:
        return hash(self.name[1])

    def __eq__(self, other: object) -> bool:
        return self is other

    # --- what asyncio asks of a transport --------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        known = {
            "socket": self._socket,
            "sockname": self._socket.getsockname(),
            "peername": self._socket.getpeername(),
        }
        return known.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._schedule_delivery()

    def get_write_buffer_size(self) -> int:
        return self._outgoing_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not 0 <= low <= high:
            raise ValueError(f"low {low} and high {high} water marks do not fit")
        self._high, self._low = high, low
        self._check_pause()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._eof_sent:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not len(data) or self.lost or self._closing or not self._alive():
            return
        # A copy: the caller may use its buffer again once write has returned.
        content = bytes(data)
        if self.network.tap is not None:
            self.network.tap(self, content)
        if self.network.tamper is not None:
            content = self.network.tamper(self, content)
        self._outgoing.append(content)
        self._outgoing_bytes += len(data)
        self.pump()
        self._check_pause()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._eof_sent and not self._closing:
            self._eof_sent = True
            self._fin_wanted = True
            self.pump()

    def close(self) -> None:
        if self._closing or self.lost or not self._alive():
            return
        self._closing = True
        self._incoming.clear()
        self._fin_wanted = True
        self.pump()
        if not self._outgoing:
            self._lose_soon(None)

    def abort(self) -> None:
        if self.lost or not self._alive():
            return
        self._closing = True
        self._outgoing.clear()
        self._outgoing_bytes = 0
        self._put_on_wire(RESET)
        self._lose_soon(None)

    # --- sending ---------------------------------------------------------------------------

    def pump(self) -> None:
        """Move bytes from the process's buffer to the wire as far as the window allows."""
        while self._outgoing:
            peer = self.peer
            room = self.window - self._in_flight - (0 if peer.lost else peer._incoming_bytes)
            if room <= 0:
                return
            piece = self._take(self.network.profile.draw_piece(self.network.rng, room))
            self._in_flight += len(piece)
            self._put_on_wire(piece)
        if self._fin_wanted:
            self._fin_wanted = False
            self._put_on_wire(FIN)
            if self._closing:
                self._lose_soon(None)

    def _take(self, limit: int) -> bytes:
        first = self._outgoing[0]
        if len(first) <= limit:
            self._outgoing.popleft()
            piece = first
        else:
            piece, self._outgoing[0] = first[:limit], first[limit:]
        self._outgoing_bytes -= len(piece)
        if self._writing_paused and self._outgoing_bytes <= self._low:
            self._writing_paused = False
            self._call(self._resume_protocol)
        return piece

    def _resume_protocol(self) -> None:
        if not self.lost:
            self.protocol.resume_writing()

    def _check_pause(self) -> None:
        if self._outgoing_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            self.protocol.pause_writing()

    def _put_on_wire(self, item: bytes | str) -> None:
        self.wire.append(item)
        self.network.carry(self)

    # --- receiving -------------------------------------------------------------------------

    def arrive(self) -> None:
        """Take the next thing off the wire into the peer. The network calls it in time order."""
        item = self.wire.popleft()
        if not isinstance(item, str):
            self._in_flight -= len(item)
        self.peer._receive(item)
        if not self.lost:
            self.pump()

    def _receive(self, item: bytes | str) -> None:
        what = item if isinstance(item, str) else fingerprint(item)
        self.network.trace.event("arrive", self.name[0], self.name[1], what)
        if item == RESET:
            self._incoming.clear()
            self._incoming_bytes = 0
            self._closing = True
            self._outgoing.clear()
            self._outgoing_bytes = 0
            self._lose_soon(ConnectionResetError(104, "Connection reset by peer"))
        elif self.lost or self._closing:
            if self.lost and not isinstance(item, str) and not self.peer.lost:
                # Bytes for a closed socket: the kernel answers with a reset.
                self._put_on_wire(RESET)
        else:
            self._incoming.append(item)
            self._incoming_bytes += 0 if isinstance(item, str) else len(item)
            self._schedule_delivery()

    def start(self, protocol: Any) -> None:
        """Hand the connection to its protocol; bytes follow."""
        self.protocol = protocol
        protocol.connection_made(self)
        self._started = True
        self._schedule_delivery()

    def _schedule_delivery(self) -> None:
        if self._incoming and self._started and not self._deliver_scheduled:
            self._deliver_scheduled = True
            self._call(self._deliver)

    def _deliver(self) -> None:
        self._deliver_scheduled = False
        if not self._incoming or not self.is_reading() or self.lost:
            return
        if self._incoming[0] == FIN:
            self._incoming.popleft()
            if not self.protocol.eof_received():
                self.close()
        elif isinstance(self.protocol, asyncio.BufferedProtocol):
            self._deliver_into_buffer()
        else:
            data = self._next_bytes(READ_BYTES)
            self.peer._window_opened()
            self.protocol.data_received(data)
        self._schedule_delivery()

    def _deliver_into_buffer(self) -> None:
        buffer = memoryview(self.protocol.get_buffer(READ_BYTES))
        if not len(buffer):
            raise RuntimeError("get_buffer() returned an empty buffer")
        data = self._next_bytes(len(buffer))
        buffer[: len(data)] = data
        buffer.release()
        self.peer._window_opened()
        self.protocol.buffer_updated(len(data))

    def _next_bytes(self, limit: int) -> bytes:
        pieces: list[bytes] = []
        while limit and self._incoming and not isinstance(self._incoming[0], str):
            first: Any = self._incoming[0]
            if len(first) <= limit:
                pieces.append(self._incoming.popleft())  # type: ignore[arg-type]
            else:
                pieces.append(first[:limit])
                self._incoming[0] = first[limit:]
            limit -= len(pieces[-1])
        data = b"".join(pieces)
        self._incoming_bytes -= len(data)
        return data

    def _window_opened(self) -> None:
        if not self.lost:
            self.network.soon(self.pump)

    # --- the end ---------------------------------------------------------------------------

    def _alive(self) -> bool:
        return self.owner is None or self.owner.alive

    def _call(self, callback: Any, *arguments: Any) -> None:
        self.network.loop.call_soon(callback, *arguments, context=self.context)

    def _lose_soon(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost = True
        self._closing = True
        self.network.forget(self)
        if self._started or self.protocol is not None:
            self._call(self.protocol.connection_lost, error)

    def vanish(self, *, silent: bool) -> None:
        """The owner died: the kernel resets the connection, unless the machine itself is gone.

        What was on the wire already arrives; what only the process had is lost.
        """
        if self.lost:
            return
        self.lost = True
        self._closing = True
        self._outgoing.clear()
        self.network.forget(self)
        if silent:
            self.wire.clear()
            self.network.reset_later(self)
        else:
            self._put_on_wire(RESET)

    def reset(self) -> None:
        """A middlebox breaks the connection: both ends get a reset."""
        self.wire.clear()
        self.peer.wire.clear()
        for end in (self, self.peer):
            end._receive(RESET)
