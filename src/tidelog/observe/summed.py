"""Metrics and health of several processes on one page: those of the workers of a machine.

Owns the sum, and the requests to the workers' own endpoints. Not the endpoint: see ``endpoint``.
A sample is added to those of the same name and labels; of the gauges of ``LARGEST`` the largest
counts, of those of ``SMALLEST`` the smallest. A worker that does not respond within ``PAGE_S`` is
left out and has ``tidelog_worker_up`` 0.
"""

from __future__ import annotations

import json
import operator
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPException
from itertools import chain
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

PAGE_S = 5.0
"""How long a worker may take to respond."""

AT_ONCE = 16
"""Workers that are asked at the same time."""

LARGEST = ("offset", "highwatermark", "_start_time_seconds", "_epoch", "_level")
"""Endings of gauges that are no amounts: replicas of one partition, and times."""

SMALLEST = ("_percent",)
"""Endings of gauges that are idle shares: the worker that is busiest."""

HEALTH = "/health"

Addresses = Callable[[], Mapping[int, tuple[str, int] | str]]
"""Returns the metrics address of each worker by node id, or what it waits for without one."""


def families_in(page: str | None) -> list[Metric] | None:
    """Return the families of a page of ``/metrics``; None for a page that has another format."""
    try:
        return None if page is None else list(text_string_to_metric_families(page))
    except ValueError:
        return None


def summed(workers: Iterable[Iterable[Metric] | None]) -> Iterator[Metric]:
    """Yield the families of several workers as one, in the order of the first.

    None: of that worker nothing is known.
    """
    families: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for family in chain.from_iterable(worker for worker in workers if worker is not None):
        families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        sums = values.setdefault(family.name, {})
        joined = _joined_by(family)
        for sample in family.samples:
            key = (sample.name, tuple(sample.labels.items()))
            former = sums.get(key)
            sums[key] = sample.value if former is None else joined(former, sample.value)
    for name, family in families.items():
        for (sample_name, labels), value in values[name].items():
            family.add_sample(sample_name, dict(labels), value)
        yield family


def _joined_by(family: Metric) -> Callable[[float, float], float]:
    """Return what makes one value of two workers' values."""
    if family.type == "gauge" and family.name.endswith(LARGEST):
        return max
    if family.type == "gauge" and family.name.endswith(SMALLEST):
        return min
    return operator.add


class SummedPages(Collector):
    """The pages of all workers as one collector, and as one ``/health``."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses

    def collect(self) -> Iterable[Metric]:
        """Ask all workers; return their sums and which of them responded."""
        workers = self._families()
        up = GaugeMetricFamily(
            "tidelog_worker_up", "Whether a worker of this machine responds", labels=["node"]
        )
        for node, families in workers.items():
            up.add_metric([str(node)], families is not None)
        return [up, *summed(workers.values())]

    def under_replicated(self) -> int | None:
        """Return how many partitions that the workers lead lack a replica in sync; None if one of
        them does not respond."""
        workers = self._families().values()
        if None in workers:
            return None
        return int(
            sum(
                sample.value
                for family in summed(workers)
                if family.name == "kafka_server_replicamanager_underreplicatedpartitions"
                for sample in family.samples
            )
        )

    def health(self) -> dict[str, Any]:
        """Return one ``/health``: healthy only if all workers are."""
        addresses = self._addresses()
        workers: dict[str, Any] = {
            str(node): _health_in(page) or _unseen(addresses[node])
            for node, page in _pages_of(addresses, HEALTH).items()
        }
        healthy = all(shown["healthy"] for shown in workers.values())
        # A response proves that the supervisor lives; a restart must depend on nothing else.
        return {"healthy": healthy, "live": True, "ready": healthy, "workers": workers}

    def _families(self) -> dict[int, list[Metric] | None]:
        pages = _pages_of(self._addresses(), "/metrics")
        return {node: families_in(page) for node, page in pages.items()}


def _pages_of(addresses: Mapping[int, tuple[str, int] | str], path: str) -> dict[int, str | None]:
    """Return a page of each worker by node id, None of one that does not respond."""
    with ThreadPoolExecutor(AT_ONCE, "workers") as threads:
        pages = threads.map(lambda address: _page(address, path), addresses.values())
        return dict(zip(addresses, pages, strict=True))


def _health_in(page: str | None) -> dict[str, Any] | None:
    """Return the health that a page shows; None for a page that shows none."""
    try:
        shown = json.loads(page or "")
    except ValueError:
        return None
    return shown if isinstance(shown, dict) and "healthy" in shown else None


def _unseen(address: tuple[str, int] | str) -> dict[str, Any]:
    """Return what stands for the health of a worker without a response."""
    if isinstance(address, str):
        waits_for = address
    else:
        waits_for = f"its response: the process runs, and sent none within {PAGE_S:.0f} s"
    return {"healthy": False, "live": False, "ready": False, "waits_for": waits_for}


def _page(address: tuple[str, int] | str, path: str) -> str | None:
    if isinstance(address, str):
        return None
    try:
        return _read(f"http://{address[0]}:{address[1]}{path}", is_health=path == HEALTH)
    except (OSError, ValueError, HTTPException):
        # Also a page that ends in its midst, as its worker has died.
        return None


def _read(url: str, *, is_health: bool) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=PAGE_S) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            # The health of a worker in trouble has this status.
            is_page = is_health and error.code == HTTPStatus.SERVICE_UNAVAILABLE
            return error.read().decode() if is_page else None
