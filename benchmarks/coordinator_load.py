"""How long does a coordinator take to load a log of transactional ids?

Not a test. Run: ``python -m benchmarks.coordinator_load [--records 1000000] [--folder F]``. A
broker in this process leads ``__transaction_state``, whose log has one record in each batch, as the
coordinator writes them: five for each transaction, over four partitions. CPU seconds of this
process, and the longest turn of its event loop. The files lie in the page cache; a folder that is
given keeps them for the next run.
Result: benchmarks/NOTES.md.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.transaction_broker import TransactionBroker

from tidelog.model.topics import TopicPartition
from tidelog.records.builder import NewRecord, build_batch
from tidelog.runtime.loop import run, tame_collector
from tidelog.transactions.records import TransactionRecord, encode
from tidelog.transactions.state import Transaction, TransactionState

STATES = (
    TransactionState.ONGOING,
    TransactionState.ONGOING,
    TransactionState.ONGOING,
    TransactionState.PREPARE_COMMIT,
    TransactionState.COMPLETE_COMMIT,
)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--records", type=int, default=1_000_000)
    options.add_argument("--folder", type=Path)
    given = options.parse_args()
    for ids in (1_000, 200_000):
        with tempfile.TemporaryDirectory() as made:
            folder = Path(given.folder or made) / str(ids)
            folder.mkdir(parents=True, exist_ok=True)
            run(measure(folder, ids, given.records))


async def measure(folder: Path, ids: int, records: int) -> None:
    config = {"transactional.id.expiration.ms": 2_000_000_000}
    broker = TransactionBroker(folder, config)
    await broker.start()
    hosted = await broker.lead_and_load()
    if hosted.end_offset < records:
        await fill(hosted, ids, records)
    broker.lead_state(epoch=1, leader=2)
    longest, ended = 0.0, asyncio.Event()

    async def watch() -> None:
        nonlocal longest
        while not ended.is_set():
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)

    watching = asyncio.create_task(watch())
    tame_collector()  # as a server does
    begun, began = time.process_time(), time.perf_counter()
    loaded = await broker.lead_and_load(epoch=2)
    cpu, wall = time.process_time() - begun, time.perf_counter() - began
    ended.set()
    await watching
    table: Any = broker.table()
    assert len(table) == ids, len(table)
    print(
        f"{loaded.end_offset} records of {ids} ids: {cpu:.1f} s of CPU, {wall:.1f} s, "
        f"longest turn {1000 * longest:.1f} ms"
    )
    await broker.stop()


async def fill(hosted: Any, ids: int, records: int) -> None:
    now_ms = int(time.time() * 1000)
    partitions = tuple(TopicPartition("topic", index) for index in range(4))
    for number in range(hosted.end_offset, records):
        which, turn = number % ids, number // ids
        state = STATES[turn % len(STATES)]
        added = () if state is TransactionState.COMPLETE_COMMIT else partitions
        value = Transaction(which, 0, 60_000, state, added, now_ms, now_ms)
        record = NewRecord(now_ms, *encode(TransactionRecord(f"producer-{which}", value)))
        hosted.append(build_batch([record]), now_ms, from_client=False)
        if number % 100 == 0:
            await asyncio.sleep(0)


if __name__ == "__main__":
    main()
