"""The metrics and health address, asked over HTTP; the log line."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tests.support.ipv6 import can_bind
from tests.support.processes import DEADLINE_S
from tidelog.observe import endpoint as endpoints
from tidelog.observe import logs, paced
from tidelog.observe.endpoint import MAX_CONNECTIONS, Endpoint, PortInUse


class OneGauge(Collector):
    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("tides", "how many", value=2)


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=DEADLINE_S) as answer:
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
        status, text = get(endpoint.port, "/health/live")
        assert (status, json.loads(text)) == (200, {"healthy": False})
        assert get(endpoint.port, "/")[0] == 404
        with pytest.raises(PortInUse, match=str(endpoint.port)):
            Endpoint("127.0.0.1", endpoint.port, OneGauge(), lambda: state)
    finally:
        endpoint.close()


def _beside_ipv4(host: str, health: Any) -> Endpoint:
    """An endpoint on a port that another socket has for IPv4, as listeners allow it; another
    process may have it for IPv6."""
    for _ in range(20):
        with socket.create_server(("0.0.0.0", 0)) as other, contextlib.suppress(PortInUse):
            return Endpoint(host, other.getsockname()[1], OneGauge(), health)
    raise AssertionError("no port of 20 can be used beside IPv4")


@pytest.mark.parametrize("host", ["::1", "::"])
def test_an_ipv6_address_is_served(host: str) -> None:
    """``[::1]:9100`` was refused with an error about address families, after the preflight."""
    health = dict[str, Any]
    if not can_bind(host):
        # A machine without IPv6: the sentence has the brackets all the same.
        with pytest.raises(PortInUse, match=re.escape(f"metrics_port [{host}]:0 ")):
            Endpoint(host, 0, OneGauge(), health)
        return
    endpoint = _beside_ipv4(host, health)
    try:
        # With "::" alone, this machine has the family and no address of it to ask at.
        if can_bind("::1"):
            assert "tides 2.0" in get(endpoint.port, "/metrics", "[::1]")[1]
        where = re.escape(f"metrics_port [{host}]:{endpoint.port} ")
        with pytest.raises(PortInUse, match=where):
            Endpoint(host, endpoint.port, OneGauge(), health)
    finally:
        endpoint.close()


def test_clients_that_say_nothing_hold_up_neither_others_nor_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # None of them is ended for its silence: only a stop that waits for no client ends.
    monkeypatch.setattr(endpoints, "REQUEST_S", 3600.0)
    endpoint = Endpoint("127.0.0.1", 0, OneGauge(), lambda: {"healthy": True})
    stopping = threading.Thread(target=endpoint.close, daemon=True)
    with contextlib.ExitStack() as silent:
        for _ in range(3):
            silent.enter_context(socket.create_connection(("127.0.0.1", endpoint.port)))
        assert get(endpoint.port, "/health")[0] == 200
        stopping.start()
        stopping.join(DEADLINE_S)
        assert not stopping.is_alive()


def test_slow_clients_in_all_places_keep_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 sockets that sent a byte now and then kept `/health` unanswered for ever."""
    monkeypatch.setattr(endpoints, "REQUEST_S", 3600.0)
    endpoint = Endpoint("127.0.0.1", 0, OneGauge(), lambda: {"healthy": True})
    try:
        with contextlib.ExitStack() as slow:
            drips = [
                slow.enter_context(socket.create_connection(("127.0.0.1", endpoint.port)))
                for _ in range(MAX_CONNECTIONS)
            ]
            for one in drips:
                one.settimeout(DEADLINE_S)
                one.sendall(b"GET /hea")
            for _ in range(3):
                assert get(endpoint.port, "/health")[0] == 200
                for one in drips[5:]:
                    one.sendall(b"x")
            assert drips[0].recv(1) == b"", "the oldest gave its place"
    finally:
        endpoint.close()


def test_a_whole_request_has_a_deadline_however_its_bytes_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoints, "REQUEST_S", 0.5)
    endpoint = Endpoint("127.0.0.1", 0, OneGauge(), lambda: {"healthy": True})
    try:
        with socket.create_connection(("127.0.0.1", endpoint.port)) as slow:
            slow.settimeout(0.05)
            deadline = time.monotonic() + DEADLINE_S
            ended = False
            while not ended:
                assert time.monotonic() < deadline
                try:
                    slow.sendall(b"x")
                    ended = slow.recv(1) == b""
                except TimeoutError:
                    continue
                except OSError:
                    ended = True
        assert get(endpoint.port, "/health")[0] == 200
    finally:
        endpoint.close()


def test_a_client_that_does_not_read_its_response_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoints, "ANSWER_S", 0.5)
    endpoint = Endpoint("127.0.0.1", 0, OneGauge(), lambda: {"much": "x" * 50_000_000})
    try:
        with socket.create_connection(("127.0.0.1", endpoint.port)) as lazy:
            lazy.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            lazy.settimeout(DEADLINE_S)
            deadline = time.monotonic() + DEADLINE_S
            for there in (True, False):
                while bool(endpoint._server._open) is not there:
                    assert time.monotonic() < deadline
            read = 0
            with contextlib.suppress(ConnectionError):
                while found := lazy.recv(1_000_000):
                    read += len(found)
            assert read < 50_000_000
    finally:
        endpoint.close()


