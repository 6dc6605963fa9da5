"""The sum of the metrics of several processes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tidelog.observe.summed import SummedPages, families_in, summed


class Fixed(Collector):
    def __init__(self, *families: Metric) -> None:
        self.families = families

    def collect(self) -> tuple[Metric, ...]:
        return self.families


def page(*families: Metric) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Fixed(*families))
    return generate_latest(registry).decode()


def worker(count: int, offset: int, topic: str) -> str:
    requests = CounterMetricFamily("kafka_requests", "Requests", labels=["api"])
    requests.add_metric(["Produce"], count)
    requests.add_metric([topic], 1)
    end = GaugeMetricFamily("kafka_log_log_logendoffset", "Next offset", value=offset)
    size = GaugeMetricFamily("kafka_log_log_size", "Bytes", value=count)
    idle = GaugeMetricFamily("kafka_avgidle_percent", "Share", value=1 / count)
    times = HistogramMetricFamily(
        "kafka_times", "Times", buckets=[("1", count), ("+Inf", 2 * count)], sum_value=0.5
    )
    return page(requests, end, size, idle, times)


def test_amounts_are_added_of_positions_the_largest_and_of_shares_the_smallest_counts() -> None:
    both = page(*summed(map(families_in, [worker(2, 7, "t"), worker(4, 5, "u"), None])))
    lines = [line for line in both.splitlines() if not line.startswith("#")]
    assert lines == [
        'kafka_requests_total{api="Produce"} 6.0',
        'kafka_requests_total{api="t"} 1.0',
        'kafka_requests_total{api="u"} 1.0',
        "kafka_log_log_logendoffset 7.0",
        "kafka_log_log_size 6.0",
        "kafka_avgidle_percent 0.25",
        'kafka_times_bucket{le="1"} 6.0',
        'kafka_times_bucket{le="+Inf"} 12.0',
        "kafka_times_count 12.0",
        "kafka_times_sum 1.0",
    ]


def test_one_page_is_as_it_was_and_none_is_empty() -> None:
    assert page(*summed([families_in(worker(2, 7, "t"))])) == worker(2, 7, "t")
    assert list(summed([])) == []


def test_a_worker_without_a_page_says_what_it_waits_for() -> None:
    # Nothing listens on the port of discard.
    pages = SummedPages(lambda: {1: "its process", 2: ("127.0.0.1", 9)})
    unwell = {"healthy": False, "live": False, "ready": False}
    assert pages.health() == {
        "healthy": False,
        "live": True,
        "ready": False,
        "workers": {
            "1": {**unwell, "waits_for": "its process"},
            "2": {
                **unwell,
                "waits_for": "its response: the process runs, and sent none within 5 s",
            },
        },
    }
    assert pages.under_replicated() is None
