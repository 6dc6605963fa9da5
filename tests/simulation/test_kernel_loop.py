"""The simulated loop and network: virtual time, torn frames, cuts, flow control, deaths."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from pathlib import Path

import pytest

from tests.simulation.kernel import Deadlock, DiskView, NetworkProfile, SimulationError, World
from tests.simulation.replay import in_other_processes
from tests.support import loop_guard
from tidelog.broker.partitions.log_work import LogWork
from tidelog.model.work import Work

TORN = NetworkProfile(tearing=1.0)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve_echo() -> None:
    server = await asyncio.start_server(echo, "localhost", 7)
    await server.serve_forever()


async def ask(host: str, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, 7)
    writer.write(data)
    answer = await reader.readexactly(len(data))
    writer.close()
    await writer.wait_closed()
    return answer


def test_time_is_virtual_and_exact() -> None:
    with World(1) as world:

        async def main() -> list[float]:
            start = world.loop.time()
            await asyncio.sleep(3600)
            first = world.loop.time() - start
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10):
                    await asyncio.sleep(20)
            return [first, world.loop.time() - start]

        assert world.run(main()) == [pytest.approx(3600, abs=0.001), pytest.approx(3610, abs=0.001)]


def test_timers_of_one_moment_keep_their_order() -> None:
    with World(1) as world:
        seen: list[int] = []

        async def main() -> None:
            when = world.loop.time() + 1
            for number in range(20):
                world.loop.call_at(when, seen.append, number)
            await asyncio.sleep(2)

        world.run(main())
        assert seen == list(range(20))


def test_a_deadlock_and_a_run_without_end_are_clear(capsys: pytest.CaptureFixture[str]) -> None:
    with World(7) as world, pytest.raises(Deadlock, match="nothing is scheduled"):
        world.run(asyncio.Event().wait())
    assert "seed: 7" in capsys.readouterr().err.splitlines()[2]

    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with World(8, max_steps=1000) as world, pytest.raises(SimulationError, match="no end"):
        world.run(spin())


def test_executors_run_inline_after_a_while() -> None:
    with World(1) as world:

        async def main() -> None:
            before = world.loop.time()
            assert await world.loop.run_in_executor(None, max, 1, 2) == 2
            assert world.loop.time() > before
            assert await asyncio.to_thread(min, 1, 2) == 1
            with pytest.raises(ZeroDivisionError):
                await world.loop.run_in_executor(object(), lambda: 1 // 0)

        world.run(main())
        assert world.loop.unhandled == []


def test_streams_echo_over_torn_wires() -> None:
    with World(3, TORN) as world:
        world.machine("server").process("echo").run(serve_echo())
        data = bytes(range(256)) * 800

        async def main() -> None:
            await asyncio.sleep(1)
            answers = await asyncio.gather(*(ask("server", data) for _ in range(3)))
            assert answers == [data] * 3

        world.run(main())


class Collector(asyncio.BufferedProtocol):
    """Counts how its bytes came: a server that parses frames in place looks like this."""

    def __init__(self) -> None:
        self.buffer = bytearray(1000)
        self.pieces: list[bytes] = []
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.pieces.append(bytes(self.buffer[:nbytes]))

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)


def test_a_buffered_protocol_gets_torn_frames_in_order() -> None:
    with World(4, TORN) as world:

        async def main() -> None:
            made: list[Collector] = []

            def factory() -> Collector:
                made.append(Collector())
                return made[0]

            server = await world.loop.create_server(factory, port=0)
            port = server.sockets[0].getsockname()[1]
            transport, _ = await world.loop.create_connection(asyncio.Protocol, "localhost", port)
            assert transport.get_extra_info("peername") == ("outside", port)
            for number in range(50):
                transport.writelines([b"frame", b"%05d" % number])
            transport.close()
            await asyncio.sleep(2)
            await made[0].lost
            assert b"".join(made[0].pieces) == b"".join(b"frame%05d" % n for n in range(50))
            assert any(len(piece) % 10 for piece in made[0].pieces)
            server.close()
            await server.wait_closed()

        world.run(main())


def test_a_reader_that_stops_stops_its_writer() -> None:
    class Writer(asyncio.Protocol):
        paused = 0
        resumed = 0

        def pause_writing(self) -> None:
            self.paused += 1

        def resume_writing(self) -> None:
            self.resumed += 1

    with World(5) as world:

        async def main() -> None:
            made: list[Collector] = []

            def factory() -> Collector:
                made.append(Collector())
                return made[0]

            await world.loop.create_server(factory, "localhost", 9)
            transport, writer = await world.loop.create_connection(Writer, "localhost", 9)
            await asyncio.sleep(1)
            made[0].transport.pause_reading()
            transport.set_write_buffer_limits(high=1000, low=10)
            transport.write(bytes(2_000_000))
            await asyncio.sleep(5)
            assert (writer.paused, writer.resumed, made[0].pieces) == (1, 0, [])
            assert transport.get_write_buffer_size() > 1000
            made[0].transport.resume_reading()
            await asyncio.sleep(5)
            assert (writer.paused, writer.resumed) == (1, 1)
            assert sum(map(len, made[0].pieces)) == 2_000_000

        world.run(main())


def test_a_cut_holds_bytes_back_and_healing_brings_them() -> None:
    with World(6) as world:
        world.machine("server").process("echo").run(serve_echo())

        async def main() -> None:
            await asyncio.sleep(1)
            reader, writer = await asyncio.open_connection("server", 7)
            world.network.cut("server", "outside", one_way=True)
            writer.write(b"hello")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(
                    asyncio.shield(reading := world.loop.create_task(reader.readexactly(5))), 20
                )
            with pytest.raises(TimeoutError):
                await asyncio.open_connection("server", 7)
            world.network.heal()
            assert await reading == b"hello"

        world.run(main())


def test_closed_ports_and_unknown_hosts() -> None:
    with World(6) as world:
        world.machine("server")

        async def main() -> None:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("server", 7)
            with pytest.raises(OSError, match="not known"):
                await asyncio.open_connection("nowhere", 7)

        world.run(main())


def test_a_reset_reaches_both_ends() -> None:
    with World(9) as world:
        world.machine("server").process("echo").run(serve_echo())

        async def main() -> None:
            await asyncio.sleep(1)
            reader, writer = await asyncio.open_connection("server", 7)
            assert world.network.reset_connections("server") == 1
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            writer.write(b"into the void")
            assert writer.transport.is_closing()

        world.run(main())


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_dead_process_leaves_nothing(how: str) -> None:
    seen: list[str] = []

    async def body(disk) -> None:
        disk.make_directory("/d")
        disk.sync_directory("/")
        disk.replace("/d/f", b"alive")
        try:
            await serve_echo()
        finally:
            seen.append("finally ran")

    with World(10) as world:
        machine = world.machine("server")
        process = machine.process("echo")
        process.run(body(process.disk))

        async def main() -> None:
            await asyncio.sleep(1)
            reader, _ = await asyncio.open_connection("server", 7)
            if how == "kill":
                process.kill()
            else:
                machine.lose_power()
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("server", 7)
            await asyncio.sleep(100)
            assert seen == []
            again = machine.process("echo")
            assert again.name == "echo#2"
            assert again.disk.read("/d/f") == b"alive"
            again.run(body(again.disk))
            await asyncio.sleep(1)
            assert await ask("server", b"back") == b"back"

        world.run(main())
        assert world.loop.unhandled == []


def test_a_closed_world_is_forgotten() -> None:
    async def ends(world: World) -> None:
        await asyncio.sleep(world.seed)

    async def waits(world: World) -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            await asyncio.gather(ends(world))

    async def main(world: World) -> None:
        world.machine("a").process("p").run(waits(world))
        await asyncio.sleep(1)

    with World(1) as world:
        world.run(main(world))
    kept = weakref.ref(world)
    del world
    gc.collect()
    gc.collect()
    assert kept() is None


def test_the_end_closes_what_waits_again_while_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A coroutine that was left in its ``finally`` printed an error when it was collected."""
    ended, printed = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda said: printed.append(said.exc_value))

    async def leaves() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            try:
                await asyncio.sleep(1)
            finally:
                await asyncio.sleep(1)

    async def waits() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            try:
                await leaves()
            finally:
                await leaves()
                ended.append("never")

    async def main(world: World) -> None:
        world.machine("a").process("p").run(waits())
        await asyncio.sleep(1)

    with World(1) as world:
        world.run(main(world))
    del world
    gc.collect()
    assert (ended, printed) == ([], [])


