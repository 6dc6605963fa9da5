"""A group of tidelog's own readers in the simulation: slow ones, cancelled polls, deleted topics.

The course of faults is the broker scenario's. Members come and go, work longer than their
session, give polls up in the middle; their look-ups are refused now and then, of all partitions or
of one; a second topic is created and deleted all the while. What struck is counted, with floors.

Checked at each poll: a member reads exactly its assignment, or says that it cannot; an error of a
partition is that partition's own. When everything has healed, every member comes to
read: together they have all partitions, each has one reader, and every record that was
acknowledged was handed out. Then one of them works for two sessions while the others join again,
and is a member still. A log that is cut is not among this (one broker): `test_client_truncation`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.simulation.clients import create_topic, delete_topic
from tests.simulation.kernel.world import VirtualClock
from tests.simulation.scenarios.broker import HOST, PORT, SETTLE_SECONDS, TEMPORARY, BrokerRun
from tests.simulation.seeds import FIRST_SEED
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ClientError, Refused
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.client.groups import group_member
from tidelog.client.groups.committed_offsets import PartitionsRefused
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.groups.membership import HEARTBEATS, Event, MemberState
from tidelog.client.groups.position_lookup import PositionLookup
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.settings import SendSettings
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.runtime.backoff import Backoff

SEEDS = 5
RECORDS = 120
PARTITIONS = [TopicPartition("plain", index) for index in range(3)]
SESSION_MS = 6_000
REFUSED = 0.3
"""The share of look-ups that are refused."""

MUTE_S = 30.0
"""How long a member may look for positions and say nothing: longer than a look-up takes to fail."""

FLOORS = {"cancelled": 100, "refused": 5, "refused of one": 5, "deleted": 3, "slow": 3, "said": 5}
"""How often each fault must have happened in all seeds, so that there was something to check."""

PLANTED_SEEDS = 5
"""Within so many seeds each planted bug must be found."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Suppress the log lines of servers that this file kills."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Refusing(Cluster):
    """It refuses look-ups of committed offsets, of all or of one partition, now and then."""

    chance: random.Random
    counts: dict[str, int]
    denied: set[str]
    """The partitions that were refused alone."""

    async def send_to_coordinator(self, group: str, request: Any, **options: Any) -> Any:
        if not isinstance(request, messages.OffsetFetchRequest):
            return await super().send_to_coordinator(group, request, **options)
        if self.chance.random() < REFUSED / 2:
            self.counts["refused"] += 1
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"group {group!r}")
        answer = await super().send_to_coordinator(group, request, **options)
        topics = answer.groups[0].topics if answer.groups else answer.topics
        found = [(topic.name, item) for topic in topics for item in topic.partitions]
        if found and self.chance.random() < REFUSED:
            name, item = self.chance.choice(found)
            item.error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            self.denied.add(f"{name}-{item.partition_index}")
            self.counts["refused of one"] += 1
        return answer


