"""New replicas of this broker: the log of each, in a log directory that has room for it.

Owns where a replica is created, what names its directory, and which former replicas it replaces.
Not the order of the directories: see ``placement``; not which replicas there should be: see
``registry``.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tidelog.broker.partitions.placement import DirectorySpace, choices
from tidelog.broker.partitions.state import LeaderAndIsrState, StorageFailed
from tidelog.model.topics import TopicPartition
from tidelog.protocol.primitives import NO_UUID
from tidelog.storage.checkpoints import Created, PartitionMetadata

if TYPE_CHECKING:
    from tidelog.broker.metadata.configurations import ConfigCache
    from tidelog.storage.directory.log_directory import LogDirectory
    from tidelog.storage.log.partition_log import PartitionLog

MOST_PREFERRED = 10_000
"""Replicas to be created whose directory is remembered: the oldest ones are forgotten."""


class NewReplicas:
    """Creates the replicas of one broker. Used on the event loop only."""

    def __init__(self, directories: Sequence[LogDirectory], configs: ConfigCache) -> None:
        self._directories = directories
        self._configs = configs
        self._preferred: dict[TopicPartition, LogDirectory] = {}
        """Where replicas are to be created, as a client has asked for."""
        self._refused: dict[LogDirectory, int] = {}
        """Free bytes of a directory when it last refused a new replica for lack of space."""
        self._must_not_return: dict[TopicPartition, set[Created]] = {}
        """Replicas on failing disks that a later start may find, and must not host."""
        self._made = 0
        """Number of replicas created since the start of this broker."""

    def create(self, key: TopicPartition, state: LeaderAndIsrState) -> PartitionLog:
        """Create a log where there is room. O(directories that refuse it). Raises StorageFailed."""
        healthy = [one for one in self._directories if one.failed is None]
        if not healthy:
            raise StorageFailed("every log directory has failed")
        refusals = []
        # The only one needs no comparison of free bytes, which asks the disk twice.
        order = choices(map(self._room, healthy)) if len(healthy) > 1 else [0]
        preferred = self._preferred.pop(key, None)
        if preferred in healthy:
            order = [healthy.index(preferred), *order]
        for place in order:
            directory = healthy[place]
            try:
                log = directory.create(
                    key,
                    self._configs.topic(key.topic),
                    self._metadata_for(key, state, directory),
                    start_offset=max(0, state.start_offset),
                )
            except OSError as error:
                refusals.append(f"{directory.path} cannot take {key}: {error}")
                if directory.resources.refused_for(error) is None:
                    directory.resources.fail(refusals[-1])
                    break
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    self._refused[directory] = self._room(directory).free_bytes
                continue
            self._refused.pop(directory, None)
            return log
        raise StorageFailed("; ".join(refusals))

    def _metadata_for(
        self, key: TopicPartition, state: LeaderAndIsrState, directory: LogDirectory
    ) -> PartitionMetadata | None:
        if state.topic_id == NO_UUID:
            return None
        return PartitionMetadata(
            state.topic_id,
            state.partition_epoch,
            self._configs.own(key.topic),
            birth_epoch=state.birth_epoch,
            created=self.new_created(directory),
            replaces=tuple(sorted(self._must_not_return.get(key, ()))),
        )

    def new_created(self, directory: LogDirectory) -> Created:
        """Return what names the next directory of a replica that is made."""
        self._made += 1
        return directory.now_ms(), self._made

    def prefer(self, key: TopicPartition, directory: LogDirectory) -> None:
        """Create a replica in this directory, if it is created before the broker stops."""
        self._preferred.pop(key, None)
        self._preferred[key] = directory
        if len(self._preferred) > MOST_PREFERRED:
            del self._preferred[next(iter(self._preferred))]

    def _room(self, directory: LogDirectory) -> DirectorySpace:
        replicas, refused_at = len(directory.logs), self._refused.get(directory)
        is_cordoned = self._configs.is_cordoned(directory.path)
        try:
            free, total = directory.free_bytes(), directory.total_bytes()
        except OSError:
            free, total = 0, 1  # unknown space: tried last
        return DirectorySpace(replicas, free, total, refused_at, is_cordoned)

    def also_replaces(self, key: TopicPartition, former: Iterable[Created]) -> None:
        """Have the next replica of a partition record that it replaces these."""
        self._must_not_return.setdefault(key, set()).update(former)
