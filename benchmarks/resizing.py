"""What does a loaded topic notice when it grows and shrinks? `python -m benchmarks.resizing`.

Three brokers and a controller at level 1.5; a topic of eight partitions with three replicas. Two
producers of this project send keyed records, 1000 a second each, with acks=all; the topic grows to
16 partitions and shrinks back, several times. Printed for growth and for shrinking: the seconds
until the request was answered (the new count is published), and the longest time between two
acknowledgements of any partition that takes records before and after; beside it the same time in a
second without a resize. The aim is under 200 ms, the limit 500 (docs/design/speed.md).

Options: --rounds N, --out FILE (JSON).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.cluster import TidelogCluster

from benchmarks.ending import end_on_sigterm
from tidelog.client.admin import topics as admin
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.producing.record_metadata import RecordMetadata
from tidelog.client.producing.sender import RecordSender
from tidelog.model.topics import TopicPartition

TOPIC = "loaded"
FEW, MANY = 8, 16
PRODUCERS, RATE = 2, 1000
KEYS = 500
REST_S = 2.0


@dataclass
class Acks:
    """When each acknowledgement of each partition came, in seconds of one clock."""

    times: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: list[str] = field(default_factory=list)

    def longest_gap_s(self, begun: float, ended: float, partitions: Iterable[int]) -> float:
        """The longest time without an acknowledgement of one of the partitions, within a span."""
        longest = 0.0
        for partition in partitions:
            inside = [t for t in self.times[partition] if begun <= t <= ended]
            edges = [begun, *inside, ended]
            longest = max(longest, max(b - a for a, b in itertools.pairwise(edges)))
        return longest


async def produce(bootstrap: str, acks: Acks, stopping: asyncio.Event, number: int) -> None:
    """Send keyed records at the rate until ``stopping``; wait for all acknowledgements."""
    async with Cluster(bootstrap) as cluster, RecordSender(cluster) as sender:
        waiting: set[asyncio.Future[RecordMetadata]] = set()

        def answered(future: asyncio.Future[RecordMetadata]) -> None:
            waiting.discard(future)
            if future.exception() is not None:
                acks.failed.append(repr(future.exception()))
            else:
                acks.times[future.result().partition].append(time.monotonic())

        begun = time.monotonic()
        for count in itertools.count():
            if stopping.is_set():
                break
            ahead_s = begun + count / RATE - time.monotonic()
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
            key = b"%d-%d" % (number, count % KEYS)
            future = await sender.send(TOPIC, b"x" * 100, key)
            waiting.add(future)
            future.add_done_callback(answered)
        if waiting:
            await asyncio.wait(waiting)


async def measure(bootstrap: str, rounds: int) -> dict[str, list[float]]:
    """Return the samples by what they are of."""
    found: dict[str, list[float]] = defaultdict(list)
    acks, stopping = Acks(), asyncio.Event()
    async with Cluster(bootstrap) as cluster:
        producers = [
            asyncio.create_task(produce(bootstrap, acks, stopping, number))
            for number in range(PRODUCERS)
        ]
        try:
            await asyncio.sleep(REST_S)
            for _ in range(rounds):
                for name, count in (("grow", MANY), ("shrink", FEW)):
                    at_rest = time.monotonic()
                    await asyncio.sleep(REST_S)
                    begun = time.monotonic()
                    outcome = (await admin.create_partitions(cluster, {TOPIC: count}))[TOPIC]
                    if outcome is not None:
                        raise outcome
                    answered = time.monotonic()
                    await asyncio.sleep(REST_S)
                    both = range(FEW)
                    found[f"{name}: answered, s"].append(answered - begun)
                    found[f"{name}: longest gap, s"].append(
                        acks.longest_gap_s(begun, answered + REST_S, both)
                    )
                    found[f"{name}: longest gap at rest before, s"].append(
                        acks.longest_gap_s(at_rest, begun, both)
                    )
                    if name == "shrink":
                        await until_removed(cluster)
        finally:
            stopping.set()
            await asyncio.gather(*producers)
    assert not acks.failed, acks.failed[:3]
    return dict(found)


async def until_removed(cluster: Cluster) -> None:
    """Empty the retired partitions and wait until they are removed: the topic may grow again."""
    deadline = time.monotonic() + 60
    while True:
        cluster.forget()
        topic = (await cluster.all_topics()).topics[TOPIC]
        retired = [each for each in topic.partitions.values() if each.is_retired]
        if not retired and len(topic.partitions) == FEW:
            return
        assert time.monotonic() < deadline, f"{len(retired)} retired partitions are still there"
        places = [TopicPartition(TOPIC, each.index) for each in retired if each.leader >= 0]
        # One that is removed meanwhile is refused.
        with contextlib.suppress(ClientError):
            await admin.delete_records(cluster, dict.fromkeys(places, admin.HIGH_WATERMARK))
        await asyncio.sleep(0.5)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    end_on_sigterm()
    config = {"retired.check.interval.ms": 1000, "retired.purge.delay.ms": 0}
    with (
        tempfile.TemporaryDirectory() as folder,
        TidelogCluster(Path(folder), 3, config) as started,
    ):
        started.create_topic(TOPIC, FEW, 3)
        found = asyncio.run(measure(started.bootstrap, options.rounds))
    for name, samples in found.items():
        middle = sorted(samples)[len(samples) // 2]
        print(f"{name:40} {middle:8.3f}  ({min(samples):.3f} to {max(samples):.3f})")
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
