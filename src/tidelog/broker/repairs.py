"""Damaged replicas that are made anew from their leaders (promise 26).

Owns when that is done, and what becomes of the damaged bytes. That a log is damaged is said by
``storage``; that the replica leaves the ISR is the controller's work (heartbeats name it), which
repeats its order to one that is not in it.

| event | what follows |
|---|---|
| recovery finds damage below the torn tail | the replica serves nothing; heartbeats name it |
| a read meets bytes that are not what was written | the same, from then on |
| an order: another broker leads, this one is not in the ISR | set aside, an empty one follows |
| an order while it is in the ISR, or nobody leads | nothing: its bytes may be the last ones |
| the new one is in the ISR | the damaged directory is removed after a delay |

Until then, and after a restart, the damaged directory stays as ``-stray``: nothing is deleted
before there is proof that it is not needed (promise 20).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidelog.broker.partition import HostedPartition, PartitionState
from tidelog.model.topics import TopicPartition
from tidelog.replication.control import LeaderAndIsrOrder
from tidelog.storage.directory import LogDirectory

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

logger = logging.getLogger(__name__)


class Repairs:
    """The replicas of one broker that are being made anew."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._set_aside: dict[TopicPartition, tuple[LogDirectory, str]] = {}

    def is_told_again(self, hosted: HostedPartition | None, order: LeaderAndIsrOrder) -> bool:
        """Whether an order says what is known, to a replica that was damaged since it was heard.

        Who is out of the ISR already hears of no change when its damage is named.
        """
        return (
            hosted is not None
            and hosted.log.damaged is not None
            and (order.leader_epoch, order.isr_version) == (hosted.leader_epoch, hosted.isr_version)
        )

    def for_order(self, hosted: HostedPartition, state: PartitionState) -> HostedPartition:
        """Return the replica that is to obey an order: a fresh one in the place of a damaged one.

        Raises StorageFailed.
        """
        broker = self._broker
        damage = hosted.log.damaged
        is_safe = state.leader not in (-1, broker.node_id) and broker.node_id not in state.isr
        if damage is None or hosted.log.resources.failed is not None or not is_safe:
            return hosted
        key = hosted.key
        fresh, directory, path = broker.partitions.replace(hosted, state)
        self._set_aside[key] = (directory, path)
        logger.error(
            "%s: made anew from broker %d, its bytes are kept in %s: %s",
            key,
            state.leader,
            path,
            damage,
        )
        return fresh

    def look(self) -> None:
        """Let go of what is not needed any more. O(replicas being made anew)."""
        broker = self._broker
        for key, (directory, path) in list(self._set_aside.items()):
            hosted = broker.partitions.get(*key)
            if hosted is None:
                del self._set_aside[key]  # deleted or moved away meanwhile: it stays a stray
            elif broker.node_id in hosted.state.isr and hosted.offline_reason is None:
                # By LeaderAndIsr: UpdateMetadata may still tell the ISR of before the damage.
                del self._set_aside[key]
                delay_ms = broker.configs.stale_partition_delete_delay_ms
                directory.remove_later(path, delay_ms)
                logger.info("%s: in sync again, %s goes in %d ms", key, path, delay_ms)
