"""TLS on one connection: records of the transport <-> plain bytes of a protocol.

Owns the steps of the handshake, and what is not yet encrypted or decrypted. Not which connections
may shake hands, and for how long: see `handshakes`; not keys and certificates: see
`runtime.tls_files`.

It drives ``ssl.MemoryBIO`` itself: uvloop's own TLS holds 256 KiB for each connection, outside of
the account of memory. Here the bytes that arrive share one buffer of the loop, and what is to be
sent is encrypted only as the transport takes it, so an unsent response stays in one copy.

States: shaking hands -> open -> over. The protocol is made when the handshake is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from tidelog.network.turns import Turns

READ_BYTES = 65_536
"""The buffer that all TLS connections of a loop read into."""

RECORD_BYTES = 16_384
"""The most plain bytes of one record."""

MOST_HANDSHAKE_BYTES = 131_072
"""What a peer may send before its handshake is complete: chains of certificates have a tenth."""

MOST_UNASKED_BYTES = 65_536
"""What a peer may cause to be sent beside the responses, over the life of a connection: answers to
renegotiations and to new keys. It would fill the memory with them and read none."""

READS_BEFORE_CHECK = 16
"""Records that one call decrypts before it asks whether others have their turn: a full buffer has
four of the usual ones, and thousands of tiny ones."""

HANDSHAKE_RECORD = 0x16
"""The first byte of a TLS connection."""

NOT_TLS = "it sent no TLS: set security.protocol=SSL in the client"
TOO_LONG = f"its TLS handshake is longer than {MOST_HANDSHAKE_BYTES} bytes"
TOO_MANY_DEMANDS = "it renegotiates, or asks for new keys, all the time"

_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()


class TlsOwner(Protocol):
    """What began a TLS connection."""

    def shaken(self, session: TlsSession) -> asyncio.BufferedProtocol | None:
        """The handshake is complete: return the protocol of the plain bytes, None to close."""

    def failed(self, session: TlsSession, why: str | None) -> None:
        """The connection ended before its handshake was complete; ``why`` is None where the other
        side just went away."""


class TlsSession(asyncio.BufferedProtocol):
    """The protocol of the transport, and the transport of the protocol of the plain bytes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        owner: TlsOwner,
        turns: Turns | None = None,
        *,
        server_name: str | None = None,
    ) -> None:
        """``turns``: by which a server does this work; None for a client, which has one peer.
        ``server_name``: the host that a client asked for."""
        self.client_host = ""
        self.plain: asyncio.BufferedProtocol | None = None
        """The protocol of the plain bytes; None until the handshake is complete."""
        self.raw: Any = None
        """The transport of the records; None before the connection is made, and after its end."""
        self._loop = loop
        self._owner: TlsOwner | None = owner
        self._turns = turns
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._is_server = server_name is None
        self._received = 0
        """Bytes of the handshake."""
        self._unasked = 0
        self._waits_for_turn = False
        self._raw_is_paused = False
        self._transport = TlsTransport(self)
        buffer = _buffers.get(loop)
        if buffer is None:
            buffer = _buffers[loop] = memoryview(bytearray(READ_BYTES))
        self._buffer = buffer

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.raw = transport
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        if not self._is_server:
            self._go_on()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.plain is None and self._refuses(nbytes):
            return
        self._incoming.write(self._buffer[:nbytes])
        self._go_on()

    def _refuses(self, nbytes: int) -> bool:
        why = None
        if self._is_server and not self._received and self._buffer[0] != HANDSHAKE_RECORD:
            why = NOT_TLS
        self._received += nbytes
        if self._received > MOST_HANDSHAKE_BYTES:
            why = TOO_LONG
        if why is not None:
            self._fail(why)
        return why is not None

    def eof_received(self) -> bool:
        if self.plain is None:
            self._fail(None if self._is_server else "it closed the connection in the handshake")
            return False
        self.plain.eof_received()
        # Not by the transport at once: what was written is sent first.
        self._transport.close()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.raw = None
        self._transport.drop()
        owner, self._owner = self._owner, None
        if self.plain is not None:
            self.plain.connection_lost(exc)
        elif owner is not None:
            owner.failed(self, None if self._is_server or exc is None else str(exc))

    def pause_writing(self) -> None:
        """The transport has enough; it calls ``resume_writing``."""

    def resume_writing(self) -> None:
        if self.raw is not None:
            self._transport.encrypt()

    def take_turn(self) -> None:
        """See ``turns.TurnWaiter``."""
        self._waits_for_turn = False
        if self.raw is not None:
            self._work()

    # -- its work

    def _go_on(self) -> None:
        if self._waits_for_turn:
            return
        # Decrypting asks later: nearly always it is done before its turn could be over.
        if self.plain is None and self._turns is not None and self._turns.is_over:
            self._wait_for_turn()
        else:
            self._work()

    def _work(self) -> None:
        if self.plain is not None:
            self._decrypt()
        elif self._owner is not None:
            self._shake()

    def _wait_for_turn(self) -> None:
        assert self._turns is not None
        self._waits_for_turn = True
        self.pause_raw()
        self._turns.wait(self)

    def _shake(self) -> None:
        try:
            self.object.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            self._resume_raw()
            return
        except (ssl.SSLError, ssl.CertificateError) as error:
            # With the alert that says so to the peer.
            self._send()
            self._fail(why_failed(error))
            return
        self._send()
        owner, self._owner = self._owner, None
        self.plain = None if owner is None else owner.shaken(self)
        if self.plain is None:
            self.close()
            return
        self.plain.connection_made(self._transport)
        self.resume_reading()

    def resume_reading(self) -> None:
        """Decrypt what has arrived, soon, and read on."""
        if not self._waits_for_turn:
            # Not now: the protocol may be in the midst of its work.
            self._waits_for_turn = True
            self._loop.call_soon(self.take_turn)

    def _decrypt(self) -> None:
        """Hand plain bytes on until there are none left, the protocol takes none, or others have
        their turn."""
        plain, transport, turns = self.plain, self._transport, self._turns
        assert plain is not None
        read: Any = self.object.read
        incoming = self._incoming
        reads, is_drained, error = 0, False, None
        while not is_drained and transport.is_reading() and self.raw is not None:
            if turns is not None and reads >= READS_BEFORE_CHECK and turns.is_over:
                self._wait_for_turn()
                return
            buffer: Any = plain.get_buffer(-1)
            filled = 0
            room, most = len(buffer), reads + READS_BEFORE_CHECK
            try:
                while filled < room and reads < most:
                    count = read(room - filled, buffer[filled:])
                    filled += count
                    reads += 1
                    if not count:
                        raise ssl.SSLZeroReturnError
                    if not incoming.pending and not self.object.pending():
                        is_drained = True
                        break
            except ssl.SSLWantReadError:
                is_drained = True
            except ssl.SSLError as caught:
                is_drained, error = True, caught
            if filled:
                plain.buffer_updated(filled)
        self._answer_demands()
        if error is not None:
            self._end(error)
        elif is_drained:
            self._resume_raw()

    def _answer_demands(self) -> None:
        if self._outgoing.pending:
            self._unasked += self._outgoing.pending
            self._send()
            if self._unasked > MOST_UNASKED_BYTES:
                self._end(ssl.SSLError(TOO_MANY_DEMANDS))

    def _end(self, error: ssl.SSLError) -> None:
        """The peer says that it ends, or broke the protocol."""
        plain = self.plain
        if self.raw is None or plain is None:
            return
        if isinstance(error, ssl.SSLZeroReturnError):
            plain.eof_received()
            self._transport.close()
            return
        self.raw.abort()
        self.raw = self.plain = None
        self._transport.drop()
        plain.connection_lost(ConnectionError(f"TLS: {why_failed(error)}"))

    def _fail(self, why: str | None) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.failed(self, why)
        self.close()

    def _send(self) -> None:
        if self._outgoing.pending and self.raw is not None:
            self.raw.write(self._outgoing.read())

    # -- for its transport and its owner

    def encrypt(self, chunk: Any) -> None:
        """Encrypt bytes; ``take_records`` has the records."""
        view = memoryview(chunk)
        done = 0
        while done < len(view):
            done += self.object.write(view[done : done + RECORD_BYTES])

    def take_records(self) -> bytes:
        """Return what is to be sent now."""
        return self._outgoing.read()

    def pause_raw(self) -> None:
        """Leave further records in the kernel."""
        if not self._raw_is_paused and self.raw is not None:
            self._raw_is_paused = True
            self.raw.pause_reading()

    def _resume_raw(self) -> None:
        if self._raw_is_paused and self.raw is not None and self._transport.is_reading():
            self._raw_is_paused = False
            self.raw.resume_reading()

    def close(self) -> None:
        """Say that this side ends, and close when what was written is sent."""
        if self.raw is None:
            return
        if self.plain is not None:
            with contextlib.suppress(ssl.SSLError):
                self.object.unwrap()
        self._send()
        self.raw.close()

    def abort(self) -> None:
        """Close at once; what is not sent is lost."""
        if self.raw is not None:
            self.raw.abort()


