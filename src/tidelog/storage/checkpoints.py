"""The formats of the small text files beside the logs, as Apache Kafka has them.

Owns their bytes: offset checkpoints, the leader epoch checkpoint, ``partition.metadata``,
``meta.properties``, the clean shutdown marker, and the lines of a checkpoint with a CRC. Reads and
writes no file. A file that cannot be parsed raises ``DamagedFile``; the caller decides whether it
can do without the file.
"""

from __future__ import annotations

import base64
import json
import struct
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import ne
from urllib.parse import parse_qsl, urlencode

from tidelog.model.topics import TopicPartition
from tidelog.records.crc import crc32c

CRC_ENTRY = "#crc32c"
"""The topic name of the entry of an offset checkpoint that holds the CRC in place of an offset."""

CRC_LINE = "crc32c"

_CHECKSUMS = struct.Struct(">II")


class DamagedFile(ValueError):
    """A file whose content does not have its format."""


Created = tuple[int, int]
"""When a replica's directory was made (ms of the wall clock), and its number among the directories
that the same broker process made: together they identify one directory of a partition."""

KeptConfigs = tuple[tuple[str, str], ...]
"""Names and values (as text) of a topic's own configurations, sorted, without defaults."""


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """``partition.metadata``: the topic id, and the partition epoch (-1 for unknown).

    ``configs`` are the topic's own configurations, sorted (docs/decisions/0024). ``replaces``:
    directories of the partition that could not be quarantined before this one was made
    (docs/decisions/0045). ``copy_of``: the directory whose place this one took, with all of its
    records, in a move to another log directory (docs/decisions/0060).
    """

    topic_id: uuid.UUID
    partition_epoch: int = -1
    configs: KeptConfigs = ()
    created: Created | None = None
    replaces: tuple[Created, ...] = ()
    copy_of: Created | None = None
    birth_epoch: int = 0
    """The resize epoch of the growth that made the partition (KIP-253); 0: it came with its
    topic."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """``meta.properties``: the cluster and node that a directory belongs to, and its own id."""

    cluster_id: str
    node_id: int
    directory_id: uuid.UUID


@lru_cache(maxsize=64)
def encode_uuid(value: uuid.UUID) -> str:
    """Return a UUID as Kafka prints it: URL-safe base64 without padding, 22 characters."""
    # Cached: a topic of 1,000 partitions has its id encoded once.
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> uuid.UUID:
    """Return the UUID of 22 characters of base64; DamagedFile otherwise."""
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except ValueError:
        raise DamagedFile(f"{text!r} is no id") from None


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return an offset checkpoint of version 0, with a CRC that Kafka reads as one more entry."""
    lines = [f"{p.topic} {p.partition} {offset}\n" for p, offset in sorted(offsets.items())]
    text = "".join(lines)
    # Version 0 has no checksum: one more entry, with a name that no topic can have, holds it.
    lines.append(f"{CRC_ENTRY} 0 {crc32c(text.encode())}\n")
    return f"0\n{len(lines)}\n{text}{lines[-1]}".encode()


def decode_offsets(content: bytes) -> dict[TopicPartition, int]:
    """Return the offsets of a checkpoint; DamagedFile when it is not one."""
    offsets = {}
    checked = False
    for fields in _entries(content, 3):
        topic, partition, offset = fields
        if topic == CRC_ENTRY:
            _check_crc(b"".join(content.splitlines(keepends=True)[2:-1]), offset)
            checked = True
        else:
            offsets[TopicPartition(topic, _number(partition))] = _number(offset)
    if not checked and any(_may_be_the_crc(tp.topic) for tp in offsets):
        raise DamagedFile("the name of its CRC is damaged")
    return offsets


def _may_be_the_crc(topic: str) -> bool:
    """Whether one character makes this CRC_ENTRY."""
    return len(topic) == len(CRC_ENTRY) and sum(map(ne, topic, CRC_ENTRY)) <= 1


def _check_crc(content: bytes, expected: str) -> None:
    if crc32c(content) != _number(expected):
        raise DamagedFile("its CRC is wrong: the bytes are not what was written")


def encode_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """Return a leader epoch checkpoint of (epoch, start offset) lines."""
    lines = [f"{epoch} {offset}\n" for epoch, offset in epochs]
    return f"0\n{len(lines)}\n{''.join(lines)}".encode()


def decode_epochs(content: bytes) -> list[tuple[int, int]]:
    """Return (epoch, start offset) pairs; DamagedFile when they are out of order."""
    epochs = [(_number(epoch), _number(offset)) for epoch, offset in _entries(content, 2)]
    for earlier, later in pairwise(epochs):
        if later[0] <= earlier[0] or later[1] < earlier[1]:
            raise DamagedFile("leader epochs out of order")
    return epochs


def encode_checked_lines(lines: Iterable[str]) -> bytes:
    """Return a checkpoint of version 0 with these lines, followed by a line with its CRC."""
    body = [f"{line}\n" for line in lines]
    text = f"0\n{len(body)}\n{''.join(body)}"
    return f"{text}{CRC_LINE}: {crc32c(text.encode())}\n".encode()


def decode_checked_lines(content: bytes, width: int) -> list[list[int]]:
    """Return the numbers of each line of ``encode_checked_lines``; DamagedFile when it is not."""
    return [[_number(field) for field in fields] for fields in checked_lines(content, width)]


