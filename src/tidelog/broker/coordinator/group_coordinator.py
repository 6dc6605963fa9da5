"""The group coordinator of this broker: what groups add to the coordinator of any table.

Owns what it gives to the shell (``table.TableKind``): the topic ``__consumer_offsets`` (a group is
kept in partition ``groups.placement.partition_for``), the tables of groups with their settings and
their memory limit, the records and errors of groups. And what it does to all groups here: the
periodic expiry of offsets, and the removal of those of deleted topics. Not requests and leadership:
see ``coordinator``; not one partition: see ``group_partition``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from tidelog.broker.coordinator.coordinator import Coordinator
from tidelog.broker.coordinator.group_partition import GroupPartition
from tidelog.broker.coordinator.parts import InParts
from tidelog.broker.coordinator.pending_response import PendingResponse, give
from tidelog.broker.coordinator.table import KeptTopic, Shell, TableKind, Transactions
from tidelog.groups import limits, offset_columns, records
from tidelog.groups.events import EndTransaction, Event, MarkerResult, Tick, refuse
from tidelog.groups.first_sights import NO_ASSIGNMENT
from tidelog.groups.placement import partition_for
from tidelog.groups.records import FirstSight
from tidelog.groups.room import GroupRoom
from tidelog.groups.settings import GroupRules, GroupSettings
from tidelog.groups.table import GroupTable
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.effects import Answer
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC
from tidelog.runtime import pace

if TYPE_CHECKING:
    from tidelog.broker.control_plane.topic_creation import TopicCreation
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.runtime.seams import Seams

logger = logging.getLogger(__name__)

FULL_LOGGED_EVERY_MS = 60_000
"""How often the log repeats that the memory for groups is full."""


class GroupCoordinator:
    """The groups of this broker. Requests, and changes of leadership, go to ``coordinator``."""

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
        self.room = GroupRoom(lambda: [led.table for led in self.coordinator.led()])
        """The memory limit of all groups here."""
        self._log_again_ms = self._refusals_logged = 0
        self._rules = GroupRules(
            lambda: str(seams.new_uuid()), settings_of(configs), self.room, self._topic_of
        )
        self._one_by_one = pace.OneByOne(seams.clock)
        self._gone: set[str] = set()
        self.coordinator = Coordinator(self._kind(), seams.clock, metadata, topic_creation)

    def start(self) -> None:
        """Start the expiry of offsets every ``offsets.retention.check.interval.ms``; the
        coordinator's close ends it."""
        self.coordinator.spawn(self._expire_for_ever(), "groups-retention")

    # What the shell is given -------------------------------------------------------------------

    def _kind(self) -> TableKind[GroupTable]:
        return TableKind(
            topic=offsets_topic(self._configs),
            noun="group",
            commit_timeout_ms=self._configs.offsets_commit_timeout_ms,
            new_table=partial(GroupTable, self._rules),
            place=partition_for,
            encode=records.encode,
            payload_of=offset_columns.payload_of,
            one_by_one=offset_columns.one_by_one,
            transactions=Transactions(_itself, attrgetter("transaction")),
            refuse=refuse_event,
            tick=Tick,
            own_part=self._own_part,
            decided=self._log_if_full,
        )

    def _own_part(self, shell: Shell[GroupTable]) -> GroupPartition:
        return GroupPartition(shell, self._metadata, self._clock, self._one_by_one)

    def _topic_of(self, name: str) -> FirstSight | None:
        topic = self._metadata.topic(name)
        if topic is None or topic.undeleted_partition_count < 0:
            return None
        return FirstSight(topic.topic_id, topic.resize_epoch, NO_ASSIGNMENT)

    def _log_if_full(self) -> None:
        """Log that the memory for groups is full, at most once per ``FULL_LOGGED_EVERY_MS``."""
        if self.room.refused <= self._refusals_logged:
            return
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
                "groups": sum(map(len, self.coordinator.tables())),
                "held_bytes": self.room.held,
                "limit_bytes": limits.MAX_HELD_BYTES,
                "refused": refused,
            },
        )

    # Transactions ------------------------------------------------------------------------------

    def end_transaction(self, partition: int, event: EndTransaction) -> None:
        """Write a marker to a partition of ``__consumer_offsets``; its response is sent now or
        later."""
        led = self.coordinator.leading(partition)
        if isinstance(led, ErrorCode):
            give(Answer(event.pending_response, MarkerResult(ErrorCode.NONE).refused(led)))
        else:
            cast(GroupPartition, led.own_part).end_transaction(event)

    # Sweeps ------------------------------------------------------------------------------------

    async def expire_offsets(self) -> None:
        """Expire the offsets of all groups here by their retention."""
        await self._sweep(GroupPartition.expire)

    async def _expire_for_ever(self) -> None:
        while True:
            interval_ms = self._configs.offsets_retention_check_interval_ms
            await asyncio.sleep(interval_ms / 1000)
            await self.expire_offsets()

    def topic_gone(self, topic: str) -> None:
        """A topic was deleted: forget the positions in it."""
        if not self._gone:
            self.coordinator.spawn(self._forget_topics(), "groups-forget-topics")
        self._gone.add(topic)
        for led in self.coordinator.led():
            cast(GroupPartition, led.own_part).topic_gone(topic)

    async def _forget_topics(self) -> None:
        # A task starts in the next turn: topics deleted together share one sweep.
        topics, self._gone = frozenset(self._gone), set()
        await self._sweep(lambda own: own.forget_topics(topics))

    async def _sweep(self, sweep: Callable[[GroupPartition], Awaitable[None]]) -> None:
        await self.coordinator.sweep(lambda led: sweep(cast(GroupPartition, led.own_part)))


def _itself(table: GroupTable) -> GroupTable:
    return table


def offsets_topic(configs: ServerConfigs) -> KeptTopic:
    """Return ``__consumer_offsets`` as it is created: compacted, with the partitions, replicas and
    segment size of ``offsets.topic.*``."""
    return KeptTopic(
        OFFSETS_TOPIC,
        configs.offsets_topic_num_partitions,
        configs.offsets_topic_replication_factor,
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(configs.offsets_topic_segment_bytes),
        },
        advice="Without it there are no consumer groups: start more brokers, or set "
        "offsets.topic.replication.factor in the files of the brokers.",
    )


def refuse_event(event: Event | InParts, error: ErrorCode) -> None:
    """Refuse an event if it is a request that waits for a response."""
    if isinstance(event, InParts):
        event.refuse_rest(error)
        return
    result = refuse(event, error)
    pending_response = getattr(event, "pending_response", None)
    if result is not None and isinstance(pending_response, PendingResponse):
        pending_response.give(result)


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
