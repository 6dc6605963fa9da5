"""What one request costs a broker: CPU of its process per Produce and per Fetch, over loopback.

The broker (without a controller) is a child process; the client sends ready-made frames, so many in
flight at a time, and reads the answers. CPU is user + system of the broker from /proc. The last
table is what a count costs where nothing was ever resized: a topic without one (below level 1.5)
beside a topic with one, read and written by clients that name it (aware) and that do not. Run:
``python benchmarks/broker_requests.py [--profile]``. Result: docs/internals/broker.md.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.lone_broker import LoneBroker  # noqa: E402
from tests.support.processes import resident_bytes  # noqa: E402
from tests.support.resized import count_in, put  # noqa: E402

from tidelog.protocol import codec, messages  # noqa: E402
from tidelog.records.builder import NewRecord, build_batch  # noqa: E402
from tidelog.replication.resize_rules import NOT_NAMED, Named  # noqa: E402
from tidelog.runtime.loop import run, tame_collector  # noqa: E402
from tidelog.runtime.seams import Seams  # noqa: E402

IN_FLIGHT = 5
COUNT_ROUNDS = 11


async def serve(folder: Path, config: dict[str, object], profile: str | None) -> None:
    lone = LoneBroker(folder, config, Seams())
    await lone.start()
    lone.lead("t")
    put(lone.lead("c"), undeleted_count=1, resize_epoch=0)
    tame_collector()
    print(lone.port, flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    if profile:
        import cProfile

        profiler = cProfile.Profile()
        profiler.enable()
        await ended.wait()
        profiler.disable()
        profiler.dump_stats(profile)
    else:
        await ended.wait()
    await lone.stop()


def produce_frame(
    value_bytes: int, version: int = 9, name: str = "t", named: Named = NOT_NAMED
) -> bytes:
    batch = build_batch([NewRecord(int(time.time() * 1000), None, b"x" * value_bytes)])
    request = messages.ProduceRequest
    part = request.PartitionProduceData(index=0, records=batch)
    topic = request.TopicProduceData(name=name, partition_data=[part])
    whole = count_in(request(acks=-1, timeout_ms=30000, topic_data=[topic]), named)
    return b"".join(codec.encode_request(0, version, 1, "bench", whole))


def fetch_frame(
    offset: int, max_bytes: int, name: str = "t", version: int = 11, named: Named = NOT_NAMED
) -> bytes:
    request = messages.FetchRequest
    part = request.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topic = request.FetchTopic(topic=name, partitions=[part])
    whole = request(max_wait_ms=500, min_bytes=1, max_bytes=max_bytes, topics=[topic])
    return b"".join(codec.encode_request(1, version, 1, "bench", count_in(whole, named)))


class Client:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray(4 << 20)

    def receive(self) -> int:
        view = memoryview(self.buffer)
        got = 0
        while got < 4:
            got += self.socket.recv_into(view[got:], 4 - got)
        (size,) = struct.unpack_from(">i", self.buffer)
        left = size
        while left:
            left -= self.socket.recv_into(view[: min(left, len(view))])
        return size

    def exchange(self, frame: bytes, count: int) -> int:
        """Send ``count`` frames, ``IN_FLIGHT`` at a time; return the bytes received."""
        received = 0
        for _ in range(IN_FLIGHT):
            self.socket.sendall(frame)
        for done in range(count):
            received += self.receive()
            if done + IN_FLIGHT < count:
                self.socket.sendall(frame)
        return received


def measure(name: str, pid: int, client: Client, frame: bytes, count: int) -> None:
    client.exchange(frame, max(20, count // 20))
    before, begun = cpu_us(pid), time.perf_counter()
    received = client.exchange(frame, count)
    elapsed = time.perf_counter() - begun
    user, system = ((b - a) / count for a, b in zip(before, cpu_us(pid), strict=True))
    print(
        f"{name:28s} {count:7d} requests  {user + system:8.1f} us CPU each "
        f"(user {user:6.1f}, system {system:6.1f})  "
        f"{count / elapsed:9.0f} /s  {received / elapsed / 1e6:8.1f} MB/s back",
        flush=True,
    )


def measure_counts(pid: int, client: Client) -> None:
    """Print what a count costs a request, in turns with the same request without one."""
    named = Named(undeleted_count=1, resize_epoch=0, partition_epoch=0)
    topics = {"no count": ("t", NOT_NAMED), "unaware": ("c", NOT_NAMED), "aware": ("c", named)}
    for request, count in (("Produce 100 B", 10000), ("Fetch 16 kB", 4000)):
        frames = {
            client_is: produce_frame(100, 9, name, numbers)
            if request.startswith("Produce")
            else fetch_frame(0, 17_000, name, 12, numbers)
            for client_is, (name, numbers) in topics.items()
        }
        took: dict[str, list[float]] = {client_is: [] for client_is in frames}
        for turn in range(COUNT_ROUNDS):
            for client_is in sorted(frames, reverse=turn % 2 == 0):
                before = run_us(pid)
                client.exchange(frames[client_is], count)
                took[client_is].append((run_us(pid) - before) / count)
        for client_is, each in took.items():
            ratios = [mine / base for mine, base in zip(each, took["no count"], strict=True)]
            print(
                f"{request:14s} {client_is:9s} {statistics.median(each):6.1f} us CPU each, "
                f"{statistics.median(ratios):.3f} of that without a count",
                flush=True,
            )


def cpu_us(pid: int) -> tuple[float, float]:
    """User and system CPU of a process, in microseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    tick_us = 1e6 / os.sysconf("SC_CLK_TCK")
    return int(fields[11]) * tick_us, int(fields[12]) * tick_us


def run_us(pid: int) -> float:
    """Microseconds that all threads of a process have run: finer than the clock ticks above."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1000


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        config = dict(pair.split("=", 1) for pair in sys.argv[4:])
        run(serve(Path(sys.argv[2]), config, sys.argv[3] if sys.argv[3] != "-" else None))
        return
    profile = "/tmp/broker_requests.prof" if "--profile" in sys.argv else "-"
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, __file__, "serve", folder, profile], stdout=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            print(f"idle: {resident_bytes(child.pid) / 1e6:.1f} MB resident")
            client = Client(port)
            measure("Produce 100 B, acks=all", child.pid, client, produce_frame(100), 40000)
            measure("Produce 16 kB, acks=all", child.pid, client, produce_frame(16000), 20000)
            measure("Produce 1 MB, acks=all", child.pid, client, produce_frame(1_000_000), 400)
            measure("Fetch 1 MB", child.pid, client, fetch_frame(42000, 1_000_000), 3000)
            measure("Fetch 16 kB", child.pid, client, fetch_frame(42000, 17_000), 20000)
            measure_counts(child.pid, client)
            print(f"after: {resident_bytes(child.pid) / 1e6:.1f} MB resident")
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(30)


if __name__ == "__main__":
    main()
