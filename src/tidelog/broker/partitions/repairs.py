"""Repair of damaged replicas: each is rebuilt from its leader (promise 26).

Owns when a rebuild starts, and when the damaged files are removed. Not the detection of damage: see
``storage``. The controller removes the replica from the ISR and starts a new leader epoch:
heartbeats report the damage.

| event | what follows |
|---|---|
| recovery finds damage below the torn tail | the replica is not served; heartbeats report it |
| a read finds bytes that differ from the written ones | the same, from that read on |
| a later epoch: another leader, this one not in the ISR | quarantine; an empty replica follows |
| a command while it is in the ISR, or without a leader | none: its bytes may be the last ones |
| a command of the leader epoch in which it was damaged | none: the leader counts what it fetched |
| the new replica is in the ISR, by a newer state | the damaged directory is removed after a delay |

Until then, and after a restart, the damaged directory stays as ``-stray``: no data is deleted
without proof that it is not needed (promise 20).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.broker.partitions.partition import HostedPartition, LeaderAndIsrState
from tidelog.model.topics import TopicPartition
from tidelog.protocol.primitives import NO_UUID
from tidelog.storage.directory.log_directory import LogDirectory

if TYPE_CHECKING:
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.partitions.registry import Partitions

logger = logging.getLogger(__name__)


class Repairs:
    """The replicas of one broker that are being rebuilt."""

    def __init__(
        self, node_id: int, partitions: Partitions, metadata: MetadataCache, delay_ms: int
    ) -> None:
        """``delay_ms``: how long damaged files stay after their replica is in sync again."""
        self._node_id = node_id
        self._partitions = partitions
        self._metadata = metadata
        self._delay_ms = delay_ms
        self._quarantined: dict[TopicPartition, tuple[LogDirectory, str, UUID]] = {}
        """Directory, path and topic id of the damaged files of each."""

    def is_due(self, hosted: HostedPartition, state: LeaderAndIsrState) -> bool:
        """Whether a replica is damaged, and a command with ``state`` allows to rebuild it.

        In the leader epoch in which the damaged replica followed, the leader counts the records
        that it fetched, and a fetch of it may be under way: the empty one would join the ISR.
        """
        is_safe = (
            state.leader not in (-1, self._node_id)
            and self._node_id not in state.isr
            and state.leader_epoch > hosted.offline_epoch
        )
        log = hosted.log
        return log.damaged is not None and log.resources.failed is None and is_safe

    def quarantine(self, hosted: HostedPartition) -> None:
        """Move a damaged replica to another directory name; an empty one takes its place.

        Durable with ``Partitions.syncing_names``. Raises StorageFailed.
        """
        key, damage = hosted.key, hosted.log.damaged
        directory, path = self._partitions.quarantine_for_repair(hosted)
        self._quarantined[key] = (directory, path, hosted.topic_id)
        logger.error(
            "%(partition)s: rebuilding from its leader; the damaged files are kept in %(path)s: "
            "%(damage)s",
            {"partition": key, "path": path, "damage": damage},
        )

    def check(self) -> None:
        """Remove the damaged files of rebuilt replicas. O(replicas being rebuilt)."""
        for key, (directory, path, topic_id) in list(self._quarantined.items()):
            hosted = self._partitions.get(*key)
            if hosted is None:
                continue  # not created yet, or removed again: then the files stay a stray
            if _differ(topic_id, hosted.topic_id):
                del self._quarantined[key]  # of another topic of the name: they stay a stray
            elif hosted.offline_reason is None and self._is_in_sync(hosted):
                del self._quarantined[key]
                directory.remove_later(path, self._delay_ms)
                logger.info(
                    "%(partition)s: in sync again, %(path)s will be removed in %(delay_ms)d ms",
                    {"partition": key, "path": path, "delay_ms": self._delay_ms},
                )

    def _is_in_sync(self, hosted: HostedPartition) -> bool:
        """Whether this replica is in the ISR, as far as this broker knows.

        A follower gets no LeaderAndIsr when it joins the ISR. Metadata says it too, but only where
        it is newer than the last command: it may still have the ISR before the damage.
        """
        if self._node_id in hosted.state.isr:
            return True
        shown = self._metadata.partition(*hosted.key)
        return (
            shown is not None
            and shown.isr_version > hosted.state.isr_version
            and self._node_id in shown.isr
            and not _differ(self._metadata.id_of(hosted.key.topic), hosted.topic_id)
        )


def _differ(one: UUID, other: UUID) -> bool:
    """Whether two ids are of different topics. Below level 1.4 requests name no ids, and a replica
    that is created there has none."""
    return NO_UUID not in (one, other) and one != other
