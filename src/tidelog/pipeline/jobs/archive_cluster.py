"""The archive job's further requests to the cluster: cleanup policies, and commits of a group.

Owns that neither delays a batch: each call has a short deadline, and a failed call is not repeated
at once. Neither is needed for exactly-once, which follows from the lake alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from tidelog.client.admin.configs import describe_topics_configs, values_of
from tidelog.client.blocking import BlockingCluster
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ClientError
from tidelog.client.groups.committed_offsets import Position, commit_offsets
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.lake.offsets import Offset, dropped, ends, leader_epochs
from tidelog.pipeline.options import SourceOptions

_log = logging.getLogger(__name__)

DEADLINE_S = 2.0
LAST_DEADLINE_S = 5.0
# After a call that failed, so long nothing is asked; and so long a policy is taken to hold.
PAUSE_S = 30.0

_POLICY = "cleanup.policy"
Result = TypeVar("Result")


class ArchiveCluster:
    """The cluster of one run of the job; connects when it is first needed."""

    def __init__(self, options: SourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._client: BlockingCluster | None = None
        self._silent_until = self._policies_until = float("-inf")
        self._policies: dict[str, str] = {}
        self._asked: tuple[str, ...] = ()
        self._committed: Offset | None = None

    def policies(self, topics: Sequence[str]) -> Mapping[str, str]:
        """cleanup.policy of each topic, at most PAUSE_S old; without those that are not known."""
        if tuple(topics) != self._asked or self._clock() >= self._policies_until:
            described = self._ask(
                lambda cluster: describe_topics_configs(cluster, topics, [_POLICY]), DEADLINE_S
            )
            # What may have changed meanwhile is not known any more.
            self._policies = values_of(described or {}, _POLICY)
            self._asked, self._policies_until = tuple(topics), self._clock() + PAUSE_S
        return self._policies

    def commit(self, end: Offset) -> None:
        """Commit the positions of a batch that is in the lake to `kafka.group.id`, if there is one.

        A failure is a warning: the next commit includes its positions.
        """
        self._commit(end, DEADLINE_S)

    def commit_last(self, end: Offset) -> None:
        """The last commit of a run, tried once more if it has not succeeded yet."""
        if self._committed != end:
            self._silent_until = float("-inf")
            self._commit(end, LAST_DEADLINE_S)

    def _commit(self, end: Offset, deadline_s: float) -> None:
        group = self._options.group_id
        if group is None or not self._options.commit_group_offsets:
            return
        epochs = leader_epochs(end)
        # Another job of the group may read on what this one has dropped.
        gone = dropped(end)
        wanted = {
            TopicPartition(home.topic, home.partition): Position(offset, epochs[home])
            for home, offset in ends(end).items()
            if home not in gone
        }
        timeout_ms = int(deadline_s * 1000)

        async def commit(cluster: Cluster) -> bool:
            await commit_offsets(cluster, group, wanted, timeout_ms=timeout_ms)
            return True

        if self._ask(commit, deadline_s):
            self._committed = end

    def _ask(
        self, question: Callable[[Cluster], Coroutine[Any, Any, Result]], deadline_s: float
    ) -> Result | None:
        """The answer; None when there is none in time."""
        if self._clock() < self._silent_until:
            return None
        try:
            if self._client is None:
                self._client = self._connected(deadline_s)
            client = self._client
            return client.call(question(client.cluster), deadline_s)
        except (ClientError, TimeoutError) as error:
            _log.warning("the cluster did not respond to the archive job: %s", error or "in time")
            self._silent_until = self._clock() + PAUSE_S
            return None

    def _connected(self, deadline_s: float) -> BlockingCluster:
        properties = self._options.client_properties
        # A try that opens is not cancelled by its deadline, but by that of its request.
        deadline_ms = int(deadline_s * 1000)
        settings = ClusterSettings(
            client_id=properties.get("client.id", "tidelog-spark"),
            request_timeout_ms=deadline_ms,
            connect_timeout_ms=deadline_ms,
        )
        return BlockingCluster(
            self._options.bootstrap_servers, settings, open_timeout_ms=deadline_ms
        )

    def close(self) -> None:
        """Close the connections; a second call does nothing."""
        if self._client is not None:
            self._client.close()
            self._client = None
