"""The resolved configuration of one topic: typed values under Kafka's names, with Kafka's defaults.

Owns the values. Not their definitions (documentation, validation, synonyms at the broker's level):
see `topic`; not which text wins: see `resolve`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidelog.model.configs.types import MAX_INT64


class TimestampType(StrEnum):
    """``message.timestamp.type``."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


CREATE_TIME = TimestampType.CREATE_TIME
LOG_APPEND_TIME = TimestampType.LOG_APPEND_TIME
"""Constants for the append path: Python 3.11 looks up an enum's member by a call of 0.1 us."""


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """One topic's settings as the log and the leader need them. Sizes in bytes, times in ms."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    enable_ordered_delivery: bool = True
    file_delete_delay_ms: int = 60_000
    flush_messages: int = MAX_INT64
    flush_ms: int = MAX_INT64
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = MAX_INT64
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = MAX_INT64
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    partitions_auto: bool = False
    partitions_auto_grow_cooldown_ms: int = 60_000
    partitions_auto_max: int = 64
    partitions_auto_min: int = -1
    partitions_auto_shrink_cooldown_ms: int = 600_000
    partitions_auto_shrink_utilization: float = 0.4
    partitions_auto_target_bytes_per_second: int = 5_242_880
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    unclean_leader_election_enable: bool = False
    unaware_producers: str = "accept"
    retired_purge: str = "retention"

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
