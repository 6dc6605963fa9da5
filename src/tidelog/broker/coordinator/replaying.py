"""Replay of a led partition's log: its records from the start to the end of a former leadership.

Owns the reads, their checks, pauses and turns. Not what a record means: see
``table.Table.replay``; not when the table is served: see ``led_partition``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.records.batch import Rejected, crc_is_right, walk
from tidelog.records.reader import read_batch
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


class LoadFailed(Exception):
    """The log cannot be read; the text names the offset and the reason."""


async def replay_to(
    hosted: HostedPartition,
    noun: str,
    end: int,
    clock: Clock,
    replay: Replay,
    goes_on: Callable[[], bool],
) -> None:
    """Replay all records below ``end``. O(log); yields after each turn.

    ``noun`` is that of the table's keys, for the log. ``replay`` gets the records of a batch in
    parts, and a control batch as it is.
    Ends early when the load no longer ``goes_on``. Raises LoadFailed, CorruptRecords.
    """
    replay_records, replay_control = replay
    position = hosted.start_offset
    turn = pace.Turn(clock)
    has_warned = False
    while position < end:
        found = hosted.read(position, LOAD_CHUNK_BYTES, committed=False)
        if isinstance(found, Rejected):
            if _is_final(hosted, found):
                raise LoadFailed(f"at offset {position}: {found.reason}")
            if not has_warned:
                has_warned = True
                logger.warning(
                    f"loading of the {noun}s of %(partition)s is paused: %(why)s",
                    {"partition": hosted.key, "why": found.reason},
                )
            await asyncio.sleep(READ_AGAIN_S)
            if not goes_on():
                return
            continue
        before = position
        for at, header in walk(found):
            if header.next_offset <= position:
                continue
            batch = found[at : at + header.size]
            if not crc_is_right(batch, header.crc):
                raise LoadFailed(f"the batch at offset {header.base_offset} has a wrong CRC")
            if header.control:
                replay_control(header, batch)
                if await turn.pause() and not goes_on():
                    return
            else:
                for records in pace.parts(read_batch(batch)):
                    replay_records(header, records)
                    if await turn.pause() and not goes_on():
                        return
            position = header.next_offset
        if position == before:
            if found:
                raise LoadFailed(f"no whole batch at offset {position}")
            # The cleaner may have removed all records up to the end of the log.
            return


def _is_final(hosted: HostedPartition, refused: Rejected) -> bool:
    """Whether a refused read cannot succeed later; a lack of file descriptors is temporary."""
    return hosted.log.failed is not None or refused.error is not ErrorCode.KAFKA_STORAGE_ERROR
