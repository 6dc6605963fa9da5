"""The definitions of a server's configurations of its logs and their cleaner.

Owns these rows. Not the other ones: see `broker`, which joins both into one table.
"""

from __future__ import annotations

from tidelog.model.configs.rows import (
    AT_LEAST_0,
    AT_LEAST_1,
    MAX,
    idle,
    idle_machinery,
    row,
    topic_default,
)
from tidelog.model.configs.topic import MIN_SEGMENT_BYTES, POLICIES, TIMESTAMP_TYPES
from tidelog.model.configs.types import (
    Between,
    ConfigType,
    CordonedDirs,
    Importance,
    OneOf,
    Update,
)

_B, _S, _I, _L, _D = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
)
_LIST, _HIGH = ConfigType.LIST, Importance.HIGH

LOG = (
    row("log.dirs", _LIST, None, "Where the data is.", importance=_HIGH),
    row("log.dir", _S, "/tmp/tidelog-logs", "Where the data is, if log.dirs is not set."),
    row(
        "cordoned.log.dirs",
        _LIST,
        "",
        "Log directories that get no new replicas (KIP-1066): * for all, so that the broker gets "
        "none, or entries of log.dirs as DescribeLogDirs shows them. Replicas in them stay. Set it "
        "for one broker at a time.",
        CordonedDirs(),
        update=Update.PER_BROKER,
    ),
    row(
        "log.durability",
        _S,
        "replicated",
        "When a record counts as stored: replicated (written, as Kafka) or sync (on the disk).",
        OneOf(("replicated", "sync")),
        _HIGH,
    ),
    row(
        "log.batch.check",
        _S,
        "header",
        "What a leader compares in a produced batch: header (its header, the CRC, the first bytes "
        "of a compressed payload, and the records where it looks into them anyway), or full (each "
        "record of each batch, as Kafka: about 1 µs each, and the time to decompress).",
        OneOf(("header", "full")),
    ),
    topic_default(
        "log.segment.bytes",
        _I,
        "1073741824",
        "The size of a segment file, in bytes.",
        Between(low=MIN_SEGMENT_BYTES),
    ),
    topic_default(
        "log.roll.ms", _L, None, "The age at which a segment is closed, in ms.", AT_LEAST_1
    ),
    row("log.roll.hours", _I, "168", "The same in hours.", AT_LEAST_1),
    topic_default("log.roll.jitter.ms", _L, None, "A random part of the age, in ms.", AT_LEAST_0),
    row("log.roll.jitter.hours", _I, "0", "The same in hours.", AT_LEAST_0),
    topic_default(
        "log.retention.ms",
        _L,
        None,
        "How long records are kept, in ms; -1 is for ever.",
        Between(low=-1),
    ),
    row("log.retention.minutes", _I, None, "The same in minutes.", Between(low=-1)),
    row("log.retention.hours", _I, "168", "The same in hours.", Between(low=-1)),
    topic_default(
        "log.retention.bytes",
        _L,
        "-1",
        "The size to which old segments are removed, in bytes per partition; below 0 is no limit.",
    ),
    row(
        "log.retention.check.interval.ms",
        _L,
        "300000",
        "How often retention is looked at, in ms.",
        AT_LEAST_1,
    ),
    topic_default(
        "log.cleanup.policy", _LIST, "delete", "What happens to old data by default.", POLICIES
    ),
    topic_default(
        "log.index.size.max.bytes", _I, "10485760", "The largest index file.", Between(low=4)
    ),
    topic_default(
        "log.index.interval.bytes", _I, "4096", "Bytes between index entries.", AT_LEAST_0
    ),
    topic_default(
        "log.flush.interval.messages", _L, MAX, "Sync after so many records.", AT_LEAST_1
    ),
    topic_default("log.flush.interval.ms", _L, None, "Sync after so long, in ms.", AT_LEAST_0),
    row(
        "log.flush.scheduler.interval.ms",
        _L,
        MAX,
        "How often it is looked at whether to sync, in ms.",
        AT_LEAST_1,
    ),
    row(
        "log.flush.offset.checkpoint.interval.ms",
        _I,
        "60000",
        "How often recovery points are written, in ms.",
        AT_LEAST_1,
    ),
    row(
        "log.flush.start.offset.checkpoint.interval.ms",
        _I,
        "60000",
        "How often log start offsets are written, in ms.",
        AT_LEAST_1,
    ),
    topic_default(
        "log.segment.delete.delay.ms",
        _L,
        "60000",
        "How long a removed file stays on disk, in ms.",
        AT_LEAST_0,
    ),
    row(
        "log.preallocate",
        _B,
        "false",
        "Reserve a new segment's space at once.",
        update=Update.CLUSTER_WIDE,
        without_effect=True,
    ),
    topic_default(
        "log.message.timestamp.type",
        _S,
        "CreateTime",
        "Whether records carry the producer's time or that of the append.",
        TIMESTAMP_TYPES,
    ),
    topic_default(
        "log.message.timestamp.before.max.ms",
        _L,
        MAX,
        "How far a timestamp may lie before the broker's time, in ms.",
        AT_LEAST_0,
    ),
    topic_default(
        "log.message.timestamp.after.max.ms",
        _L,
        "3600000",
        "How far a timestamp may lie after the broker's time, in ms.",
        AT_LEAST_0,
    ),
    row(
        "producer.id.expiration.ms",
        _I,
        "86400000",
        "How long the state of an idle producer is kept, in ms.",
        AT_LEAST_1,
        update=Update.CLUSTER_WIDE,
    ),
    row(
        "num.recovery.threads.per.data.dir",
        _I,
        "2",
        "Processes that check logs at a time, where a start after a kill has much to check.",
        AT_LEAST_1,
        update=Update.CLUSTER_WIDE,
    ),
    idle("log.initial.task.delay.ms", _L, "30000", "Delay of the first check, in ms.", AT_LEAST_0),
)

