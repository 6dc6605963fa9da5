"""Fast path of Produce: from the bytes of the request to those of the response, without messages.

Owns the plain Produce request, which librdkafka always and others mostly send on busy connections:
version 9-13 (13 with a topic id), acks 1 or all, one partition, no tags or the present count,
resize epoch and partition epoch of an aware producer (KIP-253). It costs half as much as
``handlers.produce`` (figures in docs/internals/broker.md), which handles all other requests and
makes all error responses: for these the fast path returns None and changes nothing. Not requests
for several partitions: see `produce_many`, which it asks.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.broker.metadata.leader_hints import FIRST_PRODUCE_VERSION
from tidelog.broker.partitions import produce_many
from tidelog.broker.partitions.admission import ALL_IN_SYNC, why_not_admitted
from tidelog.broker.partitions.delayed_produce import DelayedFrame, refuse
from tidelog.broker.partitions.produce_lists import BY_ID_SINCE, CLIENT_ID_AT
from tidelog.broker.partitions.produce_tags import MOST_TAG_BYTES, NO_TAGS
from tidelog.broker.partitions.resize_checks import named_by, why_not_taken
from tidelog.broker.partitions.unaware_writers import is_to_note
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.protocol import codec, messages
from tidelog.protocol.primitives import NO_UUID, DecodeError, read_uvarint
from tidelog.records.batch import HEADER_SIZE
from tidelog.replication.resize_rules import NOT_NAMED
from tidelog.storage.log.inspecting import ONE_BATCH
from tidelog.storage.log.results import Appended

if TYPE_CHECKING:
    import asyncio

    from tidelog.broker.partitions.produce_many import Appends
    from tidelog.network.router import Peer

ONE_ELEMENT = 2
"""A compact array's length field with one element: it is the length plus one."""

_LONGEST_NAME = 126
"""Longer names have a length field of two bytes."""

_readers = tuple(
    struct.Struct(f">BhiBx{size}sBiBBB").unpack_from for size in range(_LONGEST_NAME + 1)
)
"""Requests by the length of the topic name: length field of the transactional id, acks, timeout,
length field of the topics, name, length field of the partitions, partition, and the first bytes of
the length of the records."""

_NAME_LENGTH_AT, _RECORDS_AT = 8, 15
"""Where the name's length field is; and where the records begin if the name is empty, and their
length has one byte."""

_ID_BYTES = 16
_read_by_id = struct.Struct(">BhiB16sBiBBB").unpack_from
_RECORDS_BY_ID_AT = _RECORDS_AT - 1 + _ID_BYTES
"""An id has no length field."""

_packers = tuple(
    struct.Struct(f">iixBB{size}sBi2xqqqB8x").pack for size in range(_LONGEST_NAME + 1)
)
"""Responses by the length of the topic name; fields that are always zero are padding."""

_pack_by_id = struct.Struct(">iixB16sBi2xqqqB8x").pack

_FIXED_BYTES = 4 + 3 + 1 + 4 + 2 + 24 + 4 + 4 + 1
"""Bytes of a response after its size field, without the topic name."""


