"""What connections may hold: the account of memory, shares of addresses, and times of frames."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.support.network_server import (
    Harness,
    Peer,
    heartbeat,
    port_of,
    produce,
    serving,
    until,
)
from tests.support.processes import DEADLINE_S, resident_bytes
from tests.support.proofs import proven, secret_in, write_secret
from tidelog.model.api_keys import ApiKey
from tidelog.network.buffer import FIRST_BYTES, SMALL_BYTES, WIDE_BYTES, ReceiveBuffer
from tidelog.network.frame_times import FRAME_CHECK_S
from tidelog.network.limits import Account, Limits
from tidelog.network.response_memory import PENDING_FACTOR
from tidelog.network.server import Server
from tidelog.protocol import codec, messages
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.seams import Seams

BUSY, OTHER = "127.0.0.2", "127.0.0.3"


@pytest.fixture
def run() -> Iterator[Any]:
    """Run a coroutine on uvloop."""

    def call(main: Any) -> Any:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)

    yield call


async def connect_from(server: Any, address: str) -> Peer:
    """A client with an address of its own."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port_of(server), limit=2**26, local_addr=(address, 0)
    )
    return Peer(reader, writer)


async def greeted(server: Any, address: str = "127.0.0.1") -> Peer:
    """A client whose first request was answered."""
    peer = await connect_from(server, address)
    peer.send(ApiKey.HEARTBEAT, 4, 0, heartbeat("g"))
    assert await peer.receive_correlation() == 0
    return peer


class Place:
    """A holder of memory, without a connection."""

    def __init__(self, client_host: str) -> None:
        self.client_host = client_host


# -- the account


def test_an_address_passes_the_limit_within_its_share_and_only_then() -> None:
    account = Account(100)
    first, second = Place("a"), Place("b")
    assert account.take(100, first, lambda: None)
    assert account.take(50, second, lambda: None), "half is its share, whatever the other holds"
    assert account.used == 150
    favoured = account.take(1, second, lambda: None)
    assert favoured, "the first to pass the limit does so by favour, alone"
    assert not account.take(1, Place("b"), lambda: None)
    account.give(51, second)
    account.give(100, first)
    assert account.used == 0


def test_alone_an_address_has_all_of_it() -> None:
    account = Account(100)
    places = [Place("a") for _ in range(11)]
    assert all(account.take(10, place, lambda: None) for place in places[:10])
    assert account.take(10, places[10], lambda: None), "by favour"
    assert not account.take(10, Place("a"), lambda: None)


def test_shares_shrink_with_the_addresses_that_hold_something() -> None:
    account = Account(90)
    assert account.take(90, Place("a"), lambda: None)
    assert account.take(45, Place("b"), lambda: None)
    assert account.in_share(Place("c"), 30)
    assert not account.in_share(Place("c"), 31)
    assert account.in_share(Place("b"), 0)
    assert not account.in_share(Place("a"), 0)


def test_waiting_connections_are_woken_in_order_and_wait_once() -> None:
    account = Account(100)
    holder, *waiting = (Place("a") for _ in range(4))
    woken: list[Place] = []

    def wait(place: Place) -> bool:
        return account.take(60, place, partial(woken.append, place))

    assert account.take(100, Place("a"), lambda: None) and account.take(1, holder, lambda: None)
    assert not any(wait(place) for place in (*waiting, waiting[0]))
    account.forget(waiting[1], 0)
    account.give(100, Place("a"))
    account.give(1, holder)
    assert woken == [waiting[0], waiting[2]]
    assert not account.contended and account.used == 0


def test_one_answer_at_a_time_may_be_finished() -> None:
    account = Account(100)
    first, second = Place("a"), Place("a")
    account.note_unmade(10, first)
    account.note_unmade(10, second)
    assert account.may_finish(first) and account.may_finish(first)
    assert not account.may_finish(second)
    account.note_unmade(-10, second)
    assert not account.may_finish(second)
    account.note_unmade(-10, first)
    assert account.may_finish(second)
    assert account.unmade == 0


# -- promise 30


