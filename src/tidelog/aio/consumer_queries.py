"""Questions of a consumer that its subscription does not matter for: topics, offsets, commits.

Owns these methods, which ``Consumer`` inherits. Not subscription and reading: see ``consumer``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tidelog.aio.arguments import by_place, place, places, timestamp_ms, topic_name
from tidelog.aio.consumer_settings import ConsumerSettings
from tidelog.aio.consumer_types import OffsetAndMetadata, OffsetAndTimestamp
from tidelog.client.cluster import Cluster
from tidelog.client.errors import WrongState
from tidelog.client.groups.committed_offsets import committed_offsets
from tidelog.client.offsets import EARLIEST, LATEST, list_offsets
from tidelog.model.topics import INTERNAL_TOPICS, TopicPartition


class ConsumerQueries:
    """A view of one cluster with the settings of a consumer."""

    def __init__(self, settings: ConsumerSettings, cluster: Cluster | None = None) -> None:
        self.settings = settings
        self._cluster = cluster or Cluster(settings.bootstrap_servers, settings.of_cluster())
        self._is_open = False
        self._closed = False

    async def start(self) -> None:
        """Reach the cluster. Raises ClusterUnreachable. ``poll`` does this too, when needed."""
        self._refuse_closed()
        if not self._is_open:
            await self._cluster.open()
            self._is_open = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise WrongState("this consumer is closed: open another one")

    def bootstrap_connected(self) -> bool:
        """Whether the cluster was reached."""
        return self._is_open and not self._closed

    async def committed(
        self, partition: TopicPartition, metadata: bool = False
    ) -> int | OffsetAndMetadata | None:
        """Return what the group has committed in a partition; None for nothing."""
        tp = place(partition)
        await self.start()
        if self.settings.group_id is None:
            raise WrongState("a consumer without a group_id has committed nothing")
        position = (await committed_offsets(self._cluster, self.settings.group_id, [tp])).get(tp)
        if position is None:
            return None
        if not metadata:
            return position.offset
        return OffsetAndMetadata(position.offset, position.metadata, position.leader_epoch)

    async def topics(self) -> set[str]:
        """Return the names of all topics."""
        await self.start()
        return set((await self._cluster.all_topics()).topics)

    async def _matching(self, pattern: re.Pattern[str]) -> frozenset[str]:
        """Return the topics whose whole names match a pattern, the internal ones as configured."""
        names = frozenset(name for name in await self.topics() if pattern.fullmatch(name))
        return names - INTERNAL_TOPICS if self.settings.exclude_internal_topics else names

    async def fetch_partitions(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic from fresh metadata; None if there is no such topic."""
        topic_name(topic)
        await self.start()
        await self._cluster.describe([topic])
        return self.partitions_for_topic(topic)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic in the cached metadata; None if it is not there."""
        described = self._cluster.view.topics.get(topic_name(topic))
        return set(described.partitions) if described is not None and not described.error else None

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after each time (ms); None where there is none."""
        wanted = {tp: timestamp_ms(time) for tp, time in by_place(timestamps, "timestamps").items()}
        await self.start()
        offsets = await list_offsets(self._cluster, wanted, isolation=self.settings.isolation)
        return {
            tp: None
            if offset.offset < 0
            else OffsetAndTimestamp(offset.offset, offset.timestamp, offset.leader_epoch)
            for tp, offset in offsets.items()
        }

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return where the logs of partitions begin."""
        return await self._offsets(dict.fromkeys(places(partitions), EARLIEST))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where the logs of partitions end, by the isolation level."""
        return await self._offsets(dict.fromkeys(places(partitions), LATEST))

    async def _offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        await self.start()
        offsets = await list_offsets(self._cluster, wanted, isolation=self.settings.isolation)
        return {tp: offset.offset for tp, offset in offsets.items()}
