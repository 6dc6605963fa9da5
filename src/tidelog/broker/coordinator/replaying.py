"""Replay of a led partition's log: its records from the start to the end of a former leadership.

Owns the reads, their pauses and turns, and the walk over every record. Not what a record means: see
``table.Table.replay``; not the walk of tables that need the newest records only: see
``newest_records``; not when the table is served: see ``led_partition``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.records.batch import Rejected, crc_is_right, walk
from tidelog.records.reader import read_batch
from tidelog.records.record import CorruptRecords
from tidelog.runtime import pace

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.records.batch import BatchHeader
    from tidelog.records.record import Record
    from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

LOAD_CHUNK_BYTES = 262_144
"""Bytes of the log per read while loading."""

READ_AGAIN_S = 0.1
"""Pause of a load after a temporary failure of a read."""


Replay = tuple[
    Callable[["BatchHeader", Sequence["Record"]], None],
    Callable[["BatchHeader", memoryview], None],
]
"""What takes the records of a batch, and a control batch."""

Take = Callable[[memoryview, int], Work[int]]
"""What takes the batches of one read from an offset on, and returns the offset after them."""


class LoadFailed(Exception):
    """The log cannot be read; the text names the offset and the reason."""


async def replay_to(
    hosted: HostedPartition,
    noun: str,
    end: int,
    clock: Clock,
    take: Take,
    goes_on: Callable[[], bool],
) -> None:
    """Read all batches below ``end`` and let ``take`` have them. O(log); yields after each turn.

    ``noun`` is that of the table's keys, for the log.
    Ends early when the load no longer ``goes_on``. Raises LoadFailed, CorruptRecords.
    """
    position = hosted.start_offset
    turn = pace.Turn(clock)
    has_warned = False
    while position < end:
        read = hosted.read(position, LOAD_CHUNK_BYTES, committed=False)
        if isinstance(read, Rejected):
            if _is_final(hosted, read):
                raise LoadFailed(f"at offset {position}: {read.reason}")
            if not has_warned:
                has_warned = True
                logger.warning(
                    f"loading of the {noun}s of %(partition)s is paused: %(why)s",
                    {"partition": hosted.key, "why": read.reason},
                )
            await asyncio.sleep(READ_AGAIN_S)
            if not goes_on():
                return
            continue
        before, work = position, take(read, position)
        while True:
            try:
                next(work)
            except StopIteration as ended:
                position = ended.value
                break
            if await turn.pause() and not goes_on():
                return
        if position == before:
            if read:
                raise LoadFailed(f"no whole batch at offset {position}")
            # The cleaner may have removed all records up to the end of the log.
            return


def every_record(replay: Replay, read: memoryview, position: int) -> Work[int]:
    """Replay all records of the whole batches from an offset on; return the offset after them.

    ``replay`` gets the records of a batch in parts, and a control batch as it is.
    """
    replay_records, replay_control = replay
    for place, header in walk(read):
        if header.next_offset <= position:
            continue
        batch = read[place : place + header.size]
        if not crc_is_right(batch, header.crc):
            raise CorruptRecords(f"the batch at offset {header.base_offset} has a wrong CRC")
        if header.control:
            replay_control(header, batch)
            yield None
        else:
            for records in pace.parts(read_batch(batch)):
                replay_records(header, records)
                yield None
        position = header.next_offset
    return position


def _is_final(hosted: HostedPartition, refused: Rejected) -> bool:
    """Whether a refused read cannot succeed later; a lack of file descriptors is temporary."""
    return hosted.log.failed is not None or refused.error is not ErrorCode.KAFKA_STORAGE_ERROR
