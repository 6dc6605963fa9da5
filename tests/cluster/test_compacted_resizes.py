"""A compacted topic that grows and shrinks on real processes: a fresh reader ends with the newest
value of each key, and no deleted value comes back (promise 12).

The cleaner runs often; tombstones expire after half a second, unless an older value of their key
may be left in another home. Not the rules of the cleaner: see `tests/unit/storage`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S
from tests.support.resizes import resize
from tests.support.target import TARGET
from tidelog.client.cluster import Cluster
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.offsets import LATEST, list_offsets
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.settings import SendSettings
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.hashing import hash_of_key, partition_of

pytestmark = [
    pytest.mark.long(60),
    pytest.mark.skipif(TARGET != "tidelog", reason="growing and shrinking is tidelog's"),
]

TOPIC = "table"
INITIAL, LARGEST = 2, 8
KEYS = [f"k{number}" for number in range(30)]
SETTINGS = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": 0.01,
    "segment_bytes": 4_000,
    "delete_retention_ms": 500,
}
PAD = b"." * 60

Table = dict[str, bytes | None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TidelogCluster]:
    config = {"log.cleaner.backoff.ms": 200, "min.insync.replicas": 2}
    with TidelogCluster(tmp_path, config=config) as started:
        started.create_topic(TOPIC, INITIAL, 3, **SETTINGS)
        yield started


class Writing:
    """Puts and deletions by an aware producer, and the table that they make."""

    def __init__(self, sender: RecordSender, seed: int) -> None:
        self.table: Table = {}
        self.written = 0
        self._sender = sender
        self._chance = random.Random(seed)

    async def write(self, records: int, keys: list[str] = KEYS, *, deletes: bool = True) -> None:
        """Write to random keys; return when all is acknowledged."""
        sent = []
        for _ in range(records):
            self.written += 1
            key = self._chance.choice(keys)
            is_deleted = deletes and self._chance.random() < 0.3
            value = None if is_deleted else b"%d%s" % (self.written, PAD)
            self.table[key] = value
            sent.append(await self._sender.send(TOPIC, value, key.encode()))
            if len(sent) % 10 == 0:
                await asyncio.gather(*sent[-10:])
        await asyncio.gather(*sent)

    async def write_through(self, bootstrap: str, count: int) -> None:
        """Write while the topic is resized, and afterwards."""
        resizing = asyncio.create_task(asyncio.to_thread(resize, bootstrap, TOPIC, count))
        while not resizing.done():
            await self.write(20)
        await resizing
        await self.write(200)

    def living(self) -> Table:
        """The keys that have a value."""
        return {key: value for key, value in self.table.items() if value is not None}


async def fresh_read(view: Cluster, group: str) -> list[tuple[str, bytes | None]]:
    """What a new group of aware members receives until the ends of now, in its order."""
    await view.describe([TOPIC])
    places = [TopicPartition(TOPIC, index) for index in view.view.topics[TOPIC].partitions]
    ends = await list_offsets(view, dict.fromkeys(places, LATEST))
    reader = GroupReader(view, group, [TOPIC], reset=OffsetReset.EARLIEST)
    rows: list[tuple[str, bytes | None]] = []
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    try:
        while True:
            for piece in await reader.poll(200):
                for row in piece.rows():
                    assert row.key is not None
                    value = None if row.value is None else bytes(row.value)
                    rows.append((bytes(row.key).decode(), value))
            at = reader.fetcher.positions()
            missing = {x: (at.get(x, -1), e.offset) for x, e in ends.items()}
            if all(have >= end for have, end in missing.values()):
                return rows
            assert asyncio.get_running_loop().time() < deadline, missing
    finally:
        await reader.close()


def kept(rows: list[tuple[str, bytes | None]]) -> Table:
    """The table that rows make, without what is deleted."""
    return {key: value for key, value in dict(rows).items() if value is not None}


def home(key: str, count: int) -> int:
    """The partition of a key at a count."""
    return partition_of(hash_of_key(key.encode()), INITIAL, count)


async def course(bootstrap: str, seed: int) -> None:
    numbers = itertools.count()
    settings = SendSettings(batch_bytes=600, linger_ms=0)
    async with Cluster(bootstrap) as view, RecordSender(view, settings) as sender:

        async def check(what: str) -> list[tuple[str, bytes | None]]:
            rows = await fresh_read(view, f"fresh-{next(numbers)}")
            assert kept(rows) == writing.living(), what
            return rows

        async def until_tombstones_go(keys: set[str], others: list[str]) -> None:
            """Write to other keys until the cleaner has dropped the tombstones of these keys."""
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            while True:
                await writing.write(60, others, deletes=False)
                left = {key for key, value in await check("cleaning") if value is None} & keys
                if not left:
                    return
                assert asyncio.get_running_loop().time() < deadline, f"tombstones of {left}"

        writing = Writing(sender, seed)
        await writing.write(300)
        await check("before a resize")
        for count in (3, LARGEST):
            await writing.write_through(bootstrap, count)
            await check(f"after growing to {count}")
        stay = {key for key in KEYS if home(key, LARGEST) == home(key, INITIAL) == home(key, 3)}
        moved = [key for key in KEYS if key not in stay]
        gone, others = sorted(stay)[:3], sorted(stay)[3:]
        for key in [*gone, *moved]:
            writing.table[key] = None
            await (await sender.send(TOPIC, None, key.encode()))
        # Of a key that never moved the tombstone goes. Of one that moved it stays: its former home
        # has an older value.
        await until_tombstones_go(set(gone), others)
        rows = await check("after tombstones have expired")
        assert len(rows) < writing.written / 3, "the cleaner has run"
        for count in (5, INITIAL):
            await writing.write_through(bootstrap, count)
            await check(f"after shrinking to {count}")
        for key in KEYS[::2]:
            writing.table[key] = None
            await (await sender.send(TOPIC, None, key.encode()))
        others = [key for key in KEYS if writing.table[key] is not None]
        for _ in range(5):
            await writing.write(100, others, deletes=False)
            await check("while retired partitions have older values")


def test_the_newest_value_wins_across_homes(cluster: TidelogCluster) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    asyncio.run(course(cluster.bootstrap, seed))
