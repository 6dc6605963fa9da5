"""A Fetch request whose steps a test runs one at a time."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from tests.support.lone_broker import LoneBroker
from tests.support.turn_costs import TurnCosts
from tidelog.model.api_keys import ApiKey
from tidelog.network.limits import Account
from tidelog.protocol import codec


async def asked(lone: LoneBroker, request: Any) -> tuple[Any, TurnCosts]:
    """The answer over a connection of its own, and how long the turns were until it was there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", lone.port, limit=2**26)
    frame = b"".join(codec.encode_request(ApiKey.FETCH, 12, 1, "test", request))
    async with TurnCosts() as turns:
        writer.write(frame)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        answer = await reader.readexactly(size)
    writer.close()
    return codec.decode_response(ApiKey.FETCH, 12, memoryview(answer))[1], turns


def finished(steps: Any) -> Any:
    """Do the steps that are left; return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


class Context:
    """What a Fetch asks of its connection; no client has it."""

    version = 12
    client_host = "a"
    account = Account(2**30)
    connection = property(lambda self: self)

    def may_name_replica(self, *_: object) -> bool:
        return True

    def answer_budget(self) -> int:
        return 2**30

    def can_send_files(self) -> bool:
        return False
