"""The simulated network: addresses, links with delays and cuts, listening sockets.

Owns which host reaches which, and when. Does not own what a connection does with its bytes
(``connection.py``).

A cut loses packets, and TCP sends them again: bytes of an open connection wait for the cut to
heal, new connections time out. Links are directed pairs of hosts, so a cut may be one-way.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.simulation.kernel.connection import RESET, Endpoint, SimulatedSocket
from tests.simulation.kernel.loop import CURRENT, SimulatedLoop

OUTSIDE = "outside"
"""The host of code that runs in no simulated process."""

CONNECT_SECONDS = 30.0
"""How long a connection attempt into a cut lasts before it times out."""

LOCAL_NAMES = frozenset({None, "", "localhost", "127.0.0.1", "0.0.0.0", "::", "::1"})

FIRST_EPHEMERAL_PORT = 32768


@dataclass
class NetworkProfile:
    """How bad the wire is. Seconds, shares from 0 to 1, bytes."""

    delay: tuple[float, float] = (50e-6, 600e-6)
    spikes: float = 0.01
    """Share of pieces that take up to ``spike_delay`` longer."""
    spike_delay: float = 0.05
    tearing: float = 0.3
    """Share of pieces that are cut at a random byte."""
    windows: tuple[int, ...] = (8 * 1024, 64 * 1024, 256 * 1024)

    def draw_delay(self, rng: random.Random) -> float:
        delay = rng.uniform(*self.delay)
        if rng.random() < self.spikes:
            delay += rng.uniform(0, self.spike_delay)
        return delay

    def draw_piece(self, rng: random.Random, room: int) -> int:
        if rng.random() < self.tearing:
            return rng.randint(1, min(room, rng.choice((3, 64, 1500, 64 * 1024))))
        return room

    def draw_window(self, rng: random.Random) -> int:
        return rng.choice(self.windows)


class SimulatedServer(asyncio.AbstractServer):
    """A listening socket of one process."""

    def __init__(self, network: Network, address: tuple[str, int], factory: Any) -> None:
        self.network = network
        self.address = address
        self.factory = factory
        self.owner = CURRENT.get()
        self.context = contextvars.copy_context()
        self.sockets: tuple[SimulatedSocket, ...] = (SimulatedSocket(address),)
        self._closed = False
        self._forever: asyncio.Future[None] | None = None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.sockets = ()
            self.network.listeners.pop(self.address, None)
            if self._forever is not None and not self._forever.done():
                self._forever.cancel()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.network.loop

    def is_serving(self) -> bool:
        return not self._closed

    async def start_serving(self) -> None:
        """Nothing: it serves from the start."""

    async def serve_forever(self) -> None:
        self._forever = self.network.loop.create_future()
        try:
            await self._forever
        finally:
            self.close()

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)


class Network:
    """All hosts, links, listeners and connections of one world."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, profile: NetworkProfile) -> None:
        self.loop = loop
        self.rng = rng
        self.profile = profile
        self.trace = loop.trace
        self.hosts: set[str] = {OUTSIDE}
        self.listeners: dict[tuple[str, int], SimulatedServer] = {}
        self.shared: dict[tuple[str, int], tuple[str, int]] = {}
        """Addresses of a host that several machines share, and where each of them leads."""
        self.connections: dict[int, Endpoint] = {}
        self._serials: dict[int, int] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._stalled: list[Endpoint] = []
        self._healed: list[asyncio.Future[None]] = []
        self._next_port = FIRST_EPHEMERAL_PORT
        self.tap: Callable[[Endpoint, bytes], None] | None = None
        """Called with everything that is written to a connection; listens, changes nothing."""
        self.tamper: Callable[[Endpoint, bytes], bytes] | None = None
        """Returns what of it arrives instead: bytes may be damaged on their way."""
        self._kernel = contextvars.Context()
        loop.network = self

    # --- faults ----------------------------------------------------------------------------

    def cut(self, source: str, target: str, *, one_way: bool = False) -> None:
        """Stop everything from ``source`` to ``target``, and back unless ``one_way``."""
        self.trace.event("cut", source, target, one_way)
        self._cuts.add((source, target))
        if not one_way:
            self._cuts.add((target, source))

    def heal(self, *cuts: tuple[str, str]) -> None:
        """End these cuts, or all; what waited goes on its way."""
        self.trace.event("heal", *cuts)
        if cuts:
            self._cuts.difference_update(cuts)
        else:
            self._cuts.clear()
        stalled, self._stalled = self._stalled, []
        for endpoint in stalled:
            self.carry(endpoint)
        waiting, self._healed = self._healed, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def reset_connections(self, host: str, share: float = 1.0) -> int:
        """Reset a share of the connections of a host; return how many."""
        chosen = [
            self.connections[key]
            for key in sorted(self.connections)
            if self.connections[key].host == host and self.rng.random() < share
        ]
        for endpoint in chosen:
            if not endpoint.lost:
                self.trace.event("reset", endpoint.name[0], endpoint.name[1])
                endpoint.reset()
        return len(chosen)

    def end_of_process(self, owner: object, *, silent: bool) -> None:
        """Close everything that a dead process had open."""
        for address in sorted(self.listeners):
            if self.listeners[address].owner is owner:
                self.listeners.pop(address)
        ends = [self.connections[key] for key in sorted(self.connections)]
        for endpoint in ends:
            if endpoint.owner is owner:
                endpoint.vanish(silent=silent)

    # --- carrying --------------------------------------------------------------------------

    def soon(self, callback: Callable[[], None]) -> None:
        """Run the kernel's own work: it belongs to no process and dies with none."""
        self.loop.call_soon(callback, context=self._kernel)

    def carry(self, endpoint: Endpoint) -> None:
        """Let the next thing on this endpoint's wire arrive after the link's delay, in order."""
        delay = self.profile.draw_delay(self.rng)
        endpoint.last_arrival = max(endpoint.last_arrival, self.loop.time() + delay)
        self.loop.call_at(endpoint.last_arrival, self._arrive, endpoint, context=self._kernel)

    def _arrive(self, endpoint: Endpoint) -> None:
        if not endpoint.wire:
            return
        if (endpoint.host, endpoint.peer.host) in self._cuts:
            self._stalled.append(endpoint)
            return
        endpoint.arrive()

    def reset_later(self, endpoint: Endpoint) -> None:
        """A machine lost power: its peers notice by keep-alive, after a while."""
        peer = endpoint.peer
        self.loop.call_later(self.rng.uniform(0.1, 2.0), peer._receive, RESET, context=self._kernel)

    def forget(self, endpoint: Endpoint) -> None:
        self.connections.pop(self._serials.pop(id(endpoint), -1), None)

    def _remember(self, endpoint: Endpoint) -> None:
        serial = self.loop.next_serial()
        self._serials[id(endpoint)] = serial
        self.connections[serial] = endpoint

    # --- listening and connecting ------------------------------------------------------------

    def current_host(self) -> str:
        owner = CURRENT.get()
        return OUTSIDE if owner is None else owner.host  # type: ignore[attr-defined]

    def resolve(self, name: Any) -> str:
        """Return the host that a name means here: local names mean the caller's own machine."""
        if isinstance(name, (list, tuple)):
            name = name[0] if name else None
        return self.current_host() if name in LOCAL_NAMES else str(name)

    def getaddrinfo(self, host: Any, port: Any) -> list[Any]:
        return [(2, 1, 6, "", (self.resolve(host), int(port or 0)))]

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    async def create_server(
        self, factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> SimulatedServer:
        """Listen. Options of real sockets (backlog, reuse_port ...) have no meaning here."""
        if options.get("sock") is not None or options.get("ssl") is not None:
            raise NotImplementedError("the simulated network has no real sockets and no TLS")
        address = (self.resolve(host), int(port or 0) or self._free_port())
        if address in self.listeners:
            raise OSError(98, f"Address already in use: {address}")
        server = SimulatedServer(self, address, factory)
        self.listeners[address] = server
        self.trace.event("listen", *address)
        return server

    async def create_connection(
        self, factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> tuple[Endpoint, Any]:
        """Connect, after the link's delays; refused and timed out as TCP does it."""
        if options.get("sock") is not None or options.get("ssl") is not None:
            raise NotImplementedError("the simulated network has no real sockets and no TLS")
        source, target = self.current_host(), self.resolve(host)
        target, port = self.shared.get((target, int(port)), (target, port))
        if target not in self.hosts:
            raise OSError(-2, f"Name or service not known: {target}")
        await self._passage(source, target)
        server = self.listeners.get((target, int(port)))
        if server is None:
            await self._passage(target, source)
            raise ConnectionRefusedError(111, f"Connect call failed {(target, port)}")
        client_name = (source, self._free_port())
        client = Endpoint(self, source, client_name, server.address)
        accepted = server.context.run(Endpoint, self, target, server.address, client_name)
        client.peer, accepted.peer = accepted, client
        self._remember(client)
        self._remember(accepted)
        self.loop.call_soon(self._accept, server, accepted, context=accepted.context)
        await self._passage(target, source)
        if client.lost:
            raise ConnectionResetError(104, "Connection reset by peer")
        protocol = factory()
        client.start(protocol)
        return client, protocol

    def _accept(self, server: SimulatedServer, accepted: Endpoint) -> None:
        if server.is_serving() and not accepted.lost:
            accepted.start(server.factory())
        else:
            accepted.abort()

    async def _passage(self, source: str, target: str) -> None:
        """Wait until one packet got from ``source`` to ``target``."""
        deadline = self.loop.time() + CONNECT_SECONDS
        await asyncio.sleep(self.profile.draw_delay(self.rng))
        while (source, target) in self._cuts:
            healed = self.loop.create_future()
            self._healed.append(healed)
            try:
                await asyncio.wait_for(healed, max(0.0, deadline - self.loop.time()))
            except TimeoutError:
                raise TimeoutError(110, f"Connection timed out: {target}") from None
