"""Where does the CPU of one request go, inside of the broker's process: a Produce of one record,
and a Fetch of 1 MB up to where the file would be sent?

No sockets: frames are put into the connection's buffer as the loop does it, answers go nowhere.
Each part is the best of many rounds in CPU time, so other work on the machine shows little; the
first line is a loop of Python alone, to compare machines by. Cold: other memory, more than the
processor's caches hold, was read before each call, as a client on the same machine does between two
requests. Run: ``python benchmarks/one_request_parts.py``. Result: benchmarks/NOTES.md.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crc32c import crc32c  # noqa: E402
from tests.support.lone_broker import LoneBroker  # noqa: E402
from tests.support.resized import put  # noqa: E402

from benchmarks.broker_requests import fetch_frame, produce_frame  # noqa: E402
from tidelog.broker.partitions import produce_fast_path  # noqa: E402
from tidelog.broker.partitions.partition import HostedPartition  # noqa: E402
from tidelog.network import frames  # noqa: E402
from tidelog.network.connection import Connection  # noqa: E402
from tidelog.network.router import Tally  # noqa: E402
from tidelog.records.batch import MAGIC_POSITION, walk  # noqa: E402
from tidelog.records.builder import NewRecord, build_batch  # noqa: E402
from tidelog.runtime.clock import RealClock  # noqa: E402
from tidelog.runtime.loop import run, tame_collector  # noqa: E402
from tidelog.runtime.seams import Seams  # noqa: E402
from tidelog.storage.log.appending import write  # noqa: E402
from tidelog.storage.log.inspecting import BatchDemands  # noqa: E402
from tidelog.storage.log.preparing import chunks_for, prepare  # noqa: E402
from tidelog.storage.log.region import find_region  # noqa: E402

ROUNDS, CALLS = 40, 1000
COLD_ROUNDS, COLD_CALLS = 5, 40
VERSION = 9
ELSEWHERE = os.urandom(64 << 20)
FETCHED_BYTES = 1 << 20
BATCH_BYTES, BATCHES = 15_000, 700
NEVER_MS = 2**62
NOW_NS = RealClock().monotonic_ns


class Nowhere(asyncio.Transport):
    """Takes answers and forgets them."""

    def __init__(self, plain: socket.socket | None = None) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "socket": plain})

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""

    def write(self, data: Any) -> None:
        """Gone."""

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    def close(self) -> None:
        """Nothing is open."""

    def abort(self) -> None:
        """Nothing is open."""


Work = Callable[[], object]


def cost_us(work: Work) -> float:
    """CPU of one call: the best of many rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(CALLS):
            work()
        best = min(best, (time.process_time() - begun) / CALLS)
    return best * 1e6


def cold_cost_us(work: Work) -> float:
    """The same, each call after so much else that the caches hold nothing of it."""
    best = float("inf")
    for _ in range(COLD_ROUNDS):
        took_ns = 0
        for _ in range(COLD_CALLS):
            crc32c(ELSEWHERE)
            begun = time.thread_time_ns()
            work()
            took_ns += time.thread_time_ns() - begun
        best = min(best, took_ns / COLD_CALLS)
    return best / 1000


def fetch_parts(lone: LoneBroker) -> tuple[tuple[str, Work], ...]:
    """A Fetch of 1 MB by a reader that continues where the last response ended."""
    partition = lone.lead("read")
    put(partition, undeleted_count=1, resize_epoch=0)
    batch = build_batch([NewRecord(int(time.time() * 1000), None, os.urandom(BATCH_BYTES))])
    for _ in range(BATCHES):
        partition.append(memoryview(bytearray(batch)), lone.broker.clock.wall_ms())
    connection = Connection(lone.server, "PLAINTEXT")
    # A socket of the system, so that parts of files are given; nothing goes over it.
    connection.connection_made(Nowhere(socket.socket()))
    offsets = [0]
    while (
        region := find_region(partition.log, offsets[-1], FETCHED_BYTES, partition.log.end_offset)
    ) and region.more_follows:
        read = os.pread(region.fileno, region.size, region.position)
        offsets.append(offsets[-1] + sum(1 for _ in walk(read)))
    asked = [memoryview(fetch_frame(offset, FETCHED_BYTES, "read"))[4:] for offset in offsets[:-1]]
    frames_in_turn, offsets_in_turn = itertools.cycle(asked), itertools.cycle(offsets[:-1])

    def take() -> None:
        connection.requests.take(next(frames_in_turn), 0)
        connection.outgoing.chunks.clear()

    return (
        ("a Fetch of 1 MB, up to sending the file", take),
        (
            "  finding the part of the file",
            lambda: find_region(
                partition.log, next(offsets_in_turn), FETCHED_BYTES, partition.log.end_offset
            ),
        ),
    )


