"""Prometheus metrics of a controller and its cluster.

Owns the names. The numbers: see ``decisions.condition``. The endpoint's thread collects them; one
scrape walks over all partitions, or over none while another controller is active.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidelog.controller.decisions.condition import counts
from tidelog.model.work import finish

if TYPE_CHECKING:
    from tidelog.controller.process import ControllerProcess

ATTEMPTS = 5
"""How often a scrape tries while the loop changes the state, before it yields no metrics."""

KAFKAS = {
    "active": ("activecontrollercount", "1 on the active controller"),
    "topics": ("globaltopiccount", "Topics"),
    "partitions": ("globalpartitioncount", "Partitions"),
    "partitions_offline": ("offlinepartitionscount", "Partitions without a leader"),
}
"""Numbers with a name in Kafka's KafkaController bean; the others get a name of tidelog's."""

COUNTED = {
    "requests_unauthorized": "tidelog_controller_requests_unauthorized",
    "unclean_elections": "kafka_controller_controllerstats_uncleanleaderelections",
}
"""Numbers since the start, which only grow: Prometheus counters, with ``_total`` after the name."""


def statistics(process: ControllerProcess) -> Mapping[str, int]:
    """Return counts for metrics; those of the cluster only while active. Walks over all
    partitions."""
    controller, server = process.controller, process.server
    figures = {
        "active": int(controller.active),
        "epoch": controller.cluster.controller_epoch,
        "requests_unauthorized": 0 if server is None else server.audit.refused_by_api.total(),
        "unclean_elections": controller.unclean_elections,
    }
    if not controller.active:
        return figures
    figures["store_went_back"] = int(controller.cluster.went_back is not None)
    figures["brokers_of_another_cluster"] = len(controller.founding.strangers())
    return {**figures, **finish(counts(controller.cluster))}


def store_trouble(process: ControllerProcess) -> str | None:
    """Return why this controller's store is not the one of its cluster, or None, for health."""
    controller = process.controller
    if not controller.active:
        return None
    return controller.cluster.went_back or controller.founding.why_contested


class ControllerCollector(Collector):
    """Collects one controller's metrics at each scrape."""

    def __init__(self, process: ControllerProcess) -> None:
        self._process = process

    def collect(self) -> Iterator[Metric]:
        """Yield every metric once."""
        for name, value in self._statistics().items():
            if name in KAFKAS:
                kafkas, text = KAFKAS[name]
                yield GaugeMetricFamily(
                    f"kafka_controller_kafkacontroller_{kafkas}", text, value=value
                )
                continue
            text = name.replace("_", " ").capitalize()
            if name in COUNTED:
                yield CounterMetricFamily(COUNTED[name], text, value=value)
            else:
                yield GaugeMetricFamily(f"tidelog_controller_{name}", text, value=value)

    def _statistics(self) -> Mapping[str, int]:
        for _ in range(ATTEMPTS):
            try:
                return statistics(self._process)
            except RuntimeError:
                # A map changed while this thread iterated over it.
                continue
        return {}