SCENARIO = """
import asyncio
from tests.simulation.kernel import NetworkProfile, World
from tests.simulation.test_kernel_loop import ask, serve_echo

async def disk_work(process):
    process.disk.make_directory("/d")
    for number in range(30):
        file = process.disk.open(f"/d/{number}", create=True)
        file.write_at(0, [bytes([process.seams.random.randrange(256)]) * 3000])
        await asyncio.to_thread(file.sync)
        await asyncio.wait({asyncio.ensure_future(asyncio.sleep(0.01 * k)) for k in range(4)})

async def main(world):
    server = world.machine("server")
    server.process("echo").run(serve_echo())
    worker = server.process("worker")
    worker.run(disk_work(worker))
    await asyncio.sleep(0.1)
    await asyncio.gather(*(ask("server", bytes(5000)) for _ in range(5)))
    await asyncio.sleep(0.3)
    server.lose_power()

def digest(seed):
    with World(seed, NetworkProfile(tearing=0.5)) as world:
        world.run(main(world))
        return world.digest()

print(digest(1), digest(1), digest(2))
"""


def test_the_same_seed_gives_the_same_digest_in_every_process() -> None:
    (line,) = in_other_processes(SCENARIO, 0, 1, 4242)
    first, again, other = line.split()
    assert first == again != other


def test_a_sync_of_the_simulated_disk_is_no_task_for_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads are simulated on the loop itself; the guard of the tests tells the two apart."""
    found = tmp_path / "found"
    monkeypatch.setenv(loop_guard.FILE, str(found))

    def waiting(disk: DiskView, *, is_threads: bool) -> Work[None]:
        def replace() -> None:
            disk.replace("/file", b"x")

        if is_threads:
            yield replace
        else:
            yield None
            replace()

    for is_threads in (True, False):
        assert not found.exists()
        with World(3) as world:
            process = world.machine("one").process("server")
            work = waiting(process.disk, is_threads=is_threads)
            world.run(LogWork(process.seams.clock, None).run(None, work))
            assert process.disk.read("/file") == b"x"
    assert "a sync of /file.tmp on an event loop" in found.read_text()
    assert "LogWork.run" in found.read_text()
