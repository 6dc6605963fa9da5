"""The transactions that are open in partitions, and whose they are (KIP-664).

Owns the questions: to leaders which producers have one open, to all coordinators which
transactional ids these are. Not what follows: a reader of committed records stops at the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.client.admin.transactions import describe_producers
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

MOST_IDS = 100
"""Producer ids of which coordinators are asked for a name."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The first transaction that is open in a partition.

    ``transactional_id`` is None, and ``since_ms`` (the time of day at which it began) -1, where no
    coordinator knows them.
    """

    producer_id: int
    first_offset: int
    transactional_id: str | None = None
    since_ms: int = -1


async def first_open(
    cluster: Cluster,
    places: Iterable[TopicPartition],
    *,
    timeout_ms: int,
    failed: dict[TopicPartition, ClientError],
) -> dict[TopicPartition, OpenTransaction]:
    """Return the first open transaction of each partition that has one. ``failed`` collects the
    errors of partitions; a coordinator that does not respond names none."""

    described = await describe_producers(cluster, places, timeout_ms=timeout_ms, failed=failed)
    firsts: dict[TopicPartition, OpenTransaction] = {}
    for tp, active in described.items():
        begun = [(one.open_since, one.producer_id) for one in active if one.open_since >= 0]
        if begun:
            offset, producer_id = min(begun)
            firsts[tp] = OpenTransaction(producer_id, offset)
    producers = sorted({one.producer_id for one in firsts.values()})[:MOST_IDS]
    if not producers:
        return firsts
    brokers = list(cluster.view.brokers)
    asked = (_named_by(cluster, node_id, producers, timeout_ms) for node_id in brokers)
    named: dict[int, tuple[str, int]] = {}
    for of_broker in await asyncio.gather(*asked):
        named.update(of_broker)
    return {
        tp: OpenTransaction(one.producer_id, one.first_offset, *named[one.producer_id])
        if one.producer_id in named
        else one
        for tp, one in firsts.items()
    }


async def _named_by(
    cluster: Cluster, node_id: int, producers: list[int], timeout_ms: int
) -> dict[int, tuple[str, int]]:
    """Return the transactional ids that a coordinator has of producers, and since when each of
    their transactions is open; nothing if it does not respond."""
    wanted = messages.ListTransactionsRequest([], producers)
    try:
        listed: messages.ListTransactionsResponse = await cluster.send(
            node_id, wanted, timeout_ms=timeout_ms
        )
        ids = [one.transactional_id for one in listed.transaction_states]
        if not ids:
            return {}
        described: messages.DescribeTransactionsResponse = await cluster.send(
            node_id, messages.DescribeTransactionsRequest(ids), timeout_ms=timeout_ms
        )
    except ClientError:
        return {}
    return {
        one.producer_id: (one.transactional_id, one.transaction_start_time_ms)
        for one in described.transaction_states
        if not one.error_code
    }
