"""A group of tidelog's own readers in the simulation: slow ones, cancelled polls, deleted topics.

The course of faults is the broker scenario's. Members come and go, work longer than their
session, give polls up in the middle; their look-ups are refused now and then, to the end; a second
topic is created and deleted all the while. When everything has healed, every member comes to read:
together they have all partitions, each has one reader, and every record that was acknowledged was
handed out.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.simulation.clients import create_topic, delete_topic
from tests.simulation.kernel.world import VirtualClock
from tests.simulation.scenarios.broker import HOST, PORT, SETTLE_SECONDS, BrokerRun
from tests.simulation.seeds import FIRST_SEED

from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ClientError, Refused
from tidelog.client.fetcher import OffsetReset
from tidelog.client.group_reader import GroupReader
from tidelog.client.membership import State
from tidelog.client.producing import RecordSender, SendSettings
from tidelog.client.retries import Backoff
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

SECONDS = 6.0
RECORDS = 120
PARTITIONS = [TopicPartition("plain", index) for index in range(3)]
SESSION_MS = 6_000
REFUSED = 0.3
"""The share of look-ups that are refused."""

PLANTED_SEEDS = 5
"""Within so many seeds each planted bug must be found."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What the server says of its own deaths is not news here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Refusing(Cluster):
    """It refuses look-ups of committed offsets now and then, for good, as a bad coordinator."""

    chance: random.Random

    async def send_to_coordinator(self, group: str, request: Any, **options: Any) -> Any:
        if isinstance(request, messages.OffsetFetchRequest) and self.chance.random() < REFUSED:
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"group {group!r}")
        return await super().send_to_coordinator(group, request, **options)


class Member:
    """One member, its lives one after the other, and what it saw and said."""

    def __init__(self, run: GroupRun, number: int) -> None:
        self.run = run
        self.name = f"member{number}"
        self.rng = run.world.random(self.name)
        self.reader: GroupReader | None = None
        self.said = ""
        """Why the last poll raised; empty when it did not."""
        self.counts = {"polls": 0, "cancelled": 0, "said": 0, "lives": 0}

    async def live(self) -> None:
        while not self.run.calm.is_set():
            await self._life()
            await asyncio.sleep(self.rng.uniform(0, 3))
        await self._life()

    async def _life(self) -> None:
        """Read for a while; the last life ends with the run."""
        self.counts["lives"] += 1
        loop = asyncio.get_running_loop()
        end = loop.time() + self.rng.uniform(3, 30)
        # What it can be told of is what it is subscribed to: with the topic that comes and goes.
        topics = ["plain", "temporary"] if self.rng.random() < 0.7 else ["plain"]
        async with (
            self.run.cluster(self.name) as cluster,
            self._reader(cluster, topics) as reader,
        ):
            self.reader = reader
            while self.run.calm.is_set() or loop.time() < end:
                await self._poll(reader)
            self.reader = None

    def _reader(self, cluster: Cluster, topics: list[str]) -> GroupReader:
        return GroupReader(
            cluster,
            "group",
            topics,
            reset=OffsetReset.EARLIEST,
            auto_commit_ms=self.rng.choice((300, 2_000)),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=40_000,
            heartbeat_interval_ms=500,
            partition_check_ms=2_000,
        )

    async def _poll(self, reader: GroupReader) -> None:
        calm = self.run.calm.is_set()
        self.counts["polls"] += 1
        patience_s = self.rng.choice((0.001, 0.05, 1.0)) if not calm else 1e6
        try:
            async with asyncio.timeout(patience_s):
                pieces = await reader.poll(self.rng.choice((0, 50, 2_000)))
        except TimeoutError:
            self.counts["cancelled"] += 1
            return
        except ClientError as error:
            self.said = f"{type(error).__name__}: {error}"
            self.counts["said"] += 1
            await asyncio.sleep(0.1)
            return
        self.said = ""
        for piece in pieces:
            for row in piece.rows():
                self.run.seen.add((piece.partition, row.offset))
        if not calm and self.rng.random() < 0.05:
            # Beyond its session, and within the time of a rebalance.
            await asyncio.sleep(self.rng.uniform(0.5, 2) * SESSION_MS / 1000)
        else:
            await asyncio.sleep(0.1 if calm else 0.01)

    @property
    def reads(self) -> bool:
        return self.reader is not None and self.reader._member.state is State.READING

    def __str__(self) -> str:
        reader = self.reader
        if reader is None:
            return f"{self.name}: nobody"
        return f"{self.name}: {reader._member.state}, {reader.assignment}, said {self.said!r}"


