"""What a broker shows to those who watch it: Prometheus metrics and the health answer.

Owns names and labels (those of Kafka's JMX beans, in the lower case that Prometheus exporters give
them); the numbers are counted where the work is done. Collected in the endpoint's thread: it reads
copies of dictionaries and single numbers, so that a scrape never blocks the loop. One scrape grows
with the hosted partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidelog.broker.partition import HostedPartition, Role

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


class BrokerCollector(Collector):
    """Collects one broker's metrics at each scrape."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        """Yield every metric once."""
        hosted = _hosted(self._broker)
        yield from _counts(hosted)
        yield from _logs(hosted)
        yield from _traffic(hosted)
        yield CounterMetricFamily(
            "tidelog_committed_offsets_lost",
            "Committed records that replicas here had to cut after unclean elections (KIP-704)",
            value=self._broker.loss_reports.lost_offsets,
        )
        yield CounterMetricFamily(
            "tidelog_producers_forgotten",
            "Idempotent producers that replicas here forgot for a limit: of a partition, or of all",
            value=sum(partition.log.producers.forgotten for partition in hosted),
        )
        room = self._broker.coordinator.room
        yield GaugeMetricFamily(
            "tidelog_group_member_bytes",
            "What the members of all groups coordinated here take in memory",
            value=room.held,
        )
        yield CounterMetricFamily(
            "tidelog_group_requests_without_room",
            "Joins, assignments and new groups that were refused because there is no room for more",
            value=room.refused,
        )
        partitions = self._broker.partitions
        failed = sum(each.failed is not None for each in partitions.directories)
        yield GaugeMetricFamily(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "Log directories that are out of service",
            value=failed + len(partitions.away),
        )
        uncleanable = self._broker.maintenance.cleaning.uncleanable()
        yield GaugeMetricFamily(
            "kafka_log_logcleanermanager_uncleanable_partitions_count",
            "Replicas whose logs compaction had to give up",
            value=len(uncleanable),
        )
        yield from self._requests()
        yield from self._connections()

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "kafka_network_requestmetrics_requests", "Requests by API", labels=["request"]
        )
        failures = CounterMetricFamily(
            "kafka_network_requestmetrics_failures",
            "Requests that met a bug of this server, by API",
            labels=["request"],
        )
        parked = GaugeMetricFamily(
            "kafka_server_delayedoperationpurgatory_size",
            "Requests whose answer is pending, by API",
            labels=["request"],
        )
        for key, tally in list(self._broker.server.router.tallies.items()):
            if tally.requests:
                name = key.name.title().replace("_", "")
                requests.add_metric([name], tally.requests)
                failures.add_metric([name], tally.failures)
                parked.add_metric([name], tally.parked)
        refused = CounterMetricFamily(
            "tidelog_requests_unauthorized",
            "Requests that this broker refused for want of a proof of the cluster secret, by API",
            labels=["request"],
        )
        for key, count in list(self._broker.server.audit.refused_by_api.items()):
            refused.add_metric([key.name.title().replace("_", "")], count)
        yield requests
        yield failures
        yield parked
        yield refused

    def _connections(self) -> Iterator[Metric]:
        for name, value in self._broker.server.statistics().items():
            text = name.replace("_", " ")
            yield GaugeMetricFamily(f"kafka_server_socketserver_{name}", text, value=value)


def _hosted(broker: Broker) -> list[HostedPartition]:
    """Return all replicas. From a copy at each level: the loop changes the maps meanwhile."""
    return [
        partition
        for by_number in list(broker.partitions.by_topic.values())
        for partition in list(by_number.values())
    ]


def _counts(hosted: list[HostedPartition]) -> Iterator[Metric]:
    leaders = [p for p in hosted if p.role is Role.LEADER]
    numbers = {
        "partitioncount": ("Replicas on this broker", len(hosted)),
        "leadercount": ("Partitions that this broker leads", len(leaders)),
        "offlinereplicacount": (
            "Replicas whose disk failed or whose log is damaged",
            sum(p.role is Role.OFFLINE for p in hosted),
        ),
        "underreplicatedpartitions": (
            "Led partitions with fewer replicas in sync than assigned",
            sum(len(p.isr) < len(p.replicas) for p in leaders),
        ),
        "underminisrpartitioncount": (
            "Led partitions that refuse acks=all",
            sum(len(p.isr) < p.required_in_sync for p in leaders),
        ),
        "uncleanleadercount": (
            "Led partitions whose loss of data is not handled yet (KIP-704)",
            sum(p.state.is_unclean_leader or p.state.has_debt for p in leaders),
        ),
    }
    for name, (text, value) in numbers.items():
        yield GaugeMetricFamily(f"kafka_server_replicamanager_{name}", text, value=value)


def _logs(hosted: list[HostedPartition]) -> Iterator[Metric]:
    labels = ["topic", "partition"]
    start = GaugeMetricFamily("kafka_log_log_logstartoffset", "First offset", labels=labels)
    end = GaugeMetricFamily("kafka_log_log_logendoffset", "Next offset", labels=labels)
    size = GaugeMetricFamily("kafka_log_log_size", "Bytes of the log", labels=labels)
    mark = GaugeMetricFamily(
        "kafka_cluster_partition_highwatermark", "Offset up to which is committed", labels=labels
    )
    for partition in hosted:
        where = [partition.topic, str(partition.partition)]
        start.add_metric(where, partition.start_offset)
        end.add_metric(where, partition.end_offset)
        mark.add_metric(where, partition.high_watermark)
        size.add_metric(where, partition.log.size)
    yield from (start, end, size, mark)


def _traffic(hosted: list[HostedPartition]) -> Iterator[Metric]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for partition in hosted:
        both = sums[partition.topic]
        both[0] += partition.bytes_in
        both[1] += partition.bytes_out
    came = CounterMetricFamily(
        "kafka_server_brokertopicmetrics_bytesin", "Bytes produced", labels=["topic"]
    )
    went = CounterMetricFamily(
        "kafka_server_brokertopicmetrics_bytesout", "Bytes fetched", labels=["topic"]
    )
    for topic, (bytes_in, bytes_out) in sums.items():
        came.add_metric([topic], bytes_in)
        went.add_metric([topic], bytes_out)
    yield from (came, went)


def health(broker: Broker) -> dict[str, Any]:
    """Return what ``/health`` shows: whether this broker serves, and its troubles by name."""
    hosted = _hosted(broker)
    offline = sorted(str(p.key) for p in hosted if p.role is Role.OFFLINE)
    registered = broker.session.broker_epoch >= 0
    return {
        "healthy": registered and not offline,
        "node_id": broker.node_id,
        "cluster_id": broker.cluster_id,
        "registered": registered,
        "broker_epoch": broker.session.broker_epoch,
        "replicas": len(hosted),
        "leaders": sum(p.role is Role.LEADER for p in hosted),
        "offline_replicas": offline,
    }
