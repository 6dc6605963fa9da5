"""The metrics and health address, asked over HTTP; the log line."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from tests.support.processes import DEADLINE_S

from tidelog.observe import logs
from tidelog.observe.endpoint import MAX_CONNECTIONS, Endpoint, PortInUse, _Quiet


class OneGauge(Collector):
    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("tides", "how many", value=2)


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_and_health() -> None:
    state = {"healthy": True}
    endpoint = Endpoint("127.0.0.1", 0, OneGauge(), lambda: state)
    try:
        status, text = get(endpoint.port, "/metrics")
        assert status == 200 and "tides 2.0" in text
        status, text = get(endpoint.port, "/health")
        assert (status, json.loads(text)) == (200, {"healthy": True})
        state["healthy"] = False
        assert get(endpoint.port, "/health")[0] == 503
        assert get(endpoint.port, "/")[0] == 404
        with pytest.raises(PortInUse, match=str(endpoint.port)):
            Endpoint("127.0.0.1", endpoint.port, OneGauge(), lambda: state)
    finally:
        endpoint.close()


def test_clients_that_say_nothing_hold_up_neither_others_nor_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # None of them is ended for its silence: only a stop that waits for nobody comes to its end.
    monkeypatch.setattr(_Quiet, "timeout", 3600)
    endpoint = Endpoint("127.0.0.1", 0, OneGauge(), lambda: {"healthy": True})
    stopping = threading.Thread(target=endpoint.close, daemon=True)
    with contextlib.ExitStack() as silent:
        for _ in range(3):
            silent.enter_context(socket.create_connection(("127.0.0.1", endpoint.port)))
        assert get(endpoint.port, "/health")[0] == 200
        stopping.start()
        stopping.join(DEADLINE_S)
        assert not stopping.is_alive()


def test_connections_above_the_limit_are_closed_until_one_ends() -> None:
    endpoint = Endpoint("127.0.0.1", 0, OneGauge(), lambda: {"healthy": True})
    try:
        with contextlib.ExitStack() as silent:
            for _ in range(MAX_CONNECTIONS):
                silent.enter_context(socket.create_connection(("127.0.0.1", endpoint.port)))
            with socket.create_connection(
                ("127.0.0.1", endpoint.port), timeout=DEADLINE_S
            ) as one_more:
                assert one_more.recv(1) == b""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                assert get(endpoint.port, "/health")[0] == 200
                break
            except OSError:
                assert time.monotonic() < deadline
    finally:
        endpoint.close()


def test_a_log_line_has_its_fields() -> None:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    try:
        logs.configure(stream=stream)
        logging.getLogger("tidelog.x").warning("cut %s bytes", 5, extra={"partition": "t-0"})
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    line = stream.getvalue()
    assert 'level=warning logger=tidelog.x event="cut 5 bytes"' in line
    assert "partition=t-0" in line
