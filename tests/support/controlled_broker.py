"""A real broker without a controller process: the test commands it over the control channel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from uuid import UUID

from tests.support.lone_broker import LoneBroker, Peer
from tidelog.broker.control_plane.session import ControllerSession
from tidelog.broker.handlers import (
    leader_and_isr,
    open_control_channel,
    stop_replica,
    update_configs,
    update_metadata,
)
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, Router
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID


async def _nothing(_broker_epoch: int) -> None:
    pass


class ControlledBroker(LoneBroker):
    """A broker that applies the commands of the test, in broker epoch 7."""

    async def start(self) -> None:
        await super().start()
        self.session = ControllerSession(
            [("127.0.0.1", 1)], 500, 6000, 1000, report=lambda: None, when_registered=_nothing
        )
        self.session.broker_epoch = 7

    def router(self, extra: Iterable[Handler] = ()) -> Router:
        ordered = (
            open_control_channel,
            leader_and_isr,
            stop_replica,
            update_configs,
            update_metadata,
        )
        return super().router([*(module.HANDLER for module in ordered), *extra])


async def open_channel(
    peer: Peer,
    epoch: int = 1,
    number: int = 1,
    broker_epoch: int = 7,
    revision: int = 5,
    key: UUID = NO_UUID,
) -> ErrorCode:
    request = messages.OpenControlChannelRequest(1, epoch, broker_epoch, number, revision, key)
    return ErrorCode((await peer.ask(request, 0)).error_code)


@asynccontextmanager
async def commanded(lone: ControlledBroker) -> AsyncIterator[tuple[ControlledBroker, Peer]]:
    """The broker at work, and an open channel to it; it is stopped with the block."""
    await lone.start()
    try:
        channel = await Peer.connect(lone.port)
        assert await open_channel(channel) == ErrorCode.NONE
        yield lone, channel
    finally:
        await lone.stop()
