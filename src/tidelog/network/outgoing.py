"""The sending part of a connection: bytes that are written, bytes not sent yet, parts of files.

Owns the bytes of responses on their way out. Not their order: see `answering`; not what they are
charged: see `response_memory`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.network.connection_state import CLIENT, CLOSED, FILES, ConnectionState, Owner
from tidelog.network.sending import FileSender, as_buffer, can_send_files, sender_for

if TYPE_CHECKING:
    from tidelog.network.open_connections import OpenConnections
    from tidelog.network.response_memory import ResponseMemory

WRITE_HIGH_BYTES = 65_536
"""Unsent bytes of one connection above which it is not served, and they are charged."""

MOST_KEPT_SENDERS = 64
"""Connections of a server that keep their sender of file parts from one response to the next: a
descriptor each, until they are idle for a while."""

_BUFFERS = (bytes, bytearray, memoryview)
_BUFFER_CLASSES = frozenset(_BUFFERS)


class Outgoing:
    """The bytes that one connection sends."""

    __slots__ = (
        "_kept_sender",
        "_memory",
        "_owner",
        "_sender",
        "_sends_files",
        "_server",
        "_state",
        "chunks",
    )

    def __init__(
        self, server: OpenConnections, owner: Owner, state: ConnectionState, memory: ResponseMemory
    ) -> None:
        self._server = server
        self._owner = owner
        self._state = state
        self._memory = memory
        self.chunks: list[Any] = []
        """What the next ``flush`` sends."""
        self._sender: FileSender | None = None
        self._kept_sender: FileSender | None = None
        self._sends_files: bool | None = None

    def pause(self) -> None:
        """The client does not read."""
        self._state.blocked |= CLIENT
        self._memory.count()

    def resume(self) -> None:
        """The client has read."""
        self._state.blocked &= ~CLIENT
        self._state.last_active = self._server.loop.time()
        self._memory.count()
        self._owner.go_on()

    def flush(self) -> None:
        """Write all chunks, unless part of a file is on its way: then they follow it."""
        state = self._state
        transport = state.transport
        if transport is None or self._sender is not None:
            return
        chunks, self.chunks = self.chunks, []
        if len(chunks) == 1:
            # The response to a small request, as nearly always; a part of a file follows a header.
            self._server.counts.bytes_out += len(chunks[0])
            transport.write(chunks[0])
            if state.blocked & CLIENT:
                self._memory.count()
            return
        self._server.counts.bytes_out += sum(map(len, chunks))
        if self._sends_files and not _BUFFER_CLASSES.issuperset(map(type, chunks)):
            self._send_files(transport, chunks)
        else:
            transport.writelines(chunks)
        if state.blocked & CLIENT:
            self._memory.count()

    def can_send_files(self) -> bool:
        """Whether responses may have parts of files (``sending.FilePart``) among their chunks."""
        if self._sends_files is None and self._state.transport is not None:
            self._sends_files = can_send_files(self._state.transport)
        return bool(self._sends_files)

    def _send_files(self, transport: Any, chunks: list[Any]) -> None:
        sender = None
        # While the transport has unsent bytes, no other bytes may overtake them.
        if not transport.get_write_buffer_size():
            sender = self._kept_sender or sender_for(
                self._server.loop, transport, self._files_sent, self._owner.abort
            )
        if sender is None:
            transport.writelines([as_buffer(chunk) for chunk in chunks])
        elif sender.send(chunks):
            if sender is not self._kept_sender:
                self._keep_sender(sender)
        else:
            self._sender = sender
            self._state.blocked |= FILES

    def _files_sent(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None and sender is not self._kept_sender:
            self._keep_sender(sender)
        self._state.blocked &= ~FILES
        self._state.last_active = self._server.loop.time()
        if self.chunks:
            self.flush()
        self._owner.go_on()

    def _keep_sender(self, sender: FileSender) -> None:
        """Keep it for the next response: a new one takes four system calls."""
        if self._server.counts.kept_senders >= MOST_KEPT_SENDERS or self._state.blocked & CLOSED:
            sender.close()
            return
        self._server.counts.kept_senders += 1
        self._kept_sender = sender

    def drop_kept_sender(self) -> None:
        """Give the descriptor back, unless part of a file is on its way."""
        kept, self._kept_sender = self._kept_sender, None
        if kept is not None:
            self._server.counts.kept_senders -= 1
            if kept is not self._sender:
                kept.close()

    def close(self) -> None:
        """Send no part of a file any more."""
        if self._sender is not None:
            self._sender.close()
        self.drop_kept_sender()


def bytes_of(chunks: list[Any]) -> int:
    """Return the bytes in memory of a response: parts of files have none."""
    return sum(len(chunk) for chunk in chunks if isinstance(chunk, _BUFFERS))
