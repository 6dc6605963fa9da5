"""Records of ``__consumer_offsets``: typed values and their bytes, exactly Kafka's formats.

Owns the layout of keys and values by version. Not their effect on a group: see `replay`. A key
begins with its version, which names the kind of record:

===========  ================================  =========================================
key version  key                               value (written version; versions read)
===========  ================================  =========================================
0, 1         group, topic, partition           OffsetCommitValue (3, or 1 with an explicit
                                               expiry; 0-4)
2            group                             GroupMetadataValue (3; 0-3)
1253         group, topic                      first sight (0), ours: docs/design/wire.md
===========  ================================  =========================================

A null value is a tombstone. A key or value of another version is an ``UnknownRecord``: newer
brokers may have written it, so it is skipped and counted, never refused.
Source: the coordinator's record schemas of Apache Kafka 4.3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

import msgspec

from tidelog.protocol.record_fields import FieldReader, FieldWriter, Malformed

OFFSET_KEY_VERSIONS = (0, 1)
GROUP_KEY_VERSION = 2
FIRST_SIGHT_KEY_VERSION = 1253

OFFSET_VALUE_VERSION = 3
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
GROUP_VALUE_VERSION = 3
FIRST_SIGHT_VALUE_VERSION = 0

OFFSET_VALUE_VERSION_WITH_TOPIC_ID = 4
"""The newest that is read: a flexible one, which Kafka 4.3 writes once its features allow it."""

TOPIC_ID_TAG = 0

# Offsets are encoded flat: a commit may have thousands.
_int32 = struct.Struct(">i").pack
_value = struct.Struct(">hqih").pack
_value_with_expiry = struct.Struct(">hqh").pack
_time = struct.Struct(">q").pack
_times = struct.Struct(">qq").pack

NO_EXPIRY = -1
NO_TOPIC_ID = UUID(int=0)
NO_LEADER_EPOCH = -1


class CommittedOffset(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A group's position in one partition. Times in ms; ``expires_ms`` is -1 unless a client of
    OffsetCommit v2-4 named a retention time. ``topic_id`` is in no record that is written here: it
    is the id that the coordinator knew at the commit, or that of the first sight before it in the
    log, or that of a record of Kafka's; ``NO_TOPIC_ID``: any."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    committed_ms: int = 0
    expires_ms: int = NO_EXPIRY
    topic_id: UUID = NO_TOPIC_ID

    def __eq__(self, other: object) -> bool:
        """Compare what is in the record."""
        return isinstance(other, CommittedOffset) and self._recorded() == other._recorded()

    def __hash__(self) -> int:
        return hash(self._recorded())

    def _recorded(self) -> tuple[int, int, str, int, int]:
        return self.offset, self.leader_epoch, self.metadata, self.committed_ms, self.expires_ms

    def with_topic_id(self, topic_id: UUID) -> CommittedOffset:
        """Return the same position with this topic id."""
        return CommittedOffset(
            self.offset,
            self.leader_epoch,
            self.metadata,
            self.committed_ms,
            self.expires_ms,
            topic_id,
        )


class OffsetRecord(msgspec.Struct, frozen=True, gc=False):
    """An offset of a group; ``value`` None removes it."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class StoredMember:
    """One member of a stored generation: its subscription for the chosen assignor and its
    assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGeneration:
    """The durable part of a group's membership. ``since_ms`` is -1 when the version had no time."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    since_ms: int
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group's generation; ``value`` None removes the group."""

    group_id: str
    value: StoredGeneration | None


@dataclass(frozen=True, slots=True)
class FirstSight:
    """The state of a topic when a group first used it (KIP-253).

    ``partitions`` counts those in the group's first assignment, -1 while there was none.
    """

    topic_id: UUID
    resize_epoch: int
    partitions: int


@dataclass(frozen=True, slots=True)
class FirstSightRecord:
    """A group's first sight of a topic; ``value`` None removes it."""

    group_id: str
    topic: str
    value: FirstSight | None


@dataclass(frozen=True, slots=True)
class UnknownRecord:
    """A record of a version that this code does not know, or with damaged bytes."""

    reason: str


Record = OffsetRecord | GroupRecord | FirstSightRecord


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """Return the key and value of a record, in the versions that Kafka 3 and 4 write."""
    if isinstance(record, OffsetRecord):
        place = offset_key(record.group_id, record.topic) + _int32(record.partition)
        return place, None if record.value is None else _offset_value(record.value)
    if isinstance(record, GroupRecord):
        key = FieldWriter().int16(GROUP_KEY_VERSION).string(record.group_id)
        return key.done(), None if record.value is None else _group_value(record.value)
    key = FieldWriter().int16(FIRST_SIGHT_KEY_VERSION).string(record.group_id).string(record.topic)
    if record.value is None:
        return key.done(), None
    value = FieldWriter().int16(FIRST_SIGHT_VALUE_VERSION).uuid(record.value.topic_id)
    value.int32(record.value.resize_epoch).int32(record.value.partitions)
    return key.done(), value.done()


def decode(key: bytes | memoryview, value: bytes | memoryview | None) -> Record | UnknownRecord:
    """Return the record of a key and value; never raises, whatever the bytes are."""
    try:
        return _decode(FieldReader(key), None if value is None else FieldReader(value))
    except Malformed as error:
        return UnknownRecord(f"the bytes are damaged: {error}")