def test_a_client_that_does_not_take_its_response_keeps_no_other_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16 sockets that asked for a large page and did not read it kept others out for 30 s."""
    monkeypatch.setattr(endpoints, "TAKEN_S", 0.0)
    pages = [{"much": "x" * 20_000_000}]
    endpoint = Endpoint("127.0.0.1", 0, OneGauge(), lambda: pages[0])
    try:
        with contextlib.ExitStack() as lazy:
            for _ in range(MAX_CONNECTIONS):
                one = lazy.enter_context(socket.create_connection(("127.0.0.1", endpoint.port)))
                one.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            deadline = time.monotonic() + DEADLINE_S
            while sum(each.taken_by < math.inf for each in opened(endpoint)) < MAX_CONNECTIONS:
                assert time.monotonic() < deadline
            pages[0] = {"much": ""}
            assert get(endpoint.port, "/health")[0] == 200
    finally:
        endpoint.close()


def opened(endpoint: Endpoint) -> list[Any]:
    return list(endpoint._server._open.values())


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_endless_requests_take_a_share_of_a_processor(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """14 clients that scraped without end made 14 pages at a time: beside them a produce took 1 s,
    for the event loop waited for each of their threads."""
    monkeypatch.setattr(paced, "BURST_S", 0.2)
    made: list[float] = []
    together, most = 0, 0

    def work() -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        made.append(time.monotonic())
        together -= 1

    class Costly(Collector):
        def collect(self) -> Iterator[GaugeMetricFamily]:
            work()
            yield GaugeMetricFamily("tides", "how many", value=2)

    def health() -> dict[str, bool]:
        work()
        return {"healthy": True}

    endpoint = Endpoint("127.0.0.1", 0, Costly(), health)
    begun_at = time.monotonic()
    ends = begun_at + 1.5
    answered = 0

    def ask() -> None:
        nonlocal answered
        while time.monotonic() < ends:
            assert get(endpoint.port, path)[0] == 200
            answered += 1

    try:
        asking = [threading.Thread(target=ask) for _ in range(8)]
        for each in asking:
            each.start()
        for each in asking:
            each.join()
        took_s = time.monotonic() - begun_at
        assert most == 1
        assert len(made) * 0.02 <= paced.BURST_S + paced.SHARE * took_s + 0.1
        assert answered > 2 * len(made), "waiting clients share a response"
    finally:
        endpoint.close()


def test_an_answer_is_never_older_than_its_question() -> None:
    begun, release = threading.Event(), threading.Event()
    calls: list[int] = []

    def make() -> int:
        calls.append(len(calls))
        if len(calls) == 1:
            begun.set()
            release.wait(DEADLINE_S)
        return len(calls)

    made = paced.Paced(make)
    found: list[int] = []
    first = threading.Thread(target=lambda: found.append(made()))
    first.start()
    assert begun.wait(DEADLINE_S)
    later = [threading.Thread(target=lambda: found.append(made())) for _ in range(3)]
    for each in later:
        each.start()
    release.set()
    for each in (first, *later):
        each.join(DEADLINE_S)
    assert sorted(found)[0] == 1
    assert found.count(1) == 1, "what was made before they asked is not for them"


def test_while_all_places_are_answered_one_more_is_closed() -> None:
    release = threading.Event()

    def health() -> dict[str, bool]:
        release.wait(DEADLINE_S)
        return {"healthy": True}

    endpoint = Endpoint("127.0.0.1", 0, OneGauge(), health)
    try:
        with contextlib.ExitStack() as asking:
            for _ in range(MAX_CONNECTIONS):
                one = asking.enter_context(socket.create_connection(("127.0.0.1", endpoint.port)))
                one.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            deadline = time.monotonic() + DEADLINE_S
            while sum(each.whole for each in list(endpoint._server._open.values())) < 16:
                assert time.monotonic() < deadline
            with socket.create_connection(
                ("127.0.0.1", endpoint.port), timeout=DEADLINE_S
            ) as one_more:
                assert one_more.recv(1) == b""
            release.set()
    finally:
        release.set()
        endpoint.close()


def test_many_clients_at_once_wait_to_be_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven connections in a row held up the next client for 1 s: the kernel dropped its packet."""
    release = threading.Event()
    verify = endpoints._Server.verify_request

    def held(server: Any, request: Any, address: Any) -> bool:
        release.wait(DEADLINE_S)
        return verify(server, request, address)

    monkeypatch.setattr(endpoints._Server, "verify_request", held)
    endpoint = Endpoint("127.0.0.1", 0, OneGauge(), lambda: {"healthy": True})
    try:
        with contextlib.ExitStack() as coming:
            for _ in range(60):
                # Shorter than the second after which a dropped packet comes again.
                coming.enter_context(socket.create_connection(("127.0.0.1", endpoint.port), 0.9))
            release.set()
            assert get(endpoint.port, "/health")[0] == 200
    finally:
        release.set()
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
