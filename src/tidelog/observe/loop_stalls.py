"""The metric of the watchdog: `tidelog_loop_stall_seconds`, a histogram of how long the loop of
this process was blocked.

Owns its name. Not the measurement: see `runtime.loop_watch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tidelog.runtime.loop_watch import BOUNDS_S, Stalls


class LoopStallCollector(Collector):
    """Collects the stalls of one process at each scrape."""

    def __init__(self, stalls: Stalls) -> None:
        self._stalls = stalls

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram."""
        sums = list(accumulate(self._stalls.counts))
        bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
        yield HistogramMetricFamily(
            "tidelog_loop_stall_seconds",
            "How long the event loop was blocked at a time",
            buckets=list(zip(bounds, sums, strict=True)),
            sum_value=self._stalls.total_s,
        )
