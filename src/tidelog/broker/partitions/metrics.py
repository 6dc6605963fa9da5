"""Prometheus metrics of partitions, topics and log directories.

Owns names and labels: those of Kafka's JMX beans as exporters show them. Not the counters: see
``counts``. Collected in the endpoint's thread from copies. O(hosted partitions).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tidelog.broker.partitions.in_sync import is_too_small
from tidelog.broker.partitions.partition import HostedPartition, Role
from tidelog.broker.partitions.sums import Past, Sums, by_topic

if TYPE_CHECKING:
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.storage.directory.log_directory import LogDirectory

BY_TOPIC = {
    "bytesin": ("bytes_in", "Bytes that clients produced"),
    "bytesout": ("bytes_out", "Bytes that consumers fetched"),
    "messagesin": ("messages", "Records appended as leader"),
    "totalproducerequests": (
        "_produces",
        "Batches that clients and groups had appended, or refused",
    ),
    "failedproducerequests": ("refused_appends", "Batches that were refused"),
    "totalfetchrequests": ("fetches", "Reads of a partition that had something to read"),
    "failedfetchrequests": ("refused_fetches", "Reads of a partition that were refused"),
}
"""Of Kafka's BrokerTopicMetrics: name -> where ``Sums`` has it, and what it is."""

OF_ALL = {
    "kafka_server_brokertopicmetrics_replicationbytesin": (
        "replicated_in",
        "Bytes fetched from the leaders of partitions that are followed here",
    ),
    "kafka_server_brokertopicmetrics_replicationbytesout": (
        "replicated_out",
        "Bytes fetched by followers of partitions that are led here",
    ),
    "kafka_server_brokertopicmetrics_reassignmentbytesin": (
        "reassigned_in",
        "Of these, bytes of partitions that move here",
    ),
    "kafka_server_brokertopicmetrics_reassignmentbytesout": (
        "reassigned_out",
        "Of these, bytes for brokers that partitions move to",
    ),
    "kafka_server_replicamanager_isrshrinks": (
        "isr_shrinks",
        "Times that a replica left the ISR of a partition that is led here",
    ),
    "kafka_server_replicamanager_isrexpands": (
        "isr_expansions",
        "Times that a replica joined the ISR of a partition that is led here",
    ),
}
"""Counters without a topic's name."""


def hosted_by(partitions: Partitions) -> list[HostedPartition]:
    """Return all replicas. From a copy at each level: the loop changes the maps meanwhile."""
    return [
        partition
        for by_number in list(partitions.by_topic.values())
        for partition in list(by_number.values())
    ]


def of_partitions(partitions: Partitions, hosted: Sequence[HostedPartition]) -> Iterator[Metric]:
    """Yield every metric of partitions, topics and log directories once."""
    yield from _counts(hosted)
    yield from _logs(hosted)
    yield from _replication(hosted)
    yield from _traffic(partitions.past, hosted)
    yield from _directories(partitions.directories)


def _counts(hosted: Sequence[HostedPartition]) -> Iterator[Metric]:
    leaders = [p for p in hosted if p.role is Role.LEADER]
    numbers = {
        "partitioncount": ("Replicas on this broker", len(hosted)),
        "leadercount": ("Partitions that this broker leads", len(leaders)),
        "offlinereplicacount": (
            "Replicas whose disk failed or whose log is damaged",
            sum(p.role is Role.OFFLINE for p in hosted),
        ),
        "underreplicatedpartitions": (
            "Led partitions with fewer replicas in sync than assigned, by those before a move",
            sum(len(p.isr) < len(p.state.original or p.replicas) for p in leaders),
        ),
        "reassigningpartitions": (
            "Led partitions that move to other brokers",
            sum(bool(p.state.targets) for p in leaders),
        ),
        "underminisrpartitioncount": (
            "Led partitions that refuse acks=all",
            sum(map(is_too_small, leaders)),
        ),
        "uncleanleadercount": (
            "Led partitions whose loss of data is not handled yet (KIP-704)",
            sum(p.state.is_unclean_leader or p.state.has_debt for p in leaders),
        ),
    }
    for name, (text, value) in numbers.items():
        yield GaugeMetricFamily(f"kafka_server_replicamanager_{name}", text, value=value)


