"""`tidelog` with a watchdog of the loop that is precise, and says the longest stall at each scrape.

The metric `longest_stall_seconds` is the longest since the scrape before; see ``own_stalls``.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from tests.support.own_stalls import OwnStalls
from tidelog.cli.main import main
from tidelog.observe.loop_stalls import LoopStallCollector
from tidelog.runtime.loop_watch import LoopWatch

PRECISION_S = 0.002
_collect = LoopStallCollector.collect
_begin = LoopWatch.__init__


def begin(self: LoopWatch, beat_s: float = PRECISION_S) -> None:
    """Watch more closely than in production."""
    _begin(self, PRECISION_S)
    self.stalls = OwnStalls()


def collect(self: LoopStallCollector) -> Iterator[Metric]:
    """Add the longest stall, and begin again."""
    yield from _collect(self)
    longest_s, self._stalls.longest_s = self._stalls.longest_s, 0.0
    yield GaugeMetricFamily("longest_stall_seconds", "Since the last scrape", value=longest_s)


LoopWatch.__init__ = begin  # type: ignore[method-assign]
LoopStallCollector.collect = collect  # type: ignore[method-assign]
if __name__ == "__main__":
    main()
