"""Metrics of the process itself: processor, memory, files, disk, collector, idleness of its loop.

Owns their names. Those that begin with ``process_`` are what every exporter calls them. Dashboards
for Kafka also read metrics of a JVM and of Kafka's threads; these have the corresponding values of
this process:

- ``jvm_memory_used_bytes``, and ``jvm_memory_bytes_used`` as it was called: the memory of the
  process that is in RAM;
- ``jvm_gc_collection_seconds``: collections by Python's garbage collector, by generation;
- ``jvm_threads_current``: threads of the process;
- the idle shares of Kafka's network processors and request handlers: the share of the last minute,
  0 to 1, in which the event loop's thread used no processor. It does the work of both;
- ``kafka_server_kafkaserver_linux_disk_read_bytes`` and ``..._write_bytes``: what the process had
  disks read and write (Linux).

Read in the endpoint's thread, at a scrape; only collections are counted between scrapes. Values
that a system does not provide are left out.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

WINDOW_S = 60.0
"""Period of the loop's idle share, as Kafka's one-minute rate."""

SAMPLE_EVERY_S = 1.0
"""Scrapes within this time share a sample, so that there are at most 61."""

GENERATIONS = 3
MEMORY = ("jvm_memory_used_bytes", "jvm_memory_bytes_used")
DISK = "kafka_server_kafkaserver_linux_disk"
IDLE = (
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
)


class Collections:
    """How long the garbage collector took; ``start`` and ``stop`` on any thread."""

    def __init__(self) -> None:
        self.seconds = [0.0] * GENERATIONS
        self._began = 0.0

    def start(self) -> None:
        """Begin to measure: some 0.2 us for each collection."""
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """End it; a second call does nothing."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seconds[info["generation"]] += time.perf_counter() - self._began


class IdleShare:
    """The share of the last minute in which a thread used no processor. Made on that thread."""

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._samples = deque([self._sample()])

    def _sample(self) -> tuple[float, float]:
        return time.monotonic(), time.clock_gettime(self._clock)

    def __call__(self) -> float:
        """Return the share, 0 to 1; 1 before any time has passed. One caller at a time."""
        samples, now = self._samples, self._sample()
        while len(samples) > 1 and samples[1][0] <= now[0] - WINDOW_S:
            samples.popleft()
        passed_s, used_s = now[0] - samples[0][0], now[1] - samples[0][1]
        if now[0] - samples[-1][0] >= SAMPLE_EVERY_S:
            samples.append(now)
        return 1.0 if passed_s <= 0 else min(1.0, max(0.0, 1 - used_s / passed_s))


class ProcessFigures(Collector):
    """Collects them. Made on the event loop's thread."""

    def __init__(self) -> None:
        self._process = ProcessCollector(registry=None)
        self._idle = IdleShare()
        self._collections = Collections()
        self._collections.start()

    def close(self) -> None:
        """Measure nothing more."""
        self._collections.stop()

    def collect(self) -> Iterator[Metric]:
        """Yield every figure once."""
        metrics = {metric.name: metric for metric in self._process.collect()}
        yield from metrics.values()
        resident = metrics.get("process_resident_memory_bytes")
        if resident is not None:
            for name in MEMORY:
                memory = GaugeMetricFamily(name, "Memory of this process in RAM", labels=["area"])
                memory.add_metric(["heap"], resident.samples[0].value)
                yield memory
        with contextlib.suppress(OSError):
            threads = len(os.listdir("/proc/self/task"))
            yield GaugeMetricFamily("jvm_threads_current", "Threads of this process", value=threads)
        yield self._collected()
        idle = self._idle()
        for name in IDLE:
            yield GaugeMetricFamily(
                name, "Share of the last minute in which the event loop was idle", value=idle
            )
        yield from _disk()

    def _collected(self) -> Metric:
        family = SummaryMetricFamily(
            "jvm_gc_collection_seconds", "Collections of garbage, by generation", labels=["gc"]
        )
        for generation, stats in enumerate(gc.get_stats()):
            seconds = self._collections.seconds[generation]
            family.add_metric([str(generation)], stats["collections"], seconds)
        return family


def _disk() -> Iterator[Metric]:
    try:
        with open("/proc/self/io") as file:
            counted = dict(line.split(": ") for line in file.read().splitlines())
    except OSError:
        return
    for kind in ("read", "write"):
        # Gauges, as Kafka's exporter has them: a counter's name would end with _total.
        yield GaugeMetricFamily(
            f"{DISK}_{kind}_bytes",
            f"Bytes that this process had disks {kind}",
            value=int(counted[f"{kind}_bytes"]),
        )
