"""Aware clients of one topic and what they note: the product's own sender and group members.

Owns writers and members that live again and again, and their events in the history. Where they run,
in the simulation or against real processes, is the caller's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Any, Protocol

from tests.order.history import (
    Commit,
    Delivery,
    History,
    Outcome,
    Registration,
    Removal,
    Resize,
    Rewind,
    Send,
)
from tests.order.key_store import KeyStore
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.producing.record_metadata import RecordMetadata
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.settings import SendSettings
from tidelog.model.topics import TopicPartition
from tidelog.runtime.clock import Clock

KEYS = 12
BATCH_BYTES = 300
DELIVERY_MS = 15_000
SESSION_MS = 6_000


SendCall = Callable[[str, bytes, bytes], Awaitable[asyncio.Future[RecordMetadata]]]
"""Sends a value with a key to a topic, and returns the future of its place."""


class Setting(Protocol):
    """Where the clients run: the clock and the randomness, the topic and its history."""

    history: History
    topic: str
    uids: Iterator[int]
    rate: float
    """Records that each writer sends in a second."""
    clock: Clock

    @property
    def now(self) -> float: ...

    def random(self, name: str) -> random.Random: ...

    def cluster(self, name: str, metadata_max_age_ms: int = 300_000) -> Cluster: ...

    def note(self, *events: Any) -> None: ...

    async def pause(self, seconds: float) -> None: ...


class Writer:
    """A producer of records with keys, for the whole run."""

    def __init__(self, setting: Setting, name: str, metadata_max_age_ms: int) -> None:
        self.name = name
        self.open = 0
        self._setting = setting
        self._rng = setting.random(f"{name}")
        self._max_age_ms = metadata_max_age_ms
        self._numbers: dict[str, int] = {}
        self._finishing = asyncio.Event()
        self.done = asyncio.Event()

    def finish(self) -> None:
        """Send nothing more; ``done`` is set when everything has an outcome."""
        self._finishing.set()

    async def run(self) -> None:
        """Send until ``finish``, and wait for the outcomes."""
        setting, rng = self._setting, self._rng
        async with self.opened() as (send, cluster):
            while not self._finishing.is_set():
                key = f"k{rng.randrange(KEYS)}"
                uid = next(setting.uids)
                number = self._numbers[key] = self._numbers.get(key, -1) + 1
                sent_at = setting.now
                known = cluster.view.topics.get(setting.topic)
                epoch = -1 if known is None else known.resize_epoch
                sent = await send(setting.topic, b"%d" % uid, key.encode())
                self.open += 1
                sent.add_done_callback(partial(self._answered, uid, key, number, epoch, sent_at))
                await setting.pause(rng.expovariate(setting.rate))
        self.done.set()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[SendCall, Cluster]]:
        """Yield how to send, and the view of the cluster; at the end all has its outcome."""
        settings = SendSettings(
            batch_bytes=BATCH_BYTES,
            linger_ms=self._rng.choice((0, 20)),
            delivery_timeout_ms=DELIVERY_MS,
            max_block_ms=600_000,
        )
        async with (
            self._setting.cluster(self.name, self._max_age_ms) as cluster,
            RecordSender(cluster, settings, clock=self._setting.clock) as sender,
        ):
            yield sender.send, cluster
            await sender.flush()

    def _answered(
        self,
        uid: int,
        key: str,
        number: int,
        epoch: int,
        sent_at: float,
        sent: asyncio.Future[RecordMetadata],
    ) -> None:
        self.open -= 1
        error = None if sent.cancelled() else sent.exception()
        outcome, where = Outcome.INFO, (-1, -1)
        if not sent.cancelled() and error is None:
            answer = sent.result()
            outcome, where = Outcome.OK, (answer.partition, answer.offset)
        now = self._setting.now
        self._setting.note(Send(uid, key, self.name, number, epoch, sent_at, outcome, now, *where))


class GroupOfMembers:
    """A group of the product's members, and what it must receive."""

    def __init__(
        self,
        setting: Setting,
        name: str,
        reset: OffsetReset,
        members: int,
        kind: type[Member] | None = None,
    ) -> None:
        self.name = name
        self.reset = reset
        self.generation = -1
        self._history = setting.history
        self._joined_at: float | None = None
        self.registration = Registration(name, setting.now)
        self.store = KeyStore()
        self.members = [(kind or Member)(setting, self, number) for number in range(members)]
        setting.note(self.registration)

    def joined(self, member: Member, generation: int, assigned: list[TopicPartition]) -> None:
        """Take up a generation: a member that is not in it was removed from the group."""
        self.generation = max(self.generation, generation)
        if self._joined_at is None:
            self._joined_at = member.setting.now
        for other in self.members:
            if other is not member and other.is_removed(generation):
                member.setting.note(Removal(self.name, other.name, member.setting.now))

    def began(self, positions: Mapping[TopicPartition, int]) -> None:
        """A ``latest`` group begins where it committed its first resets, or reads from them.

        In partitions that were published after its first join it begins at their births.
        """
        if self.reset is not OffsetReset.LATEST or self._joined_at is None:
            return
        for where, offset in positions.items():
            if _published_at(self._history, where.partition) <= self._joined_at:
                self.registration.positions.setdefault(where.partition, offset)


