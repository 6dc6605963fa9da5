"""How fast are the public Python consumers beside aiokafka's and kafka-python's?

Run: ``python -m benchmarks.python_consumers [--records 400000] [--rounds 3]``. Records of 100
bytes in four partitions of one tidelog node, in batches of 16 kB, are read from the start by the
only member of a group: record by record (``for record in consumer``), and by ``poll`` (``getmany``)
of at most 500 records. The consumers take turns; the table has the median of the rounds. CPU is
that of the client's process in the whole run, in microseconds a record; records/s count from the
first record on, and the broker shares the machine. On 2026-11-27 at a load average of 23 on two
cores, so that only the ratios count (three rounds; ``poll`` of tidelog.aio was 0.33 before):

| consumer | how | us of CPU a record | ours/theirs |
|---|---|---|---|
| tidelog.aio | iterate | 2.0 | 0.24 of aiokafka's |
| tidelog.aio | poll | 1.0 | 0.56 of aiokafka's |
| tidelog | iterate | 2.3 | 0.18 of kafka-python's |
| tidelog | poll | 0.7 | 0.08 of kafka-python's |
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiokafka
import kafka
from tests.support.clients import create_topic
from tests.support.server import TidelogNode

import tidelog
import tidelog.aio
from benchmarks.ending import end_on_sigterm
from benchmarks.python_producers import Taken, cpu_table

VALUE = b"x" * 100
TOPIC = "t"
PARTITIONS = 4
MOST = 500

Run = Callable[[int], Taken]


class Stopwatch:
    """Times one run: CPU from its construction on, wall time from the first record on."""

    def __init__(self) -> None:
        self.cpu, self.wall = time.process_time(), 0.0

    def first(self) -> None:
        """Note the first record."""
        self.wall = self.wall or time.perf_counter()

    def taken(self) -> Taken:
        """Return the times until now."""
        return Taken(time.perf_counter() - self.wall, time.process_time() - self.cpu)


def iterated_here(make: Callable[[], Any]) -> Run:
    """Return a run of an asyncio consumer, record by record."""

    async def work(count: int) -> Taken:
        watch, left = Stopwatch(), count
        consumer = make()
        await consumer.start()
        async for _ in consumer:
            left -= 1
            if not left:
                break
            if left == count - 1:
                watch.first()
        taken = watch.taken()
        await consumer.stop()
        return taken

    return lambda count: asyncio.run(work(count))


def polled_here(make: Callable[[], Any]) -> Run:
    """Return a run of an asyncio consumer, in lists of records."""

    async def work(count: int) -> Taken:
        watch, seen = Stopwatch(), 0
        consumer = make()
        await consumer.start()
        while seen < count:
            found = await consumer.getmany(timeout_ms=1000, max_records=MOST)
            if found:
                watch.first()
            seen += sum(map(len, found.values()))
        taken = watch.taken()
        await consumer.stop()
        return taken

    return lambda count: asyncio.run(work(count))


def iterated(make: Callable[[], Any]) -> Run:
    """Return a run of a blocking consumer, record by record."""

    def work(count: int) -> Taken:
        watch, left = Stopwatch(), count
        consumer = make()
        for _ in consumer:
            left -= 1
            if not left:
                break
            if left == count - 1:
                watch.first()
        taken = watch.taken()
        consumer.close()
        return taken

    return work


def polled(make: Callable[[], Any]) -> Run:
    """Return a run of a blocking consumer, in lists of records."""

    def work(count: int) -> Taken:
        watch, seen = Stopwatch(), 0
        consumer = make()
        while seen < count:
            found = consumer.poll(timeout_ms=1000, max_records=MOST)
            if found:
                watch.first()
            seen += sum(map(len, found.values()))
        taken = watch.taken()
        consumer.close()
        return taken

    return work


def runs(bootstrap: str, group: str) -> dict[tuple[str, str], Run]:
    """Return the runs by client and way to read, each pair one after the other."""

    def options(name: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": bootstrap,
            "group_id": f"{group}-{name}",
            "auto_offset_reset": "earliest",
        }

    makers: dict[str, tuple[Callable[[], Any], bool]] = {
        "tidelog.aio": (lambda: tidelog.aio.Consumer(TOPIC, **options("aio")), True),
        "aiokafka": (lambda: aiokafka.AIOKafkaConsumer(TOPIC, **options("aiokafka")), True),
        "tidelog": (lambda: tidelog.Consumer(TOPIC, **options("blocking")), False),
        "kafka-python": (lambda: kafka.KafkaConsumer(TOPIC, **options("kafka")), False),
    }
    ways = {True: (iterated_here, polled_here), False: (iterated, polled)}
    return {
        (name, how): way(make)
        for name, (make, is_here) in makers.items()
        for how, way in zip(("iterate", "poll"), ways[is_here], strict=True)
    }


async def fill(bootstrap: str, count: int) -> None:
    """Write the records to all partitions alike."""
    async with tidelog.aio.Producer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        for number in range(count):
            await producer.send(TOPIC, VALUE, partition=number * PARTITIONS // count)


def measure(count: int, rounds: int) -> dict[tuple[str, str], Taken]:
    """Return the median of each run."""
    found: dict[tuple[str, str], list[Taken]] = {}
    config = {"group.initial.rebalance.delay.ms": 0}
    with tempfile.TemporaryDirectory() as folder, TidelogNode(Path(folder), config) as node:
        create_topic(node.bootstrap, TOPIC, PARTITIONS)
        asyncio.run(fill(node.bootstrap, count))
        for number in range(rounds):
            for how in ("iterate", "poll"):
                for (name, way), run in runs(node.bootstrap, f"{how}-{number}").items():
                    if way == how:
                        gc.collect()
                        found.setdefault((name, how), []).append(run(count))
    return {
        what: Taken(*(statistics.median(column) for column in zip(*taken, strict=True)))
        for what, taken in found.items()
    }


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    end_on_sigterm()
    found = measure(asked.records, asked.rounds)
    print("\n".join(cpu_table("consumer", "how", ("iterate", "poll"), found, asked.records)))


if __name__ == "__main__":
    main()
