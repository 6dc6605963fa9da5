"""The pipeline's blocking access to the brokers, through `tidelog.client`.

Owns one connected cluster per process and bootstrap list (Spark reuses Python workers, so
connections outlive a task), and how many lookups a conclusion about the log needs. Not a single
lookup: see `lookups`. Uses plain Kafka requests; the client retries them, and lookups of offsets
are repeated by the options fetchOffset.*.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from tidelog.client.admin.configs import describe_topics_configs
from tidelog.client.blocking import BlockingCluster
from tidelog.client.cluster import ClusterSettings
from tidelog.client.errors import ClientError, Refused
from tidelog.client.fences import FormerIncarnation, describe_former
from tidelog.client.fetching.batches import Fetched
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.groups.committed_offsets import Position, commit_offsets, committed_offsets
from tidelog.client.offsets import EARLIEST, LATEST, IsolationLevel, list_offsets
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.lookups import ClusterLookup, look_up, topic_id
from tidelog.pipeline.options import Gates, OnBadRecord, SourceOptions
from tidelog.pipeline.planning.losses import judge
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.ranges import OffsetRange
from tidelog.pipeline.planning.snapshot import Snapshot
from tidelog.pipeline.resized_topics import FenceCache, FormerCache, was_resized

# A task fetches more at a time than Kafka's consumer (1 MiB): its batches become Arrow batches.
PARTITION_BYTES = 4 << 20
_POLICY = "cleanup.policy"
# The most brokers through which a doubtful lookup is repeated.
_MOST_LOOKUPS = 5

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
        # A wrong address should fail in less than a minute.
        self._client = BlockingCluster(
            bootstrap, settings, open_timeout_ms=settings.request_timeout_ms
        )
        self._cluster = self._client.cluster
        self._former = FormerCache()
        self._fences = FenceCache()

    def snapshot(self, options: SourceOptions) -> Snapshot:
        """All partitions that a query reads, each with both ends.

        Raises PipelineError when a topic that the query names does not exist, ClientError when
        something cannot be read; both after fetchOffset.numRetries.
        """
        budget_ms = _budget_ms(options)
        lookup = self._look_up(options, Positions(), timeout_ms=budget_ms)
        for _ in range(options.offset_retries):
            if lookup.problem() is None:
                break
            time.sleep(options.offset_retry_interval_ms / 1000)
            lookup = self._look_up(options, Positions(), timeout_ms=budget_ms)
        if (problem := lookup.problem()) is not None:
            raise PipelineError(problem)
        return lookup.snapshot

    def glance(self, options: SourceOptions) -> Snapshot:
        """The log in one lookup, without partitions that cannot be read. Raises ClientError."""
        interval_ms = max(1, options.offset_retry_interval_ms)
        return self._look_up(options, Positions(), timeout_ms=interval_ms).snapshot

    def settled(self, options: SourceOptions, positions: Positions) -> Snapshot:
        """The current log for a query with positions; lookups are repeated when a loss is in doubt.

        A loss that one broker reports is proven when all lookups repeat it, through two brokers of
        the cluster (or the only one). A lookup with older metadata than the positions is repeated
        through other brokers until one is as new. Raises ClientError when no broker responds,
        PipelineError when the options name a topic or partition that does not exist. Each lookup
        may take as long as the options fetchOffset.* allow.
        """
        budget_ms = _budget_ms(options)
        lookup = self._look_up(options, positions, timeout_ms=budget_ms)
        doubts = _doubts(lookup, positions)
        if not doubts.any:
            return lookup.snapshot
        time.sleep(options.offset_retry_interval_ms / 1000)
        wanted = max(1, min(2, len(self._cluster.view.brokers)))

        def is_enough(attempts: Sequence[ClusterLookup]) -> bool:
            still = doubts.in_all(attempts, positions)
            if not _doubts(attempts[-1], positions).any:
                return True
            return len(attempts) >= (wanted if still.lost or still.missing else _MOST_LOOKUPS)

        attempts = self._client.call(
            self._cluster.ask_several(
                lambda node_id: self._looked_up(options, positions, node_id, budget_ms),
                is_enough,
                fewest=wanted,
            )
        )
        last = attempts[-1] if attempts else lookup
        if len(attempts) < wanted or not _doubts(last, positions).any:
            return last.snapshot
        still = doubts.in_all(attempts, positions)
        if still.missing:
            raise PipelineError(min(still.missing))
        return replace(last.snapshot, proven=frozenset(still.lost))

    def offsets_at(self, times: Mapping[Pid, int], options: SourceOptions) -> dict[Pid, int]:
        """The first offset at or after a time (ms) in each partition; -1 where there is none."""
        wanted = {TopicPartition(pid.topic, pid.partition): when for pid, when in times.items()}

        async def ask() -> dict[Pid, int]:
            listed = await list_offsets(self._cluster, wanted, isolation=isolation(options))
            return {pid: listed[TopicPartition(pid.topic, pid.partition)].offset for pid in times}

        return self._retried(options, ask)

    def topic_id(self, topic: str, options: SourceOptions) -> str:
        """The id of a topic as it is now; empty when it is gone or the cluster has none."""
        return self._retried(options, lambda: topic_id(self._cluster, topic)) or ""

    def was_replaced(self, topic: str, planned_id: str, options: SourceOptions) -> str | None:
        """The id that a topic has instead of the known one, "" for none; None if it is the same.

        The report of one broker is not enough, unless it is the only one.
        """
        now = self._retried(options, lambda: topic_id(self._cluster, topic))
        if not planned_id or now in ("", planned_id):
            return None
        wanted = min(2, len(self._cluster.view.brokers))
        answers = self._client.call(
            self._cluster.ask_several(
                partial(topic_id, self._cluster, topic),
                lambda answers: answers[-1] in ("", planned_id) or len(answers) >= wanted,
                fewest=wanted,
            )
        )
        if answers and answers[-1] in ("", planned_id):
            return None
        if len(answers) < wanted:
            raise ClientError(f"topic {topic}: too few brokers return its topic id")
        return answers[-1] or ""

    def existing(self, topics: Collection[str], options: SourceOptions) -> dict[str, str]:
        """The ids of the topics that exist; empty ones on a cluster without topic ids.

        A topic is missing only when none of the repeated lookups found it.
        """
        missing = set(topics)
        ids: dict[str, str] = {}
        for attempt in range(options.offset_retries + 1):
            if attempt and missing:
                time.sleep(options.offset_retry_interval_ms / 1000)
            if missing:
                ids |= self._retried(options, partial(self._existing, sorted(missing)))
                missing -= ids.keys()
        return ids

    def policies(self, topics: Collection[str], options: SourceOptions) -> dict[str, str]:
        """cleanup.policy of topics. Raises Refused for a topic that cannot be described."""

        async def ask() -> dict[str, str]:
            described = await describe_topics_configs(self._cluster, sorted(topics), [_POLICY])
            policies = {}
            for topic, entries in described.items():
                if isinstance(entries, Refused):
                    raise entries
                policies[topic] = next((entry.value or "" for entry in entries), "")
            return policies

        return self._retried(options, ask)

    def bounds(self, pid: Pid, options: SourceOptions, *, readable: bool = True) -> tuple[int, int]:
        """The log start and the readable end of a partition; its whole end if not `readable`."""
        partition = TopicPartition(pid.topic, pid.partition)
        level = isolation(options) if readable else IsolationLevel.READ_UNCOMMITTED

        async def ask() -> tuple[int, int]:
            start, end = [
                (await list_offsets(self._cluster, {partition: end}, isolation=level))[partition]
                for end in (EARLIEST, LATEST)
            ]
            return start.offset, end.offset

        return self._retried(options, ask)

    def ask_who_leads(self, pid: Pid, options: SourceOptions) -> bool:
        """Ask several brokers for the leader of a partition: the newest epoch counts. Returns
        whether the leader changed.

        A deposed leader that is partitioned from the cluster names itself until it reconnects.
        """
        partition = TopicPartition(pid.topic, pid.partition)
        listed = self._cluster.view.partition(partition)
        self._client.call(
            self._cluster.ask_several(
                lambda node_id: self._cluster.describe(
                    [pid.topic], node_id=node_id, timeout_ms=_budget_ms(options)
                ),
                lambda _: False,
                fewest=1,
                most=_MOST_LOOKUPS,
            )
        )
        now = self._cluster.view.partition(partition)
        return now is not None and (listed is None or now.leader != listed.leader)

    def committed(self, options: SourceOptions, snapshot: Snapshot) -> dict[Pid, int]:
        """The committed offsets of the query's group; partitions without one are omitted."""
        group = options.group_id
        assert group is not None, "startingOffsets=group is refused without kafka.group.id"
        pids = {TopicPartition(pid.topic, pid.partition): pid for pid in snapshot.partitions}

        async def ask() -> dict[Pid, int]:
            committed = await committed_offsets(self._cluster, group, pids)
            return {
                pids[partition]: position.offset
                for partition, position in committed.items()
                if partition in pids
            }

        return self._retried(options, ask)

    def commit(self, group: str, positions: Positions, timeout_s: float | None = None) -> None:
        """Commit positions to a group from outside; allowed while the group has no members."""
        wanted = {
            TopicPartition(pid.topic, pid.partition): Position(offset, positions.epoch(pid))
            for pid, offset in positions.at.items()
        }
        timeout_ms = None if timeout_s is None else int(timeout_s * 1000)
        self._client.call(commit_offsets(self._cluster, group, wanted, timeout_ms=timeout_ms))

    def fences(
        self, pid: Pid, resize_epoch: int, options: SourceOptions
    ) -> tuple[tuple[int, int], ...]:
        """Fences and seals of a partition as (offset, resize epoch); none if never resized.

        `resize_epoch`: one that the topic is known to have reached.
        """
        partition = TopicPartition(pid.topic, pid.partition)
        ask = partial(self._fences.of, self._cluster, partition, resize_epoch, _budget_ms(options))
        return self._retried(options, ask)

    def former(self, pid: Pid, options: SourceOptions) -> FormerIncarnation | None:
        """Where a partition that metadata do not list ended; None while it is listed, or of a topic
        that was never resized. The metadata are those of the last request."""
        topic = self._cluster.view.topics.get(pid.topic)
        if topic is None or pid.partition in topic.partitions or not was_resized(topic):
            return None

        async def ask() -> FormerIncarnation | None:
            described = await describe_former(
                self._cluster, [pid.topic], timeout_ms=_budget_ms(options)
            )
            return described.get(TopicPartition(pid.topic, pid.partition))

        return self._retried(options, ask)

    def fetch(
        self, part: OffsetRange, options: SourceOptions, epoch: int = -1
    ) -> Iterator[Fetched]:
        """Whole batches that cover a range, prefetched.

        `epoch`: the leader epoch of the record before the range, -1 if unknown. Raises the client's
        OffsetOutOfRange when the log does not have the position, LogTruncated when it was truncated
        below it.
        """
        defaults = FetchOptions()
        partition = TopicPartition(part.pid.topic, part.pid.partition)
        return self._client.read_ranges(
            {partition: (part.start, part.end)},
            epochs={partition: epoch},
            isolation=isolation(options),
            options=FetchOptions(
                max_wait_ms=number(options, "fetch.max.wait.ms", defaults.max_wait_ms),
                max_bytes=number(options, "fetch.max.bytes", defaults.max_bytes),
                partition_bytes=number(options, "max.partition.fetch.bytes", PARTITION_BYTES),
                former_formats=options.on_bad_record is OnBadRecord.QUARANTINE,
            ),
            idle_timeout_ms=options.poll_timeout_ms,
        )

    async def _existing(self, topics: list[str]) -> dict[str, str]:
        ids = {name: await topic_id(self._cluster, name) for name in topics}
        return {name: topic_id for name, topic_id in ids.items() if topic_id is not None}

    def _look_up(
        self, options: SourceOptions, positions: Positions, *, timeout_ms: int
    ) -> ClusterLookup:
        return self._client.call(self._looked_up(options, positions, None, timeout_ms))

    def _looked_up(
        self, options: SourceOptions, positions: Positions, node_id: int | None, timeout_ms: int
    ) -> Coroutine[Any, Any, ClusterLookup]:
        return look_up(
            self._cluster,
            options.subscription,
            isolation(options),
            positions,
            former=self._former,
            gates=options.gates is Gates.BATCH,
            node_id=node_id,
            timeout_ms=timeout_ms,
        )

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


def _budget_ms(options: SourceOptions) -> int:
    """The time limit of one lookup."""
    return max(1, (options.offset_retries + 1) * options.offset_retry_interval_ms)


class _Doubts(NamedTuple):
    """The positions that one lookup reports as lost, what else is missing, and whether its metadata
    is older than the positions."""

    lost: set[Pid]
    missing: set[str]
    is_behind: bool

    @property
    def any(self) -> bool:
        return bool(self.lost or self.missing or self.is_behind)

    def in_all(self, attempts: Iterable[ClusterLookup], positions: Positions) -> _Doubts:
        """What these lookups report as well."""
        others = [_doubts(attempt, positions) for attempt in attempts]
        lost = self.lost.intersection(*(other.lost for other in others))
        missing = self.missing.intersection(*(other.missing for other in others))
        return _Doubts(lost, missing, self.is_behind)


def _doubts(lookup: ClusterLookup, positions: Positions) -> _Doubts:
    snapshot = lookup.snapshot
    judged = judge(positions.with_ids(snapshot.topic_ids), snapshot)
    return _Doubts(judged.doubted, lookup.missing_besides(positions), bool(judged.behind))
