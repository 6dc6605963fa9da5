"""Prometheus metrics and health of a broker.

Owns names and labels (those of Kafka's JMX beans, in the lower case of Prometheus exporters). Not
the counts: each part counts its own work. The endpoint's thread collects: it reads copies of
dictionaries and single numbers, so that a scrape never blocks the loop. O(hosted partitions).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tidelog.broker.coordinator_metrics import of_coordinators
from tidelog.broker.partitions.metrics import hosted_by, of_partitions
from tidelog.broker.partitions.partition import Role
from tidelog.model.api_keys import spoken
from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.network.server import Server


COUNTED = frozenset({"bytes_in", "bytes_out", "connections_accepted"})
"""Numbers of the server since its start, which only grow: counters."""

SHORTEST_BITS, LONGEST_BITS = 15, 34
"""The bounds of times that are shown: 2^n ns, from 33 us to 17 s."""


class BrokerCollector(Collector):
    """Collects one broker's metrics at each scrape."""

    def __init__(self, broker: Broker, server: Server) -> None:
        self._broker = broker
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Yield every metric once."""
        hosted = hosted_by(self._broker.partitions)
        yield from of_partitions(self._broker.partitions, hosted)
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
        yield from self._of_unaware_writers()
        room = self._broker.groups.room
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
        failed = sum(directory.failed is not None for directory in partitions.directories)
        yield GaugeMetricFamily(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "Log directories that are out of service",
            value=failed + len(partitions.away),
        )
        copies = self._broker.followers.copies
        yield GaugeMetricFamily(
            "tidelog_reassignment_copies_running",
            "Replicas that move here and are copied now",
            value=copies.running,
        )
        yield GaugeMetricFamily(
            "tidelog_reassignment_copies_waiting",
            "Replicas that move here and wait for one of reassignment.parallel.copies places",
            value=copies.waiting,
        )
        yield GaugeMetricFamily(
            "tidelog_future_replicas",
            "Replicas that move to another log directory of this broker",
            value=len(self._broker.future_replicas),
        )
        uncleanable = self._broker.maintenance.cleaning.uncleanable()
        yield GaugeMetricFamily(
            "kafka_log_logcleanermanager_uncleanable_partitions_count",
            "Replicas whose logs compaction had to give up",
            value=len(uncleanable),
        )
        yield from of_coordinators(self._broker)
        yield from self._groups()
        yield from self._requests()
        yield from self._times()
        yield from self._connections()

    def _of_unaware_writers(self) -> Iterator[Metric]:
        writers = self._broker.unaware_writers
        for name, what, by_topic in (
            (
                "tidelog_misplaced_records",
                "Records of producers without a partition count whose key belongs to another "
                "partition",
                writers.misplaced,
            ),
            (
                "tidelog_unaware_batches_refused",
                "Batches of producers without a partition count for retired partitions",
                writers.refused,
            ),
        ):
            family = CounterMetricFamily(name, what, labels=["topic"])
            for topic, count in dict(by_topic).items():
                family.add_metric([topic], count)
            yield family

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "kafka_network_requestmetrics_requests", "Requests by API", labels=["request"]
        )
        failures = CounterMetricFamily(
            "kafka_network_requestmetrics_failures",
            "Requests that met a bug of this server, by API",
            labels=["request"],
        )
        pending = GaugeMetricFamily(
            "kafka_server_delayedoperationpurgatory_size",
            "Requests whose answer is pending, by API",
            labels=["request"],
        )
        for key, tally in list(self._server.router.tallies.items()):
            if tally.requests:
                name = spoken(key)
                requests.add_metric([name], tally.requests)
                failures.add_metric([name], tally.failures)
                pending.add_metric([name], tally.pending)
        refused = CounterMetricFamily(
            "tidelog_requests_unauthorized",
            "Requests that this broker refused for want of a proof of the cluster secret, by API",
            labels=["request"],
        )
        for key, count in list(self._server.audit.refused_by_api.items()):
            refused.add_metric([spoken(key)], count)
        yield requests
        yield failures
        yield pending
        yield refused

    def _times(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "tidelog_request_seconds",
            "From when a request was taken to when its answer was made, waits included, by API",
            labels=["request"],
        )
        for key, tally in list(self._server.router.tallies.items()):
            sums = list(accumulate(tally.times))
            if not sums[-1]:
                continue
            # One place holds the times under a power of two of nanoseconds.
            buckets = [
                (str(2.0**bits / 1e9), sums[bits])
                for bits in range(SHORTEST_BITS, LONGEST_BITS + 1)
            ]
            buckets.append(("+Inf", sums[-1]))
            family.add_metric([spoken(key)], buckets, tally.took_ns / 1e9)
        yield family

    def _groups(self) -> Iterator[Metric]:
        """Yield the metrics of kafka-exporter for the consumer groups that are coordinated here.

        A position in a partition whose end offset is unknown has no lag and is not in the sum.
        Fences and seals of resizes are not counted.
        """
        snapshot = self._broker.group_lag.latest()
        of_topic = ["consumergroup", "topic"]
        of_partition = [*of_topic, "partition"]
        offset, offsets, lag, lags = (
            GaugeMetricFamily(f"kafka_consumergroup_{name}", text, labels=labels)
            for name, text, labels in (
                ("current_offset", "Committed offset", of_partition),
                ("current_offset_sum", "Committed offsets of a topic's partitions", of_topic),
                ("lag", "Records after the committed offset", of_partition),
                ("lag_sum", "Records after the committed offsets of a topic", of_topic),
            )
        )
        members = GaugeMetricFamily(
            "kafka_consumergroup_members", "Members of a group", labels=["consumergroup"]
        )
        for group, count in snapshot.members.items():
            members.add_metric([group], count)
        sums: Counter[tuple[str, str]] = Counter()
        lag_of: Counter[tuple[str, str]] = Counter()
        for group, (topic, partition), committed in snapshot.positions:
            tp = [group, topic, str(partition)]
            offset.add_metric(tp, committed)
            sums[group, topic] += committed
            left = snapshot.lag(TopicPartition(topic, partition), committed)
            if left is not None:
                lag.add_metric(tp, left)
                lag_of[group, topic] += left
        for place, value in sums.items():
            offsets.add_metric(place, value)
        for place, value in lag_of.items():
            lags.add_metric(place, value)
        yield from (members, offset, offsets, lag, lags)
        yield GaugeMetricFamily(
            "tidelog_group_positions_left_out",
            "Positions of groups that are not shown because there are too many",
            value=snapshot.left_out,
        )
        yield GaugeMetricFamily(
            "tidelog_groups_left_out",
            "Groups that are not shown: there are too many, or their ids are too long",
            value=snapshot.groups_left_out,
        )

    def _connections(self) -> Iterator[Metric]:
        server = self._server
        for name, value in server.statistics().items():
            text = name.replace("_", " ")
            family = CounterMetricFamily if name in COUNTED else GaugeMetricFamily
            yield family(f"kafka_server_socketserver_{name}", text, value=value)
        count = GaugeMetricFamily(
            "kafka_server_socket_server_metrics_connection_count",
            "Connections by listener",
            labels=["listener"],
        )
        counts = Counter({one.name: 0 for one in self._broker.configs.broker_listeners})
        counts.update(connection.listener_name for connection in list(server.connections))
        for name, value in counts.items():
            count.add_metric([name], value)
        yield count


def health(broker: Broker) -> dict[str, Any]:
    """Return what ``/health`` shows: whether this broker serves, and its troubles by name."""
    hosted = hosted_by(broker.partitions)
    offline = sorted(str(p.key) for p in hosted if p.role is Role.OFFLINE)
    registered = broker.session.broker_epoch >= 0
    return {
        "healthy": registered and not offline and broker.session.refusals.why is None,
        "node_id": broker.node_id,
        "cluster_id": broker.cluster_id,
        "registered": registered,
        "broker_epoch": broker.session.broker_epoch,
        "replicas": len(hosted),
        "leaders": sum(p.role is Role.LEADER for p in hosted),
        "offline_replicas": offline,
        "refused": broker.session.refusals.why,
    }
