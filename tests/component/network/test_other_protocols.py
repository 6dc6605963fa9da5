"""Clients of other protocols on a port for Kafka clients: each learns what this port is."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.support.network_server import Harness, heartbeat, serving
from tests.support.processes import DEADLINE_S
from tidelog.model.api_keys import ApiKey

TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)


async def _sent(first: bytes) -> bytes:
    """Send bytes, return the whole answer; a client of Kafka is served meanwhile and after it."""
    async with serving(Harness()) as (_, connect), asyncio.timeout(DEADLINE_S):
        stranger, client = await connect(), await connect()
        stranger.writer.write(first)
        answer: bytes = await stranger.reader.read()
        client.send(ApiKey.HEARTBEAT, 4, 7, heartbeat("g"))
        assert await client.receive_correlation() == 7
    return answer


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name.startswith("tidelog")]


@pytest.mark.parametrize(
    "first",
    [
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
        b"HEAD / HTTP/1.0\r\n\r\n",
    ],
)
def test_http_gets_a_short_answer_that_names_metrics_port(
    first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        answer = asyncio.run(_sent(first))
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 400 Bad Request"
    assert f"Content-Length: {len(body)}" in lines
    assert b"port for Kafka clients" in body and b"metrics_port" in body
    (line,) = _lines(caplog)
    assert "HTTP request" in line and "metrics_port" in line


def test_tls_is_named_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(_sent(TLS)) == b""
    (line,) = _lines(caplog)
    assert "TLS" in line and "security.protocol=PLAINTEXT" in line


def test_lines_about_other_protocols_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """A scraper that is pointed at the wrong port asks for ever."""

    async def main() -> None:
        async with serving(Harness()) as (_, connect), asyncio.timeout(DEADLINE_S):
            for _ in range(50):
                peer = await connect()
                peer.writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert (await peer.reader.read()).startswith(b"HTTP/1.1 400 ")

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert len(_lines(caplog)) < 50
