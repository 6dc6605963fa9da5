"""The transaction coordinator of this broker: what transactional ids add to that of any table.

Owns what it gives to the shell (``coordinator.table.TableKind``): the topic ``__transaction_state``
with the counts of ``transaction.state.log.*``, the tables of ids with their settings, their records
and errors; and that no table is loaded, no timer armed and no marker sent while transactions are
not offered: ``__transaction_state`` may be of an earlier time. Not requests and leadership: see
``coordinator.coordinator``; not one partition: see ``transaction_partition``; not what is decided:
see ``tidelog.transactions``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, cast

from tidelog.broker.coordinator.coordinator import Coordinator
from tidelog.broker.coordinator.pending_response import give
from tidelog.broker.coordinator.table import KeptTopic, Shell, TableKind
from tidelog.broker.transactions.transaction_partition import (
    Parts,
    SendsMarkers,
    TransactionPartition,
)
from tidelog.groups.placement import partition_for
from tidelog.model.effects import Answer
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TRANSACTIONS_TOPIC, TopicPartition
from tidelog.transactions import limits, records
from tidelog.transactions.events import Deadline, Event, MarkersWritten, refused
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.table import TransactionTable

if TYPE_CHECKING:
    from tidelog.broker.control_plane.producer_ids import ProducerIds
    from tidelog.broker.control_plane.topic_creation import TopicCreation
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.metadata.cluster_level import ClusterLevel
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.model.configs.server import ServerConfigs
    from tidelog.runtime.seams import Seams

Hosted = Callable[[str], Iterable["HostedPartition"]]


SETTLED_S, POLL_S = 10.0, 0.02
"""How long one call waits for what a loss leaves to do, and how often it checks that."""


class TransactionCoordinator:
    """The transactional ids of this broker. Requests go to ``coordinator``, changes of leadership
    come here."""

    def __init__(
        self,
        configs: ServerConfigs,
        seams: Seams,
        metadata: MetadataCache,
        topic_creation: TopicCreation,
        producer_ids: ProducerIds,
        level: ClusterLevel,
        hosted: Hosted,
    ) -> None:
        """``hosted`` returns the replicas of a topic here, whichever their role is."""
        self._level = level
        self._hosted = hosted
        level.when_changed.append(self._level_changed)
        self._configs = configs
        self._clock = seams.clock
        self._producer_ids = producer_ids
        self._markers: SendsMarkers | None = None
        self.coordinator = Coordinator(self._kind(), seams.clock, metadata, topic_creation)

    def lead(self, hosted: HostedPartition) -> None:
        """This broker leads a partition in a new epoch: load its table, if it keeps one."""
        if self._level.offers_transactions:
            self.coordinator.lead(hosted)

    def resign(self, key: TopicPartition, epoch: int) -> None:
        """This broker led a partition up to a leader epoch: give its table up, if any."""
        self.coordinator.resign(key, epoch)

    def _level_changed(self) -> None:
        if not self._level.offers_transactions:
            self.coordinator.resign_all()
            return
        for hosted in self._hosted(TRANSACTIONS_TOPIC):
            if hosted.leadership is not None:
                self.coordinator.lead(hosted)

    def awaits_level(self, hosted: HostedPartition) -> bool:
        """Whether what a loss leaves in a partition can be settled only once transactions are
        offered: they are not, and its log has states all the same."""
        return self._level.offers_transactions is False and hosted.end_offset > hosted.start_offset

    def when_level_changes(self, follow: Callable[[], None]) -> None:
        """Let ``follow`` be called after each change of whether transactions are offered."""
        self._level.when_changed.append(follow)

    def send_with(self, markers: SendsMarkers) -> None:
        """Let this send markers, also those of decisions that were carried out before.

        Without a sender decisions stay as they are, and are not lost.
        """
        self._markers = markers
        for led in self.coordinator.led():
            cast(TransactionPartition, led.own_part).send_soon()

    async def settled(self, hosted: HostedPartition) -> str | None:
        """Fence and abort what a partition has open after a loss of its records, once what was
        decided before is carried out (KIP-704); return None when all of that is in its log,
        otherwise why it is not.

        It goes on beside this call, which waits ``SETTLED_S`` at most, and in the next coordinator.
        While the level has no transactions, an empty log has nothing to settle, and another one
        waits for the level (``awaits_level``).
        """
        if self._level.offers_transactions is False:
            return "transactions are not offered" if self.awaits_level(hosted) else None
        coordinator, number, left = self.coordinator, hosted.partition, 0
        why = await coordinator.reloaded(hosted)
        led = coordinator.leading(number)
        if why is None and not isinstance(led, ErrorCode) and not led.table.has_lost:
            # The loss became known after the load.
            coordinator.load_again(hosted)
            why = await coordinator.reloaded(hosted)
        if why is not None:
            return why
        for _ in range(round(SETTLED_S / POLL_S)):
            led = coordinator.leading(number)
            if isinstance(led, ErrorCode):
                return f"not served: {led.name}"
            left = led.table.doubtful
            if not left:
                return None
            await asyncio.sleep(POLL_S)
        return f"{left} transactional ids are not fenced yet, or have markers to write before"

    def _kind(self) -> TableKind[TransactionTable]:
        return TableKind(
            topic=transactions_topic(self._configs),
            noun="transactional_id",
            commit_timeout_ms=limits.COMMIT_MS,
            new_table=partial(TransactionTable, settings_of(self._configs)),
            place=partition_for,
            encode=records.encode,
            refuse=refuse_event,
            tick=Deadline,
            newest_only=True,
            own_part=self._own_part,
        )

    def _own_part(self, shell: Shell[TransactionTable]) -> TransactionPartition:
        parts = Parts(
            clock=self._clock,
            next_id=self._producer_ids.next_id,
            markers=lambda: self._markers,
            spawn=self.coordinator.spawn,
        )
        return TransactionPartition(shell, parts)


def transactions_topic(configs: ServerConfigs) -> KeptTopic:
    """Return ``__transaction_state`` as it is created, with the settings of Kafka's."""
    return KeptTopic(
        TRANSACTIONS_TOPIC,
        configs.transaction_state_log_num_partitions,
        configs.transaction_state_log_replication_factor,
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(configs.transaction_state_log_min_isr),
            "segment.bytes": str(configs.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
        advice="Without it there are no transactions: start more brokers, or set "
        "transaction.state.log.replication.factor in the files of the brokers.",
    )


def settings_of(configs: ServerConfigs) -> TransactionSettings:
    """Return the settings of transactions from a server's configuration."""
    return TransactionSettings(
        transaction_max_timeout_ms=configs.transaction_max_timeout_ms,
        transactional_id_expiration_ms=configs.transactional_id_expiration_ms,
    )


def refuse_event(event: Event, error: ErrorCode) -> None:
    """Refuse an event if it is a request that waits for a response."""
    if not isinstance(event, (Deadline, MarkersWritten)):
        give(Answer(event.pending_response, refused(event, error)))
