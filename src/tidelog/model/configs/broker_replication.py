"""The definitions of a server's configurations of replication.

Owns these rows. Not the other ones: see `broker`, which joins all into one table.
"""

from __future__ import annotations

from tidelog.model.configs.rows import AT_LEAST_0, AT_LEAST_1, idle_machinery, rate, row
from tidelog.model.configs.types import ConfigType, Importance, OneOf, Update

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
REPLICA_SELECTORS = (
    "org.apache.kafka.common.replica.LeaderSelector",
    RACK_AWARE_SELECTOR,
)
"""Kafka's class names; no others can be loaded here."""

_S, _I, _L = ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_HIGH = Importance.HIGH

REPLICATION = (
    row(
        "replica.lag.time.max.ms",
        _L,
        "30000",
        "A follower whose lag lasts for so long leaves the ISR, in ms.",
        AT_LEAST_0,
    ),
    row("replica.fetch.max.bytes", _I, "1048576", "Bytes per partition and fetch.", AT_LEAST_0),
    row("replica.fetch.wait.max.ms", _I, "500", "How long a follower's fetch waits.", AT_LEAST_0),
    row(
        "replica.selector.class",
        _S,
        None,
        "Which replica consumers with a client.rack are sent to: the leader, or with "
        "RackAwareReplicaSelector one of their rack (KIP-392).",
        OneOf(REPLICA_SELECTORS),
    ),
    row("replica.fetch.min.bytes", _I, "1", "The least a follower's fetch waits for.", AT_LEAST_0),
    row("replica.fetch.response.max.bytes", _I, "10485760", "Bytes per fetch.", AT_LEAST_0),
    row("replica.fetch.backoff.ms", _I, "1000", "The pause after a failed fetch.", AT_LEAST_0),
    row("replica.socket.timeout.ms", _I, "30000", "How long a follower waits for an answer."),
    row(
        "replica.high.watermark.checkpoint.interval.ms",
        _L,
        "5000",
        "How often high watermarks are written, in ms.",
        AT_LEAST_1,
        _HIGH,
    ),
    idle_machinery("num.replica.fetchers", _I, "1", "Fetchers per source broker.", AT_LEAST_1),
    rate(
        "leader.replication.throttled.rate",
        "The bytes per second that this broker sends to listed replicas outside of the ISR, all "
        "together (leader.replication.throttled.replicas).",
    ),
    rate(
        "follower.replication.throttled.rate",
        "The bytes per second that this broker's listed replicas outside of the ISR fetch, all "
        "together (follower.replication.throttled.replicas).",
    ),
    row(
        "reassignment.parallel.copies",
        _I,
        "8",
        "How many targets of reassignments a broker copies at once, the smallest first.",
        AT_LEAST_1,
        update=Update.CLUSTER_WIDE,
    ),
    rate(
        "reassignment.throttled.rate",
        "The bytes per second that a broker sends to the targets of reassignments, and those that "
        "its own targets fetch, until they have joined the ISR. It needs no list of replicas. At 0 "
        "no move would ever end, so at least 1.",
        AT_LEAST_1,
    ),
    rate(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "The bytes per second that are copied between the log directories of a broker, all "
        "together (AlterReplicaLogDirs).",
    ),
)
