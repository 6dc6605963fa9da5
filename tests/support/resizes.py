"""Resizes of real clusters: another partition count, forced past writers without a count."""

from __future__ import annotations

import asyncio

from tests.support.processes import DEADLINE_S
from tidelog.client.cluster import Cluster
from tidelog.protocol import messages

DEADLINE_MS = int(DEADLINE_S * 1000)


def resize(bootstrap: str, topic: str, count: int) -> None:
    """Change the partition count of a topic, up or down; return when every broker shows it."""
    request = messages.CreatePartitionsRequest
    wanted = request.CreatePartitionsTopic(topic, count, None)
    asked = request(topics=[wanted], timeout_ms=DEADLINE_MS, force=True)

    async def main() -> None:
        async with Cluster(bootstrap) as client:
            answer = await client.send_to_any(asked, timeout_ms=DEADLINE_MS)
            (result,) = answer.results
            assert not result.error_code, result.error_message

    asyncio.run(main())
