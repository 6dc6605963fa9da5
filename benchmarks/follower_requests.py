"""What does a follower's fetch cost when it follows many partitions of which one is written to?

Leader and follower are two brokers in this process, over loopback, without a controller. One record
is appended to one partition and waited for until it is committed (two fetches); CPU of both brokers
together. Fetch sessions (KIP-227) let it cost what changed: it should not grow with the partitions.
Run: ``python benchmarks/follower_requests.py``. Result: docs/internals/broker.md.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.broker_pair import Pair  # noqa: E402
from tests.support.lone_broker import until  # noqa: E402

from tidelog.records.builder import NewRecord, build_batch  # noqa: E402
from tidelog.runtime.loop import run, tame_collector  # noqa: E402

PARTITIONS = (1, 100, 1000, 4000)
ROUNDS, RECORDS = 8, 200
DEADLINE_S = 120


async def measure(folder: Path, partitions: int) -> float:
    """CPU seconds per record, the best of some rounds."""
    pair = Pair(folder)
    await pair.start()
    leaders = [pair.lead(index) for index in range(partitions)]
    for index in range(partitions):
        pair.follow(index)
    await until(lambda: all(2 in each.followers for each in leaders), DEADLINE_S)
    tame_collector()
    now_ms = int(time.time() * 1000)
    record = build_batch([NewRecord(now_ms, None, b"x" * 100)])
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        for turn in range(RECORDS):
            leader = leaders[turn % partitions]
            leader.append(record, now_ms)
            committed = asyncio.get_running_loop().create_future()
            leader.when_committed(leader.end_offset - 1, committed.set_result)
            await committed
        best = min(best, (time.process_time() - begun) / RECORDS)
    await pair.stop()
    return best


async def main() -> None:
    for partitions in PARTITIONS:
        with tempfile.TemporaryDirectory() as folder:
            cost_s = await measure(Path(folder), partitions)
        print(f"{partitions:6} partitions followed: {cost_s * 1e6:8.0f} us per record")


if __name__ == "__main__":
    run(main())