def _published_at(history: History, partition: int) -> float:
    """Return when clients could first see the present incarnation of a partition."""
    count, found = history.initial_count, -inf if partition < history.initial_count else inf
    for resize in history.of(Resize):
        if not resize.is_undone:
            if count <= partition < resize.count:
                found = resize.at
            count = resize.count
    return found


class Member:
    """One member, its lives one after the other."""

    is_aware = True

    def __init__(self, setting: Setting, group: GroupOfMembers, number: int) -> None:
        self.setting = setting
        self.group = group
        self.name = f"{group.name}-{number}"
        self.generation = -1
        self.reader: GroupReader | None = None
        self.last_error = ""
        self.in_hand = 0
        """Pieces that the application is not done with."""
        self.settles = False
        """Whether faults are over: its life does not end any more."""
        self._rng = setting.random(f"{self.name}")

    async def run(self) -> None:
        """Live again and again, for ever."""
        lives = 0
        while True:
            lives += 1
            async with self.setting.cluster(f"{self.name}.{lives}") as cluster:
                await self._live(cluster)
            await self.setting.pause(self._rng.uniform(0.1, 2))

    def is_removed(self, generation: int) -> bool:
        """Whether it is not in a generation of its group, and does not get into it either."""
        return self.generation < generation

    async def _live(self, cluster: Cluster) -> None:
        rng = self._rng
        reader = GroupReader(
            cluster,
            self.group.name,
            [self.setting.topic],
            reset=self.group.reset,
            auto_commit_ms=rng.choice((300, 1_500)),
            options=FetchOptions(max_wait_ms=300, partition_bytes=2_000),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=15_000,
            heartbeat_interval_ms=500,
            partition_check_ms=rng.choice((2_000, 60_000)),
            is_aware=self.is_aware,
        )
        self._watch(reader)
        self.reader = reader
        end = self.setting.now + rng.uniform(5, 60)
        try:
            while self.settles or self.setting.now < end:
                try:
                    pieces = await reader.poll(1_000, max_bytes=rng.choice((1, 1_000)))
                    self.last_error = ""
                except ClientError as error:
                    self.last_error = str(error)
                    await self.setting.pause(rng.uniform(0.05, 0.3))
                    continue
                self.in_hand = len(pieces)
                for piece in pieces:
                    for row in piece.rows():
                        await self._receive(piece.partition.partition, row)
                    self.in_hand -= 1
            if rng.random() < 0.5:
                reader.member.leave = reader.member._stop_tasks  # type: ignore[method-assign]
            else:
                # The next poll would say that the application is done with everything.
                await reader.controls.commit()
        except ClientError as error:
            self.last_error = str(error)
        finally:
            self.reader = None
            try:
                await reader.close()
            except ClientError as error:
                self.last_error = str(error)

    def _applied(self, index: int, row: Any) -> int | None:
        """Return the number of the state of a key after a record; None without state."""
        return None

    async def _receive(self, index: int, row: Any) -> None:
        setting, begun_at = self.setting, self.setting.now
        state = self._applied(index, row)
        if self._rng.random() < 0.3:
            await self.setting.pause(self._rng.uniform(0, 0.05))
        if self.is_removed(self.group.generation):
            return  # It was removed from the group, and does not know it yet.
        setting.note(
            Delivery(
                self.group.name,
                self.name,
                index,
                row.offset,
                int(row.value),
                begun_at,
                setting.now,
                state,
            )
        )

    def _watch(self, reader: GroupReader) -> None:
        """Note what a member is given, begins with and commits."""
        join, commit = reader.member.join, reader.member.commit
        add = reader.fetcher.add

        async def joined(*owned: Any) -> list[TopicPartition]:
            assigned = await join(*owned)
            self.generation = reader.member.membership.generation
            self.group.joined(self, self.generation, assigned)
            return assigned

        async def committed(positions: Mapping[TopicPartition, Position], **options: Any) -> None:
            await commit(positions, **options)
            now = self.setting.now
            self.group.began({where: position.offset for where, position in positions.items()})
            for where, position in positions.items():
                self.setting.note(Commit(self.group.name, where.partition, position.offset, now))

        def began(positions: Mapping[TopicPartition, int], *more: Any) -> None:
            self.group.began(positions)
            for where, offset in positions.items():
                self.setting.note(
                    Rewind(self.group.name, where.partition, offset, self.setting.now)
                )
            add(positions, *more)

        reader.member.join = joined  # type: ignore[method-assign]
        reader.member.commit = committed  # type: ignore[method-assign]
        reader.fetcher.add = began  # type: ignore[method-assign]
