"""The table of topic configurations: names, defaults and synonyms as Kafka has them, and ours.

Owns the definitions. Not the typed values: see `topic_values` (a test compares the two); not which
text wins: see `resolve`.
"""

from __future__ import annotations

from tidelog.model.configs.types import (
    Between,
    Check,
    ConfigDefinition,
    ConfigType,
    Importance,
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

AT_LEAST_0 = Between(low=0)
LEVELS_LZ4 = Between(1, 17)
LEVELS_ZSTD = Between(-131072, 22)
LEVELS_GZIP = Between(1, 9, also=-1)
COMPRESSIONS = OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"))
TIMESTAMP_TYPES = OneOf(("CreateTime", "LogAppendTime"))
POLICIES = OneOf(("compact", "delete"))


def _topic(
    name: str,
    kind: ConfigType,
    default: str | None,
    documentation: str,
    *synonyms: str | Synonym,
    check: Check | None = None,
    importance: Importance = Importance.MEDIUM,
    without_effect: bool = False,
) -> ConfigDefinition:
    asked = tuple(Synonym(entry) if isinstance(entry, str) else entry for entry in synonyms)
    return ConfigDefinition(
        name,
        kind,
        default,
        documentation,
        check,
        importance,
        Update.CLUSTER_WIDE,
        without_effect,
        asked,
    )


_B, _S, _I, _L, _D = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
)
_LOW = Importance.LOW