def counted(tally: Tally) -> None:
    """Do what a connection does to count the time of a request that was answered at once."""
    began_ns = NOW_NS()
    tally.took(NOW_NS() - began_ns)


async def note(lone: LoneBroker, partition: HostedPartition) -> None:
    """Have a batch without a count appended at once, as after another one (decision 0083)."""
    now_ms = lone.broker.clock.wall_ms()
    assert await lone.broker.unaware_writers.noting(partition, now_ms, None) is None


async def measure(folder: Path) -> None:
    lone = LoneBroker(folder, seams=Seams())
    await lone.start()
    # The loop has no turn in between: without this the connection would wait for one.
    lone.server.turns.ends_ms = NEVER_MS
    partition = lone.lead("t")
    # As at level 1.5: the partition has a count, and the producer sends none.
    put(partition, undeleted_count=1, resize_epoch=0)
    tame_collector()
    connection = Connection(lone.server, "PLAINTEXT")
    connection.connection_made(Nowhere())
    frame = produce_frame(100, VERSION)
    size = len(frame)
    view = memoryview(bytearray(frame))[4:]
    header = frames.header_at(view)
    route = lone.server.router.route(header[0], header[1])
    assert route is not None
    position = frames.message_at(header[3], route, view)
    found = produce_fast_path._read(view, position, False)
    assert found is not None
    *_, records, _tags = found
    log, now_ms = partition.log, lone.broker.clock.wall_ms()
    batches = prepare(records, BatchDemands(log.configs, now_ms))
    assert isinstance(batches, list)
    chunks = chunks_for(batches, 0, 0, stamped=False)
    file = log.segments[-1].open_log()

    def whole() -> None:
        connection.get_buffer(0)[:size] = frame
        connection.buffer_updated(size)

    sent = bytes(records[:MAGIC_POSITION])

    def as_sent(work: Work) -> Work:
        """The batch as the producer sends it: the append writes its offset into these bytes."""

        def again() -> None:
            records[:MAGIC_POSITION] = sent
            work()

        return again

    def take() -> None:
        connection.requests.take(view, 0)
        connection.outgoing.chunks.clear()

    def answer() -> None:
        produce_fast_path.answer(lone.broker, view, position, VERSION, 1, connection)

    parts: tuple[tuple[str, Work], ...] = (
        ("a loop of Python, 100 times round", lambda: [None for _ in range(100)]),
        ("the whole request", whole),
        ("  one frame: route, head, answer in its place", as_sent(take)),
        ("    counting its time", lambda: counted(route.tally)),
        ("    the short way: from bytes to bytes", as_sent(answer)),
        ("      reading the request", lambda: produce_fast_path._read(view, position, False)),
        ("      append to the partition", as_sent(lambda: partition.append(records, now_ms))),
        (
            "        judging the batch, CRC included",
            as_sent(lambda: prepare(records, BatchDemands(log.configs, now_ms))),
        ),
        ("        offsets into its header", lambda: chunks_for(batches, 0, 0, stamped=False)),
        ("        write, index, accounts", lambda: write(log, batches, chunks, now_ms)),
        ("          the system call", lambda: file.write_at(0, chunks)),
    )
    print(f"{'us':46}   warm   cold")
    for name, work in (*parts, *fetch_parts(lone)):
        await note(lone, partition)
        print(f"{name:46} {cost_us(work):6.2f} {cold_cost_us(work):6.1f}")
    await lone.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        run(measure(Path(temporary)))
