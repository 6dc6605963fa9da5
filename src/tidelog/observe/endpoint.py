"""The HTTP address of a process for those who watch it: ``/metrics`` and ``/health``.

Owns the little server, which runs in a thread of its own and gives each connection another, at
most ``MAX_CONNECTIONS``; what is counted is asked for at each scrape through a collector, so that
counting costs the hot path nothing but an addition.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

Health = Callable[[], dict[str, Any]]
"""Returns what ``/health`` shows; ``"healthy": False`` in it answers 503."""


MAX_CONNECTIONS = 16
"""Connections that are served at once; one more is closed unanswered."""

IDLE_S = 5
"""How long a client may be silent within a request, in seconds."""


class PortInUse(Exception):
    """The metrics address is taken: one line that names it."""


class _Server(ThreadingMixIn, WSGIServer):
    """A client that connects and says nothing must hold up neither the others nor the stop."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._places = threading.Semaphore(MAX_CONNECTIONS)
        super().__init__(*args, **kwargs)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Take a place for the connection, if one is free."""
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say in one line what ended a connection; mostly the client's silence did."""
        logger.info("a request from %s ended early: %r", client_address[0], sys.exception())


class _Quiet(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are no events."""


class Endpoint:
    """A running HTTP server; ``port`` is the bound one."""

    def __init__(self, host: str, port: int, collector: Collector, health: Health) -> None:
        """Listen and serve at once. Raises PortInUse."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        metrics = make_wsgi_app(registry)

        def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            path = environ.get("PATH_INFO", "/")
            if path == "/health":
                found = health()
                status = "200 OK" if found.get("healthy", True) else "503 Service Unavailable"
                start_response(status, [("Content-Type", "application/json")])
                return [json.dumps(found).encode() + b"\n"]
            if path == "/metrics":
                served: Iterable[bytes] = metrics(environ, start_response)
                return served
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"/metrics and /health are served here\n"]

        try:
            self._server = make_server(host, port, app, server_class=_Server, handler_class=_Quiet)
        except OSError as error:
            sentence = f"metrics_port {host}:{port} cannot be used: {error.strerror}"
            raise PortInUse(sentence) from None
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.5}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving; returns within a second, whatever clients do."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
