"""A stream of requests in any pieces: the same responses and log bytes as one request at a time.

Requests of all forms (those of the fast paths and all others) go to a broker over one connection,
cut into pieces that the server reads one by one. Another broker, without fast paths and with the
general append, gets them one at a time, each after the response to the one before. Responses, their
order and the bytes of the logs are the same. Sizes are those at which the receive buffer is full,
grows, is widened or is moved to its begin.
"""

from __future__ import annotations

import asyncio
import errno
import struct
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.lone_broker import LoneBroker
from tests.support.network_server import turn
from tests.support.processes import DEADLINE_S
from tests.support.produce_fetch import fetch
from tests.support.storage_logs import FaultyDisk
from tidelog.model.api_keys import ApiKey
from tidelog.network.buffer import FIRST_BYTES, SMALL_BYTES, WIDE_BYTES
from tidelog.network.router import Handler, Router
from tidelog.protocol import codec, messages
from tidelog.records.batch import walk
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.runtime.disk import RealDisk
from tidelog.runtime.loop import run
from tidelog.runtime.seams import Seams

AT_MS = 1_700_000_000_000
PRODUCER = 7
EDGES = SMALL_BYTES, FIRST_BYTES, 2 * FIRST_BYTES, WIDE_BYTES
SIZES = [edge + more for edge in EDGES for more in (-4, -1, 0, 1)]
"""Bytes of a whole frame, its size field included."""

# -- what is drawn


@dataclass(frozen=True)
class Sent:
    """One request; ``size`` is that of its frame, if it is a Produce and smaller without."""

    form: str = "plain"
    version: int = 11
    acks: int = 1
    size: int = 0


PLAIN = "plain", "next of a producer", "sent twice"
OTHERS = "several batches", "two partitions", "one partition twice", "wrong CRC", "not here"
QUESTIONS = "api versions", "api versions too new", "metadata", "fetch"
REQUESTS = st.builds(
    Sent,
    form=st.sampled_from((*PLAIN, *PLAIN, *OTHERS, *QUESTIONS)),
    version=st.sampled_from((11, 11, 9, 8, 3)),
    acks=st.sampled_from((1, -1)),
    size=st.sampled_from((0, 0, 0, *SIZES)),
) | st.builds(Sent, version=st.sampled_from((11, 3)), acks=st.just(0))
STREAMS = st.lists(REQUESTS, min_size=1, max_size=12) | st.builds(
    lambda several, times: several * times,
    st.lists(REQUESTS.filter(lambda sent: not sent.size), min_size=1, max_size=6),
    st.just(50),
)
PIECES = st.sampled_from((1 << 30, 16_384, *SIZES))
"""Longest piece."""

AROUND = st.lists(st.tuples(st.integers(0, 400), st.integers(-5, 70)), max_size=8)
"""Cuts at so many bytes from the begin of a frame, by its number."""


def batch(value: bytes = b"v", sequence: int = -1) -> bytes:
    producer = Producer(PRODUCER, 0, sequence) if sequence >= 0 else Producer()
    return build_batch([NewRecord(AT_MS, None, value)], producer=producer)


def produce(sent: Sent, parts: Sequence[tuple[int, bytes]]) -> Any:
    kind = messages.ProduceRequest
    data = [kind.PartitionProduceData(index, records) for index, records in parts]
    topic = kind.TopicProduceData(name="t", partition_data=data)
    return kind(acks=sent.acks, timeout_ms=1000, topic_data=[topic])


def frames_of(stream: Iterable[Sent]) -> list[bytes]:
    """The frames, with their places as correlation ids; a last one that always has a response."""
    sequence, frames = 0, []
    for number, sent in enumerate((*stream, Sent("api versions"))):
        sequence += sent.form == "next of a producer"
        form = framed(number, sent, sequence, b"v", "c")
        missing = sent.size - len(form)
        if missing > 300 and sent.form not in QUESTIONS:
            # The length of a value has up to three bytes: the client id has what is missing then.
            form = framed(number, sent, sequence, b"v" * (missing - 200), "c")
            form = framed(
                number, sent, sequence, b"v" * (missing - 200), "c" * (1 + sent.size - len(form))
            )
            assert len(form) == sent.size
        frames.append(form)
    return frames


