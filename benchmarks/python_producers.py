"""How fast are the public Python producers beside aiokafka's and kafka-python's?

Run: ``python -m benchmarks.python_producers [--records 200000] [--rounds 3]``. Records of 100 bytes
to four partitions of one tidelog node, acks=all and idempotent, batches of 16 kB, linger 5 ms, with
keys (a thousand) and without. The producers take turns; the table has the median of the rounds.
CPU is that of the client's process, in microseconds a record; wall time includes the broker, which
shares the machine. On 2026-11-27 at a load average of 22 on two cores, so that only the ratios
count (three rounds; they were 0.66 and 0.78 of aiokafka's before a record went into the open batch
without further calls):

| producer | keys | us of CPU a record | ours/theirs |
|---|---|---|---|
| tidelog.aio | no | 4.9 | 0.63 of aiokafka's |
| tidelog.aio | yes | 4.8 | 0.50 of aiokafka's |
| tidelog | no | 6.8 | 0.34 of kafka-python's |
| tidelog | yes | 7.7 | 0.30 of kafka-python's |
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import kafka
from tests.support.clients import create_topic
from tests.support.server import TidelogNode

import tidelog
import tidelog.aio
from benchmarks.ending import end_on_sigterm

VALUE = b"x" * 100
KEYS = [b"key-%d" % number for number in range(1_000)]
TOPIC = "t"


class Taken(NamedTuple):
    """Seconds of one run."""

    wall_s: float
    cpu_s: float


def asyncio_producer(make: Callable[[], Any]) -> Callable[[int, bool], Taken]:
    """Return a run of a producer with aiokafka's interface."""

    async def work(count: int, with_keys: bool) -> Taken:
        producer = make()
        await producer.start()
        await producer.send_and_wait(TOPIC, VALUE)
        wall, cpu = time.perf_counter(), time.process_time()
        for number in range(count):
            await producer.send(TOPIC, VALUE, key=KEYS[number % 1000] if with_keys else None)
        await producer.flush()
        taken = Taken(time.perf_counter() - wall, time.process_time() - cpu)
        await producer.stop()
        return taken

    return lambda count, with_keys: asyncio.run(work(count, with_keys))


def blocking_producer(make: Callable[[], Any]) -> Callable[[int, bool], Taken]:
    """Return a run of a producer with kafka-python's interface."""

    def work(count: int, with_keys: bool) -> Taken:
        producer = make()
        producer.send(TOPIC, VALUE).get(60)
        wall, cpu = time.perf_counter(), time.process_time()
        for number in range(count):
            producer.send(TOPIC, VALUE, key=KEYS[number % 1000] if with_keys else None)
        producer.flush()
        taken = Taken(time.perf_counter() - wall, time.process_time() - cpu)
        producer.close()
        return taken

    return work


def runs(bootstrap: str) -> dict[str, Callable[[int, bool], Taken]]:
    """Return the producers by name, each pair of ours and theirs one after the other."""
    same: dict[str, Any] = {"bootstrap_servers": bootstrap, "linger_ms": 5, "acks": "all"}
    idempotent = {**same, "enable_idempotence": True}
    return {
        "tidelog.aio": asyncio_producer(lambda: tidelog.aio.Producer(**same)),
        "aiokafka": asyncio_producer(lambda: aiokafka.AIOKafkaProducer(**idempotent)),
        "tidelog": blocking_producer(lambda: tidelog.Producer(**same)),
        "kafka-python": blocking_producer(lambda: kafka.KafkaProducer(**same)),
    }


def measure(count: int, rounds: int) -> dict[tuple[str, bool], Taken]:
    """Return the median of each producer, with and without keys."""
    found: dict[tuple[str, bool], list[Taken]] = {}
    with tempfile.TemporaryDirectory() as folder, TidelogNode(Path(folder), {}) as node:
        create_topic(node.bootstrap, TOPIC, 4)
        for _ in range(rounds):
            for name, run in runs(node.bootstrap).items():
                for with_keys in (False, True):
                    gc.collect()
                    found.setdefault((name, with_keys), []).append(run(count, with_keys))
    return {
        what: Taken(*(statistics.median(column) for column in zip(*taken, strict=True)))
        for what, taken in found.items()
    }


def cpu_table(
    what: str,
    variant: str,
    variants: Sequence[str],
    found: Mapping[tuple[str, str], Taken],
    records: int,
) -> list[str]:
    """Return the lines of a table: each of our clients above the one that it is compared with."""
    lines = [
        f"| {what} | {variant} | records/s | us of CPU a record | ours/theirs, CPU |",
        "|---|---|---|---|---|",
    ]
    for ours, theirs in (("tidelog.aio", "aiokafka"), ("tidelog", "kafka-python")):
        for each in variants:
            ratio = found[ours, each].cpu_s / found[theirs, each].cpu_s
            for name in (ours, theirs):
                taken = found[name, each]
                lines.append(
                    f"| {name} | {each} | {records / taken.wall_s:,.0f}"
                    f" | {taken.cpu_s / records * 1e6:.1f} |"
                    f" {f'{ratio:.2f}' if name == ours else ''} |"
                )
    return lines


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    end_on_sigterm()
    found = measure(asked.records, asked.rounds)
    shown = {(name, "yes" if keys else "no"): taken for (name, keys), taken in found.items()}
    print("\n".join(cpu_table("producer", "keys", ("no", "yes"), shown, asked.records)))


if __name__ == "__main__":
    main()
