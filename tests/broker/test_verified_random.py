"""No transaction hangs: random producers, whose batches are delayed and sent twice, a coordinator
whose answers and markers are late, and leaders that change. At rest the last stable offset is the
high watermark everywhere, and what was committed is what is read."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.drawn_seed import drawn_seed
from tests.support.isolation import committed_in
from tests.support.lone_broker import LoneBroker, Peer
from tests.support.played_coordinator import (
    Asked,
    PlayedCoordinator,
    become,
    leading,
    part_of,
    produced,
)
from tests.support.produce_fetch import run
from tests.support.transactional_logs import transactional
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import Rejected, walk
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.control_records import EndMarker, marker_batch
from tidelog.records.reader import read_batch
from tidelog.storage.log.stable import last_stable_offset

PARTITIONS = 3
STEPS = 300


@dataclass
class Writer:
    """A producer of transactions with its id, and the coordinator's state of it."""

    producer_id: int
    epoch: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    added: set[int] = field(default_factory=set)
    markers: list[int] = field(default_factory=list)
    """Partitions whose markers are still to be written."""
    commits: bool = False
    sent: list[tuple[str, asyncio.Task[int]]] = field(default_factory=list)
    """The values of the open transaction, and what became of them."""


@dataclass
class World:
    """All of it, with the choices of one seed."""

    lone: LoneBroker
    coordinator: PlayedCoordinator
    rng: random.Random
    writers: list[Writer]
    committed: set[str] = field(default_factory=set)
    delayed: list[tuple[Writer, Any]] = field(default_factory=list)
    tasks: list[asyncio.Task[int]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    made: int = 0

    def hosted(self, index: int) -> HostedPartition:
        hosted = self.lone.broker.partitions.get("t", index)
        assert hosted is not None
        return hosted

    async def _answer(self, request: Any) -> int:
        peer = await Peer.connect(self.lone.port)
        try:
            code: int = part_of(await peer.ask(request, 11)).error_code
        finally:
            peer.writer.close()
        self.counts[ErrorCode(code).name] = self.counts.get(ErrorCode(code).name, 0) + 1
        return code

    def launch(self, request: Any) -> asyncio.Task[int]:
        task = asyncio.get_running_loop().create_task(self._answer(request))
        self.tasks.append(task)
        return task

    def send(self, writer: Writer) -> None:
        """Send a batch of the open transaction now, later, or both."""
        index = self.rng.choice(sorted(writer.added))
        sequence = writer.sequences.get(index, 0)
        writer.sequences[index] = sequence + 1
        self.made += 1
        value = f"{writer.producer_id}-{index}-{self.made}"
        records = [NewRecord(int(time.time() * 1000), None, value.encode())]
        producer = Producer(writer.producer_id, writer.epoch, sequence)
        content = transactional(build_batch(records, producer=producer))
        request = produced((index, content), transactional_id=f"tx{writer.producer_id}")
        kind = self.rng.random()
        if kind < 0.25:
            self.delayed.append((writer, request))
        if kind < 0.05:
            # Only later: its transaction cannot commit, for it was never answered.
            never: asyncio.Task[int] = asyncio.get_running_loop().create_task(_unanswered())
            writer.sent.append((value, never))
        else:
            writer.sent.append((value, self.launch(request)))

    async def end(self, writer: Writer) -> None:
        """Decide the open transaction; it commits if all of it was answered with success."""
        writer.commits = self.rng.random() < 0.7
        if writer.commits:
            self.coordinator.may_answer.set()
            codes = [await task for _, task in writer.sent]
            writer.commits = not any(codes)
        if writer.commits:
            self.committed |= {value for value, _ in writer.sent}
        self.coordinator.open = {
            each for each in self.coordinator.open if each.producer_id != writer.producer_id
        }
        writer.markers = sorted(writer.added)
        writer.added, writer.sent = set(), []

    def write_marker(self, writer: Writer) -> None:
        """Write one marker; after the last one the producer may go on."""
        index = writer.markers.pop(self.rng.randrange(len(writer.markers)))
        made = marker_batch(
            EndMarker(writer.commits, 0),
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            leader_epoch=0,
            timestamp_ms=int(time.time() * 1000),
        )
        now_ms = self.lone.broker.clock.wall_ms()
        got = self.hosted(index).append(made, now_ms, from_client=False)
        assert not isinstance(got, Rejected), got
        if not writer.markers and not writer.commits:
            writer.epoch += 1
            writer.sequences.clear()

    async def step(self) -> None:
        writer = self.rng.choice(self.writers)
        kind = self.rng.random()
        if writer.markers:
            self.write_marker(writer)
        elif kind < 0.25 and len(writer.added) < PARTITIONS:
            index = self.rng.randrange(PARTITIONS)
            writer.added.add(index)
            names = f"tx{writer.producer_id}", writer.producer_id, writer.epoch
            self.coordinator.open.add(Asked(*names, "t", index))
        elif kind < 0.65 and writer.added:
            self.send(writer)
        elif kind < 0.75 and writer.added:
            await self.end(writer)
        elif kind < 0.88 and self.delayed:
            self.launch(self.delayed.pop(self.rng.randrange(len(self.delayed)))[1])
        elif kind < 0.96:
            gate = self.coordinator.may_answer
            gate.clear() if gate.is_set() else gate.set()
        else:
            hosted = self.hosted(self.rng.randrange(PARTITIONS))
            epoch = hosted.leader_epoch
            become(self.lone, hosted, leader=2, leader_epoch=epoch + 1)
            become(self.lone, hosted, leader=1, leader_epoch=epoch + 2)
        for _ in range(self.rng.randrange(20)):
            await asyncio.sleep(0)  # turns of the loop, no time

    async def rest(self) -> None:
        """End all transactions and deliver what was delayed, in whatever order."""
        self.coordinator.may_answer.set()
        for writer in self.writers:
            if writer.added:
                await self.end(writer)
            while writer.markers:
                self.write_marker(writer)
        for _, request in self.delayed:
            self.launch(request)
        await asyncio.gather(*self.tasks)

    def check(self) -> None:
        read: list[str] = []
        for index in range(PARTITIONS):
            log = self.hosted(index).log
            assert not len(log.producers.transactions), f"partition {index} has one open"
            assert last_stable_offset(log) == log.high_watermark == log.end_offset
            kept = set(committed_in(log, log.end_offset))
            content = self.hosted(index).read(0, 2**26, committed=False)
            assert not isinstance(content, Rejected)
            for position, header in walk(content):
                if header.base_offset in kept:
                    records = read_batch(bytes(content[position : position + header.size]))
                    read += [str(record.value, "utf-8") for record in records]
        assert sorted(read) == sorted(self.committed)


async def _unanswered() -> int:
    return int(ErrorCode.REQUEST_TIMED_OUT)


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_no_transaction_hangs(tmp_path: Path, seed: int | None) -> None:
    async def main() -> None:
        async with leading(tmp_path, PARTITIONS) as (lone, coordinator, _):
            rng = random.Random(drawn_seed() if seed is None else seed)
            world = World(lone, coordinator, rng, [Writer(number) for number in (7, 8, 9)])
            for _ in range(STEPS):
                await world.step()
            await world.rest()
            world.check()
            print(f"{len(world.committed)} of {world.made} committed; {world.counts}")
            assert world.counts["NONE"]

    run(main())
