"""The consumer for asyncio: records of topics, as a member of a group or by assignment.

Owns the public interface: subscription, polling, positions, commits. Not the cycle of a member: see
``client.groups.group_reader``. Not fetching: see ``client.fetching``. Names are aiokafka's, and
kafka-python's where it has none.

``poll`` returns at once while fetched records are at hand. Every ``ATTEND_S``, and whenever the
group asks for something, it first lets the reader do what is due: callbacks, commits, rebalances.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import Any

from tidelog.aio import arguments
from tidelog.aio.arguments import milliseconds, most_records, offset_number, place, places
from tidelog.aio.consumer_commits import ConsumerCommits
from tidelog.aio.consumer_hooks import Call, ConsumerHooks, call_here
from tidelog.aio.consumer_settings import settings_of
from tidelog.aio.consumer_types import ConsumerGroupMetadata, PartitionKeyRebalanceListener
from tidelog.aio.left_readers import LeftReaders
from tidelog.aio.new_readers import new_member, new_reader
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, ConfigurationRefused, Wakeup, WrongState
from tidelog.client.fetching.batches import Fetched
from tidelog.client.fetching.consumer_record import ConsumerRecord, decoded
from tidelog.client.fetching.record_queue import RecordQueue
from tidelog.client.groups.group_member import GroupMember
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.groups.self_assigned import SelfAssigned
from tidelog.client.offsets import EARLIEST, LATEST
from tidelog.model.topics import TopicPartition
from tidelog.records.reader import FastReader

ATTEND_S = 0.05
"""The longest time that records at hand are returned without a check of the group."""

TAKE_BYTES = 4 * 1024 * 1024
"""How much is taken from the fetcher at once, at least one batch."""

CLOSE_MS = 30_000
"""How long the end of a subscription waits for commits, unless the caller says otherwise."""

Records = dict[TopicPartition, list[ConsumerRecord]]


class Consumer(ConsumerCommits):
    """Reads records. ``async with Consumer("t", group_id="g") as consumer`` opens and closes it.

    Settings: see ``ConsumerSettings``. ``call`` calls the user's functions, ``now`` is the clock in
    seconds; ``cluster``: a view of the cluster that is used instead of an own one, and closed too.
    Methods raise ClientError (``tidelog.errors.KafkaError``).
    Everything belongs to one event loop.
    """

    def __init__(
        self,
        *topics: str,
        call: Call = call_here,
        now: Callable[[], float] = time.monotonic,
        cluster: Cluster | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(settings_of(type(self), settings), cluster)
        self._now = now
        self._fast = FastReader()
        self._queue = RecordQueue(self._decode)
        self._hooks = ConsumerHooks(self._queue, call)
        self._reader: GroupReader | None = None
        self._member: GroupMember | SelfAssigned | None = None
        self._left = LeftReaders()
        self._topics: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._partitions: list[TopicPartition] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._paused: set[TopicPartition] = set()
        self._high: dict[TopicPartition, int] = {}
        self._attend_at = 0.0
        self._is_polling = False
        self._is_closing = False
        self._is_woken = False
        self._sought: dict[TopicPartition, int] = {}
        """Positions of assigned partitions, set before the first call that waits."""
        if topics:
            self.subscribe(topics)

    # Opening and closing

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def stop(self) -> None:
        """Close the consumer (aiokafka's name)."""
        await self.close()

    async def close(self, autocommit: bool = True, timeout_ms: float = CLOSE_MS) -> None:
        """Commit (with enable_auto_commit), call back, leave the group, close the connections.

        Waits up to ``timeout_ms``, apart from the time of callbacks, for this commit and for those
        that were begun before; then they fail. Another task's ``poll`` ends its callback first. A
        static member stays in its group until its session ends. A second call does nothing. An
        exception of a callback is raised when everything is closed; after one of a
        ``partition_key_listener`` nothing is committed. A cancelled call closes everything without
        waiting for commits.
        """
        timeout_ms = milliseconds(timeout_ms)
        if self._is_closing:
            return
        self._hooks.refuse_in_callback("close")
        self._is_closing = True
        self._stop_watching()
        try:
            try:
                await self._left.leave(autocommit, timeout_ms, self._reader)
            except Exception:
                await self.aside.all_called_back()
                raise
            await self.aside.all_called_back()
        finally:
            self._closed = True
            await self._cluster.close()

    async def leave_former(self, autocommit: bool = True, timeout_ms: float = CLOSE_MS) -> None:
        """Leave the groups of former subscriptions; a cancelled call leaves the rest to the next.

        Waits up to ``timeout_ms`` for commits, as ``close`` does.
        """
        await self._left.go_on(autocommit, timeout_ms)

    # Subscription

    def subscribe(
        self,
        topics: Collection[str] = (),
        pattern: str | None = None,
        listener: Any = None,
        partition_key_listener: PartitionKeyRebalanceListener | None = None,
    ) -> None:
        """Read topics: these, or all whose whole name the regular expression ``pattern`` matches.

        It replaces the former subscription. With a group_id its members share the partitions;
        without one this consumer reads all of them. ``listener``: a ConsumerRebalanceListener.
        """
        self._refuse_closed()
        self._hooks.refuse_in_callback("subscribe")
        names = arguments.topic_names(topics)
        if bool(names) == (pattern is not None):
            raise ConfigurationRefused("subscribe takes either topics or a pattern")
        if self._partitions is not None:
            raise WrongState("the consumer has assigned partitions: unsubscribe first")
        arguments.check_listeners(listener, partition_key_listener)
        same_listeners = self._hooks.has(listener, partition_key_listener)
        self._pattern = None if pattern is None else arguments.compiled(pattern)
        self._topics = frozenset(names)
        self._stop_watching()
        if self._reader is None or not same_listeners:
            self._set_reader_aside()
            self._hooks = self._hooks.followed_by(listener, partition_key_listener)
        elif self._pattern is None:
            self._member_of(self._topics)
        self._attend_at = 0.0

    def _member_of(self, topics: Iterable[str]) -> None:
        self._topics = frozenset(topics)
        if self._member is not None:
            self._member.subscribe(self._topics)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without other members; positions of kept ones stay."""
        self._refuse_closed()
        self._hooks.refuse_in_callback("assign")
        if self._topics or self._pattern is not None:
            raise WrongState("the consumer has subscribed: unsubscribe first")
        self._partitions = places(partitions)
        if isinstance(self._member, SelfAssigned):
            self._member.assign(self._partitions)
        self._attend_at = 0.0

    def unsubscribe(self) -> None:
        """Read nothing; the next call that waits leaves the group."""
        self._hooks.refuse_in_callback("unsubscribe")
        self._topics, self._pattern, self._partitions = frozenset(), None, None
        self._set_reader_aside()
        # The reader that leaves keeps its listeners.
        self._hooks = self._hooks.followed_by(None, None)

    def _set_reader_aside(self) -> None:
        if self._reader is not None:
            self._left.add(self._reader)
        self._stop_watching()
        self._reader = self._member = None
        self._paused, self._sought, self._queue.paused = set(), {}, set()

    async def ready(self) -> GroupReader:
        """Return the reader of the present subscription, opened."""
        self._refuse_closed()
        await self.start()
        if self._left and not self._hooks.is_in_callback:
            self._refuse_ended()
            await self.leave_former()
            self._queue.drop()
        while self._pattern is not None and self._watching is None:
            pattern = self._pattern
            topics = await self._matching(pattern)
            self._refuse_ended()
            if pattern is self._pattern and self._watching is None:
                self._member_of(topics)
                watch = self._watch_pattern(pattern)
                self._watching = asyncio.get_running_loop().create_task(watch)
        if self._reader is not None:
            return self._reader
        # A member that joins after ``close`` would stay in its group.
        self._refuse_ended()
        settings = self.settings
        if self._partitions is None and not self._topics and self._pattern is None:
            raise WrongState("the consumer has not subscribed to topics nor assigned partitions")
        member = new_member(self._cluster, settings, self._topics, self._partitions)
        reader = new_reader(self._cluster, settings, member, self._hooks)
        reader.controls.pause_only(self._paused)
        reader.controls.seek_first(self._sought)
        self._member, self._reader = member, reader
        return reader

    def _refuse_ended(self) -> None:
        if self._is_closing:
            raise WrongState("this consumer is closed: open another one")

    async def _watch_pattern(self, pattern: re.Pattern[str]) -> None:
        while True:
            await asyncio.sleep(self.settings.metadata_max_age_ms / 1000)
            with contextlib.suppress(ClientError):
                self._member_of(await self._matching(pattern))

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def subscription(self) -> set[str]:
        """Return the topics subscribed to."""
        return set(self._topics)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return what a transaction says of this consumer to commit its offsets (KIP-447).

        It has the generation of the last ``poll``: a group that has gone on since refuses it, and
        the transaction is to be aborted. Raises IllegalStateError without a group_id.
        """
        if self.settings.group_id is None:
            raise WrongState("a consumer without a group_id has no group to commit offsets in")
        return ConsumerGroupMetadata(self.settings.group_id, *self._hooks.read_as)

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that are read, by the last rebalance."""
        return set() if self._reader is None else set(self._reader.given)

    # Reading

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """Return records by partition, waiting up to ``timeout_ms`` for the first.

        At most ``max_records`` (default: max_poll_records). The call says that all records returned
        before are processed. Raises Wakeup, and what a callback raised.
        """
        return await self._polled((), timeout_ms, max_records)

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> Records:
        """Like ``poll``, of these partitions, or of all."""
        return await self._polled(partitions, timeout_ms, max_records)

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord:
        """Return the next record of these partitions, or of any; wait for it."""
        while True:
            for records in (await self._polled(partitions, 60_000, 1)).values():
                return records[0]

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield records for ever; asking for the next one says that the one before is processed."""
        while True:
            if (record := self.take_one()) is not None:
                yield record
            else:
                await self.attend(60_000)

    async def _polled(
        self, only: Collection[TopicPartition], timeout_ms: float, most: int | None
    ) -> Records:
        most, only = most_records(most), places(only)
        self._refuse_while_polling()
        deadline = self._now() + milliseconds(timeout_ms) / 1000
        while True:
            if not self.is_due() and (records := self.take(most, only)):
                return records
            left_ms = max(0.0, (deadline - self._now()) * 1000)
            await self.attend(left_ms, only)
            records = self.take(most, only)
            # Less than a millisecond is no time to wait for.
            if records or left_ms < 1:
                return records

    def is_due(self) -> bool:
        """Whether ``attend`` must be called before more records are returned."""
        reader = self._reader
        return (
            reader is None
            or self._is_woken
            or self._now() >= self._attend_at
            or reader.wants_attention
        )

    def take(self, most: int | None = None, only: Collection[TopicPartition] = ()) -> Records:
        """Return records that are at hand, after ``attend``."""
        records = self._queue.take(most or self.settings.max_poll_records, only or None)
        self._counts["polls"] += 1
        self._counts["records"] += sum(map(len, records.values()))
        return records

    def take_one(self) -> ConsumerRecord | None:
        """Return one record that is at hand; None: ``attend`` is due, or there is none."""
        reader = self._reader
        if reader is None or self._now() >= self._attend_at or reader.has_shut:
            return None
        record = self._queue.take_one()
        self._counts["records"] += record is not None
        return record

    def _refuse_while_polling(self) -> None:
        if self._is_polling or self._left.leaving is not None:
            raise WrongState("poll was called while it runs, in a callback or by another task")

    async def attend(self, timeout_ms: float, only: Collection[TopicPartition] = ()) -> None:
        """Do what is due, and have records at hand if there are any within ``timeout_ms``."""
        self._refuse_while_polling()
        self._is_polling = True
        # What raises is raised again by the next call, before any record is returned.
        self._attend_at = 0.0
        try:
            reader = await self.ready()
            if self._is_woken:
                self._is_woken = False
                raise Wakeup("wakeup was called")
            has_some = self._queue.has(only or None)
            wait_ms, most = (0, 0) if has_some else (int(timeout_ms), TAKE_BYTES)
            # What is fetched of others stays in the reader: the queue has no limit of its own.
            pieces = await reader.poll(wait_ms, most, only or None)
            if self._is_woken and not pieces:
                self._is_woken = False
                raise Wakeup("wakeup was called")
            self._queue.add(pieces)
            for piece in pieces:
                self._high[piece.partition] = piece.high_watermark
                self._counts["bytes"] += len(piece.records)
            self._paused = self._queue.paused = reader.controls.paused
            self._attend_at = self._now() + ATTEND_S
            if self._member is not None:
                self._hooks.took_as(self._member.membership)
        finally:
            self._is_polling = False

    def _decode(self, fetched: Fetched) -> Any:
        settings = self.settings
        return decoded(
            fetched,
            self._fast,
            check_crcs=settings.check_crcs,
            key=settings.key_deserializer,
            value=settings.value_deserializer,
        )

    def mark_woken(self) -> None:
        """Let the next ``poll`` raise Wakeup; any thread may call this."""
        self._is_woken = True

    def wakeup(self) -> None:
        """Let ``poll`` that waits, or the next one, raise Wakeup."""
        self.mark_woken()
        self.interrupt()

    def interrupt(self) -> None:
        """Let an ``attend`` that waits return."""
        if self._reader is not None:
            self._reader.wake()

    # Positions

    async def _assigned_ready(self) -> GroupReader:
        """Return the reader; with ``assign`` its partitions are there without a poll."""
        if self._left.leaving is not None:
            return self._left.leaving
        reader = await self.ready()
        if self._partitions is not None and not self._is_polling:
            await reader.settle()
        return reader

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on at ``offset``. Beyond a shut gate nothing is returned until it opens."""
        partition, offset = place(partition), offset_number(offset)
        reader, chosen = self._reader, self._partitions
        if reader is None and chosen is None:
            raise WrongState(f"{partition} is not assigned to this consumer yet: poll first")
        if chosen is not None and partition not in chosen:
            raise WrongState(f"{partition} is not assigned to this consumer")
        if reader is None:
            self._sought[partition] = offset
        elif chosen is not None and partition not in reader.given:  # assigned since the last poll
            reader.controls.seek_first({partition: offset})
        else:
            reader.controls.seek(partition, offset)
        self._attend_at = 0.0

    async def seek_to_beginning(self, *partitions: TopicPartition) -> bool:
        """Read on at the starts of these partitions, or of all assigned ones."""
        return await self._seek_to(EARLIEST, partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> bool:
        """Read on at the ends of these partitions, or of all assigned ones."""
        return await self._seek_to(LATEST, partitions)

    async def _seek_to(self, spec: int, partitions: Collection[TopicPartition]) -> bool:
        partitions = places(partitions)
        reader = await self._assigned_ready()
        wanted = partitions or reader.given
        offsets = await self._offsets(dict.fromkeys(wanted, spec))
        for partition, offset in offsets.items():
            reader.controls.seek(partition, offset)
        self._attend_at = 0.0
        return True

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record of an assigned partition, once it is known."""
        partition, reader = place(partition), await self._assigned_ready()
        return await reader.placed(partition, self.settings.default_api_timeout_ms)

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until ``resume``; the group stays as it is.

        As in Kafka, a rebalance that revokes all partitions ends it, and a resize causes one: with
        cooperative-sticky it lasts.
        """
        self._set_paused(self._paused | set(places(partitions)))

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again."""
        self._set_paused(self._paused - set(places(partitions)))

    def _set_paused(self, paused: set[TopicPartition]) -> None:
        if self._reader is not None:
            self._reader.controls.pause_only(paused)
        self._paused = self._queue.paused = paused

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return set(self._paused)

    def waiting(self) -> dict[TopicPartition, str]:
        """Return what each partition whose gate is shut waits for (KIP-253), as a sentence."""
        return {} if self._reader is None else self._reader.controls.why_waiting()

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the end of a partition in the last answer of its leader."""
        return self._high.get(place(partition))

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return figures of this consumer since it was made."""
        reader = self._reader
        return {
            "consumer-metrics": {
                "poll-total": self._counts["polls"],
                "records-consumed-total": self._counts["records"],
                "bytes-consumed-total": self._counts["bytes"],
                "commit-total": self._counts["commits"],
                "rebalance-total": self._hooks.rebalances,
                "assigned-partitions": len(self.assignment()),
                "waiting-partitions": len(self.waiting()),
                "buffered-bytes": 0 if reader is None else reader.buffered_bytes,
            }
        }
