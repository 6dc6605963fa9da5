"""The cluster and its nodes: brokers, controller, log directories, condition.

Owns the client's DescribeCluster, DescribeLogDirs and DescribeCondition, and the rule of when log
directories have no room for a copy: a controller does not know them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.errors import (
    ClientError,
    ListingIncomplete,
    Refused,
    RequestTimedOut,
    json_of,
)
from tidelog.client.metadata import BrokerAddress
from tidelog.model.api_keys import ApiKey
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

CONDITION_TIMEOUT_MS = 5_000

UNCLEAN, REASSIGNMENTS, RESIZES = "unclean", "reassignments", "resizes"
AUTOSCALING = "autoscaling"
"""Subjects of a report."""

UNAWARE_WRITERS, RETIRED = "unaware_writers", "retired"
"""Parts of a report with the subject ``RESIZES``."""


@dataclass(frozen=True, slots=True)
class DescribedCluster:
    """The cluster as DescribeCluster shows it."""

    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerAddress, ...]


@dataclass(frozen=True, slots=True)
class LogDir:
    """One log directory of a broker: sizes in bytes, -1 from brokers that do not report them.

    ``futures`` are the copies that are to take the place of a replica in another directory.
    """

    path: str
    error: Refused | None
    replicas: dict[TopicPartition, int]
    total_bytes: int
    usable_bytes: int
    futures: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placements:
    """What the controller knows of placement and neither Metadata nor API 46 shows."""

    originals: Mapping[TopicPartition, tuple[int, ...]]
    """The replicas before the first change, of partitions that move or whose cancelled move left
    others."""
    cordoned: Mapping[int, tuple[str, ...]]
    """``cordoned.log.dirs`` of each broker that has it: "*" or log directories."""
    closed: frozenset[int]
    """The brokers that get no new replicas: all their log directories are cordoned (KIP-1066)."""

    @staticmethod
    def of(condition: Mapping[str, Any] | None) -> Placements:
        """Return what a report with the subject "reassignments" says: nothing in an older one."""
        reported = {} if condition is None else condition
        brokers = {int(broker): node for broker, node in reported.get("brokers", {}).items()}
        return Placements(
            {
                TopicPartition(row["topic"], row["partition"]): tuple(row["original_replicas"])
                for row in reported.get(REASSIGNMENTS, ())
            },
            {
                broker: tuple(node["cordoned_log_dirs"])
                for broker, node in brokers.items()
                if node.get("cordoned_log_dirs")
            },
            frozenset(
                broker for broker, node in brokers.items() if not node.get("takes_new_replicas", 1)
            ),
        )


async def describe_cluster(cluster: Cluster) -> DescribedCluster:
    """Return brokers and controller. Raises Refused."""
    request = messages.DescribeClusterRequest()
    answer: messages.DescribeClusterResponse = await cluster.retry(
        lambda: cluster.send_to_any(request)
    )
    if answer.error_code:
        raise Refused(answer.error_code, "the cluster", answer.error_message)
    brokers = tuple(
        BrokerAddress(item.broker_id, item.host, item.port, item.rack)
        for item in sorted(answer.brokers, key=lambda item: item.broker_id)
    )
    return DescribedCluster(answer.cluster_id, answer.controller_id, brokers)


async def describe_log_dirs(cluster: Cluster, node_id: int) -> list[LogDir]:
    """Return a broker's log directories with the replicas in them. Raises Refused."""
    request = messages.DescribeLogDirsRequest(topics=None)
    answer: messages.DescribeLogDirsResponse = await cluster.retry(
        lambda: cluster.send(node_id, request)
    )
    if answer.error_code:
        raise Refused(answer.error_code, f"the log directories of broker {node_id}")
    return [
        LogDir(
            path=item.log_dir,
            error=Refused(item.error_code, item.log_dir) if item.error_code else None,
            replicas=_sizes(item, futures=False),
            total_bytes=item.total_bytes,
            usable_bytes=item.usable_bytes,
            futures=_sizes(item, futures=True),
        )
        for item in answer.results
    ]


class BrokerLogDirs(dict[int, list[LogDir]]):
    """The log directories by broker; ``errors`` has the error of each broker that gave none."""

    def __init__(self, listed: Mapping[int, list[LogDir]], errors: Mapping[int, ClientError]):
        super().__init__(listed)
        self.errors = dict(errors)