def test_before_its_first_whole_request_a_connection_costs_4_kib(run: Any) -> None:
    """Half a frame used to hold 64 KiB outside of the account: 2,000 of them cost 112 MB."""

    async def main() -> None:
        async with serving(Harness()) as (server, connect):
            peers = [await connect() for _ in range(100)]
            for peer in peers:
                peer.writer.write(struct.pack(">i", 100_000_000) + b"\0" * 20)
            await until(lambda: server.counts.bytes_in == 100 * 24)
            capacities = [each.receiver.buffer.capacity for each in server.connections]
            assert max(capacities) <= SMALL_BYTES
            assert server.memory.used == 0
            peers[0].writer.write(bytes(2 * SMALL_BYTES))
            await until(lambda: server.counts.bytes_in == 100 * 24 + 2 * SMALL_BYTES)
            largest = max(each.receiver.buffer.capacity for each in server.connections)
            assert server.memory.used == largest - SMALL_BYTES, "what is above is charged"

    run(main())


@pytest.mark.parametrize("sent", [b"", struct.pack(">i", 1000) + b"\0" * 20])
def test_the_first_whole_request_must_come_in_time(
    run: Any, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(Harness(), Limits(first_request_s=0.2)) as (server, connect):
            peer = await connect()
            peer.writer.write(sent)
            assert await peer.ended()
            assert not server.connections
            quick = await greeted(server)
            await until(lambda: not server.frame_times.awaited)
            quick.send(ApiKey.HEARTBEAT, 4, 1, heartbeat("g"))
            assert await quick.receive_correlation() == 1

    with caplog.at_level(logging.WARNING):
        run(main())
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("tidelog")]
    assert len(lines) == bool(sent)
    assert all("its first request was not whole 0.2 s after it connected" in each for each in lines)


def test_time_in_which_the_loop_stands_still_does_not_count(run: Any) -> None:
    """The bytes are there when it goes on, and its timers come before them: a machine that was
    busy or frozen for ten seconds closed every connection that was new."""

    whole = b"".join(codec.encode_request(ApiKey.HEARTBEAT, 4, 1, "c", heartbeat("g")))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with serving(Harness(), Limits(first_request_s=1.5 * FRAME_CHECK_S)) as (server, _):
            with socket.create_connection(("127.0.0.1", port_of(server))) as peer:
                await until(lambda: server.frame_times.awaited)
                peer.settimeout(DEADLINE_S)
                begin, begun = socket.socketpair()

                def stand_still() -> None:
                    loop.remove_reader(begun)
                    peer.sendall(whole)
                    goes_on_s = time.monotonic() + 3 * FRAME_CHECK_S
                    while time.monotonic() < goes_on_s:
                        pass

                # In a callback of what is read: after one of a timer the loop reads first.
                with begin, begun:
                    loop.add_reader(begun, stand_still)
                    begin.sendall(b"x")
                    answer = await loop.run_in_executor(None, peer.recv, 8)
                assert int.from_bytes(answer[4:], "big") == 1

    run(main())


