"""The HTTP endpoint of a process for monitoring: ``/metrics``, ``/health`` and ``/health/live``.

Owns the small server, which runs in a thread of its own and gives each connection another, at most
``MAX_CONNECTIONS``: one more takes the place of the oldest that has not sent its whole request, or
of one that has not read its response for long, so that no slow client keeps others out. A request
and its response have a deadline. A client that sends requests without end takes a bounded share of
a processor (``paced``). A collector reads the counts at each scrape, so that counting costs the hot
path only an addition.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from tidelog.model.configs.addresses import joined
from tidelog.observe.paced import Paced

logger = logging.getLogger(__name__)

Health = Callable[[], dict[str, Any]]
"""Returns the content of ``/health``; with ``"healthy": False`` the status is 503."""


LIVE = "/health/live"
"""The same page for what restarts a process: its status is 200 while there is a response."""

HEALTH_PAGES = frozenset(("/health", LIVE))

MAX_CONNECTIONS = 16
"""Most connections at a time. While all are being answered, one more is closed without a response,
or takes the place of one that has not read its response for ``TAKEN_S``."""

REQUEST_S = 5.0
"""How long a whole request may take to arrive, in seconds, however its bytes are spread."""

ANSWER_S = 30.0
"""How long a whole response may take, in seconds: until the client has read it."""

TAKEN_S = 2.0
"""How long the client may take to read a response while others wait for a place, in seconds."""

BACKLOG = 128
"""Connections that wait to be accepted. Beyond it the kernel drops a client's first packet, which
is sent again after 1 s: with 5, seven connections in a row delayed a probe for that long."""

CHECK_S = 0.5
"""How often deadlines are checked."""


REQUEST = "tidelog.request"
"""The key of the connection's socket in an environment."""


class PortInUse(Exception):
    """The metrics address is taken: one line that names it."""


class _Open:
    # One connection: its deadline, whether its request has arrived, and until when it keeps its
    # place while others wait for it, from the moment that its response is complete.
    __slots__ = ("end", "taken_by", "whole")

    def __init__(self) -> None:
        self.end = time.monotonic() + REQUEST_S
        self.whole = False
        self.taken_by = math.inf


class _Server(ThreadingMixIn, WSGIServer):
    """A client that connects and sends little must delay neither the others nor the stop."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = BACKLOG

    def __init__(self, address: tuple[str, int], *args: Any, **kwargs: Any) -> None:
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Open] = {}
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, *args, **kwargs)

    def server_bind(self) -> None:
        """Bind, as the listeners of Kafka's protocol do: ``::`` leaves ``0.0.0.0`` to others."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        super().server_bind()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Take a place for the connection, if need be that of the oldest without a request, or of
        the oldest that does not read its response."""
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                now = time.monotonic()
                late = [waiting for waiting, open_ in self._open.items() if now >= open_.taken_by]
                slow = [waiting for waiting, open_ in self._open.items() if not open_.whole] or late
                if not slow:
                    return False
                self._cut(slow[0])
            self._open[request] = _Open()
        return True

    def request_is_whole(self, request: socket.socket) -> None:
        """The request is complete: the response is being made."""
        with self._lock:
            if (open_request := self._open.get(request)) is not None:
                open_request.whole = True
                open_request.end = time.monotonic() + ANSWER_S

    def answer_is_made(self, request: socket.socket) -> None:
        """The response is complete: the client has to read it."""
        with self._lock:
            if (open_request := self._open.get(request)) is not None:
                open_request.taken_by = time.monotonic() + TAKEN_S

    def service_actions(self) -> None:
        """Close connections after their deadline. Called every ``CHECK_S``, and after each
        connection."""
        now = time.monotonic()
        with self._lock:
            for request in [request for request, open_ in self._open.items() if now >= open_.end]:
                self._cut(request)

    def _cut(self, request: socket.socket) -> None:
        # Its thread wakes, and closes it.
        del self._open[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log in one line why a connection ended; mostly because its client was silent."""
        logger.info(
            "a request from %(address)s ended early: %(error)s",
            {"address": client_address[0], "error": sys.exception()},
        )


class _Quiet(WSGIRequestHandler):
    def parse_request(self) -> bool:
        """Read the rest of the request's head; its body, if any, is never read."""
        parsed = super().parse_request()
        if parsed and isinstance(self.server, _Server):
            self.server.request_is_whole(self.request)
        return parsed

    def get_environ(self) -> dict[str, Any]:
        """Add the connection's socket, by which the server knows the request."""
        return {**super().get_environ(), REQUEST: self.request}

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: scrapes are not events."""


class Endpoint:
    """A running HTTP server; ``port`` is the bound one."""

    def __init__(self, host: str, port: int, collector: Collector, health: Health) -> None:
        """Listen and serve at once. Raises PortInUse."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        metrics = Paced(lambda: generate_latest(registry))
        state = Paced(health)

        def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            answer = page(environ.get("PATH_INFO", "/"), start_response)
            self._server.answer_is_made(environ[REQUEST])
            return answer

        def page(path: str, start_response: Callable[..., Any]) -> Iterable[bytes]:
            if path in HEALTH_PAGES:
                report = state()
                is_well = path == LIVE or report.get("healthy", True)
                status = "200 OK" if is_well else "503 Service Unavailable"
                start_response(status, [("Content-Type", "application/json")])
                return [json.dumps(report).encode() + b"\n"]
            if path == "/metrics":
                text = metrics()
                start_response("200 OK", [("Content-Type", CONTENT_TYPE_LATEST)])
                return [text]
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"/metrics, /health and /health/live are served here\n"]

        try:
            self._server = make_server(host, port, app, server_class=_Server, handler_class=_Quiet)
        except OSError as error:
            sentence = f"metrics_port {joined(host, port)} cannot be used: {error.strerror}"
            raise PortInUse(sentence) from None
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": CHECK_S}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving; returns within a second, whatever clients do."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
