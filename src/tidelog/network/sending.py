"""Zero-copy sends of parts of files over a connection (sendfile).

Owns a duplicate of the connection's socket and the order of its bytes while there is a part of a
file to send; the transport writes all other bytes. No memory is held for a client that does not
read. Only for plain TCP sockets of the operating system.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tidelog.protocol.primitives import Buffer


class FilePart(Protocol):
    """``size`` bytes of an open file of the system, from ``position`` on."""

    fileno: int
    position: int
    size: int

    def __len__(self) -> int: ...


Chunk = Buffer | FilePart


def as_buffer(chunk: Chunk) -> Buffer:
    """Return a chunk in memory: a part of a file is read."""
    if isinstance(chunk, (bytes, bytearray, memoryview)):
        return chunk
    return os.pread(chunk.fileno, chunk.size, chunk.position)


class FileSender:
    """Sends the chunks of a response in order; calls ``when_sent`` when the kernel has them all.

    Until then no other code may write to the connection.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fileno: int,
        when_sent: Callable[[], None],
        when_broken: Callable[[], None],
    ) -> None:
        self._loop = loop
        # A loop refuses to watch the descriptor of one of its transports.
        # Type and protocol are known, and the family does not matter: no system call to get them.
        self._socket: socket.socket | None = socket.socket(
            socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, os.dup(fileno)
        )
        self._when_sent = when_sent
        self._when_broken = when_broken
        self._chunks: deque[Chunk] = deque()
        self._done = 0
        self._watching = False

    def send(self, chunks: Sequence[Chunk]) -> bool:
        """Send as much as possible now; return True after the last byte, or call ``when_sent``
        later."""
        self._chunks.extend(chunks)
        try:
            return self._push()
        except OSError:
            self._loop.call_soon(self._broken)
            return False

    def close(self) -> None:
        """Drop the unsent chunks."""
        if self._socket is not None:
            self._unwatch()
            self._socket.close()
            self._socket = None
        self._chunks.clear()

    def _push(self) -> bool:
        """Send until all is sent (True) or the socket is full (False). Grows with the chunks."""
        assert self._socket is not None
        try:
            while self._chunks:
                chunk = self._chunks[0]
                if isinstance(chunk, (bytes, bytearray, memoryview)):
                    # More follows: one packet with the next chunk.
                    flags = socket.MSG_MORE if len(self._chunks) > 1 else 0
                    left = memoryview(chunk)[self._done :] if self._done else chunk
                    sent = self._socket.send(left, flags)
                else:
                    at = chunk.position + self._done
                    size = chunk.size - self._done
                    sent = os.sendfile(self._socket.fileno(), chunk.fileno, at, size)
                    if not sent:
                        raise OSError("the log was cut while it was being sent")
                self._done += sent
                if self._done == len(chunk):
                    self._chunks.popleft()
                    self._done = 0
        except BlockingIOError:
            if not self._watching:
                self._watching = True
                self._loop.add_writer(self._socket.fileno(), self._writable)
            return False
        return True

    def _writable(self) -> None:
        try:
            done = self._push()
        except OSError:
            self._broken()
            return
        if done:
            self._unwatch()
            self._when_sent()

    def _broken(self) -> None:
        self.close()
        self._when_broken()

    def _unwatch(self) -> None:
        if self._watching and self._socket is not None:
            self._watching = False
            self._loop.remove_writer(self._socket.fileno())


def can_send_files(transport: asyncio.Transport) -> bool:
    """Whether a transport uses a plain TCP socket of the system, and writes to it what it is given.

    One that encrypts has such a socket, too: the file would go out as it is.
    """
    if transport.get_extra_info("ssl_object") is not None:
        return False
    found = transport.get_extra_info("socket")
    if found is None or not hasattr(socket, "MSG_MORE"):
        return False
    return getattr(found, "family", None) in (socket.AF_INET, socket.AF_INET6)


def sender_for(
    loop: asyncio.AbstractEventLoop,
    transport: asyncio.Transport,
    when_sent: Callable[[], None],
    when_broken: Callable[[], None],
) -> FileSender | None:
    """Return a sender beside a transport; None without free descriptors."""
    try:
        fileno = transport.get_extra_info("socket").fileno()
        return FileSender(loop, fileno, when_sent, when_broken)
    except OSError:
        return None
