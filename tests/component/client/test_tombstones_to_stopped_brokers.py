"""Ancestor tombstones for a broker that reads nothing: bounded, and sent again later."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tidelog.client.errors import ConnectionLost
from tidelog.client.producing import ancestor_tombstones
from tidelog.client.producing.ancestor_tombstones import (
    MOST_UNSENT_BYTES,
    PAUSE_MS,
    AncestorTombstones,
)
from tidelog.client.stamps import stamp_of
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.records.builder import FastBuilder

CHILD, PARENTS = 13, {1: 1, 5: 2}
"""A partition of the third growth, and its ancestors with their leaders."""


class Standing:
    """A clock that stands until a test moves it."""

    now_ms = 1_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


class Connection:
    """Takes requests; ``reads`` False: none of them leaves."""

    def __init__(self) -> None:
        self.reads = True
        self.unsent_bytes = 0
        self.sent = 0

    def submit(self, request: Any, *_: Any, answered: bool) -> None:
        assert not answered
        batches = [p.records for t in request.topic_data for p in t.partition_data]
        self.sent += len(batches)
        if not self.reads:
            self.unsent_bytes += sum(map(len, batches))


class Brokers(ScriptedCluster):
    def __init__(self) -> None:
        leaders = [PARENTS.get(index, 0) for index in range(16)]
        births = [0] * 4 + [1] * 4 + [2] * 8
        made = topic("t", leaders, initial_partition_count=4)
        born = {
            index: replace(each, birth_epoch=births[index])
            for index, each in made.partitions.items()
        }
        made = replace(made, partitions=born, initial_partition_count=4, resize_epoch=2)
        super().__init__(view_of(made), {messages.DescribeConfigsRequest: self._compacted})
        self.made = made
        self.connections = {1: Connection(), 2: Connection()}
        self.opened: list[int] = []
        self.unreachable: set[int] = set()

    async def connection(self, node_id: int, purpose: str = "") -> Any:
        if purpose != ancestor_tombstones.PURPOSE:
            return await super().connection(node_id, purpose)
        self.opened.append(node_id)
        if node_id in self.unreachable:
            raise ConnectionLost("refused")
        return self.connections[node_id]

    def _compacted(self, _node: int, request: Any) -> Any:
        response = messages.DescribeConfigsResponse
        entry = response.DescribeConfigsResourceResult(name="cleanup.policy", value="compact")
        return response(
            results=[
                response.DescribeConfigsResult(
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    configs=[entry],
                )
                for each in request.resources
            ]
        )


def batch_of(*keys: bytes) -> bytes:
    builder = FastBuilder(1 << 22)
    for key in keys:
        builder.append(1, key, b"v", [])
    return builder.build()


async def write(tombstones: AncestorTombstones, cluster: Brokers, *keys: bytes) -> None:
    where, stamp = TopicPartition("t", CHILD), stamp_of(cluster.made)
    assert stamp is not None
    assert tombstones.note(where, stamp, batch_of(*keys))
    await tombstones.send()


def test_a_broker_that_reads_nothing_gets_a_bounded_number_and_the_rest_later() -> None:
    """Its connection took all of them into memory, without a limit."""

    async def main() -> None:
        cluster, clock = Brokers(), Standing()
        stopped, other = cluster.connections[1], cluster.connections[2]
        stopped.reads = False
        tombstones = AncestorTombstones(cluster, clock)  # type: ignore[arg-type]
        keys = [b"%05d" % number + bytes(20_000) for number in range(200)]
        for key in keys:
            await write(tombstones, cluster, key)
        assert other.sent == len(keys), "the other leader gets all"
        assert stopped.unsent_bytes < MOST_UNSENT_BYTES + 50_000
        had = stopped.sent
        # It runs again: what it did not get follows the next record of each key.
        stopped.unsent_bytes, stopped.reads = 0, True
        for key in keys:
            await write(tombstones, cluster, key)
        assert stopped.sent == had, "it is left alone for a while"
        clock.now_ms += PAUSE_MS
        for key in keys:
            await write(tombstones, cluster, key)
        assert stopped.sent == len(keys)

    asyncio.run(main())


def test_a_broker_that_cannot_be_reached_is_not_tried_for_each_record() -> None:
    async def main() -> None:
        cluster, clock = Brokers(), Standing()
        cluster.unreachable = {1}
        tombstones = AncestorTombstones(cluster, clock)  # type: ignore[arg-type]
        for number in range(50):
            await write(tombstones, cluster, b"%d" % number)
        assert cluster.opened.count(1) == 1
        assert cluster.connections[2].sent == 50

    asyncio.run(main())


def test_those_of_a_transaction_wait_for_its_commit_and_are_dropped_by_an_abort() -> None:
    async def main() -> None:
        cluster = Brokers()
        tombstones = AncestorTombstones(cluster, Standing())  # type: ignore[arg-type]
        where, stamp = TopicPartition("t", CHILD), stamp_of(cluster.made)
        assert stamp is not None

        def sent() -> list[int]:
            return [connection.sent for connection in cluster.connections.values()]

        tombstones.hold()
        assert not tombstones.note(where, stamp, batch_of(b"aborted"))
        await tombstones.send()
        assert sent() == [0, 0], "the transaction is open"
        assert not tombstones.release(committed=False)
        await tombstones.send()
        assert sent() == [0, 0], "a value that stands would be void"
        tombstones.hold()
        assert not tombstones.note(where, stamp, batch_of(b"aborted", b"other"))
        await tombstones.send()
        assert sent() == [0, 0]
        assert tombstones.release(committed=True)
        await tombstones.send()
        assert sent() == [2, 2], "the key of the aborted one is not remembered as done"
        assert not tombstones.release(committed=True)

    asyncio.run(main())
