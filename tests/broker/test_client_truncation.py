"""A reader notices that a log was truncated below its position, and only then (KIP-320)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.lone_broker import LoneBroker
from tests.support.processes import DEADLINE_S
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import LogTruncated
from tidelog.client.fetching.fetcher import Fetcher, OffsetReset
from tidelog.client.metadata import Partition
from tidelog.client.offsets import EpochEnd
from tidelog.client.producing.sender import RecordSender
from tidelog.model.topics import TopicPartition

T = TopicPartition("t", 0)


def with_reader(
    folder: Path,
    reset: OffsetReset,
    story: Callable[[LoneBroker, Cluster, Fetcher], Awaitable[None]],
) -> None:
    """Run ``story`` with five records of epoch 0 that a reader has read."""

    async def main() -> None:
        lone = LoneBroker(folder)
        await lone.start()
        lone.lead("t")
        async with asyncio.timeout(DEADLINE_S), Cluster(lone.bootstrap) as cluster:
            await write(cluster, "former", 5)
            fetcher = Fetcher(cluster, reset=reset)
            fetcher.assign({T: 0})
            assert await read(fetcher, 5) == [(n, b"former") for n in range(5)]
            await story(lone, cluster, fetcher)
            await fetcher.close()
        await lone.stop()

    asyncio.run(main())


async def write(cluster: Cluster, value: str, count: int) -> None:
    async with RecordSender(cluster) as sender:
        for _ in range(count):
            await (await sender.send("t", value.encode()))


async def read(fetcher: Fetcher, count: int) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    while len(found) < count:
        for piece in await fetcher.poll(100):
            found += [(row.offset, row.value) for row in piece.rows()]
    return found


async def lose_and_grow(lone: LoneBroker, cluster: Cluster) -> None:
    """Let the next leader be one that has nothing of epoch 0, and more records than were read."""
    lone.broker.partitions.stop("t", 0, delete=True)
    lone.lead("t", epoch=1)
    await write(cluster, "later", 8)


def test_a_log_that_was_cut_and_grew_again_is_noticed(tmp_path: Path) -> None:
    async def story(lone: LoneBroker, cluster: Cluster, fetcher: Fetcher) -> None:
        await lose_and_grow(lone, cluster)
        with pytest.raises(LogTruncated, match="t-0 was truncated to offset 0, below 5") as caught:
            await read(fetcher, 1)
        assert (caught.value.offset, caught.value.end_offset) == (5, 0)

    with_reader(tmp_path, OffsetReset.NONE, story)


@pytest.mark.parametrize("reset", [OffsetReset.EARLIEST, OffsetReset.LATEST])
def test_a_reader_that_may_goes_on_where_the_log_was_cut(
    tmp_path: Path, reset: OffsetReset
) -> None:
    async def story(lone: LoneBroker, cluster: Cluster, fetcher: Fetcher) -> None:
        await lose_and_grow(lone, cluster)
        assert await read(fetcher, 8) == [(n, b"later") for n in range(8)]

    with_reader(tmp_path, reset, story)


def test_another_leader_that_has_all_is_read_on(tmp_path: Path) -> None:
    async def story(lone: LoneBroker, cluster: Cluster, fetcher: Fetcher) -> None:
        for epoch in (1, 2):
            lone.lead("t", epoch=epoch)
            await write(cluster, "later", 1)
            assert await read(fetcher, 1) == [(4 + epoch, b"later")]
        assert fetcher.epoch_before(T, 7) == 2

    with_reader(tmp_path, OffsetReset.NONE, story)


def test_a_partition_waits_for_a_check_of_its_leader_without_turning_in_a_circle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While one check is under way, another partition of that leader does not ask again at once."""
    other = TopicPartition("t", 1)
    checked: list[list[TopicPartition]] = []

    class Leader:
        settings = ClusterSettings()
        asked = 0

        async def leader(self, *_: object) -> Partition:
            self.asked += 1
            return Partition(1, 7, 2, (7,), (7,), ())

    async def main() -> None:
        is_checked = asyncio.Event()

        async def ask_ends(
            _cluster: object, _node: int, epochs: dict[TopicPartition, int], _in: object
        ) -> dict[TopicPartition, EpochEnd]:
            checked.append(list(epochs))
            await is_checked.wait()
            return dict.fromkeys(epochs, EpochEnd(1, 5))

        monkeypatch.setattr("tidelog.client.fetching.fetcher.ask_ends", ask_ends)
        monkeypatch.setattr("tidelog.client.fetching.fetcher.ask_leader", never)
        cluster = Leader()
        fetcher = Fetcher(cluster)  # type: ignore[arg-type]
        fetcher.assign({T: 5}, epochs={T: 1})
        await turns(20)
        fetcher.add({other: 5}, {other: 1})
        await turns(200)
        assert checked == [[T]]
        assert cluster.asked == 2
        is_checked.set()
        await turns(20)
        assert checked == [[T], [other]]
        await fetcher.close()

    asyncio.run(main())


async def never(*_: object) -> None:
    await asyncio.Event().wait()


async def turns(count: int) -> None:
    """Let the loop turn so many times."""
    for _ in range(count):
        await asyncio.sleep(0)
