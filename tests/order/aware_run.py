"""A real run of aware clients on one topic that grows and shrinks, and its history.

Owns the setting of ``aware_clients`` on real processes, and what the order checker needs beside
their events: resizes with the offsets of their fences, what each broker's metadata say, what is
stored at the end. Which resizes there are, and which processes die, is the caller's.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.order.aware_clients import GroupOfMembers, Writer
from tests.order.consumer_members import ConsumerMember, CooperativeMember
from tests.order.history import History, MetadataSeen, Resize, Send, Stored
from tests.support.processes import DEADLINE_S
from tidelog.client.admin.topics import create_partitions
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ClientError, OffsetOutOfRange
from tidelog.client.fences import describe_fences, describe_former
from tidelog.client.fetching.fetcher import Fetcher, OffsetReset
from tidelog.client.metadata import Topic
from tidelog.client.offsets import EARLIEST, LATEST, list_offsets
from tidelog.model.topics import TopicPartition
from tidelog.runtime.backoff import Backoff
from tidelog.runtime.clock import RealClock

PAUSE_S = 0.02


class RealRun:
    """The clients of one topic, and their history; used inside one event loop."""

    patience_s = DEADLINE_S
    """How long ``until`` waits."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        initial: int,
        seed: int,
        kinds: Sequence[type[Writer]] = (Writer, Writer),
    ) -> None:
        """``kinds``: of the writer that learns of resizes soon, and of the one that learns late."""
        self.topic = topic
        self.rate = 60.0
        self.history = History(initial)
        self.uids = itertools.count(1)
        self.clock = RealClock()
        self.writers: list[Writer] = []
        self.groups: list[GroupOfMembers] = []
        self.bootstrap = bootstrap
        self._kinds = kinds
        self._seed = seed
        self._work: list[asyncio.Task[None]] = []
        self._view = self.cluster("observer")

    # What the clients need

    @property
    def now(self) -> float:
        return time.monotonic()

    def random(self, name: str) -> random.Random:
        """Return a source of randomness of its own."""
        return random.Random(f"{self._seed}/{name}")

    def cluster(self, name: str, metadata_max_age_ms: int = 300_000) -> Cluster:
        """Return a client's view of the cluster."""
        settings = ClusterSettings(
            client_id=name,
            request_timeout_ms=10_000,
            metadata_max_age_ms=metadata_max_age_ms,
            backoff=Backoff(20, 200),
        )
        return Cluster(self.bootstrap, settings)

    def note(self, *events: Any) -> None:
        """Add to the history."""
        self.history.events += events

    async def pause(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)

    # The course

    def start(self) -> None:
        """Start two writers, of which one learns late of resizes, two groups, and an observer.

        Members are the public consumers: one group's with state of keys, the other's cooperative.
        """
        soon, late = self._kinds
        self.writers = [soon(self, "w1", 1_000), late(self, "w2", 300_000)]
        self.groups = [
            GroupOfMembers(self, "all", OffsetReset.EARLIEST, 3, ConsumerMember),
            GroupOfMembers(self, "newest", OffsetReset.LATEST, 2, CooperativeMember),
        ]
        for group in self.groups:
            for member in group.members:
                member.settles = True
        work = [writer.run() for writer in self.writers]
        work += [member.run() for group in self.groups for member in group.members]
        work.append(self._observe())
        self._work = [asyncio.create_task(each) for each in work]

    def check(self) -> None:
        """Raise the error of a client that ended with one."""
        for task in self._work:
            if task.done():
                task.result()

    async def until(self, condition: Callable[[], bool], what: Callable[[], object]) -> None:
        """Wait until a condition holds; ``what`` says how things stand when it does not."""
        deadline = self.now + self.patience_s
        while not condition():
            self.check()
            assert self.now < deadline, what()
            await self.pause(PAUSE_S)

    async def resize(self, count: int) -> int:
        """Ask for a count until it is the topic's; note the resize, and return its epoch."""
        former = await self._described()
        before = former.resize_epoch
        deadline = self.now + DEADLINE_S
        said = ""
        while True:
            self.check()
            assert self.now < deadline, f"{self.topic} does not have {count} partitions: {said}"
            try:
                outcome = await create_partitions(self._view, {self.topic: count}, force=True)
                said = str(outcome[self.topic])
                topic = await self._described()
            except ClientError as error:
                said = str(error)
            else:
                if topic.resize_epoch > before and topic.undeleted_partition_count == count:
                    break
            await self.pause(5 * PAUSE_S)
        cuts = await self._cuts(topic, max(former.undeleted_partition_count, count))
        self.note(Resize(topic.resize_epoch, count, self.now, cuts))
        return topic.resize_epoch

    async def _described(self) -> Topic:
        await self._view.describe([self.topic])
        return self._view.view.topics[self.topic]

    async def _cuts(self, topic: Topic, count: int) -> dict[int, int]:
        """Return where each partition below ``count`` was closed or born by the newest resize.

        One that is removed by now ended with its data.
        """
        deadline = self.now + DEADLINE_S
        while True:
            failed: dict[TopicPartition, ClientError] = {}
            listed = [TopicPartition(self.topic, index) for index in topic.partitions]
            found = await describe_fences(self._view, listed, timeout_ms=1_000, failed=failed)
            cuts = {
                where.partition: one.fence.offset
                for where, described in found.items()
                for one in described.fences
                if one.fence.resize_epoch == topic.resize_epoch
            }
            if not set(range(count)) <= cuts.keys():
                gone = await describe_former(self._view, [self.topic])
                for where, ended in gone.items():
                    if ended.resize_epoch == topic.resize_epoch:
                        cuts.setdefault(where.partition, ended.data_end)
            if set(range(count)) <= cuts.keys():
                return cuts
            assert self.now < deadline, f"no fences of epoch {topic.resize_epoch}: {found} {failed}"
            await self.pause(5 * PAUSE_S)
            topic = await self._described()

    async def _observe(self) -> None:
        """Ask each broker for metadata, for ever."""
        await self._view.retry(self._view.refresh)
        while True:
            for node_id in list(self._view.view.brokers):
                try:
                    found = await self._view.describe([self.topic], node_id=node_id)
                except ClientError:
                    continue
                topic = found.topics.get(self.topic)
                if topic is not None and topic.undeleted_partition_count >= 0:
                    count = topic.undeleted_partition_count
                    self.note(MetadataSeen(node_id, topic.resize_epoch, count, self.now))
            await self.pause(0.2)

    async def finish(self) -> None:
        """Let the writers end and the groups receive everything, and read what is stored."""
        for writer in self.writers:
            writer.finish()
        await self.until(
            lambda: all(each.done.is_set() for each in self.writers), lambda: "writers"
        )
        # The retired partitions go when all groups have committed past their data.
        await self.without_retired()
        starts, stored = await self._stored(await self.catch_up())
        for send in self.history.of(Send):
            where = TopicPartition(self.topic, send.partition)
            start = starts.get(where, 1 << 62)
            if 0 <= send.offset < start and (where, send.offset) not in stored:
                # It was purged: where it was, its acknowledgement says.
                self.note(Stored(send.partition, send.offset, send.uid, "its acknowledgement"))

    async def without_retired(self) -> None:
        """Wait until the retired partitions are gone."""
        await self.until(lambda: not self._retired(), self._why_retired)

    async def catch_up(self) -> dict[TopicPartition, int]:
        """Wait until every group has read all that is stored now; return where that ends."""
        topic = await self._described()
        places = [TopicPartition(self.topic, index) for index in topic.partitions]
        ends = await list_offsets(self._view, dict.fromkeys(places, LATEST))
        wanted = {where: found.offset for where, found in ends.items()}
        await self.until(lambda: not self._missing(wanted), lambda: self._missing(wanted))
        return wanted

    async def _stored(
        self, ends: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[tuple[TopicPartition, int], Stored]]:
        """Note what is stored; return where the logs begin, and the records by their places.

        Retention may take records meanwhile: then it begins again.
        """
        stored: dict[tuple[TopicPartition, int], Stored] = {}
        while True:
            found = await list_offsets(self._view, dict.fromkeys(ends, EARLIEST))
            starts = {where: min(each.offset, ends[where]) for where, each in found.items()}
            try:
                await self._read(starts, ends, stored)
            except OffsetOutOfRange:
                continue
            self.note(*stored.values())
            return starts, stored

    def _retired(self) -> list[int]:
        """Return the retired partitions, by the metadata that the observer has."""
        topic = self._view.view.topics[self.topic]
        return [index for index, each in topic.partitions.items() if each.is_retired]

    def _why_retired(self) -> str:
        """Return the retired partitions, and what ``tidelog doctor`` says of the cluster."""
        command = [sys.executable, "-m", "tidelog", "doctor", "--bootstrap-server", self.bootstrap]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        return f"{self._retired()}\n{said.stdout}{said.stderr}"

    def _missing(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        missing = []
        for group in self.groups:
            positions: dict[TopicPartition, int] = {}
            for member in group.members:
                if member.in_hand:
                    missing.append(f"{member.name} has {member.in_hand} pieces in hand")
                if member.reader is not None:
                    positions |= member.reader.positions()
            missing += [
                f"{group.name}: {where} at {positions.get(where, -1)} of {end}"
                for where, end in ends.items()
                if positions.get(where, -1) < end
            ]
            missing += [f"{each.name}: {each.last_error}" for each in group.members if missing]
        return missing

    async def _read(
        self,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        stored: dict[tuple[TopicPartition, int], Stored],
    ) -> None:
        fetcher = Fetcher(self._view)
        fetcher.assign(starts, ends)
        try:
            while not fetcher.finished():
                for piece in await fetcher.poll(1_000):
                    where = piece.partition
                    for row in piece.rows():
                        uid = int(row.value or b"0")
                        stored[where, row.offset] = Stored(where.partition, row.offset, uid)
        finally:
            await fetcher.close()

    async def close(self) -> None:
        """End all clients."""
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self._view.close()