class Member:
    """One member, its lives one after the other, and what it saw and said."""

    def __init__(self, run: GroupRun, number: int) -> None:
        self.run = run
        self.name = f"member{number}"
        self.rng = run.world.random(self.name)
        self.reader: GroupReader | None = None
        self.said = ""
        """Why the last poll raised; empty when it did not."""
        self.counts = dict.fromkeys(("polls", "lives", *FLOORS), 0)
        self.given: list[TopicPartition] = []
        self.mute_since: float | None = None
        self.denied: set[str] = set()
        self.may_poll = asyncio.Event()
        self.may_poll.set()
        self.works = False

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
        # It gets changes of the topics that it subscribes to: with the one that comes and goes.
        topics = ["plain", TEMPORARY] if self.rng.random() < 0.7 else ["plain"]
        async with (
            self.run.cluster(self) as cluster,
            self._reader(cluster, topics) as reader,
        ):
            self._note_given(reader)
            self.reader, self.mute_since = reader, None
            while self.run.calm.is_set() or loop.time() < end:
                self.works = not self.may_poll.is_set()
                await self.may_poll.wait()
                await self._poll(reader)
                self._check(reader)
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

    def _note_given(self, reader: GroupReader) -> None:
        join = reader.member.join

        async def joined() -> list[TopicPartition]:
            self.given = await join()
            return self.given

        reader.member.join = joined  # type: ignore[method-assign]

    def note_deletion(self) -> None:
        """Count the deletion of a topic that this member reads, as it is asked for."""
        assignment = self.reader.assignment if self.reader is not None else ()
        self.counts["deleted"] += any(where.topic == TEMPORARY for where in assignment)

    def _check(self, reader: GroupReader) -> None:
        state, now = reader.member.state, asyncio.get_running_loop().time()
        if state is MemberState.READING and sorted(reader.assignment) != sorted(self.given):
            self._found(f"it was given {self.given} and reads {reader.assignment}")
        if state is not MemberState.JOINED or self.said:
            self.mute_since = None
        elif self.mute_since is None:
            self.mute_since = now
        elif now - self.mute_since > MUTE_S:
            self._found(f"for {MUTE_S} s it neither reads {self.given} nor says why")

    def _check_refusals(self, error: PartitionsRefused) -> None:
        for where, refused in error.errors.items():
            own = refused.subject == str(where)
            if refused.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                own = own and str(where) in self.denied
            if not own:
                self._found(f"of {where} it says {refused}")

    def _found(self, what: str) -> None:
        if not any(line.startswith(self.name) for line in self.run.found):
            self.run.found.append(f"{self.name}: {what}")

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
            if isinstance(error, PartitionsRefused):
                self._check_refusals(error)
            await asyncio.sleep(0.1)
            return
        self.said = ""
        for piece in pieces:
            for row in piece.rows():
                self.run.seen.add((piece.partition, row.offset))
        if not calm and self.rng.random() < 0.05:
            # Beyond its session, and within the time of a rebalance.
            pause = self.rng.uniform(0.5, 2)
            self.counts["slow"] += pause > 1
            await asyncio.sleep(pause * SESSION_MS / 1000)
        else:
            await asyncio.sleep(0.1 if calm else 0.01)

    @property
    def reads(self) -> bool:
        return self.reader is not None and self.reader.member.state is MemberState.READING

    def __str__(self) -> str:
        reader = self.reader
        if reader is None:
            return f"{self.name}: no reader"
        return f"{self.name}: {reader.member.state}, {reader.assignment}, said {self.said!r}"


