"""A producer with acks=0 whose leader is stopped: its memory has a limit, and its wait an end."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.freezable_brokers import FreezableBrokers
from tests.support.network_server import until
from tests.support.stories import story
from tidelog.client.cluster import Cluster
from tidelog.client.connecting import first_answer
from tidelog.client.errors import ClientError
from tidelog.client.producing import flights
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.settings import SendSettings

TOPIC_ID = UUID(int=1)
BUFFER = 1 << 20
RECORD = b"x" * 100_000
SETTINGS = SendSettings(
    acks=0, idempotent=False, buffer_bytes=BUFFER, batch_bytes=1000, linger_ms=0, max_block_ms=300
)
MOST = 16 << 20
"""Above what the sockets of a system take."""


async def filled(sender: RecordSender) -> int:
    """Send until there is no memory left; return how many bytes were taken."""
    taken = 0
    while taken < MOST:
        try:
            await sender.send("t", RECORD, partition=0)
        except ClientError:
            break
        taken += len(RECORD)
    return taken


def test_a_leader_that_takes_no_bytes_fills_the_buffer_of_the_producer_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_answer, "SILENT_S", 0.02)
    monkeypatch.setattr(flights, "SILENT_S", 0.02)

    async def of() -> None:
        async with FreezableBrokers() as brokers, Cluster(brokers.bootstrap[1:]) as cluster:
            brokers.topics = {"t": TOPIC_ID}
            async with RecordSender(cluster, SETTINGS) as sender:
                await (await sender.send("t", b"first", partition=0))
                brokers.freeze(0)
                assert await filled(sender) < MOST
                connection = await cluster.connection(0, "produce")
                assert connection._transport is not None
                assert connection._transport.get_write_buffer_size() <= BUFFER + len(RECORD)
                # Another one leads: nothing waits for the former one any longer.
                brokers.leader, brokers.leader_epoch = 1, 2
                await until(lambda: connection.closed)
                await (await sender.send("t", b"last", partition=0))
                await sender.flush()

    story(of)