class TlsTransport(asyncio.Transport):
    """What the protocol of the plain bytes writes to."""

    def __init__(self, session: TlsSession) -> None:
        super().__init__()
        self._session = session
        self._unsent: deque[Any] = deque()
        """Plain bytes that the transport of the records has no room for."""
        self._unsent_bytes = 0
        self._high = RECORD_BYTES * 4
        self._is_paused = False
        self._writer_is_paused = False
        self._is_closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._session.object
        raw = self._session.raw
        return default if raw is None else raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._is_closing or self._session.raw is None

    def is_reading(self) -> bool:
        return not self._is_paused

    def pause_reading(self) -> None:
        self._is_paused = True
        self._session.pause_raw()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._session.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = RECORD_BYTES * 4 if high is None else high
        if self._session.raw is not None:
            self._session.raw.set_write_buffer_limits(high=self._high)

    def get_write_buffer_size(self) -> int:
        raw = self._session.raw
        return self._unsent_bytes + (0 if raw is None else int(raw.get_write_buffer_size()))

    @property
    def unencrypted(self) -> int:
        """The bytes that wait for room in the transport of the records."""
        return self._unsent_bytes

    def write(self, data: Any) -> None:
        self._add((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self._add(list_of_data)

    def _add(self, chunks: Iterable[Any]) -> None:
        if self._is_closing or self._session.raw is None:
            return
        for chunk in chunks:
            if chunk:
                self._unsent.append(chunk)
                self._unsent_bytes += len(chunk)
        self.encrypt()
        plain = self._session.plain
        if (
            not self._writer_is_paused
            and plain is not None
            and self.get_write_buffer_size() > self._high
        ):
            self._writer_is_paused = True
            plain.pause_writing()

    def encrypt(self) -> None:
        """Encrypt what the transport of the records has room for."""
        session = self._session
        raw = session.raw
        while self._unsent and raw is not None and raw.get_write_buffer_size() <= self._high:
            session.encrypt(self._next_bytes())
            raw.write(session.take_records())
            raw = session.raw
        if self._unsent:
            return
        if self._writer_is_paused and self.get_write_buffer_size() <= self._high:
            self._writer_is_paused = False
            if session.plain is not None:
                session.plain.resume_writing()
        if self._is_closing and not self._unsent:
            session.close()

    def _next_bytes(self) -> Any:
        """Return the next bytes, a few records of them: small ones are joined into one record."""
        first = self._unsent.popleft()
        if len(first) > self._high:
            view = memoryview(first)
            self._unsent.appendleft(view[self._high :])
            first = view[: self._high]
        elif len(first) < RECORD_BYTES and self._unsent:
            joined, size = [first], len(first)
            while self._unsent and size + len(self._unsent[0]) <= RECORD_BYTES:
                joined.append(self._unsent.popleft())
                size += len(joined[-1])
            first = b"".join(joined)
        self._unsent_bytes -= len(first)
        return first

    def drop(self) -> None:
        """The connection is lost: so is what was not sent."""
        self._unsent.clear()
        self._unsent_bytes = 0

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            # Nothing is read any more, so nothing may collect, either.
            self.pause_reading()
            self.encrypt()

    def abort(self) -> None:
        self._is_closing = True
        self.drop()
        self._session.abort()


def why_failed(error: ssl.SSLError | ssl.CertificateError) -> str:
    """Return why TLS failed, in a clause."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is refused: {error.verify_message or error.reason}"
    reason = getattr(error, "reason", None)
    if reason is None:
        return str(error.args[-1]) if error.args else "the connection ended"
    return _SAID.get(reason, str(reason).lower().replace("_", " "))


_SAID = {
    "WRONG_VERSION_NUMBER": "the other side sent no TLS",
    "UNEXPECTED_EOF_WHILE_READING": "the other side closed the connection",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate (ssl.client.auth=required)",
    "NO_SHARED_CIPHER": "both sides have no cipher suite in common",
    "UNSUPPORTED_PROTOCOL": "both sides have no version of TLS in common",
    "TLSV1_ALERT_UNKNOWN_CA": "the other side does not trust this certificate's authority",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other side refused the certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other side refused the certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other side found the certificate expired",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other side requires a certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "both sides have no version of TLS in common",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the other side refused the handshake",
}
"""Reasons of OpenSSL that a user meets, as sentences have them."""
