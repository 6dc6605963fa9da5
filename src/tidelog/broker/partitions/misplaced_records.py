"""Misplaced records: those whose key a producer without a count wrote to another partition.

Owns the search for them in batches that were appended, and their number by topic. Not when such a
producer wrote: see `unaware_writers`.

A producer without a count hashes by the number of partitions that it knows. Its records are in the
place where aware producers write their keys only while C is N times a power of two, and the number
is the present one. So the keys of its batches are checked while C is another number, and for
``NEWEST_AGE_MS`` after the first such batch in a resize epoch: clients refresh their metadata
within that time. A task checks them after the append, in turns and in threads, in a bounded
queue: what has no room in it is not checked, so the count is a lower bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tidelog.model.work import Work
from tidelog.partitioning.audit_rules import home_in
from tidelog.partitioning.hashing import hashes_of_keys
from tidelog.partitioning.lineage import level_of
from tidelog.records.batch import HEADER_SIZE, Buffer, read_header
from tidelog.records.compression import decompress
from tidelog.records.record import CorruptRecords
from tidelog.records.scanning import KeyReader
from tidelog.runtime import pace
from tidelog.runtime.tasks import call_off

if TYPE_CHECKING:
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

NEWEST_AGE_MS = 300_000
"""How old the metadata of a client may be: Kafka's default of ``metadata.max.age.ms``."""

MOST_BYTES = 8 * 1024 * 1024
"""Most bytes of batches that wait to be checked; a larger batch is not checked."""

MOST_PLAIN_BYTES = 16 * 1024 * 1024
"""Most bytes that one batch may decompress to."""


class _Batch(NamedTuple):
    topic: str
    partition: int
    initial_count: int
    present_count: int
    records: bytes


class MisplacedRecords:
    """The search of one broker. Used on the event loop only."""

    def __init__(self, metadata: MetadataCache, clock: Clock, background: pace.Background) -> None:
        self._metadata = metadata
        self._clock = clock
        self._background = background
        self.found: dict[str, int] = {}
        """Records whose key has another partition, by topic, since the start of this broker."""
        self.skipped = 0
        """Batches that were not checked, because too many waited."""
        self.resized: dict[str, tuple[int, int]] = {}
        """The resize epoch of a topic's last batch, and since when batches come in it."""
        self._queue: deque[_Batch] = deque()
        self._bytes = 0
        self._is_working = False
        self._tasks: set[asyncio.Task[None]] = set()

    def check(self, partition: HostedPartition, records: Buffer) -> None:
        """Have the keys of a batch checked, if they may be misplaced and there is room."""
        topic, index = partition.key
        shown = self._metadata.topic(topic)
        initial = -1 if shown is None else shown.initial_partition_count
        count = partition.state.undeleted_count
        if not (0 < initial <= count and self._may_be_misplaced(partition, initial, count)):
            return
        if self._bytes + len(records) > MOST_BYTES:
            self.skipped += 1
            return
        self._bytes += len(records)
        self._queue.append(_Batch(topic, index, initial, count, bytes(records)))
        if not self._is_working:
            self._is_working = True
            task = asyncio.get_running_loop().create_task(self._work_off(), name="misplaced")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _may_be_misplaced(self, partition: HostedPartition, initial: int, count: int) -> bool:
        now_ms, epoch = self._clock.monotonic_ms(), partition.state.resize_epoch
        former, since_ms = self.resized.get(partition.key.topic, (-1, now_ms))
        if epoch > former:
            since_ms = now_ms
            self.resized[partition.key.topic] = epoch, now_ms
        return level_of(initial, count) != count or now_ms - since_ms < NEWEST_AGE_MS

    async def _work_off(self) -> None:
        try:
            while self._queue:
                batch = self._queue.popleft()
                misplaced = await self._misplaced_in(batch)
                self._bytes -= len(batch.records)
                if misplaced:
                    self.found[batch.topic] = self.found.get(batch.topic, 0) + misplaced
        finally:
            self._is_working = False

    async def _misplaced_in(self, batch: _Batch) -> int:
        try:
            plain = await self._background.run(_unpacked(batch.records))
            return await pace.run(misplaced_in(plain, batch), self._clock)
        except CorruptRecords:
            return 0
        except Exception:
            logger.exception("the keys of a batch for %s could not be read", batch.topic)
            return 0

    async def stop(self) -> None:
        """Stop; the batches that wait are not checked."""
        await call_off(self._tasks)


def _unpacked(records: bytes) -> Work[Buffer]:
    """Return the plain records of one batch, decompressed in a thread; CorruptRecords."""
    header = read_header(records)
    payload = memoryview(records)[HEADER_SIZE:]
    if not header.codec:
        return payload
    plain: bytes = yield partial(decompress, header.codec, payload, MOST_PLAIN_BYTES)
    return plain


def misplaced_in(plain: Buffer, batch: _Batch) -> Work[int]:
    """Return how many records have a key of another partition, in steps; CorruptRecords."""
    reader = KeyReader(plain, read_header(batch.records).record_count)
    home = home_in(batch.partition, [(batch.initial_count, batch.present_count)])
    misplaced = 0
    while not reader.is_over:
        misplaced += sum(map(home.is_away, hashes_of_keys(reader.read(pace.PART))))
        yield None
    return misplaced
