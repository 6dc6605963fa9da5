"""The coordinator of consumer groups on this broker: which groups are here, and since when.

Owns the partitions of ``__consumer_offsets`` that are led here: taken up when leadership begins,
kept while this broker leads on in newer epochs, given up when it goes; the periodic look at
retention; the creation of the topic. A group lives in partition ``groups.placement.partition_for``;
the leader of that partition is its coordinator, so there is one at any time.
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
from tidelog.groups.placement import partition_for
from tidelog.groups.room import Room
from tidelog.groups.settings import GroupRules, GroupSettings
from tidelog.groups.table import GroupTable
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC, TopicPartition
from tidelog.runtime.tasks import call_off

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partitions.partition import HostedPartition

logger = logging.getLogger(__name__)

ROOM_SAID_EVERY_MS = 60_000
"""How often it is said that there is no room for more."""


@dataclass
class Loads:
    """Partitions whose groups were loaded side by side: one line for all, as a first group loads
    them all."""

    began_ms: int
    partitions: list[int] = field(default_factory=list)
    groups: int = 0
    unknown_records: int = 0

    def add(self, led: LedPartition) -> None:
        """Count one that has ended, if it was loaded: one that failed has said so."""
        if led.error is ErrorCode.NONE:
            self.partitions.append(led.hosted.partition)
            self.groups += len(led.table)
            self.unknown_records += led.table.unknown_records

    def say(self, now_ms: int) -> None:
        """Write the line, if any was loaded."""
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
    """What the handlers of group requests ask. Made after ``Broker``, with its parts in place."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._led: dict[int, LedPartition] = {}
        self.room = Room(lambda: [led.table for led in list(self._led.values())])
        """What all groups here may take."""
        self._say_again_ms = self._refusals_said = 0
        self._rules = GroupRules(
            lambda: str(broker.seams.new_uuid()), settings_of(broker.configs), self.room
        )
        self._one_by_one = OneByOne()
        self._tasks: set[asyncio.Task[None]] = set()
        # One partition is read at a time: fifty at once would be fifty slices in every turn.
        self._reading = asyncio.Semaphore(1)
        self._loads = Loads(0)
        self._loading = 0
        self._gone: set[str] = set()
        broker.partitions.when_leader.append(self._lead)
        broker.partitions.when_not_leader.append(self._resign)
        broker.metadata.when_gone.append(self._topic_gone)

    def start(self) -> None:
        """Begin to look at retention every ``offsets.retention.check.interval.ms``."""
        self._spawn(self._expire_for_ever(), "groups-retention")

    async def close(self) -> None:
        """Send everyone who waits elsewhere and stop all work."""
        for number in list(self._led):
            self._give_up(number)
        await call_off(self._tasks)

    # Requests ----------------------------------------------------------------------------------

    def decide(self, group_id: str, event: Event) -> None:
        """Decide an event of a group; its response is sent now or later."""
        led = self._find(group_id)
        if isinstance(led, ErrorCode):
            refuse_event(event, led)
        else:
            led.decide(group_id, event)
            if self.room.refused > self._refusals_said:
                self._say_no_room()

    def decide_in_parts(self, group_id: str, long: InParts) -> None:
        """Decide a request of many positions; its response is sent later, or now if refused."""
        led = self._find(group_id)
        if isinstance(led, ErrorCode):
            long.refuse_rest(led)
        else:
            led.decide_in_parts(group_id, long)

    def _say_no_room(self) -> None:
        """Say it in one line a minute."""
        now_ms = self._broker.clock.monotonic_ms()
        if now_ms < self._say_again_ms:
            return
        self._say_again_ms = now_ms + ROOM_SAID_EVERY_MS
        refused, self._refusals_said = self.room.refused, self.room.refused
        logger.warning(
            "there is no room for more members or groups: %(groups)d groups, whose members take "
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
        """Return the table to look a group up in, or why it is not here."""
        led = self._find(group_id)
        return led if isinstance(led, ErrorCode) else led.table

    def tables(self) -> Iterator[GroupTable]:
        """Yield the tables that can be looked at."""
        for led in self._led.values():
            if led.error is ErrorCode.NONE:
                yield led.table

    @property
    def is_loading(self) -> bool:
        """Whether groups of some partition are not known yet."""
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return any(led.error is loading for led in self._led.values())

    def statistics(self) -> dict[str, int]:
        """Return counts for metrics: partitions, those that load, groups, skipped records."""
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return {
            "partitions": len(self._led),
            "partitions_loading": sum(led.error is loading for led in self._led.values()),
            "groups": sum(map(len, self.tables())),
            "unknown_records": sum(led.table.unknown_records for led in self._led.values()),
        }

    def _find(self, group_id: str) -> LedPartition | ErrorCode:
        number = self.partition_of(group_id)
        led = None if number is None else self._led.get(number)
        if led is None:
            return ErrorCode.NOT_COORDINATOR
        error = led.error
        return led if error is ErrorCode.NONE else error

    # The topic ---------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int | None:
        """Return the partition that keeps a group; None while the topic is not known here.

        By the count that the controller names: a topic of which not every partition is known yet
        must not put a group anywhere else.
        """
        topic = self._broker.metadata.topic(OFFSETS_TOPIC)
        if topic is None:
            return None
        count = topic.undeleted_partition_count
        if count <= 0:
            count = len(topic.partitions)
        return partition_for(group_id, count) if count else None

    async def ensure_topic(self) -> ErrorCode:
        """Have ``__consumer_offsets`` created; NONE once its leaders are known here.

        Partitions, replicas and segments as ``offsets.topic.*`` say, compacted.
        """
        configs = self._broker.configs
        return await self._broker.topic_creation.ensure(
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
        """Have the groups of a partition loaded from its log since this broker leads (KIP-704).

        What another leader knew of them counts no more; what this one knows is its log, which it
        has led without a break. A load that failed is begun again. Returns None once they are
        loaded, else why they are not; waits while they load.
        """
        led = self._led.get(hosted.partition)
        if led is None or led.hosted is not hosted or not led.is_current:
            return "they are not coordinated here"
        if led.has_failed:
            self._lead(hosted)
            led = self._led[hosted.partition]
        await led.load_ended.wait()
        return None if led.error is ErrorCode.NONE else f"they are not loaded: {led.error.name}"

    def _lead(self, hosted: HostedPartition) -> None:
        if hosted.topic != OFFSETS_TOPIC:
            return
        present = self._led.get(hosted.partition)
        is_kept = present is not None and present.hosted is hosted and present.is_current
        if present is not None and is_kept and not present.has_failed:
            # Led on, in a newer epoch: nobody is sent away, unless there is nothing to keep.
            return
        self._give_up(hosted.partition)
        led = LedPartition(
            hosted,
            self._rules,
            self._broker.clock,
            self._broker.configs.offsets_commit_timeout_ms,
            self._broker.metadata,
            self._one_by_one,
        )
        self._led[hosted.partition] = led
        self._spawn(self._load(led), f"groups-load-{hosted.partition}")

    async def _load(self, led: LedPartition) -> None:
        """Load a partition's groups; the last of those that load at once says what all have."""
        if not self._loading:
            self._loads = Loads(self._broker.clock.monotonic_ms())
        self._loading += 1
        try:
            await led.load(self._reading)
        finally:
            self._loading -= 1
            self._loads.add(led)
            if not self._loading:
                self._loads.say(self._broker.clock.monotonic_ms())

    def _resign(self, key: TopicPartition, epoch: int) -> None:
        led = self._led.get(key.partition)
        if key.topic == OFFSETS_TOPIC and led is not None and led.since <= epoch:
            self._give_up(key.partition)

    def _give_up(self, number: int) -> None:
        led = self._led.pop(number, None)
        if led is not None:
            led.close()

    # Sweeps ------------------------------------------------------------------------------------

    async def expire_offsets(self) -> None:
        """Look at the retention of all groups that are here."""
        await self._sweep(LedPartition.expire)

    async def _expire_for_ever(self) -> None:
        while True:
            interval_ms = self._broker.configs.offsets_retention_check_interval_ms
            await asyncio.sleep(interval_ms / 1000)
            await self.expire_offsets()

    def _topic_gone(self, topic: str) -> None:
        if not self._gone:
            self._spawn(self._forget_topics(), "groups-forget-topics")
        self._gone.add(topic)

    async def _forget_topics(self) -> None:
        # A task begins in the next turn: topics that are deleted together share one sweep.
        topics, self._gone = frozenset(self._gone), set()
        await self._sweep(lambda led: led.forget_topics(topics))

    async def _sweep(self, sweep: Callable[[LedPartition], Awaitable[None]]) -> None:
        for led in list(self._led.values()):
            try:
                await sweep(led)
            except Exception:
                # A bug in one group must not end the look at all others, now and later.
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