class GroupRun(BrokerRun):
    """The broker scenario with a group of the product's readers in it."""

    temporary_s = 4.0
    """Long enough for members to find the topic, with a look each 2 s, and to read it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.calm = asyncio.Event()
        self.over = asyncio.Event()
        self.seen: set[tuple[TopicPartition, int]] = set()
        self.sent: set[tuple[TopicPartition, int]] = set()
        self.members = [Member(self, number) for number in range(self.rng.randint(2, 4))]
        self.living: list[asyncio.Task[None]] = []

    async def _delete_temporary(self) -> None:
        for member in self.members:
            member.note_deletion()
        await super()._delete_temporary()

    async def _create_topics(self) -> None:
        await create_topic(HOST, PORT, "plain", len(PARTITIONS), {"segment.bytes": "3000"})

    def cluster(self, member: Member | None = None) -> Cluster:
        name = member.name if member is not None else "producer"
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
        if member is not None:
            cluster.counts, cluster.denied = member.counts, member.denied
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
            self.cluster() as cluster,
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
        await delete_topic(HOST, PORT, TEMPORARY)
        self.calm.set()
        # No slow member is left; sessions of former processes end, and a rebalance takes its time.
        try:
            await self.world.until(self._all_read, SETTLE_SECONDS)
        except TimeoutError:
            members = [str(member) for member in self.members]
            missing = sorted(self.sent - self.seen)
            self.found.append(f"not all read: {members}; not handed out: {missing[:5]}")
        else:
            await self._one_is_slow()
        self.over.set()
        for task in self.living:
            task.cancel()
        await asyncio.gather(*self.living, return_exceptions=True)
        for member in self.members:
            for what, count in member.counts.items():
                self.counts[what] = self.counts.get(what, 0) + count

    async def _one_is_slow(self) -> None:
        """Let one work for two sessions while the leader joins again: it stays a member."""
        readers = {member: member.reader for member in self.members if member.reader is not None}
        leader = next(member for member, reader in readers.items() if reader.member._counts)
        slow = next(member for member in self.members if member is not leader)
        assert slow.reader is not None
        slow.may_poll.clear()
        await self.world.until(lambda: slow.works, SETTLE_SECONDS)
        await self.world.until(self._all_read, SETTLE_SECONDS)
        before = slow.reader.member.membership.member_id
        readers[leader].member._step(Event.REBALANCE)
        await asyncio.sleep(2 * SESSION_MS / 1000)
        recalled = slow.reader.member.state
        slow.may_poll.set()
        await self.world.until(lambda: not slow.works, SETTLE_SECONDS)
        await self.world.until(self._all_read, SETTLE_SECONDS)
        # The coordinator knows it by the same name, if it never took it out.
        after = slow.reader.member.membership.member_id
        if (recalled, after) != (MemberState.RECALLED, before):
            self.found.append(f"{slow.name}: slow for two sessions: {recalled}, now {after!r}")

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


def first_found(seeds: int) -> list[str]:
    """Return the findings of the first seed that has any, out of so many."""
    for seed in range(seeds):
        run = GroupRun(seed)
        run.run()
        if run.found:
            return run.found
    return []


@pytest.mark.long(20)
def test_every_member_ends_reading_whatever_happened_to_it() -> None:
    totals: dict[str, int] = {}
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        run = GroupRun(seed)
        result = run.run()
        assert not run.found, result.report()
        for what, count in result.counts.items():
            totals[what] = totals.get(what, 0) + count
    print(f"seeds {FIRST_SEED} to {FIRST_SEED + SEEDS - 1}: {totals}")
    assert not {what: totals[what] for what, floor in FLOORS.items() if totals[what] < floor}
    assert totals["lives"] > 2 * SEEDS


@pytest.mark.parametrize("seed", [FIRST_SEED])
def test_a_seed_replays(seed: int) -> None:
    assert GroupRun(seed).run().digest == GroupRun(seed).run().digest


def a_cancelled_poll_loses_the_assignment(patch: pytest.MonkeyPatch) -> None:
    """What a poll was given goes with it when it is cancelled."""
    true = GroupReader.poll

    async def poll(reader: GroupReader, timeout_ms: int, max_bytes: int | None = None) -> Any:
        try:
            return await true(reader, timeout_ms, max_bytes)
        except asyncio.CancelledError:
            reader.fetcher.assign({})
            raise

    patch.setattr(GroupReader, "poll", poll)


def one_failure_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A member whose look-up failed sends heartbeats and reads nothing (B3)."""
    true = PositionLookup.place

    async def place(lookup: PositionLookup) -> None:
        try:
            await true(lookup)
        except ClientError:
            lookup.not_before = float("inf")
            raise

    patch.setattr(PositionLookup, "place", place)


def failures_are_not_positions(patch: pytest.MonkeyPatch) -> None:
    """A partition whose look-up failed is left out, and the member counts as reading."""
    true = PositionLookup.look_up

    async def look_up(lookup: PositionLookup) -> dict[TopicPartition, Refused]:
        await true(lookup)
        return {}

    patch.setattr(PositionLookup, "look_up", look_up)


def one_error_for_all(patch: pytest.MonkeyPatch) -> None:
    """The first error counts for every partition of the look-up (B2)."""
    true = PositionLookup.look_up

    async def look_up(lookup: PositionLookup) -> dict[TopicPartition, Refused]:
        wanted = list(lookup.generation.unplaced)
        errors = await true(lookup)
        return dict.fromkeys(wanted, next(iter(errors.values()))) if errors else errors

    patch.setattr(PositionLookup, "look_up", look_up)


def heartbeats_end_early(patch: pytest.MonkeyPatch) -> None:
    """No heartbeat goes out once a rebalance was asked for (B6)."""
    patch.setattr(group_member, "HEARTBEATS", HEARTBEATS - {MemberState.RECALLED})


@pytest.mark.parametrize(
    ("bug", "said"),
    [
        (a_cancelled_poll_loses_the_assignment, "it was given"),
        (one_failure_for_ever, "nor says why"),
        (failures_are_not_positions, "it was given"),
        (one_error_for_all, "it says"),
        (heartbeats_end_early, "slow for two sessions"),
    ],
)
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    found = first_found(PLANTED_SEEDS)
    assert any(said in line for line in found), found