CLEANER = (
    row("log.cleaner.enable", _B, "true", "Whether compacted topics are compacted."),
    row(
        "log.cleaner.backoff.ms",
        _L,
        "15000",
        "How long the cleaner sleeps when there is nothing to do, in ms.",
        AT_LEAST_0,
        update=Update.CLUSTER_WIDE,
    ),
    topic_default(
        "log.cleaner.min.cleanable.ratio",
        _D,
        "0.5",
        "The part of a log that must be uncompacted before it is compacted again.",
        Between(0, 1),
    ),
    topic_default(
        "log.cleaner.delete.retention.ms",
        _L,
        "86400000",
        "How long a tombstone stays, in ms.",
        AT_LEAST_0,
    ),
    topic_default(
        "log.cleaner.min.compaction.lag.ms",
        _L,
        "0",
        "How long a record stays uncompacted at least, in ms.",
        AT_LEAST_0,
    ),
    topic_default(
        "log.cleaner.max.compaction.lag.ms",
        _L,
        MAX,
        "The longest time that a record may stay uncompacted, in ms.",
        AT_LEAST_1,
    ),
    row(
        "log.cleaner.threads",
        _I,
        "1",
        "Logs that are compacted at the same time, each by a helper process; with 0, none is.",
        AT_LEAST_0,
        update=Update.CLUSTER_WIDE,
    ),
    row(
        "log.cleaner.io.max.bytes.per.second",
        _D,
        "1.7976931348623157E308",
        "Bytes that the cleaner reads and writes in a second, shared evenly by its threads. A "
        "change counts for the logs whose turn comes after it.",
        AT_LEAST_1,
        update=Update.CLUSTER_WIDE,
    ),
    row(
        "log.cleaner.dedupe.buffer.size",
        _L,
        "134217728",
        "Bytes that the cleaner has for the keys that it compares, shared evenly by its threads: "
        "24 for each key. A log with more new keys than fit is read again for the others.",
        AT_LEAST_1,
        update=Update.CLUSTER_WIDE,
    ),
    idle_machinery("log.cleaner.io.buffer.size", _I, "524288", "The cleaner's buffer.", AT_LEAST_0),
    row(
        "log.cleaner.io.buffer.load.factor",
        _D,
        "0.9",
        "How full log.cleaner.dedupe.buffer.size may be; above 0.95 counts as 0.95.",
        Between(0, 1),
        update=Update.CLUSTER_WIDE,
    ),
)
