"""The table of topic configurations: names, defaults and synonyms as Kafka has them, and ours.

Owns the rows: each gives the text, the type, the default, the check and the typed value of one
topic's configuration. Not which text wins: see `resolve`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from tidelog.model.configs.rows import (
    AT_LEAST_0,
    AT_LEAST_1,
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    STRING,
    field_of,
    row,
    rows_of,
)
from tidelog.model.configs.types import (
    MAX_INT64,
    Between,
    Check,
    ConfigDefinition,
    ConfigType,
    Off,
    OneOf,
    Synonym,
    ThrottledReplicas,
    Update,
)

HOURS = 3_600_000
MINUTES = 60_000
MIN_SEGMENT_BYTES = 14
"""Kafka's smallest segment before 4.1 (its own compaction tester uses small ones)."""

LEVELS_LZ4 = Between(1, 17)
LEVELS_ZSTD = Between(-131072, 22)
LEVELS_GZIP = Between(1, 9, also=-1)
COMPRESSIONS = OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"))
TIMESTAMP_TYPES = OneOf(("CreateTime", "LogAppendTime"))
POLICIES = OneOf(("compact", "delete"))

_T = TypeVar("_T")


class TimestampType(StrEnum):
    """``message.timestamp.type``."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


CREATE_TIME = TimestampType.CREATE_TIME
LOG_APPEND_TIME = TimestampType.LOG_APPEND_TIME
"""Constants for the append path: Python 3.11 looks up an enum's member by a call of 0.1 us."""