def answer(
    broker: Appends,
    request: memoryview,
    position: int,
    version: int,
    correlation_id: int,
    client: Peer,
) -> bytes | asyncio.Future[Any] | None:
    """Append, and return the frame of the response or a future of it; None: not plain."""
    if version < 9:
        return None
    try:
        by_id = version >= BY_ID_SINCE
        plain = _read(request, position, by_id)
        if plain is None:
            return produce_many.answer(broker, request, position, version, correlation_id, client)
        acks, timeout_ms, name, index, records, tags = plain
        if by_id:
            topic, topic_id = broker.metadata.names.by_bytes[name]
        else:
            topic, topic_id = name.decode(), NO_UUID
    except (struct.error, LookupError, ValueError, DecodeError):
        return None
    hosted = broker.partitions.by_topic.get(topic)
    partition = None if hosted is None else hosted.get(index)
    if partition is None or why_not_admitted(partition, topic, records, acks) is not None:
        return None
    if by_id and partition.topic_id != topic_id:
        return None
    unaware, state = tags == NO_TAGS, partition.state
    if not unaware and tags != state.produce_tags:
        return None
    named = NOT_NAMED
    if not unaware:
        named = named_by(state.undeleted_count, state.resize_epoch, state.partition_epoch)
    if why_not_taken(partition, named, records, broker.metadata) is not None:
        return None
    now_ms = broker.clock.wall_ms()
    is_due = unaware and is_to_note(partition, now_ms)
    if is_due and not broker.unaware_writers.may_append(partition, NOT_NAMED, now_ms):
        return None
    result = partition.append(records, now_ms, allowance=ONE_BATCH)
    if result.__class__ is not Appended:
        # Nothing was appended: the general path tries again, and makes the error response.
        return None
    first, last, append_time_ms, start, duplicate = result
    if not duplicate and (is_due or (unaware and state.resize_epoch)):
        client_id = None
        if is_due:
            # In front of the message: the client id, and the byte of no tagged fields.
            client_id = str(request[CLIENT_ID_AT : position - 1], "utf-8", "replace")
        broker.unaware_writers.note(partition, NOT_NAMED, records, now_ms, client_id)
    size = len(name)
    rest = ONE_ELEMENT, index, first, append_time_ms, start, 1
    if by_id:
        frame = _pack_by_id(_FIXED_BYTES - 1 + size, correlation_id, ONE_ELEMENT, name, *rest)
    else:
        head = _FIXED_BYTES + size, correlation_id, ONE_ELEMENT, size + 1
        frame = _packers[size](*head, name, *rest)
    if acks != ALL_IN_SYNC or last < partition.log.high_watermark:
        return frame
    refused = partial(_refused, broker, version, correlation_id, topic, topic_id, index)
    return DelayedFrame(partition, last, timeout_ms, frame, refused).future


def _refused(
    broker: Appends,
    version: int,
    correlation_id: int,
    topic: str,
    topic_id: UUID,
    index: int,
    error: ErrorCode,
) -> bytes:
    response = messages.ProduceResponse
    part = response.PartitionProduceResponse(index)
    refuse(part, error)
    whole = response([response.TopicProduceResponse(topic, topic_id, [part])])
    listeners = broker.configs.broker_listeners
    if version >= FIRST_PRODUCE_VERSION and len(listeners) == 1:
        # The listener of the client is unknown here; with several it must request Metadata.
        broker.leader_hints.name_leaders(whole, listeners[0].name)
    return b"".join(codec.encode_response(ApiKey.PRODUCE, version, correlation_id, whole))


def _read(
    frame: memoryview, position: int, by_id: bool
) -> tuple[int, int, bytes, int, memoryview, bytes] | None:
    """Return (acks, timeout, topic, partition, records, tags) of a plain request; the topic is a
    name, or the bytes of an id."""
    if by_id:
        read, start = _read_by_id, position + _RECORDS_BY_ID_AT
    else:
        length = frame[position + _NAME_LENGTH_AT] - 1
        if not 0 < length <= _LONGEST_NAME:
            return None
        read, start = _readers[length], position + _RECORDS_AT + length
    transactional_id, acks, timeout_ms, topics, name, partitions, index, size, second, third = read(
        frame, position
    )
    if (
        transactional_id
        or topics != ONE_ELEMENT
        or partitions != ONE_ELEMENT
        or acks not in (1, ALL_IN_SYNC)
    ):
        return None
    if size > 127:
        # Two and three bytes as nearly always: up to 2 MiB.
        if second < 128:
            size, start = size & 127 | second << 7, start + 1
        elif third < 128:
            size, start = size & 127 | (second & 127) << 7 | third << 14, start + 2
        else:
            size, start = read_uvarint(frame, start, size)
    stop = start + size - 1
    if size <= HEADER_SIZE:
        return None
    tags = bytes(frame[stop : stop + MOST_TAG_BYTES])
    return acks, timeout_ms, name, index, frame[start:stop], tags
