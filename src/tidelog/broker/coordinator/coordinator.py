"""The group coordinator of this broker: the groups in the partitions that it leads.

Owns the led partitions of ``__consumer_offsets``: loaded when leadership begins, kept in newer
leader epochs of this broker, closed when it ends; the periodic expiry of offsets; the creation of
the topic. Not one partition and its groups: see ``led_partition``. A group is kept in partition
``groups.placement.partition_for``. The leader of that partition is the only coordinator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.led_partition import LedPartition
from tidelog.broker.coordinator.parts import InParts, OneByOne
from tidelog.broker.coordinator.pending_response import refuse_event
from tidelog.groups import limits
from tidelog.groups.events import Event
from tidelog.groups.first_sights import NO_ASSIGNMENT
from tidelog.groups.placement import partition_for
from tidelog.groups.records import FirstSight
from tidelog.groups.room import GroupRoom
from tidelog.groups.settings import GroupRules, GroupSettings
from tidelog.groups.table import GroupTable
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC, TopicPartition
from tidelog.runtime.tasks import call_off

if TYPE_CHECKING:
    from tidelog.broker.control_plane.topic_creation import TopicCreation
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.runtime.seams import Seams

logger = logging.getLogger(__name__)

_LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

FULL_LOGGED_EVERY_MS = 60_000
"""How often the log repeats that the memory for groups is full."""


@dataclass
class Loads:
    """Partitions whose groups were loaded at the same time: they share one line in the log, because
    the first group of a cluster makes a broker load all of its partitions."""

    began_ms: int
    partitions: list[int] = field(default_factory=list)
    groups: int = 0
    unknown_records: int = 0

    def add(self, led: LedPartition) -> None:
        """Count a partition if its load succeeded: a failed load has its own line in the log."""
        if led.error is ErrorCode.NONE:
            self.partitions.append(led.hosted.partition)
            self.groups += len(led.table)
            self.unknown_records += led.table.unknown_records

    def log(self, now_ms: int) -> None:
        """Log the line, if any partition was loaded."""
        if self.partitions:
            logger.info(
                "loaded %(groups)d groups of %(count)d partitions of %(topic)s in %(ms)d ms, "
                "%(unknown_records)d records of unknown versions skipped",
                {
                    "groups": self.groups,
                    "count": len(self.partitions),
                    "topic": OFFSETS_TOPIC,
                    "ms": now_ms - self.began_ms,
                    "unknown_records": self.unknown_records,
                    "partitions": sorted(self.partitions),
                },
            )


class Coordinator:
    """The entry for the handlers of group requests."""

    def __init__(
        self,
        configs: ServerConfigs,
        seams: Seams,
        metadata: MetadataCache,
        topic_creation: TopicCreation,
    ) -> None:
        self._configs = configs
        self._clock = seams.clock
        self._metadata = metadata
        self._topic_creation = topic_creation
        self._led: dict[int, LedPartition] = {}
        self.room = GroupRoom(lambda: [led.table for led in list(self._led.values())])
        """The memory limit of all groups here."""
        self._log_again_ms = self._refusals_logged = 0
        self._rules = GroupRules(
            lambda: str(seams.new_uuid()), settings_of(configs), self.room, self._topic_of
        )
        self._one_by_one = OneByOne()
        self._tasks: set[asyncio.Task[None]] = set()
        # One partition is read at a time: fifty at once would take fifty time slices per turn.
        self._reading = asyncio.Semaphore(1)
        self._loads = Loads(0)
        self._loading = 0
        self._gone: set[str] = set()

    def start(self) -> None:
        """Start the expiry of offsets every ``offsets.retention.check.interval.ms``."""
        self._spawn(self._expire_for_ever(), "groups-retention")

    async def close(self) -> None:
        """Refuse all waiting requests with NOT_COORDINATOR and stop all tasks."""
        for number in list(self._led):
            self._close(number)
        await call_off(self._tasks)

    # Requests ----------------------------------------------------------------------------------

    def decide(self, group_id: str, event: Event) -> None:
        """Decide an event of a group; its response is sent now or later."""
        led = self._find(group_id)
        if isinstance(led, ErrorCode):
            refuse_event(event, led)
        else:
            led.decide(group_id, event)
            if self.room.refused > self._refusals_logged:
                self._log_full()

    def decide_in_parts(self, group_id: str, long: InParts) -> None:
        """Decide a request of many positions; its response is sent later, or now if refused."""
        led = self._find(group_id)
        if isinstance(led, ErrorCode):
            long.refuse_rest(led)
        else:
            led.decide_in_parts(group_id, long)

    def _log_full(self) -> None:
        """Log that the memory for groups is full, at most once per ``FULL_LOGGED_EVERY_MS``."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._log_again_ms:
            return
        self._log_again_ms = now_ms + FULL_LOGGED_EVERY_MS
        refused, self._refusals_logged = self.room.refused, self.room.refused
        logger.warning(
            "the memory for members and groups is full: %(groups)d groups, whose members take "
            "%(held_bytes)d of %(limit_bytes)d bytes; %(refused)d requests were refused since this "
            "broker started",
            {
                "groups": sum(map(len, self.tables())),
                "held_bytes": self.room.held,
                "limit_bytes": limits.MAX_HELD_BYTES,
                "refused": refused,
            },
        )

    def table_of(self, group_id: str) -> GroupTable | ErrorCode:
        """Return the table with a group, or the error if the group is not coordinated here."""
        led = self._find(group_id)
        return led if isinstance(led, ErrorCode) else led.table

    def tables(self) -> Iterator[GroupTable]:
        """Yield the loaded tables."""
        for led in self._led.values():
            if led.error is ErrorCode.NONE:
                yield led.table

    @property
    def is_loading(self) -> bool:
        """Whether the groups of some partition are still loading."""
        return not self._has_metadata or any(led.error is _LOADING for led in self._led.values())

    @property
    def _has_metadata(self) -> bool:
        """Whether an UpdateMetadata has come in this life of the broker.

        Before it, this broker knows no coordinator, itself included: NOT_COORDINATOR would be
        wrong, and librdkafka 2.16 waits for ever after that response to OffsetFetch.
        """
        return bool(self._metadata.brokers)

    def _find(self, group_id: str) -> LedPartition | ErrorCode:
        number = self.partition_of(group_id)
        led = None if number is None else self._led.get(number)
        if led is None:
            return ErrorCode.NOT_COORDINATOR if self._has_metadata else _LOADING
        error = led.error
        return led if error is ErrorCode.NONE else error

    def _topic_of(self, name: str) -> FirstSight | None:
        topic = self._metadata.topic(name)
        if topic is None or topic.undeleted_partition_count < 0:
            return None
        return FirstSight(topic.topic_id, topic.resize_epoch, NO_ASSIGNMENT)

    # The topic ---------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int | None:
        """Return the partition that keeps a group; None while the topic is not known here.

        Uses the partition count of the controller: while not every partition is known here, a group
        must not be placed in another one.
        """
        topic = self._metadata.topic(OFFSETS_TOPIC)
        if topic is None:
            return None
        count = topic.undeleted_partition_count
        if count <= 0:
            count = len(topic.partitions)
        return partition_for(group_id, count) if count else None

    async def ensure_topic(self) -> ErrorCode:
        """Create ``__consumer_offsets`` if needed; NONE once its leaders are known here.

        Compacted, with the partitions, replicas and segment size of ``offsets.topic.*``.
        """
        configs = self._configs
        return await self._topic_creation.ensure(
            OFFSETS_TOPIC,
            configs.offsets_topic_num_partitions,
            configs.offsets_topic_replication_factor,
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(configs.offsets_topic_segment_bytes),
            },
        )

    # Leadership --------------------------------------------------------------------------------

    async def reloaded(self, hosted: HostedPartition) -> str | None:
        """Ensure that the groups of a partition are loaded from the log of this leader (KIP-704).

        Groups loaded since this broker's leadership began are kept: the log has not changed under
        them. A failed load is started again. Waits while they load; returns None once they are
        loaded, otherwise why they are not.
        """
        led = self._led.get(hosted.partition)
        if led is None or led.hosted is not hosted or not led.is_current:
            return "this broker does not coordinate them"
        if led.has_failed:
            self.lead(hosted)
            led = self._led[hosted.partition]
        await led.load_ended.wait()
        return None if led.error is ErrorCode.NONE else f"not loaded: {led.error.name}"

    def lead(self, hosted: HostedPartition) -> None:
        """This broker leads a partition in a new epoch: load the groups of it, if any."""
        if hosted.topic != OFFSETS_TOPIC:
            return
        present = self._led.get(hosted.partition)
        is_kept = present is not None and present.hosted is hosted and present.is_current
        if present is not None and is_kept and not present.has_failed:
            # A newer leader epoch of the same leadership: the groups stay, unless they have failed.
            return
        self._close(hosted.partition)
        led = LedPartition(
            hosted,
            self._rules,
            self._clock,
            self._configs.offsets_commit_timeout_ms,
            self._metadata,
            self._one_by_one,
        )
        self._led[hosted.partition] = led
        self._spawn(self._load(led), f"groups-load-{hosted.partition}")

    async def _load(self, led: LedPartition) -> None:
        """Load a partition's groups; the last of concurrent loads logs one line for all."""
        if not self._loading:
            self._loads = Loads(self._clock.monotonic_ms())
        self._loading += 1
        try:
            await led.load(self._reading)
        finally:
            self._loading -= 1
            self._loads.add(led)
            if not self._loading:
                self._loads.log(self._clock.monotonic_ms())

    def resign(self, key: TopicPartition, epoch: int) -> None:
        """This broker led a partition up to a leader epoch: give its groups up, if any."""
        led = self._led.get(key.partition)
        if key.topic == OFFSETS_TOPIC and led is not None and led.since <= epoch:
            self._close(key.partition)

    def _close(self, number: int) -> None:
        led = self._led.pop(number, None)
        if led is not None:
            led.close()

    # Sweeps ------------------------------------------------------------------------------------

    async def expire_offsets(self) -> None:
        """Expire the offsets of all groups here by their retention."""
        await self._sweep(LedPartition.expire)

    async def _expire_for_ever(self) -> None:
        while True:
            interval_ms = self._configs.offsets_retention_check_interval_ms
            await asyncio.sleep(interval_ms / 1000)
            await self.expire_offsets()

    def topic_gone(self, topic: str) -> None:
        """A topic was deleted: forget the positions in it."""
        if not self._gone:
            self._spawn(self._forget_topics(), "groups-forget-topics")
        self._gone.add(topic)

    async def _forget_topics(self) -> None:
        # A task starts in the next turn: topics deleted together share one sweep.
        topics, self._gone = frozenset(self._gone), set()
        await self._sweep(lambda led: led.forget_topics(topics))

    async def _sweep(self, sweep: Callable[[LedPartition], Awaitable[None]]) -> None:
        for led in list(self._led.values()):
            try:
                await sweep(led)
            except Exception:
                # A bug in one group must not stop the sweep of the others.
                logger.exception(
                    "the groups of %(partition)s could not be swept", {"partition": led.hosted.key}
                )

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)


def settings_of(configs: ServerConfigs) -> GroupSettings:
    """Return the settings of groups from a server's configuration."""
    return GroupSettings(
        group_initial_rebalance_delay_ms=configs.group_initial_rebalance_delay_ms,
        group_min_session_timeout_ms=configs.group_min_session_timeout_ms,
        group_max_session_timeout_ms=configs.group_max_session_timeout_ms,
        group_max_size=configs.group_max_size,
        offset_metadata_max_bytes=configs.offset_metadata_max_bytes,
        offsets_retention_minutes=configs.offsets_retention_minutes,
    )
