"""The names of files and directories of a log, as Apache Kafka has them.

Owns the names only. Segment files are named by their base offset with 20 digits, partition
directories ``TOPIC-PARTITION``, deleted ones ``TOPIC-PARTITION.UUID-delete``, those of unknown
origin ``…-stray``. A name that came over the wire becomes part of a path here and nowhere else, and
only if ``why_no_directory`` finds nothing wrong with it.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.model.topics import TopicPartition, why_invalid

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
SNAPSHOT = ".snapshot"
SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX)
SEGMENT_AND_OTHERS = (LOG, INDEX, TIME_INDEX, ".txnindex", SNAPSHOT)

CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"
TEMPORARY = ".tmp"

DELETE_DIRECTORY = "-delete"
STRAY_DIRECTORY = "-stray"

EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
EPOCH_CHECKSUM = "tidelog.leader-epochs.crc32c"
"""Our own: the checksum of the file before, in which Kafka's format has no room for one."""

PARTITION_METADATA = "partition.metadata"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
DAMAGED = "tidelog.damaged"
"""Our own: why a partition is out of service, so that a clean stop does not hide it."""

LIFE = "tidelog.life"
"""Our own: the boot id of the operating system and the durability of the life that wrote it."""

CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)

MAX_DIRECTORY_LENGTH = 255
"""Longest name in a directory, in bytes (NAME_MAX); topic names are ASCII."""

_DIGITS = 20


class DirectoryName(NamedTuple):
    """What the name of a directory in ``log.dirs`` says; ``ending`` is "", "-delete", "-stray"."""

    partition: TopicPartition
    ending: str


def file_name(offset: int, suffix: str) -> str:
    """Return e.g. ``00000000000000000042.log``."""
    return f"{offset:0{_DIGITS}d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """Return the base offset in a name with exactly this suffix, None for any other name."""
    stem = name.removesuffix(suffix)
    if stem == name or len(stem) != _DIGITS or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


class InvalidName(ValueError):
    """A topic name or partition that must not become part of a path; the text says why."""


def why_no_directory(partition: TopicPartition) -> str | None:
    """Return one clause that says why a partition can have no directory, or None if it can.

    The one check of names on every way to a path: orders of a controller, recovery, removal.
    """
    if partition.partition < 0:
        return f"its partition {partition.partition} is negative"
    why = why_invalid(partition.topic)
    if why is None and len(str(partition)) > MAX_DIRECTORY_LENGTH:
        return f"{partition} is longer than {MAX_DIRECTORY_LENGTH} characters"
    return why


def directory_name(partition: TopicPartition) -> str:
    """Return the directory of a living replica. Raises InvalidName."""
    why = why_no_directory(partition)
    if why is not None:
        raise InvalidName(f"{partition!r} can have no directory: {why}")
    return str(partition)


def marked_name(partition: TopicPartition, unique: str, ending: str) -> str:
    """Return the name of a deleted or stray directory, cut to what a file system takes.

    Raises InvalidName.
    """
    tail = f"-{partition.partition}.{unique}{ending}"
    cut = partition._replace(topic=partition.topic[: MAX_DIRECTORY_LENGTH - len(tail)])
    return directory_name(cut).removesuffix(f"-{cut.partition}") + tail


def parse_directory(name: str) -> DirectoryName | None:
    """Return what a directory's name says, None when it is no partition of ours."""
    ending = ""
    for candidate in (DELETE_DIRECTORY, STRAY_DIRECTORY):
        if name.endswith(candidate):
            stem, dot, _ = name.removesuffix(candidate).rpartition(".")
            if dot:
                name, ending = stem, candidate
            break
    topic, dash, number = name.rpartition("-")
    if not dash or not (number.isascii() and number.isdigit()):
        return None
    partition = TopicPartition(topic, int(number))
    return None if why_no_directory(partition) else DirectoryName(partition, ending)
