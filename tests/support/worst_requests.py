"""The worst requests of 1 MB that each API and version allows: deep, wide, repeated, compressed.

Made from the schemas: for each array of a request, one request in which that array is as long as
fits (its parents have one element each), and one in which all arrays above it share the elements.
Each comes in kinds: the same existing name again and again, existing ones in turn, names that do
not exist. The name of a field says what it means.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import cramjam

from tidelog.protocol import codec, messages
from tidelog.protocol.schema import FIXED, Api, Field
from tidelog.records.batch import BatchHeader, seal_batch

LARGEST_BYTES = 1_000_000
LEAST_BYTES = 1
TOPIC, PARTITIONS, OTHER_TOPICS = "w0", 200, 10
"""The cluster has topics w0 to w9, w0 with so many partitions, the others with one."""

COMPACTED = "c0"
GROUP = "g"
SAME, KNOWN, UNKNOWN = "same", "known", "unknown"
KINDS = (SAME, KNOWN, UNKNOWN)

TOPIC_FIELDS = {"name", "topic", "topic_name", "topic_names", "resource_name"}
GROUP_FIELDS = {"group_id", "groups", "groups_names", "coordinator_keys", "key"}
INDEX_FIELDS = {"index", "partition", "partition_index", "partition_indexes", "partitions"}
NUMBERS = {
    "acks": 1,
    "timeout_ms": 1000,
    "max_wait_ms": 0,
    "min_bytes": 1,
    "max_bytes": 2**31 - 1,
    "partition_max_bytes": 2**20,
    "replica_id": -1,
    "session_epoch": -1,
    "current_leader_epoch": -1,
    "leader_epoch": 0,
    "session_timeout_ms": 6000,
    "rebalance_timeout_ms": 1000,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "member_epoch": -1,
    "resource_type": 2,
    "count": 3,
    "num_partitions": -1,
    "replication_factor": -1,
    "committed_offset": 1,
    "last_fetched_epoch": -1,
    "retention_time_ms": -1,
    "response_partition_limit": 2**31 - 1,
}
FLAGS = {"validate_only", "include_synonyms", "include_documentation"}


@dataclass(frozen=True)
class Worst:
    """One request: the whole frame with its size."""

    name: str
    api_key: int
    version: int
    frame: bytes


def worst(
    api_key: int, version: int, most_elements: int, numbers_in_one: int = 1
) -> Iterator[Worst]:
    """Yield the worst requests of an API in a version, each with fewer than ``most_elements``."""
    api = codec.api_of(api_key)
    paths = list(_arrays(api, version, api.request.fields, ()))
    for path in paths:
        for kind in KINDS:
            for deep in (False, True) if len(path) > 1 else (False,):
                most = most_elements - 10
                if not deep and path[-1].type in FIXED:
                    most *= numbers_in_one
                made = _Maker(api, version, kind, path, most, deep)
                label = ".".join(field.name for field in path)
                shape = "deep" if deep else "wide"
                name = f"{api.name} v{version} {label} {shape} {kind}"
                yield Worst(name, api_key, version, made.frame())
    if api.is_flexible(version):
        yield Worst(f"{api.name} v{version} tags", api_key, version, _tags(api, version))
    if not paths:
        made = _Maker(api, version, KNOWN, (), 0, False)
        yield Worst(f"{api.name} v{version} plain", api_key, version, made.frame())


def _arrays(
    api: Api, version: int, fields: list[Field], above: tuple[Field, ...]
) -> Iterator[tuple[Field, ...]]:
    for field in fields:
        if version not in field.versions or not field.array:
            continue
        yield (*above, field)
        if field.type in api.request.structs:
            inner = api.request.structs[field.type].fields
            yield from _arrays(api, version, inner, (*above, field))


class _Maker:
    """Makes one request."""

    def __init__(
        self, api: Api, version: int, kind: str, path: tuple[Field, ...], most: int, deep: bool
    ) -> None:
        self.api, self.version, self.kind, self.path = api, version, kind, path
        self.classes = messages.classes_of(api.request)
        self.lengths: list[int] = []
        if path:
            self.lengths = self._lengths(most, deep)

    def frame(self) -> bytes:
        """The request as bytes."""
        made = self._struct("", self.api.request.fields, self.path, 0)
        return b"".join(codec.encode_request(self.api.key, self.version, 7, "worst", made))

    def _lengths(self, most: int, deep: bool) -> list[int]:
        """How long each array of the path is, the last one as long as fits."""
        depth = len(self.path)
        self.lengths = [1] * depth
        one = len(self.frame())
        self.lengths[-1] = 65
        each = max(LEAST_BYTES, (len(self.frame()) - one) // 64)
        room = min(most, (LARGEST_BYTES - one) // each)
        if not deep:
            return [*([1] * (depth - 1)), max(1, room - depth)]
        # The outermost takes nearly all: each of its elements has one of the arrays below.
        self.lengths = [65, *([1] * (depth - 1))]
        each = max(LEAST_BYTES, (len(self.frame()) - one) // 64)
        return [max(1, min(most // depth, (LARGEST_BYTES - one) // each)), *([1] * (depth - 1))]

    def _struct(
        self, class_name: str, fields: list[Field], path: tuple[Field, ...], number: int
    ) -> Any:
        values = {}
        for field in fields:
            if self.version not in field.versions:
                continue
            if field.array:
                on_path = bool(path) and path[0] is field
                count = self.lengths[len(self.path) - len(path)] if on_path else 0
                if not on_path and field.nullable is not None and self.version in field.nullable:
                    values[field.name] = None
                    continue
                below = path[1:] if on_path else ()
                values[field.name] = [self._value(field, n, below) for n in range(count)]
            elif field.tag is None:
                values[field.name] = self._value(field, number, ())
        return self.classes[class_name](**values)

    def _value(self, field: Field, number: int, path: tuple[Field, ...]) -> Any:
        structs = self.api.request.structs
        if field.type in structs:
            return self._struct(field.type, structs[field.type].fields, path, number)
        if field.type == "string":
            return self._text(field, number)
        if field.type == "bool":
            return field.name in FLAGS
        if field.type == "uuid":
            return messages_uuid()
        if field.type == "bytes":
            return b""
        if field.type == "records":
            return tiny_batch()
        return self._number(field, number)

    def _text(self, field: Field, number: int) -> Any:
        if field.name in TOPIC_FIELDS:
            if self.kind == UNKNOWN:
                return f"x{number:06d}"
            return TOPIC if self.kind == SAME else f"w{number % OTHER_TOPICS}"
        if field.name in GROUP_FIELDS:
            return f"x{number:06d}" if self.kind == UNKNOWN else GROUP
        if not field.array and field.nullable is not None and self.version in field.nullable:
            return None
        return "" if self.kind == SAME else f"y{number:06d}"

    def _number(self, field: Field, number: int) -> int:
        if field.name in INDEX_FIELDS:
            return {SAME: 0, KNOWN: number % PARTITIONS, UNKNOWN: number + PARTITIONS}[self.kind]
        if field.name == "timestamp":
            return 1
        return NUMBERS.get(field.name, 0)


def messages_uuid() -> Any:
    """No id: names count."""
    from tidelog.protocol.primitives import NO_UUID

    return NO_UUID


def _tags(api: Api, version: int) -> bytes:
    """A request whose head has as many unknown tags as one place may have."""
    tags = b"\xff\x07" + b"".join(b"\xe3\x07\x00" for _ in range(1023))
    made = _Maker(api, version, KNOWN, (), 0, False).frame()[4:]
    frame = made[:-1] + tags
    return struct.pack(">i", len(frame)) + frame


@cache
def tiny_batch() -> bytes:
    """One record without key and value."""
    return sealed(b"\x0c\x00\x00\x00\x01\x01\x00", 0)


def sealed(payload: bytes, codec_number: int, count: int = 1) -> bytes:
    """A batch with this payload."""
    now_ms = 1_700_000_000_000
    head = BatchHeader(0, 0, -1, 2, 0, codec_number, count - 1, now_ms, now_ms, -1, -1, -1, count)
    return bytes(seal_batch(head, payload))


def record_of(size: int) -> bytes:
    """One record of a key and ``size`` zeros."""
    body = b"\0\0\0\x02k" + _varint(size) + bytes(size) + b"\0"
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def compressed(version: int) -> Iterator[Worst]:
    """Yield Produce requests of many small batches that are large inside, compacted."""
    large = record_of(8 << 20)
    payloads = {
        "zstd": (4, bytes(cramjam.zstd.compress(large, level=3))),
        "gzip": (1, bytes(cramjam.gzip.compress(large, level=9))),
        "gzip of empty members": (1, bytes(cramjam.gzip.compress(b"")) * 40_000),
        "zstd of small records": (4, bytes(cramjam.zstd.compress(record_of(1) * 60_000, level=3))),
    }
    request = messages.ProduceRequest
    for name, (number, payload) in payloads.items():
        batch = sealed(payload, number)
        count = max(1, min(LARGEST_BYTES // (len(batch) + 8), 2000))
        data = [request.PartitionProduceData(index=n, records=batch) for n in range(count)]
        made = request(
            transactional_id=None,
            acks=1,
            timeout_ms=1000,
            topic_data=[request.TopicProduceData(name=COMPACTED, partition_data=data)],
        )
        frame = b"".join(codec.encode_request(0, version, 7, "worst", made))
        yield Worst(f"Produce v{version} {name}", 0, version, frame)


def checksum(frames: list[Worst]) -> int:
    """Of all frames: the generator makes the same each time."""
    return zlib.crc32(b"".join(each.frame for each in frames))
