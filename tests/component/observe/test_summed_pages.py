"""The one page of several workers, while one of them sends something else than a page."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tidelog.observe.summed import SummedPages


@contextlib.contextmanager
def speaking(answer: bytes) -> Iterator[tuple[str, int]]:
    """A worker that sends these bytes for each request, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[:2]
        finally:
            # It wakes the thread, which a close would not.
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


UNWELL = b'{"healthy": false, "live": true, "ready": false}'


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (b"HTTP/1.0 503 x\r\n\r\n" + UNWELL, json.loads(UNWELL)),
        (b"HTTP/1.0 500 x\r\n\r\n" + UNWELL, None),
        (b"HTTP/1.0 500 x\r\n\r\nA server error occurred.", None),
        (b"HTTP/1.0 200 x\r\n\r\nA page of another server.", None),
        (b"HTTP/1.0 200 x\r\n\r\n[]", None),
        # It died in the midst of its page, or before.
        (b"HTTP/1.0 200 x\r\nContent-Length: 99\r\n\r\n{", None),
        (b"HTTP/1.0 503 x\r\nContent-Length: 99\r\n\r\n{", None),
        (b"HT\xff\r\n", None),
        (b"", None),
    ],
)
def test_a_worker_with_a_broken_page_does_not_break_that_of_all(
    answer: bytes, shown: dict[str, Any] | None
) -> None:
    with speaking(answer) as address:
        pages = SummedPages(lambda: {1: address})
        health = pages.health()
        assert health["live"] is True and health["healthy"] is False
        if shown is None:
            assert "waits_for" in health["workers"]["1"]
        else:
            assert health["workers"]["1"] == shown


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 503 x\r\n\r\n" + UNWELL,
        b"HTTP/1.0 500 x\r\n\r\nA server error occurred.",
        b"HTTP/1.0 200 x\r\nContent-Length: 99\r\n\r\nkafka_requests",
        b"HTTP/1.0 200 x\r\n\r\n<html>A page of another server.</html>",
    ],
)
def test_metrics_of_a_worker_with_a_broken_page_are_left_out(answer: bytes) -> None:
    with speaking(answer) as address:
        pages = SummedPages(lambda: {1: address})
        assert pages.under_replicated() is None
        (up,) = pages.collect()
        assert up.name == "tidelog_worker_up" and [sample.value for sample in up.samples] == [0]
