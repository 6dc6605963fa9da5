"""The record that a consumer receives, and the decoding of fetched batches into such records.

Owns both. Not which records are due: see ``record_queue``. The names of the fields are those of
kafka-python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tidelog.client.errors import RecordUnreadable
from tidelog.client.fetching.batches import Fetched
from tidelog.records.batch import BatchHeader
from tidelog.records.reader import FastReader
from tidelog.records.record import CorruptRecords

Deserializer = Callable[[bytes], Any]

CREATE_TIME = 0
LOG_APPEND_TIME = 1
"""Values of ``timestamp_type``: the producer's time, or the broker's."""


class ConsumerRecord(msgspec.Struct, frozen=True, gc=False):
    """One record. ``timestamp`` is in ms; the sizes are bytes on the wire, -1 for null."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    serialized_key_size: int
    serialized_value_size: int
    leader_epoch: int
    checksum: None = None


def decoded(
    fetched: Fetched,
    reader: FastReader,
    *,
    check_crcs: bool = True,
    key: Deserializer | None = None,
    value: Deserializer | None = None,
) -> Iterator[list[ConsumerRecord]]:
    """Yield the records that a reader sees, a list for each batch.

    Raises RecordUnreadable, after the records before it; the iterator ends with it.
    """
    try:
        for header, batch in fetched.batches(check_crc=check_crcs):
            records = _records(fetched, header, reader.records(batch))
            if key is None and value is None:
                yield records
                continue
            for place, record in enumerate(records):
                try:
                    records[place] = _deserialized(record, key, value)
                except Exception as error:
                    yield records[:place]
                    reason = f"its deserializer raised {error!r}"
                    raise RecordUnreadable(fetched.partition, record.offset, reason) from error
            yield records
    except CorruptRecords as error:
        raise RecordUnreadable(fetched.partition, fetched.offset, str(error)) from error


def _records(fetched: Fetched, header: BatchHeader, items: Iterator[Any]) -> list[ConsumerRecord]:
    topic, partition = fetched.partition
    first, epoch = fetched.offset, header.leader_epoch
    late = header.max_timestamp if header.log_append_time else None
    kind = CREATE_TIME if late is None else LOG_APPEND_TIME
    records: list[ConsumerRecord] = []
    append = records.append
    for item in items:
        offset = item.offset
        if offset < first:
            continue
        key, value, headers = item.key, item.value, item.headers
        append(
            ConsumerRecord(
                topic,
                partition,
                offset,
                item.timestamp if late is None else late,
                kind,
                key,
                value,
                tuple(headers) if headers else (),
                -1 if key is None else len(key),
                -1 if value is None else len(value),
                epoch,
            )
        )
    return records


def _deserialized(
    record: ConsumerRecord, key: Deserializer | None, value: Deserializer | None
) -> ConsumerRecord:
    changes: dict[str, Any] = {}
    if key is not None and record.key is not None:
        changes["key"] = key(record.key)
    if value is not None and record.value is not None:
        changes["value"] = value(record.value)
    return msgspec.structs.replace(record, **changes) if changes else record
