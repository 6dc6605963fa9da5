"""The names of a log's files and directories, as Apache Kafka has them.

Owns the names only. Segment files are named by their base offset with 20 digits, partition
directories ``TOPIC-PARTITION``, deleted ones ``TOPIC-PARTITION.UUID-delete``, those of unknown
origin ``…-stray``, copies on their way to another log directory ``…-future``. A name from the wire
becomes part of a path in this module only, and only if ``why_no_directory`` accepts it.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.model.topics import TopicPartition, why_invalid

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
SNAPSHOT = ".snapshot"
INDEX_SUFFIXES = (INDEX, TIME_INDEX)

ABORTED = ".txnindex"
ABORTED_CHECK = ".txnindex.crc32c"
"""Our own: how many entries a ``.txnindex`` has, and their checksum; its format has no room."""

ABORTED_SUFFIXES = (ABORTED, ABORTED_CHECK)
SEGMENT_SUFFIXES = (LOG, *INDEX_SUFFIXES, *ABORTED_SUFFIXES)
"""Every file of a segment; all but the first may be missing."""

CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"
TEMPORARY = ".tmp"

DELETE_DIRECTORY = "-delete"
STRAY_DIRECTORY = "-stray"
FUTURE_DIRECTORY = "-future"

EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
EPOCH_CHECKSUM = "tidelog.leader-epochs.crc32c"
"""Our own: the checksum of the leader epoch checkpoint, whose format has no room for one."""

FENCE_CHECKPOINT = "fence-checkpoint"
"""Our own: the fences and seals of a partition (KIP-253)."""

FIRST_FENCES = "tidelog.first-fence-offsets"
"""Our own: which partitions have fences, and the offset of the first one of each (KIP-253)."""

PARTITION_METADATA = "partition.metadata"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
SUPERVISOR_LOCK = "workers.lock"
"""Our own: held by the supervisor of the workers that share the directory."""

DAMAGED = "tidelog.damaged"
"""Our own: why a partition is out of service, so that a clean stop does not hide it."""

CLEANER_RATE = "tidelog.cleaner-rate"
"""Our own: the present rate of the cleaner's runs; of no use after a restart."""

UNAWARE_WRITERS = "tidelog.unaware-writers"
"""Our own: to which topics producers without a partition count may have written (KIP-253)."""

LIFE = "tidelog.life"
"""Our own: the boot id of the operating system, and the durability of the process that wrote it."""

OF_LOG_DIRECTORIES = frozenset(
    {
        META_PROPERTIES,
        RECOVERY_POINTS,
        LOG_STARTS,
        HIGH_WATERMARKS,
        CLEANER_OFFSETS,
        FIRST_FENCES,
        LIFE,
    }
)
"""Files that a log directory has, and nothing else."""

_OF_PARTITIONS = (EPOCH_CHECKPOINT, FENCE_CHECKPOINT, PARTITION_METADATA, "tidelog.")
"""How the names of a partition's files begin, beside those of its segments."""

MAX_DIRECTORY_LENGTH = 255
"""Longest name in a directory, in bytes (NAME_MAX); topic names are ASCII."""

_DIGITS = 20


class DirectoryName(NamedTuple):
    """The parsed name of a directory in ``log.dirs``; ``ending`` is "" or "-delete", …"""

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


def is_of_partition(name: str) -> bool:
    """Whether a partition's directory has files of this name; a draft has its file's name, too."""
    if name in OF_LOG_DIRECTORIES:
        return False
    number, dot, _ = name.partition(".")
    is_segment = dot and len(number) == _DIGITS and number.isascii() and number.isdigit()
    return bool(is_segment) or name.startswith(_OF_PARTITIONS)


class InvalidName(ValueError):
    """A topic name or partition that must not become part of a path; the text says why."""


def why_no_directory(partition: TopicPartition) -> str | None:
    """Return one clause that says why a partition can have no directory, or None if it can.

    Every name that becomes a path passes this check: commands of a controller, recovery, removal.
    """
    if partition.partition < 0:
        return f"its partition {partition.partition} is negative"
    why = why_invalid(partition.topic)
    if why is None and len(str(partition)) > MAX_DIRECTORY_LENGTH:
        return f"{partition} is longer than {MAX_DIRECTORY_LENGTH} characters"
    return why


def directory_name(partition: TopicPartition) -> str:
    """Return the directory name of a replica. Raises InvalidName."""
    why = why_no_directory(partition)
    if why is not None:
        raise InvalidName(f"{partition!r} can have no directory: {why}")
    return str(partition)


def marked_name(partition: TopicPartition, unique: str, ending: str) -> str:
    """Return the name of a deleted or stray directory, cut to the length that a file system allows.

    Raises InvalidName.
    """
    tail = f"-{partition.partition}.{unique}{ending}"
    cut = partition._replace(topic=partition.topic[: MAX_DIRECTORY_LENGTH - len(tail)])
    return directory_name(cut).removesuffix(f"-{cut.partition}") + tail


def why_no_future(partition: TopicPartition) -> str | None:
    """Return one clause that says why a partition can have no ``-future`` directory, or None.

    Its name is not cut to the length that a file system allows: a start reads the topic from it.
    """
    longest = MAX_DIRECTORY_LENGTH - len(future_name(TopicPartition("", 0), "0" * 32)) + 2
    if len(str(partition)) > longest:
        return f"{partition} is longer than {longest} characters"
    return why_no_directory(partition)


def future_name(partition: TopicPartition, unique: str) -> str:
    """Return the name of the copy of a replica that is to take its place."""
    return f"{partition}.{unique}{FUTURE_DIRECTORY}"


def parse_directory(name: str) -> DirectoryName | None:
    """Parse a directory's name; None when it is not the name of a partition."""
    ending = ""
    for candidate in (DELETE_DIRECTORY, STRAY_DIRECTORY, FUTURE_DIRECTORY):
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
