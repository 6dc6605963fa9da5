"""Figures of the process: how idle a thread was, what the garbage collector took, and the names."""

from __future__ import annotations

import gc
import time

from prometheus_client import CollectorRegistry, generate_latest

from tests.support.metrics import Page
from tidelog.observe.process_figures import Collections, IdleShare, ProcessFigures


def burn(seconds: float) -> None:
    """Use so much of a processor, however busy the machine is."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_thread_that_works_is_not_idle() -> None:
    share = IdleShare()
    before = time.monotonic()
    burn(0.05)
    found = share()
    passed_s = time.monotonic() - before
    assert 0 <= found <= 1 - 0.05 / passed_s + 0.05


def test_frequent_scrapes_leave_few_samples() -> None:
    share = IdleShare()
    for _ in range(1000):
        assert 0 <= share() <= 1
    assert len(share._samples) <= 3


def test_collections_are_timed_until_the_end() -> None:
    found = Collections()
    found.start()
    gc.collect()
    assert found.seconds[2] > 0
    found.stop()
    before = list(found.seconds)
    gc.collect()
    found.stop()
    assert found.seconds == before


def test_every_figure_has_its_type() -> None:
    figures = ProcessFigures()
    try:
        registry = CollectorRegistry()
        registry.register(figures)
        page = Page(generate_latest(registry).decode())
    finally:
        figures.close()
    assert page.types["process_cpu_seconds_total"] == "counter"
    assert page.types["process_open_fds"] == "gauge"
    assert page.types["jvm_gc_collection_seconds"] == "summary"
    assert page.value("jvm_threads_current") >= 1
    resident = page.value("process_resident_memory_bytes")
    assert page.value("jvm_memory_used_bytes", '{area="heap"}') == resident > 1e6
    idle = "kafka_network_socketserver_networkprocessoravgidle_percent"
    assert 0 <= page.value(idle) <= 1
