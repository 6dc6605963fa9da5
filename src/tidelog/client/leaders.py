"""Requests to the leaders of many partitions, with retries.

Owns the grouping by leader, the retries of the partitions that are left, and the look for another
leader than a silent one. Not the request: the caller sends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from tidelog.client.cluster import Cluster
from tidelog.client.connecting.giving_up import unless_taken_over
from tidelog.client.errors import ClientError, Refused
from tidelog.client.retries import is_worth_retrying
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

Result = TypeVar("Result")

Ask = Callable[[int, list[TopicPartition]], Awaitable[dict[TopicPartition, Result | ErrorCode]]]
"""Sends a request for some partitions to the broker (id) that leads them."""


async def ask_leaders(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    ask: Ask[Result],
    *,
    timeout_ms: int | None = None,
    failed: dict[TopicPartition, ClientError] | None = None,
) -> dict[TopicPartition, Result]:
    """Return each partition's result from its leader, also when the leader moves meanwhile.

    A leader that does not respond is given up as soon as metadata show another one.

    Raises Refused for the first partition with an error that is not retriable (such as an unknown
    topic), or that still has an error at the deadline. With ``failed`` nothing is raised: it
    collects each partition's error, and the results of the others are returned.
    """
    results: dict[TopicPartition, Result] = {}
    left = list(dict.fromkeys(partitions))
    errors: dict[TopicPartition, ClientError] = {}

    async def attempt() -> None:
        nonlocal left
        errors.clear()
        groups: dict[int, list[TopicPartition]] = {}
        for partition in left:
            try:
                # With `failed`, one missing leader causes one metadata request, not one for each
                # partition: the others use the cached metadata.
                node_id = _known_leader(cluster, partition) if errors else None
                if node_id is None:
                    node_id = (await cluster.leader(partition)).leader
            except ClientError as error:
                if failed is None:
                    raise
                errors[partition] = error
            else:
                groups.setdefault(node_id, []).append(partition)
        answers = await asyncio.gather(
            *(_asked(cluster, ask, node_id, group) for node_id, group in groups.items()),
            return_exceptions=True,
        )
        for group, answer in zip(groups.values(), answers, strict=True):
            if isinstance(answer, ClientError):
                errors.update(dict.fromkeys(group, answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for partition, result in answer.items():
                    if isinstance(result, ErrorCode):
                        errors[partition] = Refused(result, str(partition))
                    else:
                        results[partition] = result
        left = [partition for partition in left if partition not in results]
        if failed is not None:
            failed.update({tp: error for tp, error in errors.items() if not _worth(error)})
            left = [partition for partition in left if partition not in failed]
        trouble = [error for tp, error in errors.items() if failed is None or tp in left]
        if errors:
            # Also where a leader knows no such partition: it was removed, and metadata are older.
            cluster.forget()
        if trouble:
            raise next((e for e in trouble if not _worth(e)), trouble[0])

    try:
        await cluster.retry(attempt, timeout_ms, retry_on=_worth)
    except ClientError as error:
        if failed is None:
            raise
        failed.update({tp: errors.get(tp, error) for tp in left})
    return results


async def _asked(
    cluster: Cluster, ask: Ask[Result], node_id: int, group: list[TopicPartition]
) -> dict[TopicPartition, Result | ErrorCode]:
    search = partial(led_elsewhere, cluster, node_id, cluster.view.leader_epochs(group))
    return await unless_taken_over(ask(node_id, group), search)


async def led_elsewhere(
    cluster: Cluster, node_id: int, epochs: Mapping[TopicPartition, int], purpose: str = ""
) -> str:
    """Ask another broker than this one, which is silent, which brokers lead these partitions.

    Returns a line as ``ClusterMetadata.led_elsewhere`` does. It asks for nothing while a response
    arrives slowly.
    """
    if cluster.is_receiving(node_id, purpose):
        return ""
    if line := cluster.view.led_elsewhere(node_id, epochs):
        return line
    if (broker := cluster.view.brokers.get(node_id)) is not None:
        cluster.note_silent(broker.peer)
    await cluster.refresh()
    return cluster.view.led_elsewhere(node_id, epochs)


def _known_leader(cluster: Cluster, partition: TopicPartition) -> int | None:
    state = cluster.view.partition(partition)
    if state is None or state.leader not in cluster.view.brokers:
        return None
    return state.leader


def _worth(error: ClientError) -> bool:
    # Fresh metadata without the partition is final, not a transient error.
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(error, Refused) and error.code == unknown:
        return False
    return is_worth_retrying(error)
