"""A server's configurations of replication.

Owns these rows. Not the other ones: see `broker`, which joins all into one table.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.model.configs.rows import (
    AT_LEAST_0,
    AT_LEAST_1,
    INT,
    LONG,
    STRING,
    idle_machinery,
    rate,
    row,
)
from tidelog.model.configs.types import OneOf, Update

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
REPLICA_SELECTORS = (
    "org.apache.kafka.common.replica.LeaderSelector",
    RACK_AWARE_SELECTOR,
)
"""Kafka's class names; no others can be loaded here."""


@dataclass(frozen=True, kw_only=True)
class ReplicationRows:
    """Followers and moves."""

    replica_lag_time_max_ms: int = row(
        LONG, 30_000, "A follower whose lag lasts for so long leaves the ISR, in ms.", AT_LEAST_0
    )
    replica_fetch_max_bytes: int = row(INT, 1_048_576, "Bytes per partition and fetch.", AT_LEAST_0)
    replica_fetch_wait_max_ms: int = row(INT, 500, "How long a follower's fetch waits.", AT_LEAST_0)
    replica_selector_class: str | None = row(
        STRING,
        None,
        "Which replica consumers with a client.rack are sent to: the leader, or with "
        "RackAwareReplicaSelector one of their rack (KIP-392).",
        OneOf(REPLICA_SELECTORS),
    )
    replica_fetch_min_bytes: int = row(
        INT, 1, "The least a follower's fetch waits for.", AT_LEAST_0
    )
    replica_fetch_response_max_bytes: int = row(INT, 10_485_760, "Bytes per fetch.", AT_LEAST_0)
    replica_fetch_backoff_ms: int = row(INT, 1000, "The pause after a failed fetch.", AT_LEAST_0)
    replica_socket_timeout_ms: int = row(INT, 30_000, "How long a follower waits for an answer.")
    replica_high_watermark_checkpoint_interval_ms: int = row(
        LONG, 5000, "How often high watermarks are written, in ms.", AT_LEAST_1
    )
    num_replica_fetchers: int = idle_machinery(INT, 1, "Fetchers per source broker.", AT_LEAST_1)
    leader_replication_throttled_rate: int = rate(
        "The bytes per second that this broker sends to listed replicas outside of the ISR, "
        "all together (leader.replication.throttled.replicas)."
    )
    follower_replication_throttled_rate: int = rate(
        "The bytes per second that this broker's listed replicas outside of the ISR fetch, "
        "all together (follower.replication.throttled.replicas)."
    )
    reassignment_parallel_copies: int = row(
        INT,
        8,
        "How many targets of reassignments a broker copies at once, the smallest first.",
        AT_LEAST_1,
        update=Update.CLUSTER_WIDE,
    )
    reassignment_throttled_rate: int = rate(
        "The bytes per second that a broker sends to the targets of reassignments, and those "
        "that its own targets fetch, until they have joined the ISR. It needs no list of "
        "replicas. At 0 no move would ever end, so at least 1.",
        AT_LEAST_1,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = rate(
        "The bytes per second that are copied between the log directories of a broker, all "
        "together (AlterReplicaLogDirs)."
    )