def _decode(key: FieldReader, value: FieldReader | None) -> Record | UnknownRecord:
    version = key.int16()
    if version in OFFSET_KEY_VERSIONS:
        group_id, topic, partition = key.string(), key.string(), key.int32()
        if value is None:
            return OffsetRecord(group_id, topic, partition, None)
        offset = _read_offset_value(value)
        if isinstance(offset, UnknownRecord):
            return offset
        return OffsetRecord(group_id, topic, partition, offset)
    if version == GROUP_KEY_VERSION:
        group_id = key.string()
        if value is None:
            return GroupRecord(group_id, None)
        generation = _read_group_value(value)
        if isinstance(generation, UnknownRecord):
            return generation
        return GroupRecord(group_id, generation)
    if version == FIRST_SIGHT_KEY_VERSION:
        group_id, topic = key.string(), key.string()
        if value is None:
            return FirstSightRecord(group_id, topic, None)
        if (value_version := value.int16()) != FIRST_SIGHT_VALUE_VERSION:
            return UnknownRecord(f"first sight value version {value_version}")
        sight = FirstSight(value.uuid(), value.int32(), value.int32())
        return FirstSightRecord(group_id, topic, sight)
    return UnknownRecord(f"key version {version}")


@lru_cache(64)
def offset_key(group_id: str, topic: str) -> bytes:
    """Return the key of an offset without its partition: a commit has many of one topic."""
    return FieldWriter().int16(OFFSET_KEY_VERSIONS[-1]).string(group_id).string(topic).done()


def _offset_value(value: CommittedOffset) -> bytes:
    metadata = value.metadata.encode()
    size = len(metadata)
    # Only version 1 has a field for an expiry that the client chose, and it has no leader epoch.
    if value.expires_ms != NO_EXPIRY:
        head = _value_with_expiry(OFFSET_VALUE_VERSION_WITH_EXPIRY, value.offset, size)
        return head + metadata + _times(value.committed_ms, value.expires_ms)
    head = _value(OFFSET_VALUE_VERSION, value.offset, value.leader_epoch, size)
    return head + metadata + _time(value.committed_ms)


def _read_offset_value(value: FieldReader) -> CommittedOffset | UnknownRecord:
    version = value.int16()
    if not 0 <= version <= OFFSET_VALUE_VERSION_WITH_TOPIC_ID:
        return UnknownRecord(f"offset value version {version}")
    offset = value.int64()
    if version == OFFSET_VALUE_VERSION_WITH_TOPIC_ID:
        leader_epoch, metadata = value.int32(), value.compact_string()
        committed_ms, tagged = value.int64(), value.tags().get(TOPIC_ID_TAG)
        topic_id = NO_TOPIC_ID if tagged is None else tagged.uuid()
        return CommittedOffset(offset, leader_epoch, metadata, committed_ms, topic_id=topic_id)
    leader_epoch = value.int32() if version >= 3 else NO_LEADER_EPOCH
    metadata, committed_ms = value.string(), value.int64()
    expires_ms = value.int64() if version == 1 else NO_EXPIRY
    return CommittedOffset(offset, leader_epoch, metadata, committed_ms, expires_ms)


def _group_value(value: StoredGeneration) -> bytes:
    writer = FieldWriter().int16(GROUP_VALUE_VERSION).string(value.protocol_type)
    writer.int32(value.generation).string(value.protocol_name).string(value.leader)
    writer.int64(value.since_ms).int32(len(value.members))
    for member in value.members:
        writer.string(member.member_id).string(member.instance_id)
        writer.string(member.client_id).string(member.client_host)
        writer.int32(member.rebalance_timeout_ms).int32(member.session_timeout_ms)
        writer.blob(member.subscription).blob(member.assignment)
    return writer.done()


def _read_group_value(value: FieldReader) -> StoredGeneration | UnknownRecord:
    version = value.int16()
    if not 0 <= version <= GROUP_VALUE_VERSION:
        return UnknownRecord(f"group value version {version}")
    protocol_type, generation = value.string(), value.int32()
    protocol_name, leader = value.nullable_string(), value.nullable_string()
    since_ms = value.int64() if version >= 2 else -1
    count = value.int32()
    # A member takes more than two bytes, so a wrong count ends here and not in a long loop.
    if not 0 <= count <= value.remaining // 2:
        raise Malformed(f"{count} members in {value.remaining} bytes")
    members = tuple(_read_member(value, version) for _ in range(count))
    return StoredGeneration(protocol_type, generation, protocol_name, leader, since_ms, members)


def _read_member(value: FieldReader, version: int) -> StoredMember:
    member_id = value.string()
    instance_id = value.nullable_string() if version >= 3 else None
    client_id, client_host = value.string(), value.string()
    rebalance_timeout_ms = value.int32() if version >= 1 else -1
    session_timeout_ms = value.int32()
    return StoredMember(
        member_id,
        instance_id,
        client_id,
        client_host,
        # Version 0 is older than the field; Kafka then takes the session timeout.
        session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        session_timeout_ms,
        value.blob(),
        value.blob(),
    )
