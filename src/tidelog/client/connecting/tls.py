"""TLS on a connection that this side opens: the handshake, and what its failures say.

Owns the wait for the handshake. Not its steps: see `network.tls`; not keys and certificates: see
`runtime.tls_files`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tidelog.client.errors import ConnectionLost
from tidelog.network.tls import TlsSession

if TYPE_CHECKING:
    from tidelog.runtime.tls_files import TlsFiles

CHECK = ": check that this is a listener with TLS (security.protocol=SSL)"


async def open_tls(
    loop: asyncio.AbstractEventLoop,
    make: Callable[[], asyncio.BufferedProtocol],
    host: str,
    port: int,
    files: TlsFiles,
) -> None:
    """Connect, shake hands, and give the plain bytes to the protocol that ``make`` returns.

    The caller has a time limit. Raises ConnectionLost, and OSError as ``create_connection`` does.
    """
    if files.have_changed():
        await loop.run_in_executor(None, files.refresh)
    opening = _Opening(loop, make, f"{host}:{port}")
    session = partial(TlsSession, loop, files.client, opening, server_name=host)
    transport, _ = await loop.create_connection(session, host, port)
    try:
        await opening.done
    except BaseException:
        transport.abort()
        raise


class _Opening:
    """One handshake: see ``tls.TlsOwner``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        make: Callable[[], asyncio.BufferedProtocol],
        peer: str,
    ) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self._make = make
        self._peer = peer

    def shaken(self, session: TlsSession) -> asyncio.BufferedProtocol | None:
        """See ``tls.TlsOwner``."""
        if self.done.done():
            return None
        self.done.set_result(None)
        return self._make()

    def failed(self, session: TlsSession, why: str | None) -> None:
        """See ``tls.TlsOwner``."""
        if not self.done.done():
            why = why or "it closed the connection"
            has_hint = "certificate" in why or "in common" in why
            clause = why if has_hint else f"{why}{CHECK}"
            self.done.set_exception(
                ConnectionLost(f"{self._peer}: the TLS handshake failed: {clause}")
            )