def checked_lines(content: bytes, width: int) -> list[list[str]]:
    """Return the fields of each line of ``encode_checked_lines``; DamagedFile when it is not."""
    body, mark, crc = content.rpartition(f"{CRC_LINE}:".encode())
    if not mark:
        raise DamagedFile("it has no CRC")
    _check_crc(body, _text(crc))
    return list(_entries(body, width))


def encode_checksums(content: bytes, former: int | None) -> tuple[bytes, int]:
    """Return the checksum file to write before a file gets ``content``, and the content's CRC-32C.

    ``former``: the CRC of the file's present content, None when it is unknown. The checksum file
    holds both CRCs and is written first, so it fits before and after the other file is replaced,
    and a kill between the two writes does no harm.
    """
    crc = crc32c(content)
    return _CHECKSUMS.pack(crc, crc if former is None else former), crc


def fits_checksums(crc: int, checksums: bytes) -> bool:
    """Whether a checksum file from ``encode_checksums`` fits a file with this CRC."""
    return len(checksums) == _CHECKSUMS.size and crc in _CHECKSUMS.unpack(checksums)


def encode_partition_metadata(metadata: PartitionMetadata) -> bytes:
    """Return Kafka's version 0, followed by our lines: partition epoch, birth epoch,
    configurations, when it was made, what it replaces, what it is a copy of, the CRC."""
    text = f"version: 0\ntopic_id: {encode_uuid(metadata.topic_id)}\n"
    if metadata.partition_epoch >= 0:
        text += f"partition_epoch: {metadata.partition_epoch}\n"
    if metadata.birth_epoch:
        text += f"birth_epoch: {metadata.birth_epoch}\n"
    if metadata.configs:
        # One line of ASCII without a colon, whatever the texts have in them.
        text += f"configs: {_configs_text(metadata.configs)}\n"
    if metadata.created is not None:
        text += f"created: {_created_text(metadata.created)}\n"
    if metadata.replaces:
        text += f"replaces: {' '.join(map(_created_text, metadata.replaces))}\n"
    if metadata.copy_of is not None:
        text += f"copy_of: {_created_text(metadata.copy_of)}\n"
    return f"{text}{CRC_LINE}: {crc32c(text.encode())}\n".encode()


def decode_partition_metadata(content: bytes) -> PartitionMetadata:
    """Return the ids of a replica; DamagedFile when it is neither ours nor Kafka's.

    Kafka's file has two lines and no CRC. A file with more lines must have our CRC; without it the
    name of the CRC's line is damaged.
    """
    fields = {}
    for line in _text(content).splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise DamagedFile("partition.metadata is not of version 0 with a topic id")
    if CRC_LINE in fields:
        _check_crc(content[: content.index(f"{CRC_LINE}:".encode())], fields[CRC_LINE])
    elif len(fields) > 2:
        raise DamagedFile("partition.metadata has lost its CRC")
    epoch = _number(fields.get("partition_epoch", "-1"))
    configs = tuple(parse_qsl(fields.get("configs", ""), keep_blank_values=True))
    created, copy_of = fields.get("created"), fields.get("copy_of")
    return PartitionMetadata(
        decode_uuid(fields["topic_id"]),
        epoch,
        configs,
        None if created is None else _created(created),
        tuple(map(_created, fields.get("replaces", "").split())),
        None if copy_of is None else _created(copy_of),
        _number(fields.get("birth_epoch", "0")),
    )


@lru_cache(maxsize=64)
def _configs_text(configs: KeptConfigs) -> str:
    # Cached: a topic of 1,000 partitions has it encoded once.
    return urlencode(configs)


def _created_text(created: Created) -> str:
    return f"{created[0]}.{created[1]}"


def _created(text: str) -> Created:
    ms, _, number = text.partition(".")
    return _number(ms), _number(number)


def encode_meta_properties(meta: MetaProperties) -> bytes:
    """Return ``meta.properties`` of version 1."""
    return (
        "#\nversion=1\n"
        f"cluster.id={meta.cluster_id}\n"
        f"node.id={meta.node_id}\n"
        f"directory.id={encode_uuid(meta.directory_id)}\n"
    ).encode()


def decode_meta_properties(content: bytes) -> MetaProperties:
    """Return what ``meta.properties`` says; DamagedFile names the line that is missing."""
    fields = decode_properties(content)
    try:
        cluster = fields["cluster.id"]
        node = fields["node.id"] if "node.id" in fields else fields["broker.id"]
        directory = fields["directory.id"]
    except KeyError as missing:
        raise DamagedFile(f"meta.properties has no line {missing}") from None
    return MetaProperties(cluster, _number(node), decode_uuid(directory))


def decode_properties(content: bytes) -> dict[str, str]:
    """Return the ``name=value`` lines of a simple Java properties file."""
    fields = {}
    for line in _text(content).splitlines():
        if line and not line.startswith(("#", "!")):
            name, _, value = line.partition("=")
            fields[name.strip()] = value.strip()
    return fields


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """Return the content of ``.kafka_cleanshutdown``."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()


def _entries(content: bytes, width: int) -> list[list[str]]:
    lines = _text(content).splitlines()
    if len(lines) < 2 or lines[0].strip() != "0":
        raise DamagedFile("a checkpoint that is not of version 0")
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(entries) != _number(lines[1]):
        raise DamagedFile(f"a checkpoint that announces {lines[1]} lines has {len(entries)}")
    if any(len(fields) != width for fields in entries):
        raise DamagedFile("a checkpoint line with a wrong number of fields")
    return entries


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise DamagedFile("a text file that is not UTF-8") from None


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise DamagedFile(f"{text!r} is no number") from None
