"""The batches of a Produce request with a transactional id, from their arrival to their append.

Owns the step of each: it is appended at once where it goes on with a transaction that is open here,
and otherwise waits in `inspected_appends`, as a `joining.Joining`. Not the rules: see
`verification`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tidelog.broker.partitions.plain_append import plain_header
from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    TRANSACTIONAL_BIT,
    Buffer,
    Rejected,
    check_batch_in_transaction,
    read_header,
)
from tidelog.storage.log.inspecting import UNINSPECTED, BatchDemands
from tidelog.storage.log.joining import is_open
from tidelog.storage.log.preparing import checked
from tidelog.storage.log.producers import RESUMES
from tidelog.storage.log.results import Appended, as_appended
from tidelog.storage.log.tail import write_one
from tidelog.transactions.state import IdAndEpoch

if TYPE_CHECKING:
    from tidelog.broker.partitions.inspected_appends import InspectedAppends
    from tidelog.broker.partitions.partition import HostedPartition

_attributes_at = struct.Struct(">h").unpack_from
_producer_at = struct.Struct(">qh").unpack_from
_PRODUCER_POSITION = 43


def producer_of(records: Buffer) -> IdAndEpoch | None:
    """Return the producer of a payload's first batch if it says that it is of a transaction."""
    if len(records) < HEADER_SIZE:
        return None
    if not _attributes_at(records, ATTRIBUTES_POSITION)[0] & TRANSACTIONAL_BIT:
        return None
    return IdAndEpoch(*_producer_at(records, _PRODUCER_POSITION))


def append_in_transaction(
    partition: HostedPartition,
    records: Buffer,
    now_ms: int,
    queues: InspectedAppends,
    *,
    at_once: bool,
) -> Appended | Rejected:
    """Append a batch of a transaction that goes on with what is open; ``UNINSPECTED``, with nothing
    done, for one that has to wait, and for a sound one if it may not be appended ``at_once``.

    Constant work, but for the CRC and the write."""
    log, batch = partition.log, memoryview(records)
    header = plain_header(log, batch, partition.leader_epoch, now_ms, check_batch_in_transaction)
    if not isinstance(header, tuple):
        if header is None or header is RESUMES or _waits(queues, partition, records):
            # Sound in itself, before its header says which coordinator to ask.
            wanted = BatchDemands(log.configs, now_ms, in_transaction=True)
            batches = checked(records, wanted)
            return UNINSPECTED if isinstance(batches, list) else batches
        return header
    producer_id, epoch = header[9], header[10]
    if not at_once or queues.waits(partition, producer_id):
        return UNINSPECTED
    if not is_open(log.producers.entries.get(producer_id), epoch):
        return UNINSPECTED
    first = log.end_offset
    refusal = write_one(log, header, batch, partition.leader_epoch, now_ms)
    if refusal is not None:
        partition.check_disk()
        return refusal
    done = as_appended(Appended, (first, log.end_offset - 1, -1, log.start_offset, False))
    return partition.appended(len(batch)) or done


def _waits(queues: InspectedAppends, partition: HostedPartition, records: Buffer) -> bool:
    return len(records) >= HEADER_SIZE and queues.waits(partition, read_header(records).producer_id)