def framed(number: int, sent: Sent, sequence: int, value: bytes, client_id: str) -> bytes:
    key, version, request = ApiKey.PRODUCE, sent.version, None
    first = batch(value)
    if sent.form == "api versions":
        key, version, request = ApiKey.API_VERSIONS, 3, messages.ApiVersionsRequest("test", "1")
    elif sent.form == "api versions too new":
        whole = framed(number, replace(sent, form="api versions"), sequence, value, client_id)
        return whole[:6] + struct.pack(">h", 99) + whole[8:]
    elif sent.form == "metadata":
        topic = messages.MetadataRequest.MetadataRequestTopic(name="t")
        key, version, request = ApiKey.METADATA, 12, messages.MetadataRequest([topic])
    elif sent.form == "fetch":
        key, version = ApiKey.FETCH, 12
        request = fetch(0, (0, 1), partition_max_bytes=2000)
    elif sent.form == "next of a producer":
        request = produce(sent, [(0, batch(value, sequence - 1))])
    elif sent.form == "sent twice":
        # Before the first one of the producer it is its first.
        request = produce(sent, [(0, batch(value, max(0, sequence - 1)))])
    elif sent.form == "several batches":
        request = produce(sent, [(0, first + batch())])
    elif sent.form == "two partitions":
        request = produce(sent, [(1, first), (0, batch())])
    elif sent.form == "one partition twice":
        request = produce(sent, [(0, first), (0, batch())])
    elif sent.form == "wrong CRC":
        request = produce(sent, [(0, first[:-1] + b"?")])
    else:
        request = produce(sent, [(5 if sent.form == "not here" else 0, first)])
    return b"".join(codec.encode_request(key, version, number, client_id, request))


def pieces_of(stream: bytes, cuts: Iterable[int], longest: int) -> list[bytes]:
    places = sorted({0, len(stream), *(cut for cut in cuts if 0 < cut < len(stream))})
    return [
        stream[at : min(at + longest, end)]
        for begin, end in pairwise(places)
        for at in range(begin, end, longest)
    ]


# -- what is done with it


class General(LoneBroker):
    """A broker without fast paths."""

    def router(self, extra: Iterable[Handler] = ()) -> Router:
        whole = super().router(extra)
        found = [whole.handler(each.api_key) for each in whole.api_versions()]
        return Router([replace(each, direct=None) for each in found if each is not None])


