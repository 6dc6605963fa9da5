"""A server's configurations of its logs and their cleaner.

Owns these rows. Not the other ones: see `broker`, which joins all into one table.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tidelog.model.configs.rows import (
    AT_LEAST_0,
    AT_LEAST_1,
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    STRING,
    idle,
    idle_machinery,
    made,
    row,
)
from tidelog.model.configs.topic import default_of_topics
from tidelog.model.configs.types import MAX_INT64, Between, CordonedDirs, OneOf, Update


@dataclass(frozen=True, kw_only=True)
class LogsRows:
    """Logs on disk."""

    log_dirs: tuple[str, ...] = made(LIST, None, "Where the data is.")
    log_dir: str = row(STRING, "/tmp/tidelog-logs", "Where the data is, if log.dirs is not set.")
    cordoned_log_dirs: tuple[str, ...] = row(
        LIST,
        (),
        "Log directories that get no new replicas (KIP-1066): * for all, so that the broker "
        "gets none, or entries of log.dirs as DescribeLogDirs shows them. Replicas in them "
        "stay. Set it for one broker at a time.",
        CordonedDirs(),
        update=Update.PER_BROKER,
    )
    log_durability: str = row(
        STRING,
        "replicated",
        "When a record counts as stored: replicated (written, as Kafka) or sync (on the disk).",
        OneOf(("replicated", "sync")),
    )
    log_batch_check: str = row(
        STRING,
        "header",
        "What a leader compares in a produced batch: header (its header, the CRC, the first "
        "bytes of a compressed payload, and the records where it inspects them anyway), or "
        "full (each record of each batch, as Kafka: about 1 µs each, and the time to "
        "decompress).",
        OneOf(("header", "full")),
    )
    log_segment_bytes: int = default_of_topics()
    log_roll_ms: int | None = default_of_topics("The age at which a segment is closed, in ms.")
    log_roll_hours: int = row(INT, 168, "The same in hours.", AT_LEAST_1)
    log_roll_jitter_ms: int | None = default_of_topics("A random part of the age, in ms.")
    log_roll_jitter_hours: int = row(INT, 0, "The same in hours.", AT_LEAST_0)
    log_retention_ms: int | None = default_of_topics()
    log_retention_minutes: int | None = row(INT, None, "The same in minutes.", Between(low=-1))
    log_retention_hours: int = row(INT, 168, "The same in hours.", Between(low=-1))
    log_retention_bytes: int = default_of_topics()
    log_retention_check_interval_ms: int = row(
        LONG, 300_000, "How often retention is checked, in ms.", AT_LEAST_1
    )
    log_cleanup_policy: tuple[str, ...] = default_of_topics("What happens to old data by default.")
    log_index_size_max_bytes: int = default_of_topics("The largest index file.")
    log_index_interval_bytes: int = default_of_topics("Bytes between index entries.")
    log_flush_interval_messages: int = default_of_topics("Sync after so many records.")
    log_flush_interval_ms: int | None = default_of_topics("Sync after so long, in ms.")
    log_flush_scheduler_interval_ms: int = row(
        LONG, MAX_INT64, "How often it is checked whether to sync, in ms.", AT_LEAST_1
    )
    log_flush_offset_checkpoint_interval_ms: int = row(
        INT, 60_000, "How often recovery points are written, in ms.", AT_LEAST_1
    )
    log_flush_start_offset_checkpoint_interval_ms: int = row(
        INT, 60_000, "How often log start offsets are written, in ms.", AT_LEAST_1
    )
    log_segment_delete_delay_ms: int = default_of_topics(
        "How long a removed file stays on disk, in ms."
    )
    log_preallocate: bool = default_of_topics("Reserve a new segment's space at once.")
    log_message_timestamp_type: str = default_of_topics(
        "Whether records carry the producer's time or that of the append."
    )
    log_message_timestamp_before_max_ms: int = default_of_topics(
        "How far a timestamp may lie before the broker's time, in ms."
    )
    log_message_timestamp_after_max_ms: int = default_of_topics(
        "How far a timestamp may lie after the broker's time, in ms."
    )
    producer_id_expiration_ms: int = row(
        INT,
        86_400_000,
        "How long the state of an idle producer is kept, in ms.",
        AT_LEAST_1,
        update=Update.CLUSTER_WIDE,
    )
    num_recovery_threads_per_data_dir: int = row(
        INT,
        2,
        "Processes that check logs at a time, where a start after a kill has much to check.",
        AT_LEAST_1,
        update=Update.CLUSTER_WIDE,
    )
    log_initial_task_delay_ms: int = idle(
        LONG, 30_000, "Delay of the first check, in ms.", AT_LEAST_0
    )


@dataclass(frozen=True, kw_only=True)
class CleanerRows:
    """Compaction."""

    log_cleaner_enable: bool = row(BOOLEAN, True, "Whether compacted topics are compacted.")
    log_cleaner_backoff_ms: int = row(
        LONG,
        15_000,
        "How long the cleaner sleeps when there is nothing to do, in ms.",
        AT_LEAST_0,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_min_cleanable_ratio: float = default_of_topics()
    log_cleaner_delete_retention_ms: int = default_of_topics("How long a tombstone stays, in ms.")
    log_cleaner_min_compaction_lag_ms: int = default_of_topics()
    log_cleaner_max_compaction_lag_ms: int = default_of_topics()
    log_cleaner_threads: int = row(
        INT,
        1,
        "Logs that are compacted at the same time, each by a helper process; with 0, none is.",
        AT_LEAST_0,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_io_max_bytes_per_second: float = row(
        DOUBLE,
        sys.float_info.max,
        "Bytes that the cleaner reads and writes in a second, shared evenly by its threads. A"
        " change takes effect within seconds, also for a log that is at work.",
        AT_LEAST_1,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_dedupe_buffer_size: int = row(
        LONG,
        134_217_728,
        "Bytes that the cleaner has for the keys that it compares, shared evenly by its "
        "threads: 24 for each key. A log with more new keys than fit is read again for the "
        "others.",
        AT_LEAST_1,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_size: int = idle_machinery(
        INT, 524_288, "The cleaner's buffer.", AT_LEAST_0
    )
    log_cleaner_io_buffer_load_factor: float = row(
        DOUBLE,
        0.9,
        "How full log.cleaner.dedupe.buffer.size may be; above 0.95 counts as 0.95.",
        Between(0, 1),
        update=Update.CLUSTER_WIDE,
    )
