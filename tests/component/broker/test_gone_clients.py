"""Changes whose clients have gone: a broker that was stopped does not send them to the controller.

A server whose loop does not run is like a stopped process: the kernel takes what arrives.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest
import uvloop

from tests.support.lone_broker import until
from tidelog.broker.control_plane import forwarding
from tidelog.broker.control_plane.controller_search import ControllerUnreachable
from tidelog.broker.control_plane.envelopes import Check
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.network.forwarded import FORWARDED
from tidelog.network.requester import Requester
from tidelog.network.router import Router
from tidelog.network.server import Server
from tidelog.protocol import codec, messages
from tidelog.runtime.clock import RealClock

DELETE = messages.DeleteTopicsRequest(
    topics=[messages.DeleteTopicsRequest.DeleteTopicState(name="t")], timeout_ms=30_000
)
ALTER = messages.IncrementalAlterConfigsRequest(resources=[])
LIST = messages.ListPartitionReassignmentsRequest(timeout_ms=30_000, topics=None)


VERSIONS = {
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
}


class Session:
    """A session with a controller that responds to nothing; it counts what is sent on."""

    def __init__(self) -> None:
        self.sent = 0

    async def registered(self, limit_ms: int) -> None:
        """There is a session."""

    async def forward(
        self, inner: bytes, requester: Requester, timeout_ms: int, check: Check
    ) -> bytes:
        check()
        self.sent += 1
        raise ControllerUnreachable("planted")


class Broker:
    """What forwarding needs of one."""

    def __init__(self) -> None:
        configs = from_mapping({"process.roles": "broker,controller", "node.id": "1"})
        assert isinstance(configs, ServerConfigs), configs
        self.session, self.configs, self.clock = Session(), configs, RealClock()


async def serve(broker: Broker) -> tuple[Server, int]:
    server = Server(Router([forwarding.forwarded(key) for key in FORWARDED]), broker)
    return server, await server.listen("PLAINTEXT", "127.0.0.1", 0)


def is_sent_on(
    caplog: pytest.LogCaptureFixture,
    key: ApiKey,
    request: Any,
    *,
    closes: bool,
    is_accepted: bool = True,
) -> bool:
    """Send a request to a server that is stopped; return whether it is sent on when it runs."""
    caplog.set_level(logging.INFO, forwarding.__name__)
    caplog.clear()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        broker = Broker()
        server, port = runner.run(serve(broker))
        try:
            with socket.create_connection(("127.0.0.1", port)) as client:
                if is_accepted:
                    runner.run(until(lambda: bool(server.connections)))
                frame = codec.encode_request(key, VERSIONS[key], 1, "gone", request)
                client.sendall(b"".join(frame))
                if closes:
                    client.close()
                runner.run(until(lambda: broker.session.sent > 0 or "is dropped" in caplog.text))
        finally:
            runner.run(server.stop(grace_s=0.2))
        assert broker.session.sent <= 1
        return broker.session.sent == 1


@pytest.mark.parametrize("is_accepted", [True, False])
@pytest.mark.parametrize(
    ("key", "request_"),
    [(ApiKey.DELETE_TOPICS, DELETE), (ApiKey.INCREMENTAL_ALTER_CONFIGS, ALTER)],
    ids=["deletion", "configurations"],
)
def test_a_change_is_sent_on_only_while_its_client_waits(
    key: ApiKey, request_: Any, is_accepted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert not is_sent_on(caplog, key, request_, closes=True, is_accepted=is_accepted)
    assert "the client closed its connection" in caplog.text
    assert is_sent_on(caplog, key, request_, closes=False, is_accepted=is_accepted)


def test_a_question_is_sent_on(caplog: pytest.LogCaptureFixture) -> None:
    """It changes nothing, and most are answered before a client could leave."""
    assert is_sent_on(caplog, ApiKey.LIST_PARTITION_REASSIGNMENTS, LIST, closes=True)
