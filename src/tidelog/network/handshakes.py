"""The TLS handshakes of one server: which are in progress, for how long, and what follows them.

Owns the limits of handshakes, and the principal of a connection that has shown a certificate. Not
their steps: see `tls`. A connection is counted by `places` when its handshake is complete; until
then only here. So half handshakes take no place of a client:

| limit | above it |
|---|---|
| ``HANDSHAKE_S`` for each | it is closed |
| ``MOST_HANDSHAKES``, a quarter of ``max.connections`` | the address with most loses its oldest |
| 5 ms of each turn of the loop for the handshakes of all | they wait, addresses alternate |
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from functools import partial

from tidelog.model.principals import ANONYMOUS, Principal
from tidelog.network.connection import Connection
from tidelog.network.open_connections import OpenConnections
from tidelog.network.tls import TlsSession
from tidelog.network.turns import RequestTurns
from tidelog.runtime.tls_files import CertificateRefused, TlsFiles

logger = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
"""As long as the first request of a connection without TLS may take."""

MOST_HANDSHAKES = 256

COMPARE_EVERY_S = 2.0
"""How often the files of keys and certificates are compared with those in use."""

TOO_SLOW = f"its TLS handshake was not complete after {HANDSHAKE_S:g} s"
NO_PLACE = "there are too many TLS handshakes, and most of them are from its address"


class Handshakes:
    """The handshakes of one server. Used on its loop."""

    def __init__(self, server: OpenConnections) -> None:
        self._server = server
        self._turns = RequestTurns(server.loop, server.clock)
        self._open: dict[TlsSession, asyncio.TimerHandle] = {}
        self._refreshing: dict[TlsFiles, asyncio.TimerHandle] = {}
        self._has_ended = False

    @property
    def count(self) -> int:
        """The handshakes in progress."""
        return len(self._open)

    def begin(self, files: TlsFiles, name: str) -> TlsSession:
        """Return the protocol of a connection that was accepted on the listener of a name."""
        server = self._server
        shaking = _Shaking(self, files, name)
        session = TlsSession(server.loop, files.server, shaking, self._turns)
        self._make_place()
        late = partial(self._late, session, shaking)
        self._open[session] = server.loop.call_later(HANDSHAKE_S, late)
        if self._has_ended:
            server.loop.call_soon(session.abort)
        return session

    def watch(self, files: TlsFiles) -> None:
        """Read the files of a listener again when they change."""
        compare = partial(self._compare, files)
        self._refreshing[files] = self._server.loop.call_later(COMPARE_EVERY_S, compare)

    def stop(self) -> None:
        """Close the connections that shake hands, and every later one."""
        self._has_ended = True
        for timer in self._refreshing.values():
            timer.cancel()
        for session in list(self._open):
            session.abort()

    def _compare(self, files: TlsFiles) -> None:
        self.watch(files)
        if files.have_changed():
            # Passwords of keystores take long to try: not on the loop.
            self._server.loop.run_in_executor(None, files.refresh)

    def _make_place(self) -> None:
        most = max(1, min(MOST_HANDSHAKES, self._server.limits.max_connections // 4))
        if len(self._open) < most:
            return
        by_host = Counter(session.client_host for session in self._open)
        host, _ = by_host.most_common(1)[0]
        oldest = next(session for session in self._open if session.client_host == host)
        self.ended(oldest)
        self.say(oldest.client_host, NO_PLACE)
        oldest.abort()

    def _late(self, session: TlsSession, shaking: _Shaking) -> None:
        self.ended(session)
        self.say(session.client_host, TOO_SLOW, shaking.name)
        session.abort()

    def ended(self, session: TlsSession) -> None:
        """A handshake is complete, or over."""
        timer = self._open.pop(session, None)
        if timer is not None:
            timer.cancel()

    def say(self, host: str, why: str, name: str = "SSL") -> None:
        """Log why a connection is closed, in the bounded number of lines that clients may cause."""
        if self._server.sweep.may_say():
            logger.warning("closing the connection from %s on %s: %s", host, name, why)

    def now_s(self) -> float:
        """Return the time since 1970."""
        return self._server.clock.wall_ms() / 1000

    def connection(self, name: str, principal: Principal) -> Connection:
        """Return the connection of a client whose handshake is complete."""
        return Connection(self._server, name, principal)


class _Shaking:
    """One handshake: see ``tls.TlsOwner``."""

    def __init__(self, handshakes: Handshakes, files: TlsFiles, name: str) -> None:
        self._handshakes = handshakes
        self._files = files
        self.name = name

    def shaken(self, session: TlsSession) -> asyncio.BufferedProtocol | None:
        """See ``tls.TlsOwner``."""
        self._handshakes.ended(session)
        try:
            principal = self._principal(session)
        except CertificateRefused as error:
            self._handshakes.say(session.client_host, str(error), self.name)
            return None
        return self._handshakes.connection(self.name, principal)

    def _principal(self, session: TlsSession) -> Principal:
        certificate = session.object.getpeercert(binary_form=True)
        if not certificate:
            return ANONYMOUS
        read = session.object.getpeercert() or {}
        ends_s = ssl.cert_time_to_seconds(str(read["notAfter"])) if read else 0
        if ends_s < self._handshakes.now_s():
            # OpenSSL does not ask again where a client takes up a former session (TLSv1.2).
            raise CertificateRefused("its certificate has expired")
        return self._files.principal(certificate)

    def failed(self, session: TlsSession, why: str | None) -> None:
        """See ``tls.TlsOwner``."""
        self._handshakes.ended(session)
        if why is not None:
            self._handshakes.say(session.client_host, why, self.name)