def test_a_frame_that_has_begun_must_be_whole_in_time(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that drip used to keep a frame, and the memory of its start, for ten minutes."""

    async def main() -> None:
        async with serving(Harness(), Limits(frame_s=0.3)) as (server, _):
            peer = await greeted(server)
            peer.writer.write(struct.pack(">i", 100_000))
            ended = asyncio.ensure_future(peer.ended())
            while not ended.done():
                peer.writer.write(b"\0")
                await asyncio.wait([ended], timeout=0.02)
            assert not server.connections and not server.frame_times.awaited

    with caplog.at_level(logging.WARNING):
        run(main())
    assert any(
        "a request was not whole 0.3 s after its first byte" in each.getMessage()
        for each in caplog.records
    )


def test_time_in_which_the_server_does_not_read_does_not_count(run: Any) -> None:
    """A request after one that waits (a Fetch) is not late, however long that takes."""

    async def main() -> None:
        harness = Harness()
        async with serving(harness, Limits(frame_s=0.1)) as (server, _):
            peer = await greeted(server)
            peer.send(ApiKey.HEARTBEAT, 4, 1, heartbeat("park"))
            whole = b"".join(codec.encode_request(ApiKey.HEARTBEAT, 4, 2, "c", heartbeat("g")))
            peer.writer.write(whole[:10])
            await until(lambda: harness.pending)
            await until(lambda: not server.frame_times.awaited)
            others = await greeted(server)
            others.writer.write(b"\0\0\1\0")
            assert await others.ended(), "as long as it takes to be late, and more"
            harness.pending[0].set_result(messages.HeartbeatResponse(error_code=0))
            assert await peer.receive_correlation() == 1
            peer.writer.write(whole[10:])
            assert await peer.receive_correlation() == 2

    run(main())


def test_time_in_which_a_first_request_waits_for_memory_does_not_count(run: Any) -> None:
    """A client was closed after 10 s for a wait that the account of the server made it have."""

    async def main() -> None:
        harness = Harness()
        limits = Limits(queued_request_bytes=4_000_000, first_request_s=2 * FRAME_CHECK_S)
        async with serving(harness, limits) as (server, connect):
            busy = await greeted(server)
            busy.writer.write(struct.pack(">i", 20_000_000) + bytes(3_900_000))
            await until(lambda: server.memory.used > 4_000_000)
            peer = await connect()
            peer.send(ApiKey.PRODUCE, 9, 7, produce(bytes(300_000)))
            await until(lambda: any(each.is_starved for each in server.connections))
            late = await connect()
            late.writer.write(b"\0\0\1\0")
            assert await late.ended(), "as long as it takes to be late, and more"
            assert len(server.connections) == 2 and not server.memory.answers
            waits = next(each for each in server.connections if each.is_starved)
            assert (
                waits not in server.frame_times.awaited
                and waits.receiver.buffer.capacity <= SMALL_BYTES
            )
            busy.writer.close()
            assert await peer.receive_correlation() == 7

    run(main())


def test_what_was_left_of_its_time_goes_on_when_there_is_memory(run: Any) -> None:
    async def main() -> None:
        limits = Limits(queued_request_bytes=4_000_000, first_request_s=2 * FRAME_CHECK_S)
        async with serving(Harness(), limits) as (server, connect):
            busy = await greeted(server)
            busy.writer.write(struct.pack(">i", 20_000_000) + bytes(3_900_000))
            await until(lambda: server.memory.used > 4_000_000)
            peer = await connect()
            peer.writer.write(struct.pack(">i", 300_000) + bytes(2 * SMALL_BYTES))
            await until(lambda: any(each.is_starved for each in server.connections))
            busy.writer.close()
            assert await peer.ended()
            await until(lambda: not server.memory.used)

    run(main())


# -- one account for all


def test_half_sent_frames_of_one_address_do_not_delay_another(run: Any) -> None:
    """Four of them, with all the memory, delayed every other request of more than 64 KiB."""

    async def main() -> None:
        harness = Harness()
        limits = Limits(queued_request_bytes=4_000_000)
        async with serving(harness, limits) as (server, _):
            busy = [await greeted(server, BUSY) for _ in range(4)]
            for peer in busy:
                peer.writer.write(struct.pack(">i", 20_000_000) + bytes(3_000_000))
            await until(lambda: server.memory.contended)
            other = await greeted(server, OTHER)
            other.send(ApiKey.PRODUCE, 9, 7, produce(bytes(300_000)))
            assert await other.receive_correlation() == 7
            assert server.memory.contended, "the half-sent frames hold what they held"
            assert server.memory.used < 2 * limits.queued_request_bytes + 20_000_000

    run(main())


def test_wide_buffers_of_silent_clients_are_given_to_one_that_waits(run: Any) -> None:
    """They sent much, then five bytes of a frame: each kept 192 KiB as long as it liked."""

    async def main() -> None:
        limits = Limits(queued_request_bytes=4 * (WIDE_BYTES - FIRST_BYTES))
        async with serving(Harness(), limits) as (server, _):
            silent = [await greeted(server) for _ in range(4)]
            burst = b"".join(
                codec.encode_request(ApiKey.PRODUCE, 9, 7, "c", produce(bytes(60_000), acks=0))
            )
            for peer in silent:
                peer.writer.write(burst * 9 + burst[:5])
            await until(lambda: server.memory.used == limits.queued_request_bytes)
            first, second = await greeted(server), await greeted(server)
            whole = produce(bytes(300_000))
            frame = b"".join(codec.encode_request(ApiKey.PRODUCE, 9, 7, "c", whole))
            first.writer.write(frame[:-1])
            second.writer.write(frame)
            assert await second.receive_correlation() == 7
            first.writer.write(frame[-1:])
            assert await first.receive_correlation() == 7
            for peer in silent:
                peer.writer.write(burst[5:])
                peer.send(ApiKey.HEARTBEAT, 4, 1, heartbeat("g"))
                assert await peer.receive_correlation() == 1, "no byte of the begun frame is lost"

    run(main())


def test_the_system_has_the_memory_back_of_buffers_that_are_dropped() -> None:
    """After a burst of 2,000 connections the process kept 400 MB to its end."""
    before = resident_bytes(os.getpid())
    received, others = [], []
    for _ in range(300):
        received.append(ReceiveBuffer(Account(1 << 20), Place("a"), lambda: None))
        received[-1].accept()
        while received[-1].capacity < WIDE_BYTES:
            view = received[-1].free()
            view[:] = b"x" * len(view)
            received[-1].end += len(view)
            received[-1].start = received[-1].end
            assert received[-1].make_room()
        received[-1].view[:] = b"x" * WIDE_BYTES
        others.append(bytes(20_000))  # what stays beside it in the heap
    most = resident_bytes(os.getpid())
    assert most - before > 300 * WIDE_BYTES // 2
    for each in received:
        each.drop()
    assert resident_bytes(os.getpid()) - before < (most - before) // 4


def test_announcing_much_and_sending_little_takes_little(run: Any) -> None:
    """A buffer was doubled with each packet: twelve bytes took 100 MB of the account."""

    async def main() -> None:
        harness = Harness()
        async with serving(harness) as (server, _):
            peer = await greeted(server)
            (connection,) = server.connections
            came = server.counts.bytes_in
            for piece in (struct.pack(">i", 100_000_000), *[b"x"] * 20):
                peer.writer.write(piece)
                came += len(piece)
                await until(lambda came=came: server.counts.bytes_in == came)
            assert connection.receiver.buffer.capacity <= FIRST_BYTES
            assert server.memory.used == 0

    run(main())


def test_a_frame_after_another_is_received_whole(run: Any) -> None:
    """What is too long for the rest of the buffer is moved to its start, and the buffer grows."""

    async def main() -> None:
        harness = Harness()
        async with serving(harness) as (server, _):
            peer = await greeted(server)
            sizes = [10, FIRST_BYTES - 300, 200, 100_000, 50, 1_000_000, FIRST_BYTES]
            for number, size in enumerate(sizes):
                request = produce(bytes([number]) * size)
                chunks = codec.encode_request(ApiKey.PRODUCE, 9, number, "test", request)
                whole = b"".join(chunks)
                half = len(whole) // 2
                for piece in (whole[:half], whole[half:]):
                    came = server.counts.bytes_in + len(piece)
                    peer.writer.write(piece)
                    await until(lambda came=came: server.counts.bytes_in == came)
            got = [await peer.receive_correlation() for _ in sizes]
            assert got == list(range(len(sizes)))
            assert [len(each) for each in harness.record_bytes] == sizes

    run(main())


def test_a_client_that_does_not_read_its_last_responses_is_not_closing_for_ever(run: Any) -> None:
    """Without a limit of idle connections it was kept until memory was short."""

    async def main() -> None:
        limits = Limits(max_idle_s=-1, frame_s=1000)
        async with serving(Harness(), limits) as (server, _):
            peer = await greeted(server)
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            (connection,) = server.connections
            connection.state.transport.write(bytes(50_000_000))
            connection.close("a test")
            server.sweep.run()
            await asyncio.sleep(0)
            assert connection in server.connections, "what is written may still be read"
            assert connection.closing_since is not None
            connection.closing_since -= limits.frame_s + 1
            server.sweep.run()
            await until(lambda: not server.connections)

    run(main())


def test_a_connection_that_waits_for_other_readers_is_not_closed_as_idle(run: Any) -> None:
    """Its whole request was here, and waited for room for its answer."""

    async def main() -> None:
        harness = Harness()
        limits = Limits(unsent_answer_bytes=1000, max_stall_s=0.1)
        async with serving(harness, limits) as (server, _):
            peer = await greeted(server)
            (connection,) = server.connections
            server.memory.charge(1_000_000, Place("127.0.0.1"))
            peer.send(ApiKey.PRODUCE, 9, 1, produce(bytes(300_000)))
            await until(lambda: connection.is_holding)
            came_at = server.loop.time()
            await until(lambda: server.loop.time() > came_at + limits.max_stall_s)
            server.sweep.run()
            assert not connection.is_closing
            server.memory.charge(-1_000_000, Place("127.0.0.1"))
            assert await peer.receive_correlation() == 1

    run(main())


def test_unread_answers_of_its_address_keep_no_process_from_proving_the_secret(
    run: Any, tmp_path: Path
) -> None:
    """A broker beside a client that reads nothing could open no connection to another broker."""
    seams = Seams()
    file = write_secret(tmp_path)
    secret = ClusterSecret(seams.disk, str(file), seams.clock, seams.random)

    async def main() -> None:
        server = Server(Harness().router(), None, Limits(unsent_answer_bytes=1000), secret)
        port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        server.memory.charge(1_000_000, Place("127.0.0.1"))
        async with asyncio.timeout(DEADLINE_S):
            await proven(port, secret_in(file))
        await server.stop(grace_s=0.2)

    run(main())


def test_answers_that_wait_for_an_earlier_one_are_bounded(run: Any) -> None:
    """A Produce that waits for ever, then small requests: their responses had no limit."""

    async def main() -> None:
        harness = Harness()
        async with serving(harness, Limits(max_pipelined=16)) as (server, _):
            peer = await greeted(server)
            waiting = messages.ProduceRequest(acks=-1, timeout_ms=5, topic_data=[])
            peer.send(ApiKey.PRODUCE, 9, 1, waiting)
            for number in range(1000):
                peer.send(ApiKey.HEARTBEAT, 4, 2 + number, heartbeat("g"))
            heartbeats = server.router.tallies[ApiKey.HEARTBEAT]
            await until(lambda: heartbeats.requests == 1 + 15)
            for _ in range(3):
                await asyncio.wait_for(greeted(server, OTHER), DEADLINE_S)
            assert heartbeats.requests == 1 + 15 + 3
            harness.pending[0].set_result(messages.ProduceResponse())
            assert [await peer.receive_correlation() for _ in range(1001)] == list(range(1, 1002))
            assert server.memory.answers == 0

    run(main())


def test_large_answers_that_wait_for_an_earlier_one_are_charged(run: Any) -> None:
    async def main() -> None:
        harness = Harness()
        async with serving(harness) as (server, _):
            peer = await greeted(server)
            peer.send(ApiKey.PRODUCE, 9, 1, messages.ProduceRequest(acks=-1, topic_data=[]))
            for number in range(20):
                fetch = messages.FetchRequest(max_bytes=300_000, topics=[])
                peer.send(ApiKey.FETCH, 12, 2 + number, fetch)
            await until(lambda: server.memory.answers > 1_000_000)
            assert server.router.tallies[ApiKey.FETCH].requests == 4
            assert 1_200_000 < server.memory.answers < 1_201_000
            harness.pending[0].set_result(messages.ProduceResponse())
            assert [await peer.receive_correlation() for _ in range(21)] == list(range(1, 22))
            await until(lambda: server.memory.answers == 0)

    run(main())


def test_unread_answers_are_charged_and_then_nothing_is_served_to_that_address(run: Any) -> None:
    """Only Fetch was held back, and a megabyte of each connection was not counted."""

    async def main() -> None:
        harness = Harness()
        limits = Limits(unsent_answer_bytes=3_000_000)
        async with serving(harness, limits) as (server, _):
            lazy = []
            for _ in range(20):
                one = socket.socket()
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                one.bind((BUSY, 0))
                one.connect(("127.0.0.1", port_of(server)))
                fetch = messages.FetchRequest(max_bytes=10_000_000, topics=[])
                one.sendall(b"".join(codec.encode_request(1, 12, 1, "lazy", fetch)))
                lazy.append(one)
                await until(lambda: server.counts.accepted == len(lazy))
            await until(lambda: server.memory.answers >= 4_000_000)
            same = await connect_from(server, BUSY)
            same.send(ApiKey.HEARTBEAT, 4, 1, heartbeat("from the same address"))
            await greeted(server, OTHER)
            assert "from the same address" not in harness.seen
            assert server.memory.answers < 20_000_000
            for one in lazy:
                one.close()
            assert await same.receive_correlation() == 1
            await until(lambda: server.memory.answers == 0)

    run(main())


def test_of_two_that_hold_memory_the_one_that_stalls_is_closed(run: Any) -> None:
    """Not the other, which is not read because there is no memory for it."""

    async def main() -> None:
        harness = Harness()
        limits = Limits(queued_request_bytes=4_000_000, max_stall_s=0.0)
        async with serving(harness, limits) as (server, _):
            waits, stalls = await greeted(server), await greeted(server)
            whole = produce(bytes(3_000_000))
            frame = b"".join(codec.encode_request(ApiKey.PRODUCE, 9, 7, "c", whole))
            waits.writer.write(frame[:200_000])
            await until(lambda: server.memory.used > 100_000)
            stalls.writer.write(struct.pack(">i", 20_000_000) + bytes(3_900_000))
            await until(lambda: server.memory.used > 4_000_000)
            waits.writer.write(frame[200_000:])
            await until(lambda: any(each.is_starved for each in server.connections))
            server.sweep.run()
            assert await stalls.ended()
            assert await waits.receive_correlation() == 7

    run(main())


def test_a_connection_that_proved_the_secret_is_outside_of_the_account(run: Any) -> None:
    async def main() -> None:
        harness = Harness()
        limits = Limits(queued_request_bytes=1_000_000, unsent_answer_bytes=1000)
        async with serving(harness, limits) as (server, _):
            peer = await greeted(server)
            (connection,) = server.connections
            peer.writer.write(struct.pack(">i", 3_000_000) + bytes(200_000))
            await until(lambda: server.memory.used > 0)
            connection.trust()
            assert server.memory.used == 0 < server.outside.used
            peer.writer.write(bytes(1_500_000))
            await until(lambda: connection.receiver.buffer.capacity > 1_500_000)
            assert server.memory.used == 0
            assert connection.receiver.buffer.held == server.outside.used
            reader = await greeted(server)
            trusted = next(each for each in server.connections if each is not connection)
            trusted.trust()
            server.memory.charge(10_000, connection)
            reader.send(ApiKey.FETCH, 12, 7, messages.FetchRequest(max_bytes=10, topics=[]))
            assert await reader.receive_correlation() == 7
            server.memory.charge(-10_000, connection)

    run(main())


def test_what_a_closed_connection_held_is_free_again(run: Any) -> None:
    async def main() -> None:
        async with serving(Harness()) as (server, _):
            peer = await greeted(server)
            peer.writer.write(struct.pack(">i", 3_000_000) + bytes(1_000_000))
            await until(lambda: server.memory.used > 0)
            peer.writer.close()
            await until(lambda: not server.connections)
            assert server.memory.used == 0 == server.memory.answers and not server.memory._held

    run(main())


def test_a_long_request_is_charged_while_its_answer_is_pending(run: Any) -> None:
    """60 Fetches of 1.4 MB that waited for ever took 380 MB, and no limit counted them."""

    async def main() -> None:
        harness = Harness()
        limits = Limits(unsent_answer_bytes=3_000_000, max_stall_s=0.0)
        async with serving(harness, limits) as (server, _):
            peers = []
            for _ in range(3):
                peers.append(await greeted(server, BUSY))
                request = heartbeat("park")
                request.member_id = "m" * 30_000
                peers[-1].send(ApiKey.HEARTBEAT, 4, 1, request)
                await until(lambda: len(harness.pending) == len(peers))
            assert 3 * 30_000 * PENDING_FACTOR <= server.memory.answers == server.memory.used
            harness.pending[0].set_result(messages.HeartbeatResponse(error_code=0))
            assert await peers[0].receive_correlation() == 1
            assert server.memory.answers < 2 * 31_000 * PENDING_FACTOR
            peers[1].writer.close()
            await until(lambda: server.memory.answers < 31_000 * PENDING_FACTOR)
            # Where others wait for what it holds, a connection whose request waits is closed.
            server.memory.charge(5_000_000, Place(OTHER))
            server.sweep.run()
            assert await peers[2].ended()
            await until(lambda: server.memory.answers == 5_000_000)

    run(main())


def test_a_short_request_and_one_of_records_are_not_charged(run: Any) -> None:
    async def main() -> None:
        harness = Harness()
        async with serving(harness) as (server, _):
            peer = await greeted(server)
            peer.send(ApiKey.HEARTBEAT, 4, 1, heartbeat("park"))
            await until(lambda: len(harness.pending) == 1)
            assert server.memory.used == 0

    run(main())
