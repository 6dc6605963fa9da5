"""The pipeline's way to the brokers: `tidelog.client` behind calls that block.

Owns one connected cluster per process and bootstrap list; Spark reuses Python workers, so
connections outlive a task. Speaks plain Kafka; retries are the client's and, for
look-ups of offsets, those of the options fetchOffset.*.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from tidelog.client.admin.configs import describe_topics_configs
from tidelog.client.batches import Fetched
from tidelog.client.blocking import BlockingCluster
from tidelog.client.cluster import ClusterSettings
from tidelog.client.errors import ClientError, Refused
from tidelog.client.fetch_requests import FetchOptions
from tidelog.client.group_offsets import Position, commit_offsets, committed_offsets
from tidelog.client.metadata import Topic
from tidelog.client.offsets import EARLIEST, LATEST, IsolationLevel, list_offsets
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import INTERNAL_TOPICS, TopicPartition
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.options import SourceOptions
from tidelog.pipeline.places import SubscriptionKind
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.ranges import OffsetRange
from tidelog.pipeline.planning.snapshot import PartitionState, Snapshot

# A task asks for more at a time than Kafka's consumer (1 MiB): its batches become Arrow batches.
PARTITION_BYTES = 4 << 20
_POLICY = "cleanup.policy"

Result = TypeVar("Result")

_lock = threading.Lock()
_clusters: dict[tuple[int, str, str, int], Brokers] = {}


def connect(options: SourceOptions) -> Brokers:
    """The brokers of a query, connected at most once per process."""
    client_id = options.client_properties.get("client.id", "tidelog-spark")
    timeout_ms = number(options, "request.timeout.ms", ClusterSettings().request_timeout_ms)
    # A forked worker must not use its parent's thread.
    key = (os.getpid(), options.bootstrap_servers, client_id, timeout_ms)
    with _lock:
        if key not in _clusters:
            settings = ClusterSettings(client_id=client_id, request_timeout_ms=timeout_ms)
            _clusters[key] = Brokers(options.bootstrap_servers, settings)
        return _clusters[key]


def number(options: SourceOptions, name: str, default: int) -> int:
    """A numeric client property; `options.parse` has checked it."""
    return int(options.client_properties.get(name, default))


class Brokers:
    """One cluster. All methods block and raise ClientError or PipelineError."""

    def __init__(self, bootstrap: str, settings: ClusterSettings) -> None:
        # A wrong address should not cost a minute before it is named.
        self._client = BlockingCluster(
            bootstrap, settings, open_timeout_ms=settings.request_timeout_ms
        )
        self._cluster = self._client.cluster

    def snapshot(self, options: SourceOptions) -> Snapshot:
        """The partitions that a query reads: metadata first, then both ends of each.

        Raises PipelineError when a topic that the query names does not exist.
        """
        return self._retried(options, lambda: self._snapshot(options))

    def offsets_at(self, times: Mapping[Pid, int], options: SourceOptions) -> dict[Pid, int]:
        """The first offset at or after a time (ms) in each partition; -1 where there is none."""
        wanted = {TopicPartition(pid.topic, pid.partition): at for pid, at in times.items()}

        async def ask() -> dict[Pid, int]:
            found = await list_offsets(self._cluster, wanted, isolation=isolation(options))
            return {pid: found[TopicPartition(pid.topic, pid.partition)].offset for pid in times}

        return self._retried(options, ask)

    def topic_id(self, topic: str, options: SourceOptions) -> str:
        """The id of a topic as it is now; empty when it is gone or the cluster has none."""

        async def ask() -> str:
            found = (await self._cluster.describe([topic])).topics.get(topic)
            return "" if found is None or found.error else _id_text(found)

        return self._retried(options, ask)

    def existing(self, topics: Collection[str], options: SourceOptions) -> dict[str, str]:
        """The ids of those topics that there are; empty ones on a cluster that has none.

        A topic is missing only when no look found it, so often as offsets are looked up again.
        """
        missing = set(topics)
        found: dict[str, str] = {}
        for attempt in range(options.offset_retries + 1):
            if attempt and missing:
                time.sleep(options.offset_retry_interval_ms / 1000)
            if missing:
                found |= self._retried(options, partial(self._existing, sorted(missing)))
                missing -= found.keys()
        return found

    def policies(self, topics: Collection[str], options: SourceOptions) -> dict[str, str]:
        """cleanup.policy of topics. Raises Refused for one whose configuration is not told."""

        async def ask() -> dict[str, str]:
            told = await describe_topics_configs(self._cluster, sorted(topics), [_POLICY])
            policies = {}
            for topic, entries in told.items():
                if isinstance(entries, Refused):
                    raise entries
                policies[topic] = next((each.value or "" for each in entries), "")
            return policies

        return self._retried(options, ask)

    def bounds(self, pid: Pid, options: SourceOptions) -> tuple[int, int]:
        """The log start and the readable end of a partition."""
        partition = TopicPartition(pid.topic, pid.partition)

        async def ask() -> tuple[int, int]:
            start, end = await self._ends([partition], options)
            return start[partition], end[partition]

        return self._retried(options, ask)

    def committed(self, options: SourceOptions, snapshot: Snapshot) -> dict[Pid, int]:
        """What the group of the query has committed; partitions without an offset are left out."""
        group = options.group_id
        assert group is not None, "startingOffsets=group is refused without kafka.group.id"
        pids = {TopicPartition(pid.topic, pid.partition): pid for pid in snapshot.partitions}

        async def ask() -> dict[Pid, int]:
            found = await committed_offsets(self._cluster, group, pids)
            return {
                pids[partition]: position.offset
                for partition, position in found.items()
                if partition in pids
            }

        return self._retried(options, ask)

    def commit(self, group: str, positions: Positions) -> None:
        """Commit positions to a group from outside; allowed while the group has no members."""
        wanted = {
            TopicPartition(pid.topic, pid.partition): Position(offset)
            for pid, offset in positions.at.items()
        }
        self._client.call(commit_offsets(self._cluster, group, wanted))

    def fetch(self, part: OffsetRange, options: SourceOptions) -> Iterator[Fetched]:
        """Whole batches that cover a range, fetched ahead of the reader.

        Raises OffsetOutOfRange (of the client) where the log does not have the position.
        """
        defaults = FetchOptions()
        return self._client.read_ranges(
            {TopicPartition(part.pid.topic, part.pid.partition): (part.start, part.end)},
            isolation=isolation(options),
            options=FetchOptions(
                max_wait_ms=number(options, "fetch.max.wait.ms", defaults.max_wait_ms),
                max_bytes=number(options, "fetch.max.bytes", defaults.max_bytes),
                partition_bytes=number(options, "max.partition.fetch.bytes", PARTITION_BYTES),
            ),
            idle_timeout_ms=options.poll_timeout_ms,
        )

    async def _snapshot(self, options: SourceOptions) -> Snapshot:
        topics = await self._topics(options)
        ids = {name: _id_text(topic) for name, topic in topics.items()}
        partitions = [
            TopicPartition(name, index)
            for name, topic in topics.items()
            for index in topic.partitions
            if options.subscription.chooses(name, index)
        ]
        starts, ends = await self._ends(partitions, options)
        states = {
            Pid(each.topic, each.partition): PartitionState(starts[each], ends[each])
            for each in partitions
        }
        return Snapshot(ids, states)

    async def _existing(self, topics: list[str]) -> dict[str, str]:
        found = {}
        for name, topic in (await self._cluster.describe(topics)).topics.items():
            if not topic.error:
                found[name] = _id_text(topic)
            elif topic.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise Refused(topic.error, f"topic {name}")
        return found

    async def _topics(self, options: SourceOptions) -> dict[str, Topic]:
        subscription = options.subscription
        named = subscription.named_topics()
        view = await self._cluster.describe(named)
        if named is None:
            chosen = {
                name: topic
                for name, topic in view.topics.items()
                if subscription.chooses(name, 0) and name not in INTERNAL_TOPICS
            }
            if not chosen:
                raise PipelineError(f"no topic matches the pattern {subscription.pattern}")
            return chosen
        topics = {}
        for name in named:
            topic = view.topics.get(name)
            if topic is None or topic.error:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error
                raise PipelineError(f"topic {name} cannot be read: {ErrorCode(code).name}")
            if subscription.kind is SubscriptionKind.ASSIGN:
                for index in subscription.assigned[name]:
                    if index not in topic.partitions:
                        raise PipelineError(
                            f"option assign names {name}-{index}, which is not there"
                        )
            topics[name] = topic
        return topics

    async def _ends(
        self, partitions: list[TopicPartition], options: SourceOptions
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        level = isolation(options)
        both = [
            await list_offsets(self._cluster, dict.fromkeys(partitions, where), isolation=level)
            for where in (EARLIEST, LATEST)
        ]
        starts, ends = ({each: found.offset for each, found in side.items()} for side in both)
        return starts, ends

    def _retried(
        self, options: SourceOptions, ask: Callable[[], Coroutine[Any, Any, Result]]
    ) -> Result:
        for _ in range(options.offset_retries):
            try:
                return self._client.call(ask())
            except ClientError:
                time.sleep(options.offset_retry_interval_ms / 1000)
        return self._client.call(ask())


def isolation(options: SourceOptions) -> IsolationLevel:
    """The client's word for kafka.isolation.level."""
    if options.read_committed:
        return IsolationLevel.READ_COMMITTED
    return IsolationLevel.READ_UNCOMMITTED


def _id_text(topic: Topic) -> str:
    """A topic id as text; empty for a cluster that has none."""
    return str(topic.topic_id) if topic.topic_id.int else ""
