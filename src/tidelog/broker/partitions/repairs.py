"""Damaged replicas that are made anew from their leaders (promise 26).

Owns when that is done, and what becomes of the damaged bytes. That a log is damaged is said by
``storage``; that the replica leaves the ISR, and that its leader leads in a new epoch, is the
controller's work (heartbeats name it).

| event | what follows |
|---|---|
| recovery finds damage below the torn tail | the replica serves nothing; heartbeats name it |
| a read meets bytes that are not what was written | the same, from then on |
| a later epoch: another leads, this one is not in the ISR | set aside, an empty one follows |
| an order while it is in the ISR, or nobody leads | nothing: its bytes may be the last ones |
| an order of the epoch in which it was damaged | nothing: the leader believes that it holds more |
| the new one is in the ISR | the damaged directory is removed after a delay |

Until then, and after a restart, the damaged directory stays as ``-stray``: nothing is deleted
before there is proof that it is not needed (promise 20).
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
    from tidelog.broker.partitions.registry import Partitions

logger = logging.getLogger(__name__)


class Repairs:
    """The replicas of one broker that are being made anew."""

    def __init__(self, node_id: int, partitions: Partitions, delay_ms: int) -> None:
        """``delay_ms``: after which the damaged files go of one that is in sync again."""
        self._node_id = node_id
        self._partitions = partitions
        self._delay_ms = delay_ms
        self._quarantined: dict[TopicPartition, tuple[LogDirectory, str, UUID]] = {}
        """Where the bytes of each are, and of which life of its topic they are."""

    def is_due(self, hosted: HostedPartition, state: LeaderAndIsrState) -> bool:
        """Whether a replica is damaged, and an order lets it be made anew.

        In the leader epoch in which the damaged one followed, the leader counts on what that one
        has fetched, and a fetch of it may still be on its way: the empty one would join the ISR.
        """
        is_safe = (
            state.leader not in (-1, self._node_id)
            and self._node_id not in state.isr
            and state.leader_epoch > hosted.offline_epoch
        )
        log = hosted.log
        return log.damaged is not None and log.resources.failed is None and is_safe

    def quarantine(self, hosted: HostedPartition) -> None:
        """Keep the bytes of a damaged replica under another name; an empty one takes its place.

        Durable with ``Partitions.sync_names``. Raises StorageFailed.
        """
        key, damage = hosted.key, hosted.log.damaged
        directory, path = self._partitions.keep_aside(hosted)
        self._quarantined[key] = (directory, path, hosted.topic_id)
        logger.error(
            "%(partition)s: made anew, its bytes are kept in %(path)s: %(damage)s",
            {"partition": key, "path": path, "damage": damage},
        )

    def look(self) -> None:
        """Let go of what is not needed any more. O(replicas being made anew)."""
        for key, (directory, path, topic_id) in list(self._quarantined.items()):
            hosted = self._partitions.get(*key)
            if hosted is None:
                continue  # the empty one is not here yet, or it went: then this stays a stray
            if topic_id not in (NO_UUID, hosted.topic_id):
                del self._quarantined[key]  # of another life of the name: it stays a stray
            elif self._node_id in hosted.state.isr and hosted.offline_reason is None:
                # By LeaderAndIsr: UpdateMetadata may still tell the ISR of before the damage.
                del self._quarantined[key]
                directory.remove_later(path, self._delay_ms)
                logger.info(
                    "%(partition)s: in sync again, %(path)s goes in %(delay_ms)d ms",
                    {"partition": key, "path": path, "delay_ms": self._delay_ms},
                )
