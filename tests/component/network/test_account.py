"""The bound of what connections hold, by a model: connections without sockets, clients from a seed.

Owns the clients (they send in pieces, read late, leave) and the checks after each of their steps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.network_server import Harness, heartbeat, produce
from tests.support.set_clock import SetClock
from tidelog.model.api_keys import ApiKey
from tidelog.network.connection import Connection
from tidelog.network.limits import Account, Limits
from tidelog.network.server import Server
from tidelog.protocol import codec, messages

LIMIT = 1_000_000
MOST_REQUEST = 400_000
LIMITS = Limits(
    queued_request_bytes=LIMIT,
    unsent_answer_bytes=300_000,
    first_request_s=1e6,
    frame_s=1e6,
)


class Wire:
    """The transport of one connection and the client at its other end."""

    def __init__(self, server: Server, host: str) -> None:
        self._loop = server.loop
        self._host = host
        self._high = 0
        self._paused = False
        self.reading = True
        self.is_lost = False
        self.unsent = 0
        """What the client has not read."""
        self.sending = b""
        """What the server has not read."""
        self.largest = 0
        self.connection = Connection(server, "PLAINTEXT")
        self.connection.connection_made(self)  # type: ignore[arg-type]

    # -- the client

    def send(self, key: ApiKey, version: int, request: Any) -> None:
        frame = b"".join(codec.encode_request(key, version, 1, "test", request))
        self.largest = max(self.largest, len(frame))
        self.sending += frame

    def deliver(self, count: int) -> int:
        """Have the server read at most ``count`` bytes; return how many it did."""
        if not self.reading or self.is_lost or not self.sending:
            return 0
        view = self.connection.get_buffer(-1)
        piece = self.sending[: min(count, len(view))]
        self.sending = self.sending[len(piece) :]
        view[: len(piece)] = piece
        self.connection.buffer_updated(len(piece))
        return len(piece)

    def read(self, count: int) -> None:
        """Read answers."""
        self.unsent = max(0, self.unsent - count)
        if self._paused and self.unsent <= self._high // 4:
            self._paused = False
            self.connection.resume_writing()

    # -- the transport

    def get_extra_info(self, name: str) -> Any:
        return (self._host, 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes) -> None:
        self.unsent += len(data)
        if self.unsent > self._high and not self._paused:
            self._paused = True
            self.connection.pause_writing()

    def writelines(self, chunks: list[bytes]) -> None:
        self.write(b"".join(chunks))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.connection.connection_lost(None)

    close = abort


class World:
    """A server and its clients."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.harness = Harness()
        self.server = Server(self.harness.router(), None, limits, clock=SetClock())
        # Asked by the steps, not by a timer: a seed has one history.
        self.server.answer_queue._ask_later = lambda: None  # type: ignore[method-assign]
        self.account = self.server.memory
        self.wires: list[Wire] = []
        self.largest = 0
        self.most_taken = 0

    def connect(self, host: str) -> Wire:
        self.wires.append(wire := Wire(self.server, host))
        return wire

    def check(self) -> None:
        """What is counted is what is held, and what is taken is within the stated bound."""
        account, connections = self.account, list(self.server.connections)
        held = sum(each.receiver.buffer.held for each in connections)
        taken = account.used - account.answers
        assert taken == held
        assert account.answers == sum(each.memory.charged for each in connections)
        assert sum(account._held.values()) == account.used
        assert min(account._held.values(), default=1) > 0
        self.largest = max([self.largest, *(each.largest for each in self.wires)])
        shares = sum(1 / k for k in range(1, len(account._held) + 1)) if account._held else 1
        assert taken <= LIMIT * shares + self.largest
        self.most_taken = max(self.most_taken, taken)

    async def turn(self) -> None:
        """Let the loop go on as long as it has something to do at once."""
        for _ in range(4):
            await asyncio.sleep(0)
        self.server.answer_queue._ask()
        self.check()

    def release(self) -> None:
        """Answer a request that waits."""
        future = self.harness.pending.pop(0)
        if not future.done():
            future.set_result(messages.HeartbeatResponse(error_code=0))

    async def finish(self) -> None:
        """Have everything sent, answered and read: no request may wait for ever."""
        for _ in range(4000):
            moved = 0
            for wire in self.wires:
                moved += wire.deliver(1 << 16) + wire.unsent
                wire.read(wire.unsent)
                self.check()
            while self.harness.pending:
                moved += 1
                self.release()
            await self.turn()
            if not moved and not self.harness.pending:
                break
        for wire in self.wires:
            assert wire.is_lost or not wire.sending, "it is read to its end"
            assert wire.is_lost or not wire.connection.unanswered
        assert self.account.answers == 0 and not self.account.contended

    async def stop(self) -> None:
        for wire in self.wires:
            wire.abort()
        await self.turn()
        assert self.account.used == self.account.answers == 0 and not self.account._held
        await self.server.stop(grace_s=0.0)


