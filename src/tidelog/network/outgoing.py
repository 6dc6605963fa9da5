"""The sending half of a connection: bytes that are written, bytes not sent yet, parts of files.

Owns the bytes of responses on their way out and their charge to the account. Not their order: see
`answering`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from tidelog.network.sending import FileSender, as_buffer, can_send_files, sender_for

if TYPE_CHECKING:
    from tidelog.network.limits import Account
    from tidelog.network.open_connections import OpenConnections

WRITE_HIGH_BYTES = 65_536
"""Unsent bytes of one connection above which it is not served, and they are charged."""

MOST_KEPT_SENDERS = 64
"""Connections of a server that keep their sender of file parts from one response to the next: a
descriptor each, until they are idle for a while."""

CLIENT, CLOSED, FILES = 4, 64, 128
"""Reasons of ``Connection`` not to serve that are set here."""

_BUFFERS = (bytes, bytearray, memoryview)
_BUFFER_CLASSES = frozenset(_BUFFERS)


class Outgoing:
    """The sending half. It calls ``_go_on`` when there is room for more."""

    server: OpenConnections
    client_host: str
    last_active: float
    _blocked: int

    def __init__(self) -> None:
        self._transport: Any = None
        self._out: list[Any] = []
        self._sender: FileSender | None = None
        self._kept_sender: FileSender | None = None
        self._sends_files: bool | None = None
        self._queued = 0
        """Bytes of responses that wait for an earlier one."""
        self._building = 0
        """Bytes of the response that is being made."""
        self._pending_bytes = 0
        """Memory of requests with pending responses."""
        self._charged = 0
        self._unmade = 0
        """The part of it that the account counts as unmade."""
        self.account = self.server.memory

    @property
    def is_sending(self) -> bool:
        """Whether part of a file is on its way."""
        return bool(self._blocked & FILES)

    def pause_writing(self) -> None:
        self._blocked |= CLIENT
        self._count()

    def resume_writing(self) -> None:
        self._blocked &= ~CLIENT
        self.last_active = self.server.loop.time()
        self._count()
        self._go_on()

    @abstractmethod
    def abort(self) -> None:
        """Close at once; what is not sent is lost."""

    @abstractmethod
    def _go_on(self) -> None:
        """Serve further requests, unless there is another reason not to."""

    def _count(self) -> None:
        """Charge the account with the present memory of this client."""
        held = self._queued + self._building + self._pending_bytes
        if self._blocked & CLIENT and self._transport is not None:
            held += self._transport.get_write_buffer_size()
        if self._building + self._pending_bytes != self._unmade:
            self._note_unmade()
        if held != self._charged:
            change, self._charged = held - self._charged, held
            self.account.charge(change, self)

    def _note_unmade(self) -> None:
        size = self._building + self._pending_bytes
        change, self._unmade = size - self._unmade, size
        self.account.note_unmade(change, self)

    def _leave_account(self, outside: Account) -> None:
        """Count in ``outside`` from now on. No response is being made yet."""
        self.account.charge(-self._charged, self)
        self.account = outside
        outside.charge(self._charged, self)

    def _forget_answers(self) -> None:
        """The connection has ended."""
        if self._sender is not None:
            self._sender.close()
        self._drop_kept_sender()
        self._queued = self._building = self._pending_bytes = 0
        self._note_unmade()
        charged, self._charged = self._charged, 0
        self.account.charge(-charged, self)

    def _flush(self) -> None:
        if self._transport is None or self._sender is not None:
            return
        chunks, self._out = self._out, []
        if len(chunks) == 1:
            # The response to a small request, as nearly always; a part of a file follows a header.
            self.server.bytes_out += len(chunks[0])
            self._transport.write(chunks[0])
            if self._blocked & CLIENT:
                self._count()
            return
        self.server.bytes_out += sum(map(len, chunks))
        if self._sends_files and not _BUFFER_CLASSES.issuperset(map(type, chunks)):
            self._send_files(chunks)
        else:
            self._transport.writelines(chunks)
        if self._blocked & CLIENT:
            self._count()

    def can_send_files(self) -> bool:
        """Whether responses may have parts of files (``sending.FilePart``) among their chunks."""
        if self._sends_files is None and self._transport is not None:
            self._sends_files = can_send_files(self._transport)
        return bool(self._sends_files)

    def _send_files(self, chunks: list[Any]) -> None:
        sender = None
        # While the transport has unsent bytes, no other bytes may overtake them.
        if not self._transport.get_write_buffer_size():
            sender = self._kept_sender or sender_for(
                self.server.loop, self._transport, self._files_sent, self.abort
            )
        if sender is None:
            self._transport.writelines([as_buffer(chunk) for chunk in chunks])
        elif sender.send(chunks):
            if sender is not self._kept_sender:
                self._keep_sender(sender)
        else:
            self._sender = sender
            self._blocked |= FILES

    def _files_sent(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None and sender is not self._kept_sender:
            self._keep_sender(sender)
        self._blocked &= ~FILES
        self.last_active = self.server.loop.time()
        if self._out:
            self._flush()
        self._go_on()

    def _keep_sender(self, sender: FileSender) -> None:
        """Keep it for the next response: a new one takes four system calls."""
        if self.server.kept_senders >= MOST_KEPT_SENDERS or self._blocked & CLOSED:
            sender.close()
            return
        self.server.kept_senders += 1
        self._kept_sender = sender

    def _drop_kept_sender(self) -> None:
        kept, self._kept_sender = self._kept_sender, None
        if kept is not None:
            self.server.kept_senders -= 1
            if kept is not self._sender:
                kept.close()


def bytes_of(chunks: list[Any]) -> int:
    """Return the bytes in memory of a response: parts of files have none."""
    return sum(len(chunk) for chunk in chunks if isinstance(chunk, _BUFFERS))
