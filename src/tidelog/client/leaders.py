"""Asking the leaders of many partitions at once, again and again until each has answered.

Owns the grouping by leader and the retrying of what is left; what is asked is the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.client.retries import is_worth_retrying
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

Result = TypeVar("Result")

Ask = Callable[[int, list[TopicPartition]], Awaitable[dict[TopicPartition, Result | ErrorCode]]]
"""Ask one broker (its id) about partitions that it leads."""


async def ask_leaders(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    ask: Ask[Result],
    *,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, Result]:
    """Return each partition's result, asking its leader, wherever that moves in the meantime.

    Raises Refused for the first partition with an error that is not worth retrying (an unknown
    topic or partition among them), or that still has one at the deadline.
    """
    found: dict[TopicPartition, Result] = {}
    left = list(dict.fromkeys(partitions))

    async def attempt() -> None:
        nonlocal left
        groups: dict[int, list[TopicPartition]] = {}
        for partition in left:
            leader = await cluster.leader(partition)
            groups.setdefault(leader.leader, []).append(partition)
        answers = await asyncio.gather(
            *(ask(node_id, group) for node_id, group in groups.items()), return_exceptions=True
        )
        trouble: list[ClientError] = []
        for answer in answers:
            if isinstance(answer, ClientError):
                trouble.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for partition, result in answer.items():
                    if isinstance(result, ErrorCode):
                        trouble.append(Refused(result, str(partition)))
                    else:
                        found[partition] = result
        left = [partition for partition in left if partition not in found]
        if trouble:
            cluster.forget()
            raise next((e for e in trouble if not _worth(e)), trouble[0])

    await cluster.retry(attempt, timeout_ms, retry_on=_worth)
    return found


def _worth(error: ClientError) -> bool:
    # Fresh metadata that lacks the partition is an answer, not a hiccup.
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(error, Refused) and error.code == unknown:
        return False
    return is_worth_retrying(error)