def large(size: int, *, acks: int = 1) -> Any:
    return produce(bytes(size), acks=acks)


def test_a_connection_that_begins_its_next_request_does_not_pass_the_limit_beside_another() -> None:
    """It lost the favour with the first request and kept the memory, for the beginning of the next:
    of 20 connections each one passed the limit of three requests, 20 MB."""

    async def main() -> None:
        world = World()
        for _ in range(20):
            wire = world.connect("a")
            wire.send(ApiKey.PRODUCE, 9, large(MOST_REQUEST - 1000))
            wire.send(ApiKey.PRODUCE, 9, large(MOST_REQUEST - 1000))
        # Each sends one and a little of the next, and then nothing.
        ends = {wire: wire.largest + 10 for wire in world.wires}
        moved = True
        while moved:
            moved = False
            for wire, left in ends.items():
                count = wire.deliver(min(left, 1 << 16))
                ends[wire] -= count
                moved = moved or count > 0
                world.check()
            await world.turn()
        assert sum(len(each) for each in world.harness.record_bytes) >= 20 * (MOST_REQUEST - 1000)
        assert world.most_taken > LIMIT, "one at a time did pass it"
        await world.finish()
        assert len(world.harness.record_bytes) == 40
        await world.stop()

    asyncio.run(main())


def _sends(rng: random.Random, wire: Wire) -> None:
    what = rng.randrange(10)
    size = rng.choice((100, 5_000, 70_000, rng.randrange(MOST_REQUEST - 1000)))
    if what < 5:
        wire.send(ApiKey.PRODUCE, 9, large(size))
    elif what < 7:
        wire.send(ApiKey.HEARTBEAT, 4, heartbeat("g"))
    elif what < 9:
        request = heartbeat("park")
        request.member_id = "m" * rng.choice((10, 5_000, 20_000))
        wire.send(ApiKey.HEARTBEAT, 4, request)
    else:
        fetch = messages.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=size, topics=[])
        wire.send(ApiKey.FETCH, 12, fetch)


async def _history(rng: random.Random, hosts: int) -> World:
    world = World()
    steps: list[Callable[[Wire], Any]] = [
        lambda wire: wire.deliver(rng.choice((1, 3, 4_000, 65_536, 1 << 20))),
        lambda wire: wire.deliver(1 << 16),
        lambda wire: wire.deliver(1 << 20),
        lambda wire: wire.read(rng.choice((1_000, 1 << 20))),
        lambda wire: len(wire.sending) > 1 << 20 or _sends(rng, wire),
        lambda wire: world.harness.pending and rng.random() < 0.3 and world.release(),
        lambda wire: rng.random() < 0.02 and wire.abort(),
        lambda wire: rng.random() < 0.05 and world.server.sweep.take_back(),
    ]
    for _ in range(2_000):
        living = [wire for wire in world.wires if not wire.is_lost]
        if len(living) < 12:
            living.append(world.connect(f"host-{rng.randrange(hosts)}"))
        rng.choice(steps)(rng.choice(living))
        world.check()
        if rng.random() < 0.3:
            await world.turn()
    return world


@pytest.mark.parametrize("hosts", [1, 2, 8])
@pytest.mark.parametrize("first", range(0, 12, 4))
def test_the_memory_in_use_is_bounded_in_many_histories(first: int, hosts: int) -> None:
    async def main(seed: int) -> None:
        world = await _history(random.Random(seed), hosts)
        await world.finish()
        await world.stop()
        over.append(world.most_taken > LIMIT)

    over: list[bool] = []
    for seed in range(first, first + 4):
        print(f"seed {seed}, {hosts} addresses")
        asyncio.run(main(seed))
    assert any(over), "else nothing was tried"


def test_shares_of_many_addresses_pass_the_limit_at_most_by_what_is_stated() -> None:
    """Each takes all that it is given, one after the other: more than twice the limit."""

    class Place:
        def __init__(self, client_host: str) -> None:
            self.client_host = client_host

    account = Account(LIMIT)
    places = [Place(f"host-{number}") for number in range(50)]
    assert account.take(LIMIT, places[0], lambda: None)
    for place in places[1:]:
        while account.in_share(place, 1000):
            assert account.take(1000, place, lambda: None)
    harmonic = sum(1 / k for k in range(1, 51))
    assert LIMIT * harmonic - 50 * 1001 <= account.used <= LIMIT * harmonic
    assert account.used > 4 * LIMIT