def _logs(hosted: Sequence[HostedPartition]) -> Iterator[Metric]:
    labels = ["topic", "partition"]
    start = GaugeMetricFamily("kafka_log_log_logstartoffset", "First offset", labels=labels)
    end = GaugeMetricFamily("kafka_log_log_logendoffset", "Next offset", labels=labels)
    size = GaugeMetricFamily("kafka_log_log_size", "Bytes of the log", labels=labels)
    mark = GaugeMetricFamily(
        "kafka_cluster_partition_highwatermark", "Offset up to which is committed", labels=labels
    )
    for partition in hosted:
        labels = [partition.topic, str(partition.partition)]
        start.add_metric(labels, partition.start_offset)
        end.add_metric(labels, partition.end_offset)
        mark.add_metric(labels, partition.high_watermark)
        size.add_metric(labels, partition.log.size)
    yield from (start, end, size, mark)


def _replication(hosted: Sequence[HostedPartition]) -> Iterator[Metric]:
    labels = ["topic", "partition"]
    place = "kafka_cluster_partition"
    count = GaugeMetricFamily(
        f"{place}_replicascount", "Replicas of a led partition, 0 of others", labels=labels
    )
    gauge = GaugeMetricFamily(
        f"{place}_atminisr", "1 for a led partition that can lose no replica more", labels=labels
    )
    under = GaugeMetricFamily(
        f"{place}_underminisr", "1 for a led partition that refuses acks=all", labels=labels
    )
    lag = GaugeMetricFamily(
        "tidelog_replica_lag",
        "Records of a led partition that a follower does not hold yet",
        labels=[*labels, "replica"],
    )
    for partition in hosted:
        labels = [partition.topic, str(partition.partition)]
        state, leads = partition.state, partition.is_leader
        in_sync, required = len(state.isr), partition.required_in_sync
        count.add_metric(labels, len(state.replicas) if leads else 0)
        gauge.add_metric(labels, int(leads and in_sync == required))
        under.add_metric(labels, int(leads and is_too_small(partition)))
        if leads and len(state.replicas) > 1:
            followers, end = partition.followers, partition.end_offset
            for replica in state.replicas:
                if (held := followers.get(replica)) is not None:
                    missing = max(0, end - max(0, held.end_offset))
                    lag.add_metric([*labels, str(replica)], missing)
    yield from (count, gauge, under, lag)


def _traffic(past: Past, hosted: Sequence[HostedPartition]) -> Iterator[Metric]:
    topics = by_topic(hosted)
    everything = Sums()
    for sums in (past.all, *topics.values()):
        everything.join(sums)
    for topic, sums in list(past.by_topic.items()):
        if topic in topics:
            topics[topic].join(sums)
    for name, (field, text) in BY_TOPIC.items():
        family = CounterMetricFamily(
            f"kafka_server_brokertopicmetrics_{name}", text, labels=["topic"]
        )
        for topic, sums in topics.items():
            if field == "_produces":
                family.add_metric([topic], sums.appends + sums.refused_appends)
            else:
                family.add_metric([topic], getattr(sums, field))
        yield family
    for name, (field, text) in OF_ALL.items():
        yield CounterMetricFamily(name, text, value=getattr(everything, field))


def _directories(directories: Sequence[LogDirectory]) -> Iterator[Metric]:
    labels = ["directory"]
    free = GaugeMetricFamily(
        "tidelog_log_directory_free_bytes", "What its volume still has for us", labels=labels
    )
    total = GaugeMetricFamily(
        "tidelog_log_directory_total_bytes", "Size of its volume", labels=labels
    )
    for directory in directories:
        if directory.failed is not None:
            continue
        try:
            room = directory.free_bytes(), directory.total_bytes()
        except OSError:
            continue  # it does not say how full it is
        free.add_metric([directory.path], room[0])
        total.add_metric([directory.path], room[1])
    yield from (free, total)
