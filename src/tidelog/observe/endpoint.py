"""The HTTP address of a process for those who watch it: ``/metrics`` and ``/health``.

Owns the little server, which runs in a thread of its own; what is counted is asked for at each
scrape through a collector, so that counting costs the hot path nothing but an addition.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

Health = Callable[[], dict[str, Any]]
"""Returns what ``/health`` shows; ``"healthy": False`` in it answers 503."""


class PortInUse(Exception):
    """The metrics address is taken: one line that names it."""


class _Quiet(WSGIRequestHandler):
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
            self._server: WSGIServer = make_server(host, port, app, handler_class=_Quiet)
        except OSError as error:
            sentence = f"metrics_port {host}:{port} cannot be used: {error.strerror}"
            raise PortInUse(sentence) from None
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.5}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving; returns when the thread has ended."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