_ROWS = (
    _topic(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "What happens to old data: delete removes old segments by time and size, compact keeps "
        "the newest value of each key; both may be given.",
        "log.cleanup.policy",
        check=POLICIES,
    ),
    _topic(
        "compression.gzip.level",
        _I,
        "-1",
        "The level when the broker compresses with gzip.",
        "compression.gzip.level",
        check=LEVELS_GZIP,
    ),
    _topic(
        "compression.lz4.level",
        _I,
        "9",
        "The level when the broker compresses with lz4.",
        "compression.lz4.level",
        check=LEVELS_LZ4,
    ),
    _topic(
        "compression.type",
        _S,
        "producer",
        "How batches are stored: producer keeps what the producer chose.",
        "compression.type",
        check=COMPRESSIONS,
    ),
    _topic(
        "compression.zstd.level",
        _I,
        "3",
        "The level when the broker compresses with zstd.",
        "compression.zstd.level",
        check=LEVELS_ZSTD,
    ),
    _topic(
        "delete.retention.ms",
        _L,
        "86400000",
        "How long a tombstone stays in a compacted topic, in ms.",
        "log.cleaner.delete.retention.ms",
        check=AT_LEAST_0,
    ),
    _topic(
        "enable.ordered.delivery",
        _B,
        "true",
        "Keep the order of each key when the number of partitions changes (KIP-253, level 1.5).",
    ),
    _topic(
        "file.delete.delay.ms",
        _L,
        "60000",
        "How long a removed file stays on disk under another name, in ms.",
        "log.segment.delete.delay.ms",
        check=AT_LEAST_0,
    ),
    _topic(
        "flush.messages",
        _L,
        "9223372036854775807",
        "Sync the log after so many records; replication makes this unnecessary.",
        "log.flush.interval.messages",
        check=Between(low=1),
    ),
    _topic(
        "flush.ms",
        _L,
        "9223372036854775807",
        "Sync the log after so long, in ms; replication makes this unnecessary.",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
        check=AT_LEAST_0,
    ),
    _topic(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        "The replicas whose copying is slowed on the follower's side.",
        check=ThrottledReplicas(),
    ),
    _topic(
        "index.interval.bytes",
        _I,
        "4096",
        "An offset index entry is written after so many bytes of log.",
        "log.index.interval.bytes",
        check=AT_LEAST_0,
    ),
    _topic(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        "The replicas whose copying is slowed on the leader's side.",
        check=ThrottledReplicas(),
    ),
    _topic(
        "local.retention.bytes",
        _L,
        "-2",
        "The size to which segments are kept here beside remote storage; -2 is retention.bytes.",
        check=Between(low=-2),
        without_effect=True,
    ),
    _topic(
        "local.retention.ms",
        _L,
        "-2",
        "How long segments are kept here beside remote storage, in ms; -2 is retention.ms.",
        check=Between(low=-2),
        without_effect=True,
    ),
    _topic(
        "max.compaction.lag.ms",
        _L,
        "9223372036854775807",
        "The longest time that a record may stay uncompacted, in ms.",
        "log.cleaner.max.compaction.lag.ms",
        check=Between(low=1),
    ),
    _topic(
        "max.message.bytes",
        _I,
        "1048588",
        "The largest batch that is accepted, in bytes, as compressed by the producer.",
        "message.max.bytes",
        check=AT_LEAST_0,
    ),
    _topic(
        "message.timestamp.after.max.ms",
        _L,
        "3600000",
        "How far a record's timestamp may lie after the broker's time, in ms.",
        "log.message.timestamp.after.max.ms",
        check=AT_LEAST_0,
    ),
    _topic(
        "message.timestamp.before.max.ms",
        _L,
        "9223372036854775807",
        "How far a record's timestamp may lie before the broker's time, in ms.",
        "log.message.timestamp.before.max.ms",
        check=AT_LEAST_0,
    ),
    _topic(
        "message.timestamp.type",
        _S,
        "CreateTime",
        "Whether records carry the producer's time or the time of the append.",
        "log.message.timestamp.type",
        check=TIMESTAMP_TYPES,
    ),
    _topic(
        "min.cleanable.dirty.ratio",
        _D,
        "0.5",
        "The part of a log that must be uncompacted before it is compacted again.",
        "log.cleaner.min.cleanable.ratio",
        check=Between(0, 1),
    ),
    _topic(
        "min.compaction.lag.ms",
        _L,
        "0",
        "How long a record stays uncompacted at least, in ms.",
        "log.cleaner.min.compaction.lag.ms",
        check=AT_LEAST_0,
    ),
    _topic(
        "min.insync.replicas",
        _I,
        "1",
        "How many replicas must have a record before acks=all is answered.",
        "min.insync.replicas",
        check=Between(low=1),
    ),
    _topic(
        "partitions.auto",
        _B,
        "false",
        "Whether the controller resizes this topic by its load; needs retired.purge to be set.",
    ),
    _topic(
        "partitions.auto.grow.cooldown.ms",
        _L,
        "60000",
        "How long after a resize the topic does not grow by itself, in ms.",
        check=AT_LEAST_0,
    ),
    _topic(
        "partitions.auto.max",
        _I,
        "64",
        "The largest partition count that autoscaling gives the topic.",
        check=Between(low=1),
    ),
    _topic(
        "partitions.auto.min",
        _I,
        "-1",
        "The smallest partition count that autoscaling gives the topic; -1 is the initial count.",
        check=Between(low=1, also=-1),
    ),
    _topic(
        "partitions.auto.shrink.cooldown.ms",
        _L,
        "600000",
        "How long after a resize the topic does not shrink by itself, and how long its rate must "
        "have been low before that, in ms.",
        check=AT_LEAST_0,
    ),
    _topic(
        "partitions.auto.shrink.utilization",
        _D,
        "0.4",
        "The share of the target rate below which the topic shrinks by itself.",
        check=Between(0, 0.45),
    ),
    _topic(
        "partitions.auto.target.bytes.per.second",
        _L,
        "5242880",
        "The byte rate per partition above which the topic grows by itself.",
        check=Between(low=1),
    ),
    _topic(
        "preallocate",
        _B,
        "false",
        "Reserve a new segment's space on disk when it is made.",
        "log.preallocate",
        importance=_LOW,
        without_effect=True,
    ),
    _topic(
        "remote.log.copy.disable",
        _B,
        "false",
        "Whether copying to remote storage is stopped.",
        without_effect=True,
    ),
    _topic(
        "remote.log.delete.on.disable",
        _B,
        "false",
        "Whether remote data is removed when remote storage is switched off.",
        without_effect=True,
    ),
    _topic(
        "remote.storage.enable",
        _B,
        "false",
        "Whether segments are kept in remote storage too (KIP-405), which this version has not.",
        check=Off(),
        without_effect=True,
    ),
    _topic(
        "retention.bytes",
        _L,
        "-1",
        "The size to which old segments are removed, in bytes per partition; below 0 is no limit.",
        "log.retention.bytes",
    ),
    _topic(
        "retention.ms",
        _L,
        "604800000",
        "How long records are kept, in ms; -1 is for ever.",
        "log.retention.ms",
        Synonym("log.retention.minutes", MINUTES),
        Synonym("log.retention.hours", HOURS),
        check=Between(low=-1),
    ),
    _topic(
        "retired.purge",
        _S,
        "retention",
        "When the data of a retired partition goes: by retention, or as soon as every live group "
        "has committed past it (drained).",
        check=OneOf(("retention", "drained")),
    ),
    _topic(
        "segment.bytes",
        _I,
        "1073741824",
        "The size of a segment file, in bytes.",
        "log.segment.bytes",
        check=Between(low=MIN_SEGMENT_BYTES),
    ),
    _topic(
        "segment.index.bytes",
        _I,
        "10485760",
        "The largest size of an index file, in bytes.",
        "log.index.size.max.bytes",
        check=Between(low=4),
    ),
    _topic(
        "segment.jitter.ms",
        _L,
        "0",
        "A random part by which segments are rolled earlier, in ms.",
        "log.roll.jitter.ms",
        Synonym("log.roll.jitter.hours", HOURS),
        check=AT_LEAST_0,
    ),
    _topic(
        "segment.ms",
        _L,
        "604800000",
        "The age at which a segment is closed even if it is small, in ms.",
        "log.roll.ms",
        Synonym("log.roll.hours", HOURS),
        check=Between(low=1),
    ),
    _topic(
        "unaware.producers",
        _S,
        "accept",
        "What happens to producers that do not send the partition count: accept or refuse.",
        check=OneOf(("accept", "refuse")),
    ),
    _topic(
        "unclean.leader.election.enable",
        _B,
        "false",
        "Whether a replica that is not in sync may lead when no other can: data may be lost.",
        "unclean.leader.election.enable",
        importance=Importance.HIGH,
    ),
)

TOPIC: dict[str, ConfigDefinition] = {row.name: row for row in _ROWS}
"""Every topic configuration by name."""