async def describe_all_log_dirs(
    cluster: Cluster,
    node_ids: Sequence[int],
    *,
    timeout_ms: int | None = None,
    raise_errors: bool = True,
) -> BrokerLogDirs:
    """Return the log directories of these brokers: one that fails hides no other (as the futures of
    Kafka's AdminClient, one for each broker).

    Raises ListingIncomplete with what the others have, unless ``raise_errors`` is False; the error
    of the first where no broker has answered.
    """
    limit_s = None if timeout_ms is None else timeout_ms / 1000

    async def of(node_id: int) -> list[LogDir]:
        try:
            async with asyncio.timeout(limit_s):
                return await describe_log_dirs(cluster, node_id)
        except TimeoutError:
            reason = f"broker {node_id} did not respond within {timeout_ms} ms"
            raise RequestTimedOut(reason) from None

    outcomes = await asyncio.gather(*map(of, node_ids), return_exceptions=True)
    dirs: dict[int, list[LogDir]] = {}
    errors: dict[int, ClientError] = {}
    for node_id, outcome in zip(node_ids, outcomes, strict=True):
        if isinstance(outcome, ClientError):
            errors[node_id] = outcome
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            dirs[node_id] = outcome
    listed = BrokerLogDirs(dirs, errors)
    if errors and raise_errors:
        first = next(iter(errors.values()))
        raise ListingIncomplete(listed, list(errors.values())) if dirs else first
    return listed


def _sizes(
    item: messages.DescribeLogDirsResponse.DescribeLogDirsResult, *, futures: bool
) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, partition.partition_index): partition.partition_size
        for topic in item.topics
        for partition in topic.partitions
        if partition.is_future_key is futures
    }


async def describe_placements(cluster: Cluster) -> Placements:
    """Return what the controller knows of placement. Raises as ``describe_condition`` does."""
    return Placements.of(await describe_condition(cluster, subjects=[REASSIGNMENTS]))


async def describe_unclean(cluster: Cluster) -> list[dict[str, Any]] | None:
    """Return the recorded unclean elections (KIP-704); None when the request is not served.

    One entry for each election, with the records it lost: see ``tidelog doctor unclean``. Raises as
    ``describe_condition`` does.
    """
    condition = await describe_condition(cluster, subjects=[UNCLEAN])
    return None if condition is None else condition.get("unclean")


async def describe_condition(
    cluster: Cluster, timeout_ms: int = CONDITION_TIMEOUT_MS, subjects: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Return the active controller's report of the cluster; None when that is not served.

    ``problems`` is a list of {"kind", "level", "what", "advice"} and the names concerned;
    ``subjects`` requests more ("unclean", "reassignments"). Raises Refused, RequestTimedOut when
    the controller does not respond, ClientError for invalid JSON.
    """
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            # Its own connections: responses arrive in order, and this one may take long.
            return await cluster.ask_any(
                lambda connection: _condition_from(connection, timeout_ms, subjects),
                purpose="condition",
            )
    except TimeoutError:
        raise RequestTimedOut(
            f"no active controller answered through any broker within {timeout_ms} ms:"
            " is one running?"
        ) from None


async def describe_itself(cluster: Cluster, node_id: int) -> dict[str, Any] | None:
    """Return a broker's own report: ``version``, ``level``, and in ``set_aside`` its quarantine.

    None from a broker that does not serve that. Raises as ``describe_condition`` does.
    """
    # Not the connection of the controller's report: a request there may wait for the controller.
    connection = await cluster.connection(node_id, "own report")
    reported = await _condition_from(connection, CONDITION_TIMEOUT_MS, ["broker"])
    # A broker of an older version forwards the request to its controller.
    return reported if reported is not None and reported.get("role") == "broker" else None


async def describe_controllers(cluster: Cluster) -> list[dict[str, Any]] | None:
    """Return what the controllers of a broker's file say of themselves, active or not.

    Each has ``address``, ``controller_id``, ``active`` (None: no response) and ``why``. None from a
    broker that does not serve that. Raises as ``describe_condition`` does.
    """
    reported = await cluster.ask_any(
        lambda connection: _condition_from(connection, CONDITION_TIMEOUT_MS, ["controllers"]),
        purpose="controllers",
    )
    return None if reported is None else reported.get("controllers")


async def _condition_from(
    connection: ClientConnection, timeout_ms: int, subjects: Sequence[str]
) -> dict[str, Any] | None:
    if not connection.speaks(ApiKey.DESCRIBE_CONDITION):
        return None
    request = messages.DescribeConditionRequest(subjects=list(subjects))
    answer: messages.DescribeConditionResponse = await connection.send(request, None, timeout_ms)
    return json_of(answer, answer.condition, "the cluster's condition")


def lacks_room(dirs: Sequence[LogDir], tp: TopicPartition, size: int) -> bool:
    """Whether the log directory with a copy, or all if none has it, lack this many bytes."""
    holding = [entry for entry in dirs if tp in entry.replicas] or dirs
    return bool(dirs) and all(
        entry.error is not None or 0 <= entry.usable_bytes < size for entry in holding
    )
