"""A connection that its peer closes: what to check, where nothing was served on it yet."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.processes import DEADLINE_S
from tidelog.client.connecting.connection import connect
from tidelog.client.errors import ConnectionLost


async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.close()


def test_a_peer_that_closes_at_once_may_be_another_kind_of_listener() -> None:
    """The line was "127.0.0.1:9093 closed the connection" alone."""

    async def main() -> None:
        server = await asyncio.start_server(closed, "127.0.0.1", 0)
        async with server, asyncio.timeout(DEADLINE_S):
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ConnectionLost) as lost:
                await connect("127.0.0.1", port)
        said = str(lost.value)
        assert (
            said.startswith(f"127.0.0.1:{port} closed the connection: check ") and "\n" not in said
        )
        for each in ("TLS", "controller's port", "cluster.secret.file", "log"):
            assert each in said

    asyncio.run(main())
