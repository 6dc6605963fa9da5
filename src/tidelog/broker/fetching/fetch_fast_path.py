"""Fast path of Fetch: from the bytes of the request to those of the response, without messages.

Owns the plain Fetch request with something to read, as busy Java and librdkafka consumers send it:
version 12-17 (from 13 on with topic ids), ``min_bytes`` up to 1, no rack, no tags or the three of
counts, at most 100 partitions, without a session or as the next request of one that forgets no
partition. Not its rules: it reads with the functions of ``record_reads`` and
``client_sessions``, as ``handlers.fetch`` does, which handles all other requests, waits, warms up
and makes all error responses, and those with aborted transactions: for these the fast path returns
None and changes nothing but the fetch offsets of a session, which the same request sets again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

from tidelog.broker.fetching.aborted_reads import nothing_aborted
from tidelog.broker.fetching.client_sessions import ClientFetchSession, FetchSessions, Wanted
from tidelog.broker.fetching.partition_reads import Reader
from tidelog.broker.fetching.record_reads import records_at
from tidelog.broker.fetching.session_rules import FINAL_EPOCH, NO_SESSION, next_epoch
from tidelog.broker.fetching.topic_ids import BY_ID_SINCE, REPLICA_STATE_SINCE
from tidelog.broker.partitions.produce_tags import COUNT_TAG, EPOCH_TAG, PARTITION_TAG
from tidelog.broker.partitions.read_limit import READ_COMMITTED, limit_of_consumer
from tidelog.broker.partitions.resize_checks import named_by, why_not_read
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID, Buffer, put_records, records_size, uvarint
from tidelog.records.batch import Rejected
from tidelog.replication.resize_rules import NOT_NAMED, Named
from tidelog.storage.log.cold import ColdRead
from tidelog.storage.log.stable import last_stable_offset

if TYPE_CHECKING:
    from tidelog.broker.metadata.topic_names import TopicNames
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.network.router import Peer
    from tidelog.runtime.clock import Clock

FIRST_VERSION = 12
MOST_PARTITIONS = 100
CONSUMER = -1

_LONGEST_NAME = 126
"""Longer names have a length field of two bytes."""

_head = struct.Struct(">iiiibiiB").unpack_from
"""Replica id, wait, least and most bytes, isolation level, session id and epoch; topics."""

_HEAD_BYTES, _REPLICA_BYTES, _ID_BYTES = 26, 4, 16

_asked_partition = struct.Struct(">iiqiqiB").unpack_from
"""The fields of ``FetchPartition`` in their order; tags."""

_ASKED_BYTES = 33

_partition_tags = struct.Struct(">4si").unpack_from
_topic_tags = struct.Struct(">4si3si").unpack_from
_PARTITION_TAG_BYTES, _TOPIC_TAGS_BYTES = 8, 15

_END = b"\1\1\0"
"""No forgotten topics, no rack, no tags."""

_pack_head = struct.Struct(">iix6xi").pack
"""Size, correlation id, no tags, no throttle time and no error, session id."""

_pack_part = struct.Struct(">ixxqqqBi").pack
"""Index, no error, high watermark, last stable offset, log start offset, aborted transactions,
preferred read replica."""

_pack_size_into = struct.Struct(">i").pack_into

_FetchPartition = messages.FetchRequest.FetchPartition


class Names(Protocol):
    """The metadata of the broker."""

    names: TopicNames


class Reads(Protocol):
    """The parts of the broker that a Fetch request needs."""

    partitions: Partitions
    clock: Clock
    reader: Reader
    fetch_sessions: FetchSessions
    metadata: Names


_Asked = tuple[str | bytes, list[int], Named]
"""The name of a topic or the bytes of its id, the fields of ``FetchPartition`` up to its tags, and
the numbers in tags."""


class _Plain(NamedTuple):
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    asked: list[_Asked]


_Part = tuple[Wanted, int, int, int, Any, int]
"""What is wanted, the high watermark, the last stable offset, the log start offset, the records and
their size."""


def answer(
    broker: Reads,
    request: memoryview,
    position: int,
    version: int,
    correlation_id: int,
    client: Peer,
) -> list[Buffer] | None:
    """Read, and return the chunks of the response's frame; None: not plain, or nothing to read."""
    if version < FIRST_VERSION:
        return None
    by_id = version >= BY_ID_SINCE
    try:
        # From v15 on the replica is in a tag: the other fields are where they were with it.
        moved = _REPLICA_BYTES if version >= REPLICA_STATE_SINCE else 0
        plain = _read(request, position, moved, by_id)
    except (struct.error, IndexError, ValueError):
        return None
    if plain is None:
        return None
    sessions, by_topic = broker.fetch_sessions, broker.partitions.by_topic
    now_ms = broker.clock.monotonic_ms()
    sessions.expire(now_ms)
    session = None
    if plain.session_epoch != FINAL_EPOCH:
        cached = sessions.find(plain.session_id, plain.session_epoch)
        if not isinstance(cached, ClientFetchSession) or cached.by_id is not by_id:
            return None
        if not _update(cached, plain.asked):
            return None
        session, wanted = cached, cached.wanted
    elif plain.session_id == NO_SESSION:
        wanted = _wanted(plain.asked, broker.metadata.names)
    else:
        return None
    committed = plain.isolation_level == READ_COMMITTED
    if not _has_more(by_topic, wanted.values(), committed):
        return None
    parts = _parts(broker, wanted.values(), plain.max_bytes, client, committed)
    if parts is None:
        return None
    session_id = NO_SESSION
    if session is not None:
        epoch, session_id = session.epoch, session.id
        sessions.use(session, now_ms)
        session.epoch = next_epoch(epoch)
        parts = _noted(session, parts)
    return _frame(correlation_id, session_id, parts, committed, by_id)


