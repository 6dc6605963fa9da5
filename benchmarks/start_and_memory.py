"""How soon does an empty node answer its first metadata request, and how much memory does it hold?

A new node on an empty folder each time. Formatting Kafka's folder is not counted. Memory is read
when the node has answered and its CPU has come to rest.
"""

from __future__ import annotations

import time

from tests.support.processes import tree_resident_bytes

from benchmarks.measuring import Metric
from benchmarks.nodes import Target


class StartAndMemory:
    """Seconds from the start of the process to a metadata answer that names a controller; MB."""

    title = "start and idle memory"
    cold = True
    metrics = (
        Metric("start of a node to its first metadata", "s", "less", limit=0.7),
        Metric("resident memory of an idle node", "MB", "less", limit=80),
    )

    def measure(self, target: Target, quick: bool) -> list[float]:
        with target.another() as node:
            settled = time.monotonic() + 10
            last = -1.0
            while time.monotonic() < settled and node.program.cpu_s() - last > 0.02:
                last = node.program.cpu_s()
                time.sleep(0.5)
            return [node.started_in_s, tree_resident_bytes(node.program.pid) / 1e6]


ROWS = (StartAndMemory(),)