def _row(
    kind: ConfigType,
    default: _T,
    documentation: str,
    *synonyms: str | Synonym,
    check: Check | None = None,
    without_effect: bool = False,
) -> _T:
    return row(
        kind,
        default,
        documentation,
        check,
        update=Update.CLUSTER_WIDE,
        without_effect=without_effect,
        synonyms=tuple(Synonym(x) if isinstance(x, str) else x for x in synonyms),
    )


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """One topic's settings as the log and the leader need them. Sizes in bytes, times in ms."""

    cleanup_policy: frozenset[str] = _row(
        LIST,
        frozenset({"delete"}),
        "What happens to old data: delete removes old segments by time and size, compact "
        "keeps the newest value of each key; both may be given.",
        "log.cleanup.policy",
        check=POLICIES,
    )
    compression_gzip_level: int = _row(
        INT,
        -1,
        "The level when the broker compresses with gzip.",
        "compression.gzip.level",
        check=LEVELS_GZIP,
    )
    compression_lz4_level: int = _row(
        INT,
        9,
        "The level when the broker compresses with lz4.",
        "compression.lz4.level",
        check=LEVELS_LZ4,
    )
    compression_type: str = _row(
        STRING,
        "producer",
        "How batches are stored: producer keeps what the producer chose.",
        "compression.type",
        check=COMPRESSIONS,
    )
    compression_zstd_level: int = _row(
        INT,
        3,
        "The level when the broker compresses with zstd.",
        "compression.zstd.level",
        check=LEVELS_ZSTD,
    )
    delete_retention_ms: int = _row(
        LONG,
        86_400_000,
        "How long a tombstone stays in a compacted topic, in ms.",
        "log.cleaner.delete.retention.ms",
        check=AT_LEAST_0,
    )
    enable_ordered_delivery: bool = _row(
        BOOLEAN,
        True,
        "Keep the order of each key when the number of partitions changes (KIP-253, level 1.5).",
    )
    file_delete_delay_ms: int = _row(
        LONG,
        60_000,
        "How long a removed file stays on disk under another name, in ms; what compaction has "
        "replaced goes at once.",
        "log.segment.delete.delay.ms",
        check=AT_LEAST_0,
    )
    flush_messages: int = _row(
        LONG,
        MAX_INT64,
        "Sync the log after so many records; replication makes this unnecessary.",
        "log.flush.interval.messages",
        check=AT_LEAST_1,
    )
    flush_ms: int = _row(
        LONG,
        MAX_INT64,
        "Sync the log after so long, in ms; replication makes this unnecessary.",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
        check=AT_LEAST_0,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = _row(
        LIST,
        (),
        "The replicas whose copying is slowed on the follower's side.",
        check=ThrottledReplicas(),
    )
    index_interval_bytes: int = _row(
        INT,
        4096,
        "An offset index entry is written after so many bytes of log.",
        "log.index.interval.bytes",
        check=AT_LEAST_0,
    )
    leader_replication_throttled_replicas: tuple[str, ...] = _row(
        LIST,
        (),
        "The replicas whose copying is slowed on the leader's side.",
        check=ThrottledReplicas(),
    )
    local_retention_bytes: int = _row(
        LONG,
        -2,
        "The size to which segments are kept here beside remote storage; -2 is retention.bytes.",
        check=Between(low=-2),
        without_effect=True,
    )
    local_retention_ms: int = _row(
        LONG,
        -2,
        "How long segments are kept here beside remote storage, in ms; -2 is retention.ms.",
        check=Between(low=-2),
        without_effect=True,
    )
    max_compaction_lag_ms: int = _row(
        LONG,
        MAX_INT64,
        "The longest time that a record may stay uncompacted, in ms.",
        "log.cleaner.max.compaction.lag.ms",
        check=AT_LEAST_1,
    )
    max_message_bytes: int = _row(
        INT,
        1_048_588,
        "The largest batch that is accepted, in bytes, as compressed by the producer.",
        "message.max.bytes",
        check=AT_LEAST_0,
    )
    message_timestamp_after_max_ms: int = _row(
        LONG,
        3_600_000,
        "How far a record's timestamp may lie after the broker's time, in ms.",
        "log.message.timestamp.after.max.ms",
        check=AT_LEAST_0,
    )
    message_timestamp_before_max_ms: int = _row(
        LONG,
        MAX_INT64,
        "How far a record's timestamp may lie before the broker's time, in ms.",
        "log.message.timestamp.before.max.ms",
        check=AT_LEAST_0,
    )
    message_timestamp_type: TimestampType = _row(  # noqa: RUF009 - the field of a row
        STRING,
        CREATE_TIME,
        "Whether records carry the producer's time or the time of the append.",
        "log.message.timestamp.type",
        check=TIMESTAMP_TYPES,
    )
    min_cleanable_dirty_ratio: float = _row(
        DOUBLE,
        0.5,
        "The part of a log that must be uncompacted before it is compacted again.",
        "log.cleaner.min.cleanable.ratio",
        check=Between(0, 1),
    )
    min_compaction_lag_ms: int = _row(
        LONG,
        0,
        "How long a record stays uncompacted at least, in ms.",
        "log.cleaner.min.compaction.lag.ms",
        check=AT_LEAST_0,
    )
    min_insync_machines: int = _row(
        INT,
        1,
        "On how many different machines replicas in sync must have a record before acks=all is "
        "answered, capped at the number of replicas (broker.rack names the machine).",
        "min.insync.machines",
        check=AT_LEAST_1,
    )
    min_insync_replicas: int = _row(
        INT,
        1,
        "How many replicas must have a record before acks=all is answered.",
        "min.insync.replicas",
        check=AT_LEAST_1,
    )
    partitions_auto: bool = _row(
        BOOLEAN,
        False,
        "Whether the controller resizes this topic by its load; needs retired.purge to be set.",
    )
    partitions_auto_grow_cooldown_ms: int = _row(
        LONG,
        60_000,
        "How long after a resize the topic does not grow by itself, in ms.",
        check=AT_LEAST_0,
    )
    partitions_auto_max: int = _row(
        INT, 64, "The largest partition count that autoscaling gives the topic.", check=AT_LEAST_1
    )
    partitions_auto_min: int = _row(
        INT,
        -1,
        "The smallest partition count that autoscaling gives the topic; -1 is the initial count.",
        check=Between(low=1, also=-1),
    )
    partitions_auto_shrink_cooldown_ms: int = _row(
        LONG,
        600_000,
        "How long after a resize the topic does not shrink by itself, and how long its rate "
        "must have been low before that, in ms.",
        check=AT_LEAST_0,
    )
    partitions_auto_shrink_utilization: float = _row(
        DOUBLE,
        0.4,
        "The share of the target rate below which the topic shrinks by itself.",
        check=Between(0, 0.45),
    )
    partitions_auto_target_bytes_per_second: int = _row(
        LONG,
        5_242_880,
        "The byte rate per partition above which the topic grows by itself.",
        check=AT_LEAST_1,
    )
    preallocate: bool = _row(
        BOOLEAN,
        False,
        "Reserve a new segment's space on disk when it is made.",
        "log.preallocate",
        without_effect=True,
    )
    remote_log_copy_disable: bool = _row(
        BOOLEAN, False, "Whether copying to remote storage is stopped.", without_effect=True
    )
    remote_log_delete_on_disable: bool = _row(
        BOOLEAN,
        False,
        "Whether remote data is removed when remote storage is switched off.",
        without_effect=True,
    )
    remote_storage_enable: bool = _row(
        BOOLEAN,
        False,
        "Whether segments are kept in remote storage too (KIP-405), which this version has not.",
        check=Off(),
        without_effect=True,
    )
    retention_bytes: int = _row(
        LONG,
        -1,
        "The size to which old segments are removed, in bytes per partition; below 0 is no limit.",
        "log.retention.bytes",
    )
    retention_ms: int = _row(
        LONG,
        604_800_000,
        "How long records are kept, in ms; -1 is for ever.",
        "log.retention.ms",
        Synonym("log.retention.minutes", MINUTES),
        Synonym("log.retention.hours", HOURS),
        check=Between(low=-1),
    )
    retired_purge: str = _row(
        STRING,
        "retention",
        "When the data of a retired partition goes: by retention, or as soon as every live "
        "group has committed past it (drained).",
        check=OneOf(("retention", "drained")),
    )
    segment_bytes: int = _row(
        INT,
        1_073_741_824,
        "The size of a segment file, in bytes.",
        "log.segment.bytes",
        check=Between(low=MIN_SEGMENT_BYTES),
    )
    segment_index_bytes: int = _row(
        INT,
        10_485_760,
        "The largest size of an index file, in bytes.",
        "log.index.size.max.bytes",
        check=Between(low=4),
    )
    segment_jitter_ms: int = _row(
        LONG,
        0,
        "A random part by which segments are rolled earlier, in ms.",
        "log.roll.jitter.ms",
        Synonym("log.roll.jitter.hours", HOURS),
        check=AT_LEAST_0,
    )
    segment_ms: int = _row(
        LONG,
        604_800_000,
        "The age at which a segment is closed even if it is small, in ms.",
        "log.roll.ms",
        Synonym("log.roll.hours", HOURS),
        check=AT_LEAST_1,
    )
    unaware_producers: str = _row(
        STRING,
        "accept",
        "What happens to producers that do not send the partition count: accept or refuse.",
        check=OneOf(("accept", "refuse")),
    )
    unclean_leader_election_enable: bool = _row(
        BOOLEAN,
        False,
        "Whether a replica that is not in sync may lead when no other can: data may be lost.",
        "unclean.leader.election.enable",
    )

    @property
    def compacted(self) -> bool:
        """Whether the newest value of each key is kept (``cleanup.policy`` has ``compact``)."""
        return "compact" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """How long a segment takes records: ``segment.ms``, in a compacted topic at most
        ``max.compaction.lag.ms``, for the active segment is never compacted (KIP-354)."""
        if self.compacted:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @property
    def expires(self) -> bool:
        """Whether old segments are deleted (``cleanup.policy`` has ``delete``)."""
        return "delete" in self.cleanup_policy


TOPIC: dict[str, ConfigDefinition] = {row.name: row for row in rows_of(TopicConfigs)}
"""Every topic configuration by name."""

_ASKED = {s.name: row for row in TOPIC.values() for s in row.synonyms if s.factor == 1}


def default_of_topics(documentation: str = "") -> Any:
    """A broker's row that gives topics their default, with the columns of the topic's row.

    Its documentation is the topic's unless given. It has no default where the topic's row asks
    another configuration after it.
    """

    def define(name: str) -> ConfigDefinition:
        of_topic = _ASKED[name]
        return ConfigDefinition(
            name,
            of_topic.type,
            of_topic.default if of_topic.synonyms[-1].name == name else None,
            documentation or of_topic.documentation,
            of_topic.check,
            Update.CLUSTER_WIDE,
            of_topic.without_effect,
        )

    return field_of(define)