def _wanted(asked: list[_Asked], names: TopicNames) -> dict[tuple[str | bytes, int], Wanted]:
    """Return the partitions of a request without a session.

    One that is named twice is read once, as in its last entry.
    """
    by_place: dict[tuple[str | bytes, int], Wanted] = {}
    for by, fields, named in asked:
        if isinstance(by, bytes):
            name, topic_id = names.by_bytes.get(by) or ("", UUID(bytes=by))
        else:
            name, topic_id = by, NO_UUID
        by_place[by, fields[0]] = Wanted(name, topic_id, _partition(fields), named, by)
    return by_place


def _partition(fields: list[int]) -> messages.FetchRequest.FetchPartition:
    index, epoch, offset, last_epoch, start, most = fields
    return _FetchPartition(index, epoch, offset, last_epoch, start, most)


def _read(frame: memoryview, position: int, moved: int, by_id: bool) -> _Plain | None:
    """Return what a plain request asks for."""
    replica, _, least, most, isolation, session_id, epoch, topics = _head(frame, position - moved)
    if (replica != CONSUMER and not moved) or least > 1 or not 0 < topics < 128:
        return None
    position += _HEAD_BYTES - moved
    partitions: list[_Asked] = []
    topic: str | bytes
    for _ in range(topics - 1):
        if by_id:
            end = position + _ID_BYTES
            topic = bytes(frame[position:end])
        else:
            length = frame[position]
            end = position + length
            if not 1 < length <= _LONGEST_NAME + 1:
                return None
            topic = str(frame[position + 1 : end], "utf-8")
        count = frame[end]
        if not 0 < count < 128:
            return None
        position = end + 1
        first = len(partitions)
        epochs: list[int] = []
        for _ in range(count - 1):
            *fields, tags = _asked_partition(frame, position)
            if fields[3] >= 0:
                return None  # it has an epoch to compare with the log's
            partitions.append((topic, fields, NOT_NAMED))
            position += _ASKED_BYTES
            if tags:
                tag, partition_epoch = _partition_tags(frame, position - 1)
                if tag != PARTITION_TAG:
                    return None
                epochs.append(partition_epoch)
                position += _PARTITION_TAG_BYTES - 1
        if not frame[position] and not epochs:
            position += 1
            continue
        tag, undeleted_count, tag_of_epoch, resize_epoch = _topic_tags(frame, position)
        if tag != COUNT_TAG or tag_of_epoch != EPOCH_TAG or len(epochs) != count - 1:
            return None  # some of the three numbers, and not all
        position += _TOPIC_TAGS_BYTES
        for place, partition_epoch in enumerate(epochs, first):
            named = named_by(undeleted_count, resize_epoch, partition_epoch)
            partitions[place] = (topic, partitions[place][1], named)
    if frame[position:] != _END or len(partitions) > MOST_PARTITIONS:
        return None
    return _Plain(most, isolation, session_id, epoch, partitions)


