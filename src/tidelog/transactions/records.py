"""Records of ``__transaction_state``: typed values and their bytes, exactly Kafka's formats.

Owns the layout of keys and values by version. Not the rules: see `rules`.

===========  ================================  =========================================
key version  key                               value (written version; versions read)
===========  ================================  =========================================
0            transactional id                  TransactionLogValue (1; 0 and 1)
===========  ================================  =========================================

A null value is a tombstone. A key or value of another version, a state that this code does not
know, and damaged bytes are an ``UnreadableRecord``. Why version 1: docs/decisions/0116.
Source: the transaction coordinator's record schemas of Apache Kafka 4.3 (KIP-98, KIP-890).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from tidelog.model.topics import TopicPartition
from tidelog.protocol.record_fields import FieldReader, FieldWriter, Malformed
from tidelog.transactions.state import NO_EPOCH, NO_PRODUCER_ID, Transaction, TransactionState

KEY_VERSION = 0
VALUE_VERSION = 1
FLEXIBLE_FROM = 1

_PREVIOUS_ID, _NEXT_ID, _CLIENT_VERSION, _NEXT_EPOCH = range(4)
"""Tags of version 1."""


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """The state of a transactional id; ``value`` None removes it."""

    transactional_id: str
    value: Transaction | None


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A record of a version or state that this code does not know, or with damaged bytes.

    ``transactional_id`` is None when its key could not be read.
    """

    transactional_id: str | None
    reason: str


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Return the key and value of a record."""
    key = FieldWriter().int16(KEY_VERSION).string(record.transactional_id).done()
    return key, None if record.value is None else encode_value(record.value)


def encode_value(value: Transaction, version: int = VALUE_VERSION) -> bytes:
    """Return the value of a record; version 0 has no place for the tagged fields."""
    compact = version >= FLEXIBLE_FROM
    writer = FieldWriter().int16(version).int64(value.producer_id).int16(value.producer_epoch)
    writer.int32(value.timeout_ms).int8(value.state)
    _write_partitions(writer, value, compact)
    writer.int64(value.updated_ms).int64(value.started_ms)
    return (writer.tags(_tags(value)) if compact else writer).done()


def _write_partitions(writer: FieldWriter, value: Transaction, compact: bool) -> None:
    # As in Kafka the state Empty has no list, and the others have one, though it be empty.
    if value.state is TransactionState.EMPTY:
        writer.count(None, compact=compact)
        return
    by_topic = [(topic, list(at)) for topic, at in groupby(value.partitions, itemgetter(0))]
    writer.count(len(by_topic), compact=compact)
    for topic, partitions in by_topic:
        _ = writer.compact_string(topic) if compact else writer.string(topic)
        writer.count(len(partitions), compact=compact)
        for _, partition in partitions:
            writer.int32(partition)
        if compact:
            writer.tags({})


def _tags(value: Transaction) -> dict[int, FieldWriter]:
    tags = {}
    if value.previous_producer_id != NO_PRODUCER_ID:
        tags[_PREVIOUS_ID] = FieldWriter().int64(value.previous_producer_id)
    if value.next_producer_id != NO_PRODUCER_ID:
        tags[_NEXT_ID] = FieldWriter().int64(value.next_producer_id)
    if value.client_version:
        tags[_CLIENT_VERSION] = FieldWriter().int16(value.client_version)
    if value.next_producer_epoch != NO_EPOCH:
        tags[_NEXT_EPOCH] = FieldWriter().int16(value.next_producer_epoch)
    return tags


def decode(
    key: bytes | memoryview, value: bytes | memoryview | None
) -> TransactionRecord | UnreadableRecord:
    """Return the record of a key and value; never raises, whatever the bytes are."""
    transactional_id = None
    try:
        reader = FieldReader(key)
        if (version := reader.int16()) != KEY_VERSION:
            return UnreadableRecord(None, f"key version {version}")
        transactional_id = reader.string()
        if value is None:
            return TransactionRecord(transactional_id, None)
        return TransactionRecord(transactional_id, _read_value(FieldReader(value)))
    except Malformed as error:
        return UnreadableRecord(transactional_id, str(error))


def _read_value(reader: FieldReader) -> Transaction:
    if not 0 <= (version := reader.int16()) <= VALUE_VERSION:
        raise Malformed(f"value version {version}")
    compact = version >= FLEXIBLE_FROM
    producer_id, epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    state = _state(reader.int8())
    partitions = _read_partitions(reader, compact)
    updated_ms, started_ms = reader.int64(), reader.int64()
    tags = reader.tags() if compact else {}
    return Transaction(
        producer_id,
        epoch,
        timeout_ms,
        state,
        partitions,
        updated_ms,
        started_ms,
        tags[_PREVIOUS_ID].int64() if _PREVIOUS_ID in tags else NO_PRODUCER_ID,
        tags[_NEXT_ID].int64() if _NEXT_ID in tags else NO_PRODUCER_ID,
        tags[_NEXT_EPOCH].int16() if _NEXT_EPOCH in tags else NO_EPOCH,
        tags[_CLIENT_VERSION].int16() if _CLIENT_VERSION in tags else 0,
    )


def _state(number: int) -> TransactionState:
    try:
        return TransactionState(number)
    except ValueError:
        raise Malformed(f"state {number}") from None


def _read_partitions(reader: FieldReader, compact: bool) -> tuple[TopicPartition, ...]:
    found = []
    for _ in range(reader.count(compact=compact) or 0):
        topic = reader.compact_string() if compact else reader.string()
        count = reader.count(compact=compact) or 0
        found += [TopicPartition(topic, reader.int32()) for _ in range(count)]
        if compact:
            reader.tags()
    return tuple(found)
