"""A compacted topic that grows and shrinks: its writers, which delete keys, and its readers.

Owns what is different from ``elastic``: deletions, the fresh reader at the end, and the event that
the topic is compacted. Not the rule: see ``tests.order.compaction``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tests.order.aware_clients import GroupOfMembers, Member, SendCall, Writer
from tests.order.history import Compaction, FreshRead, Outcome, Resize, Send, Stored
from tests.simulation.cluster.disks import stored_records
from tests.simulation.cluster.elastic import INITIAL, MOST, NAME, Elastic
from tests.simulation.cluster.resizer import Resizer
from tidelog.client.cluster import Cluster
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.producing.record_metadata import RecordMetadata
from tidelog.client.producing.sender import RecordSender
from tidelog.controller.decisions.resize_requests import why_not_aware

UID = "uid"
"""The header with a record's number: a deletion has no value."""

DELETED_SHARE = 0.3
LOSING_SHARE = 0.5

CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "1500",
    "segment.ms": "800",
    "index.interval.bytes": "300",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1000",
    "delete.retention.ms": "300",
    "min.insync.replicas": "2",
}
"""Segments are closed soon, cleaned soon, and deletions are removed soon."""

CLEANER = {"log.cleaner.backoff.ms": "150"}


class DeletingWriter(Writer):
    """A writer that deletes keys as well."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[SendCall, Cluster]]:
        """Yield how to send, and the view of the cluster; at the end all has its outcome."""
        setting: Any = self._setting
        async with super().opened() as (send, cluster):
            sender: RecordSender = send.__self__  # type: ignore[attr-defined]
            if setting.loses_tombstones:
                sender.tombstones.note = lambda *_: False  # type: ignore[method-assign]

            async def sent(topic: str, value: bytes, key: bytes) -> asyncio.Future[RecordMetadata]:
                content: bytes | None = value
                if self._rng.random() < DELETED_SHARE:
                    setting.deleted.add(int(value))
                    content = None
                return await sender.send(topic, content, key, headers=[(UID, value)])

            yield sent, cluster


class DeletionsMember(Member):
    """A member that knows records by their numbers."""

    async def _receive(self, index: int, row: Any) -> None:
        await super()._receive(index, row._replace(value=b"%d" % uid_of(row)))


def uid_of(record: Any) -> int:
    """Return the number of a record."""
    return next(int(value or b"") for name, value in record.headers if name == UID)


class Compacted(Elastic):
    """The clients of a compacted topic, and its history."""

    def __init__(self, *where: Any) -> None:
        super().__init__(*where)
        self.deleted: set[int] = set()
        self.loses_tombstones = self.random("tombstones").random() < LOSING_SHARE
        """Whether all tombstones for ancestors are lost."""
        self.cleaned = 0
        """Records that were acknowledged and are nowhere any more."""
        self.note(Compaction())

    def start(self) -> list[asyncio.Task[None]]:
        """Start two writers, a group, and the polls of metadata."""
        self.writers = [DeletingWriter(self, "w1", 1_000), DeletingWriter(self, "w2", 300_000)]
        self.groups = {"all": GroupOfMembers(self, "all", OffsetReset.EARLIEST, 2, DeletionsMember)}
        work = [writer.run() for writer in self.writers]
        work += [member.run() for member in self.groups["all"].members]
        return [asyncio.create_task(each) for each in [*work, self._poll_metadata()]]

    async def read_afresh(self, seconds: float) -> None:
        """Read everything as a new group, in the order of the gates, and note what is the last of
        each key. TimeoutError after so many seconds."""
        uids: dict[str, int] = {}
        async with (
            asyncio.timeout(seconds),
            self.cluster("fresh") as cluster,
            GroupReader(cluster, "fresh", [NAME], reset=OffsetReset.EARLIEST) as reader,
        ):
            while not self._is_at_the_ends(reader):
                for piece in await reader.poll(500, max_bytes=1_000):
                    uids.update({row.key.decode(): uid_of(row) for row in piece.rows()})
        self.note(FreshRead("a fresh reader", uids))

    def _is_at_the_ends(self, reader: GroupReader) -> bool:
        found = reader.fetcher.positions()
        positions = {where.partition: offset for where, offset in found.items()}
        return all(
            positions.get(index, -1) >= max(log.high_watermark for log in self._logs(index))
            for index in self.states.topics[NAME].partitions
        )

    def note_what_is_stored(self) -> None:
        """Add the records of all replicas, and which of those that were sent are deletions."""
        there: set[int] = set()
        for index in self.states.topics[NAME].partitions:
            for node in self.nodes.brokers:
                for record in stored_records(node.machine.disk, NAME, index):
                    there.add(uid_of(record))
                    self.note(Stored(index, record.offset, uid_of(record), node.host))
        self.history.events = [
            replace(each, is_deletion=each.uid in self.deleted) if isinstance(each, Send) else each
            for each in self.history.events
        ]
        sends = self.history.of(Send)
        self.cleaned = sum(send.outcome is Outcome.OK and send.uid not in there for send in sends)

    def counts(self) -> dict[str, int]:
        """How much happened."""
        return {**super().counts(), "deleted": len(self.deleted), "cleaned": self.cleaned}


class GrowingFirst(Resizer):
    """A resizer that only grows its topic for a while: what a compacted topic retires stays."""

    growing_until = 0.0

    async def _ask(self, count: int) -> None:
        if self._elastic.now < self.growing_until:
            published = [x.count for x in self._elastic.history.of(Resize) if not x.is_undone]
            now = published[-1] if published else INITIAL
            count = min(MOST, now + self._rng.randint(1, INITIAL))
        await super()._ask(count)

    async def why_unaware(self) -> str:
        """As of any topic, but that an unforced shrink is refused for what a compacted one keeps:
        what the controller knows of producers is asked by its rule."""
        await super().why_unaware()
        active = self._outside.cluster.active
        assert active is not None and active.controller is not None
        controller = active.controller
        refused = why_not_aware(controller.cluster, NAME, controller.seams.clock.wall_ms())
        return "" if refused is None else refused.sentence
