"""Fast path of Produce to several partitions: from bytes to bytes, a list of columns at a time.

Owns the plain Produce request that names several partitions, as Java and other clients send it with
a batch for each partition of a broker. What is the same for all of them is judged once; a partition
costs its own rules, one check and one write, and no object in between. It asks the functions that
`produce_fast_path` and ``handlers.produce`` ask, in the same order: `admission`, `resize_checks`,
`plain_append`. Three steps:

1. All partitions are judged, and nothing is changed: where one is not plain, or is refused, the
   result is None, and ``handlers.produce`` serves the request.
2. All batches are written. A disk that refuses one refuses no other disk's.
3. All partitions count their batch, move their watermarks and wake their waiters, whose fetches are
   read in the next turn of the loop; the logs that need a sync share one.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

from tidelog.broker.metadata.leader_hints import FIRST_PRODUCE_VERSION
from tidelog.broker.partitions.admission import ALL_IN_SYNC, why_not_open
from tidelog.broker.partitions.delayed_produce import DelayedFrames, DelayedProduce, refuse
from tidelog.broker.partitions.plain_append import plain_header
from tidelog.broker.partitions.produce_lists import (
    BY_ID_SINCE,
    CLIENT_ID_AT,
    UNREADABLE,
    AskedList,
    AskedTopic,
    read_list,
)
from tidelog.broker.partitions.resize_checks import named_by, why_not_taken
from tidelog.broker.partitions.unaware_writers import is_to_note
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.protocol import codec, messages
from tidelog.protocol.primitives import NO_UUID, uvarint
from tidelog.records.batch import HeaderFields, Rejected
from tidelog.replication.resize_rules import NOT_NAMED
from tidelog.storage.log.service import out_of_service
from tidelog.storage.log.tail import write_one

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.metadata.leader_hints import LeaderHints
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.broker.partitions.resuming_producers import ResumingProducers
    from tidelog.broker.partitions.unaware_writers import UnawareWriters
    from tidelog.model.configs.server import ServerConfigs
    from tidelog.network.router import Peer
    from tidelog.runtime.clock import Clock

_pack_part = struct.Struct(">i2xqqqB2x").pack
"""A partition of a response: index, no error, first offset, append time, log start, no invalid
records, no message, no tags."""

_pack_head = struct.Struct(">iix").pack
"""Size, correlation id, no tags."""

_pack_size_into = struct.Struct(">i").pack_into
_SIZE_BYTES = 4
_END = bytes(5)
"""No throttle time, no tags."""

_Response = messages.ProduceResponse
_Topic = messages.ProduceResponse.TopicProduceResponse
_Partition = messages.ProduceResponse.PartitionProduceResponse

_Named = tuple[AskedTopic, str, UUID]
"""A topic, its name and its id."""

_Waiting = tuple[int, "HostedPartition", int]
"""A place in the request, its partition, and the last offset that was appended."""

Refusals = dict[int, tuple[ErrorCode, str | None]]
"""Errors and their sentences, by the place of the partition in the request."""


class Appends(Protocol):
    """The parts of the broker that a Produce request needs."""

    partitions: Partitions
    clock: Clock
    configs: ServerConfigs
    leader_hints: LeaderHints
    unaware_writers: UnawareWriters
    resuming_producers: ResumingProducers
    metadata: MetadataCache


class Judged(NamedTuple):
    """The batches of a request, all of which may be appended: columns, and the topics in turn."""

    topics: list[_Named]
    partitions: list[HostedPartition]
    batches: list[memoryview]
    headers: list[HeaderFields]
    noted: dict[int, bool]
    """The places of batches without a count that are noted, and whether the note is due."""


def answer(
    broker: Appends,
    request: memoryview,
    position: int,
    version: int,
    correlation_id: int,
    client: Peer,
) -> bytes | asyncio.Future[Any] | None:
    """Append, and return the frame of the response, or a future of it or of its message; None where
    the request is not plain."""
    try:
        asked = read_list(request, position, version >= BY_ID_SINCE)
        now_ms = broker.clock.wall_ms()
        judged = None if asked is None else _judge(broker, asked, version, now_ms)
    except (*UNREADABLE, LookupError):
        return None
    if asked is None or judged is None:
        return None
    firsts, refusals = _write(judged, now_ms)
    starts, waiting = _count(judged, firsts, refusals, waits=asked.acks == ALL_IN_SYNC)
    if judged.noted:
        client_id = str(request[CLIENT_ID_AT : position - 1], "utf-8", "replace")
        _note(broker, judged, refusals, now_ms, client_id)
    finish = partial(_finished, broker, version, client)
    if refusals:
        return _refused_some(broker, judged, firsts, starts, refusals, waiting, finish, asked)
    frame = _frame(judged.topics, firsts, starts, version, correlation_id)
    if not waiting:
        return frame

    def refused(errors: dict[int, ErrorCode]) -> bytes:
        by_place: Refusals = {place: (error, None) for place, error in errors.items()}
        whole = finish(_message(judged.topics, firsts, starts, by_place))
        return b"".join(codec.encode_response(ApiKey.PRODUCE, version, correlation_id, whole))

    return DelayedFrames(waiting, asked.timeout_ms, frame, refused).future


def _judge(broker: Appends, asked: AskedList, version: int, now_ms: int) -> Judged | None:
    """Return the batches if all may be appended, None if one is not plain; changes nothing."""
    judged = Judged([], [], [], [], {})
    names, by_topic = broker.metadata.names, broker.partitions.by_topic
    by_id = version >= BY_ID_SINCE
    for topic in asked.topics:
        name, topic_id = names.by_bytes[topic.name] if by_id else (topic.name.decode(), NO_UUID)
        hosted = by_topic.get(name)
        if hosted is None or len(set(topic.indexes)) != len(topic.indexes):
            return None
        partitions = [hosted[index] for index in topic.indexes]
        # Before any batch is read: all partitions of a topic keep batches, or none does.
        if not partitions[0].log.keeps_batches:
            return None
        if by_id and any(partition.topic_id != topic_id for partition in partitions):
            return None
        judged.topics.append((topic, name, topic_id))
        judged.partitions.extend(partitions)
        judged.batches.extend(topic.payloads)
    if len({name for _, name, _ in judged.topics}) != len(judged.topics):
        return None
    for of_topic in judged.topics:
        if not _judge_topic(broker, judged, of_topic, asked.acks, now_ms):
            return None
    return judged


def _judge_topic(broker: Appends, judged: Judged, of_topic: _Named, acks: int, now_ms: int) -> bool:
    """Judge the batches of the next topic; False where one is not plain."""
    (_, indexes, batches, tags), topic, _ = of_topic
    headers, metadata, writers = judged.headers, broker.metadata, broker.unaware_writers
    first, named = len(headers), NOT_NAMED
    partitions = judged.partitions[first : first + len(indexes)]
    for partition, batch in zip(partitions, batches, strict=True):
        if why_not_open(partition, topic, acks) is not None:
            return False
        state = partition.state
        if tags:
            if tags[len(headers) - first] != state.produce_tags:
                return False
            named = named_by(state.undeleted_count, state.resize_epoch, state.partition_epoch)
        if why_not_taken(partition, named, batch, metadata) is not None:
            return False
        if not tags:
            is_due = is_to_note(partition, now_ms)
            if is_due and not writers.may_append(partition, NOT_NAMED, now_ms):
                return False
            if is_due or state.resize_epoch:
                judged.noted[len(headers)] = is_due
        # Batches that wait there come first.
        header = (
            None
            if partition.has_uninspected
            else plain_header(partition.log, batch, partition.leader_epoch, now_ms)
        )
        if not isinstance(header, tuple):
            return False
        headers.append(header)
    return True


def _write(judged: Judged, now_ms: int) -> tuple[list[int], Refusals]:
    """Write all batches; return their first offsets, and what a disk refused."""
    firsts: list[int] = []
    refusals: Refusals = {}
    for partition, batch, header in zip(
        judged.partitions, judged.batches, judged.headers, strict=True
    ):
        log = partition.log
        firsts.append(log.end_offset)
        epoch = partition.leader_epoch
        if refusals and plain_header(log, batch, epoch, now_ms).__class__ is not tuple:
            # The failure of another log took this one out of service, too (promise 25).
            refused: Rejected | None = out_of_service(log)
        else:
            refused = write_one(log, header, batch, epoch, now_ms)
        if refused is not None:
            refusals[len(firsts) - 1] = refused.error, refused.reason
    return firsts, refusals


def _count(
    judged: Judged, firsts: list[int], refusals: Refusals, *, waits: bool
) -> tuple[list[int], list[_Waiting]]:
    """Count what was written; return where the logs start, and what the response waits for: place,
    partition, last offset."""
    starts: list[int] = []
    waiting: list[_Waiting] = []
    for place, (partition, batch) in enumerate(zip(judged.partitions, judged.batches, strict=True)):
        if place in refusals:
            partition.check_disk()
            starts.append(-1)
            continue
        refused = partition.appended(len(batch))
        log = partition.log
        starts.append(log.start_offset)
        if refused is not None:
            refusals[place] = refused.error, refused.reason
        elif waits:
            last = firsts[place] + judged.headers[place][6]
            if last >= log.high_watermark:
                waiting.append((place, partition, last))
    return starts, waiting


def _note(broker: Appends, judged: Judged, refusals: Refusals, now_ms: int, client_id: str) -> None:
    """Note the batches that came without a count."""
    for place, is_due in judged.noted.items():
        if place not in refusals:
            partition, batch = judged.partitions[place], judged.batches[place]
            of_client = client_id if is_due else None
            broker.unaware_writers.note(partition, NOT_NAMED, batch, now_ms, of_client)


def _frame(
    topics: list[_Named], firsts: list[int], starts: list[int], version: int, correlation_id: int
) -> bytes:
    """Return the frame of a response without an error."""
    out = bytearray(_pack_head(0, correlation_id))
    out += uvarint(len(topics) + 1)
    begin = 0
    for topic, _, _ in topics:
        if version < BY_ID_SINCE:
            out += uvarint(len(topic.name) + 1)
        out += topic.name
        end = begin + len(topic.indexes)
        out += uvarint(end - begin + 1)
        of_topic = zip(topic.indexes, firsts[begin:end], starts[begin:end], strict=True)
        out += b"".join(
            [_pack_part(index, first, -1, start, 1) for index, first, start in of_topic]
        )
        out.append(0)
        begin = end
    out += _END
    _pack_size_into(out, 0, len(out) - _SIZE_BYTES)
    return bytes(out)


def _message(topics: list[_Named], firsts: list[int], starts: list[int], refusals: Refusals) -> Any:
    """Return a response with errors."""
    answers: list[Any] = []
    response = _Response([])
    for topic, name, topic_id in topics:
        first = len(answers)
        for place, index in enumerate(topic.indexes, first):
            answers.append(_Partition(index, 0, firsts[place], -1, starts[place]))
            if place in refusals:
                refuse(answers[place], *refusals[place])
        response.responses.append(_Topic(name, topic_id, answers[first:]))
    return response


def _finished(broker: Appends, version: int, client: Peer, response: Any) -> Any:
    """Name the present leaders in a response that has errors."""
    if version >= FIRST_PRODUCE_VERSION:
        broker.leader_hints.name_leaders(response, client.listener_name)
    return response


def _refused_some(
    broker: Appends,
    judged: Judged,
    firsts: list[int],
    starts: list[int],
    refusals: Refusals,
    waiting: list[_Waiting],
    finish: Callable[[Any], Any],
    asked: AskedList,
) -> asyncio.Future[Any]:
    """Return the response of a request some of whose batches a disk refused."""
    for place, (error, _) in refusals.items():
        partition = judged.partitions[place]
        partition.counts.append_refused(error)
        broker.resuming_producers.note_refusal(partition, judged.batches[place], error)
    response = _message(judged.topics, firsts, starts, refusals)
    parts = [part for topic in response.responses for part in topic.partition_responses]
    late = [(partition, last, parts[place]) for place, partition, last in waiting]
    return DelayedProduce(response, late, asked.timeout_ms, finish).future
