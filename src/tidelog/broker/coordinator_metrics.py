"""Prometheus metrics of the coordinators of a broker, and of transactions that hang.

Owns names and labels, those of Kafka's JMX beans. Not the counts: coordinators, their tables,
the sender of markers and the checks have them. The endpoint's thread collects, from copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tidelog.transactions.marker_plan import NO_LEADER, UNKNOWN

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_OF_MARKERS = "kafka_coordinator_transaction_transactionmarkerchannelmanager"


def of_coordinators(broker: Broker) -> Iterator[Metric]:
    """Yield the metrics of both coordinators. O(partitions with markers that are not written)."""
    transactions = broker.transactions.coordinator
    for name, loads in (
        ("group", broker.coordinator.load_times),
        ("transaction", transactions.load_times),
    ):
        family = f"kafka_server_{name}_coordinator_metrics_partition_load_time"
        yield GaugeMetricFamily(
            f"{family}_max",
            "The longest load of a partition since the start, in ms, with its wait for others",
            value=loads.longest_ms,
        )
        yield GaugeMetricFamily(
            f"{family}_avg",
            "The average load of a partition since the start, in ms, with its wait for others",
            value=loads.total_ms / loads.count if loads.count else 0,
        )
    places = list(broker.markers.sender.plan.places)
    yield GaugeMetricFamily(
        f"{_OF_MARKERS}_unknowndestinationqueuesize",
        "Markers for partitions here whose leader this coordinator does not know",
        value=sum(len(x.sendings) for x in places if x.leader in (UNKNOWN, NO_LEADER)),
    )
    yield GaugeMetricFamily(
        f"{_OF_MARKERS}_logappendretryqueuesize",
        "Transactions whose markers are written, and whose last record the log has refused so far",
        value=sum(led.table.refused_ends for led in transactions.led()),
    )
    checks = broker.markers.checks
    yield CounterMetricFamily(
        "tidelog_transactions_lost",
        "Open transactions here that were aborted because no coordinator knew how they ended",
        value=checks.lost,
    )
    yield GaugeMetricFamily(
        "kafka_server_replicamanager_partitionswithlatetransactionscount",
        "Led partitions with a transaction that is open for 5 min longer than any may be",
        value=checks.late,
    )