class Client:
    """The client's end of a connection."""

    def __init__(self, lone: LoneBroker) -> None:
        self._lone = lone
        self._begun = lone.server.counts.bytes_in
        self._sent = 0

    async def __aenter__(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._lone.port, limit=2**26
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def send(self, piece: bytes) -> None:
        """Send a piece, and wait until the server has read it."""
        self._writer.write(piece)
        self._sent += len(piece)
        async with asyncio.timeout(DEADLINE_S):
            while self._lone.server.counts.bytes_in - self._begun < self._sent:
                if self._reader.at_eof():
                    raise ConnectionError("the server closed the connection")
                await turn()

    async def receive(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            # With the host before it: the port's bytes alone are found in offsets, too.
            address = b"127.0.0.1" + struct.pack(">i", self._lone.port)
            return (await self._reader.readexactly(size)).replace(address, b"address")


async def in_pieces(lone: LoneBroker, pieces: Iterable[bytes], answers: int) -> list[bytes]:
    async with Client(lone) as client:

        async def receive_all() -> list[bytes]:
            return [await client.receive() for _ in range(answers)]

        receiving = asyncio.ensure_future(receive_all())
        try:
            for piece in pieces:
                await client.send(piece)
            return await receiving
        finally:
            receiving.cancel()


async def one_at_a_time(lone: LoneBroker, frames: Iterable[bytes], silent: set[int]) -> list[bytes]:
    async with Client(lone) as client:
        answers = []
        for number, frame in enumerate(frames):
            await client.send(frame)
            if number not in silent:
                answers.append(await client.receive())
        return answers


class Refusing(FaultyDisk):
    """A disk that refuses every second write of a log: full at the first try, not at the second."""

    refuses = False
    refused = 0

    def fault_for(self, path: str) -> int | None:
        if not path.endswith(".log"):
            return None
        self.refuses = not self.refuses
        self.refused += self.refuses
        return errno.ENOSPC if self.refuses else None


class Both:
    """The broker that is tested and the other one, as a context."""

    def __init__(self, disk: RealDisk | None = None) -> None:
        """``disk``: that of the broker that is tested."""
        self._seams = Seams(disk=disk) if disk is not None else None

    async def __aenter__(self) -> Both:
        self._folder = tempfile.TemporaryDirectory()
        above = Path(self._folder.name)
        self._folders = above / "pieces", above / "general"
        self.tested = LoneBroker(self._folders[0], seams=self._seams)
        self.general = General(self._folders[1])
        for lone in (self.tested, self.general):
            await lone.start()
            lone.lead("t", 2)
        for hosted in self.general.broker.partitions.all():
            hosted.log.keeps_batches = False
        return self

    async def __aexit__(self, *_: object) -> None:
        for lone in (self.tested, self.general):
            await lone.stop()
        self._folder.cleanup()

    async def check(
        self, stream: Sequence[Sent], frames: Sequence[bytes], pieces: Iterable[bytes]
    ) -> None:
        """Send requests to both; responses and logs are the same."""
        silent = {number for number, sent in enumerate(stream) if not sent.acks}
        expected = await one_at_a_time(self.general, frames, silent)
        assert await in_pieces(self.tested, pieces, len(expected)) == expected
        assert self.logs(0) == self.logs(1)

    def logs(self, number: int) -> dict[str, bytes]:
        """The bytes of the segments of the one broker or the other."""
        return {
            f"{path.parent.name}/{path.name}": path.read_bytes()
            for path in sorted(self._folders[number].glob("t-*/*.log"))
        }


EVERY_SIZE = [Sent(size=size) for size in SIZES]
BURST = [*[Sent(form) for form in (*PLAIN, *OTHERS, *QUESTIONS)], Sent(acks=0)] * 23


@settings(max_examples=60)
@example(EVERY_SIZE, 1 << 30, [], 1 << 28)
@example(EVERY_SIZE, FIRST_BYTES - 1, [], 1 << 28)
@example(EVERY_SIZE, WIDE_BYTES + 1, [], 200_000)
@example(BURST, 1 << 30, [], 1 << 28)
@given(STREAMS, PIECES, AROUND, st.sampled_from((1 << 28, 300_000, 0)))
def test_requests_in_any_pieces_are_served_as_one_at_a_time(
    stream: list[Sent], longest: int, around: list[tuple[int, int]], memory: int
) -> None:
    frames = frames_of(stream)
    begins = [sum(map(len, frames[:number])) for number in range(len(frames))]
    cuts = [begins[number % len(begins)] + more for number, more in around]

    async def main() -> None:
        async with Both() as both:
            both.tested.server.memory.limit = memory
            await both.check(stream, frames, pieces_of(b"".join(frames), cuts, longest))
            async with asyncio.timeout(DEADLINE_S):
                while both.tested.server.connections:
                    await turn()
            assert both.tested.server.memory.used == 0

    run(main())


def test_requests_that_are_cut_at_any_byte_are_served_as_whole_ones() -> None:
    stream = [Sent(), Sent("metadata", acks=-1), Sent("two partitions", version=8), Sent(acks=0)]

    async def main() -> None:
        async with Both() as both:
            frames = frames_of(stream)
            whole = b"".join(frames)
            for cut in range(1, len(whole)):
                await both.check(stream, frames, (whole[:cut], whole[cut:]))

    run(main())


def test_a_write_that_the_disk_refuses_once_is_made_from_the_same_bytes() -> None:
    """The fast path and then the general path append one request, whose bytes the first changed."""
    forms = [Sent(form, acks=acks) for form in PLAIN for acks in (1, -1)]
    stream = [replace(sent, size=size) for sent in forms for size in (0, 5000, FIRST_BYTES)]
    disk = Refusing()

    async def main() -> None:
        async with Both(disk) as both:
            frames = frames_of(stream)
            await both.check(stream, frames, [b"".join(frames)])
            stored = sum(len(list(walk(log))) for log in both.logs(0).values())
            assert disk.refused == stored > 0, "each batch was written at the second try"

    run(main())
