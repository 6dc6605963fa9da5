"""Admission of connections: the limits for clients, and ten places reserved for processes.

Owns the counts. ``max.connections`` and ``max.connections.per.ip`` bound the connections that have
not proved the cluster secret; those that have are not counted. Above the limits a new connection
gets one of the reserved places for ``PROVE_S``, in which it must prove the secret: so neither many
clients nor a setting of these limits keeps a process of the cluster out. When the reserved places
are in use, the address that has most of them loses its oldest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.network.limits import Limits
    from tidelog.network.router import Peer

KEPT_PLACES = 10
PROVE_S = 2.0

NO_PROOF = f"it had a place kept for processes, and proved no cluster secret in {PROVE_S:.0f} s"
NO_PLACE = "it had a place kept for processes, which another needs"


class Places:
    """The admitted connections of one server, with and without a proof."""

    def __init__(self, keeps: bool, loop: asyncio.AbstractEventLoop) -> None:
        """``keeps``: whether there is a secret to prove; without one no place is reserved."""
        self._keeps = keeps
        self._loop = loop
        self._per_ip: Counter[str] = Counter()
        self._counted: set[Peer] = set()
        self._proving: dict[Peer, asyncio.TimerHandle] = {}
        """Those in a reserved place, the oldest first."""

    def taken(self, connection: Peer, limits: Limits) -> str | None:
        """Count a new connection; return why it is refused, or None."""
        host = connection.client_host
        why = None
        if len(self._counted) >= limits.max_connections:
            why = f"there are max.connections={limits.max_connections} already"
        elif self._per_ip[host] >= limits.max_connections_per_ip:
            limit = limits.max_connections_per_ip
            why = f"its address has max.connections.per.ip={limit} already"
        if why is None:
            self._counted.add(connection)
            self._per_ip[host] += 1
            return None
        if not self._keeps:
            return why
        self._make_place(host)
        self._proving[connection] = self._loop.call_later(PROVE_S, connection.close, NO_PROOF)
        return None

    def _make_place(self, host: str) -> None:
        if len(self._proving) < KEPT_PLACES:
            return
        held = Counter(each.client_host for each in self._proving)
        held[host] += 1
        most = max(held.values())
        oldest = next(each for each in self._proving if held[each.client_host] == most)
        self.left(oldest)
        oldest.close(NO_PLACE)

    def left(self, connection: Peer) -> None:
        """Stop counting a connection: it ended, or proved the secret. Once is enough."""
        timer = self._proving.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if connection in self._counted:
            self._counted.discard(connection)
            host = connection.client_host
            self._per_ip[host] -= 1
            if self._per_ip[host] <= 0:
                del self._per_ip[host]