class GroupRun(BrokerRun):
    """The broker scenario with a group of the product's readers in it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.calm = asyncio.Event()
        self.over = asyncio.Event()
        self.seen: set[tuple[TopicPartition, int]] = set()
        self.sent: set[tuple[TopicPartition, int]] = set()
        self.members = [Member(self, number) for number in range(self.rng.randint(2, 4))]
        self.living: list[asyncio.Task[None]] = []

    async def _create_topics(self) -> None:
        await create_topic(HOST, PORT, "plain", len(PARTITIONS), {"segment.bytes": "3000"})

    def cluster(self, name: str) -> Cluster:
        settings = ClusterSettings(
            client_id=name,
            request_timeout_ms=5_000,
            connect_timeout_ms=3_000,
            # Look-ups fail, where longer patience would hide it.
            default_api_timeout_ms=4_000,
            backoff=Backoff(50, 500, self.world.random(f"client/{name}")),
        )
        cluster = Refusing(f"{HOST}:{PORT}", settings)
        cluster.chance = self.world.random(f"refusals/{name}")
        return cluster

    def _start_clients(self) -> list[asyncio.Task[None]]:
        loop = asyncio.get_running_loop()
        self.churning = loop.create_task(self._churn())
        self.living = [loop.create_task(self._keep_alive(member)) for member in self.members]
        return [loop.create_task(self._produce())]

    async def _keep_alive(self, member: Member) -> None:
        while not self.over.is_set():
            try:
                await member.live()
            except ClientError as error:
                # The cluster was not reached, or leaving failed: both are said.
                member.said = f"{type(error).__name__}: {error}"
                await asyncio.sleep(0.5)

    async def _produce(self) -> None:
        rng = self.world.random("sending")
        settings = SendSettings(delivery_timeout_ms=600_000, max_block_ms=600_000)
        clock = VirtualClock(self.world.loop)
        async with (
            self.cluster("producer") as cluster,
            RecordSender(cluster, settings, clock=clock) as sender,
        ):
            for number in range(RECORDS):
                await self._send(sender, number)
                await asyncio.sleep(rng.uniform(0, 0.5))

    async def _send(self, sender: RecordSender, number: int) -> None:
        where = PARTITIONS[number % len(PARTITIONS)]
        while True:
            try:
                sent = await (await sender.send("plain", b"x", partition=where.partition))
            except ClientError:
                await asyncio.sleep(0.5)
                continue
            self.sent.add((where, sent.offset))
            return

    async def _final(self) -> None:
        # The last thing that happens to them: it is gone for good.
        await delete_topic(HOST, PORT, "temporary")
        self.calm.set()
        # Nobody slow is left; sessions of former lives end, and a rebalance takes its time.
        try:
            await self.world.until(self._all_read, SETTLE_SECONDS)
        except TimeoutError:
            told = [str(member) for member in self.members]
            missing = sorted(self.sent - self.seen)
            self.found.append(f"not all read: {told}; not handed out: {missing[:5]}")
        self.over.set()
        for task in self.living:
            task.cancel()
        await asyncio.gather(*self.living, return_exceptions=True)
        for member in self.members:
            for what, count in member.counts.items():
                self.counts[what] = self.counts.get(what, 0) + count

    def _all_read(self) -> bool:
        if not self.sent <= self.seen or not all(member.reads for member in self.members):
            return False
        held = [
            where
            for member in self.members
            if member.reader is not None
            for where in member.reader.assignment
            if where.topic == "plain"
        ]
        return sorted(held) == PARTITIONS


def first_silent(seeds: int) -> int | None:
    """Return the first of so many seeds in which somebody neither reads nor says why."""
    for seed in range(seeds):
        run = GroupRun(seed)
        run.run()
        if run.found:
            return seed
    return None


def test_every_member_ends_reading_whatever_happened_to_it() -> None:
    end = time.monotonic() + SECONDS
    seed = FIRST_SEED
    totals: dict[str, int] = {}
    while seed == FIRST_SEED or time.monotonic() < end:
        run = GroupRun(seed)
        result = run.run()
        assert not run.found, result.report()
        for what, count in result.counts.items():
            totals[what] = totals.get(what, 0) + count
        seed += 1
    print(f"seeds {FIRST_SEED} to {seed - 1}: {totals}")
    assert totals["cancelled"] > 0 and totals["said"] > 0
    assert totals["lives"] > 2 * (seed - FIRST_SEED)


@pytest.mark.parametrize("seed", [FIRST_SEED])
def test_a_seed_replays(seed: int) -> None:
    assert GroupRun(seed).run().digest == GroupRun(seed).run().digest


def one_failure_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A member whose look-up failed sends heartbeats and reads nothing (B3)."""
    patch.setattr(
        GroupReader, "_must_enter", property(lambda r: bool(r._entering or r._member.must_join))
    )


@pytest.mark.parametrize("bug", [one_failure_for_ever])
def test_a_member_that_neither_reads_nor_says_why_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    assert first_silent(PLANTED_SEEDS) is not None