def _has_more(
    by_topic: Mapping[str, Mapping[int, HostedPartition]],
    wanted: Iterable[Wanted],
    committed: bool,
) -> bool:
    """Whether one of these positions is no end: otherwise the request waits."""
    for one in wanted:
        hosted = by_topic.get(one.topic)
        partition = None if hosted is None else hosted.get(one.index)
        offset, named = one.fetch_offset, one.named
        if partition is None or offset == (mark := partition.log.high_watermark):
            continue
        if committed and last_stable_offset(partition.log) <= offset <= mark:
            continue
        if named is NOT_NAMED or not limit_of_consumer(partition, named) <= offset <= mark:
            return True
    return False


def _update(session: ClientFetchSession, asked: list[_Asked]) -> bool:
    """Apply the request's entries to its session; return False where it has others, or too many."""
    wanted = session.wanted
    if len(wanted) > MOST_PARTITIONS:
        return False
    for topic, fields, named in asked:
        former = wanted.get((topic, fields[0]))
        if former is None:
            return False
        former.update(former.topic_id, _partition(fields), named)
    return True


def _parts(
    broker: Reads, wanted: Iterable[Wanted], max_bytes: int, client: Peer, committed: bool
) -> list[_Part] | None:
    """Read and count the partitions; None, without any effect, where one has an error or is cold,
    or may have aborted records, or none has records."""
    by_topic, from_file = broker.partitions.by_topic, client.can_send_files()
    room, shown = broker.reader.room(max_bytes, client), broker.reader.shown
    size = 0
    parts: list[_Part] = []
    reads: list[tuple[HostedPartition, int]] = []
    for one in wanted:
        hosted = by_topic.get(one.topic)
        partition = None if hosted is None else hosted.get(one.index)
        if partition is None or partition.why_not_serving(one.leader_epoch):
            return None
        if one.by_id and not one.is_of(partition):
            return None
        log, offset, named = partition.log, one.fetch_offset, one.named
        limit = mark = log.high_watermark
        start, stable = log.start_offset, last_stable_offset(log)
        if named is not NOT_NAMED:
            if why_not_read(partition, named, shown):
                return None
            limit = limit_of_consumer(partition, named)
        if committed and stable < limit:
            limit = stable
        # A position beyond the fence that is its limit is at the limit, too: ``is_at_limit``.
        records: Any = b""
        length = 0
        if room > size and not limit <= offset <= mark:
            left = room - size
            records = records_at(
                partition,
                offset,
                left if left < one.max_bytes else one.max_bytes,
                limit=limit,
                at_least_one=not size,
                from_file=from_file,
                may_be_cold=True,
            )
            if isinstance(records, ColdRead):
                records.done()
                return None
            if isinstance(records, Rejected):
                return None
            length = records_size(records)
            if committed and length and not nothing_aborted(log, offset, records):
                return None
            size += length
            reads.append((partition, length))
        parts.append((one, mark, stable, start, records, length))
    if not size:
        return None
    for partition, length in reads:
        partition.counts.fetches += 1
        partition.bytes_out += length
    return parts


def _noted(session: ClientFetchSession, parts: list[_Part]) -> list[_Part]:
    """Return the changed parts, and note them in the session."""
    changed = []
    for part in parts:
        wanted, mark, stable, start, _, size = part
        if size or wanted.is_dirty(mark, stable, start):
            changed.append(part)
            wanted.sent(mark, stable, start)
            if size:
                session.move_last(wanted)
    return changed


def _frame(
    correlation_id: int, session_id: int, parts: list[_Part], committed: bool, by_id: bool
) -> list[Buffer]:
    """Return the chunks of a response."""
    by_topic: dict[str | bytes, list[_Part]] = {}
    for part in parts:
        by_topic.setdefault(part[0].key, []).append(part)
    chunks: list[Buffer] = []
    head = out = bytearray(_pack_head(0, correlation_id, session_id))
    out.append(len(by_topic) + 1)
    for topic, of_topic in by_topic.items():
        name = topic if isinstance(topic, bytes) else topic.encode()
        if not by_id:
            out.append(len(name) + 1)
        out += name
        out.append(len(of_topic) + 1)
        for wanted, mark, stable, start, records, size in of_topic:
            # Committed: an empty list of aborted transactions; otherwise none.
            out += _pack_part(wanted.index, mark, stable, start, committed, -1)
            out += uvarint(size + 1)
            if size:
                out = put_records(chunks, out, records)
            out.append(0)
        out.append(0)
    out.append(0)
    chunks.append(out)
    _pack_size_into(head, 0, sum(map(len, chunks)) - 4)
    return chunks
