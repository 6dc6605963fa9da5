"""The control channel: the one connection whose commands a broker accepts, and its key.

Owns which channel is open, and whether a request may be applied. Not the application: see
``control_channel``; not the seen epochs on disk: see ``seen_epochs``.

The checks of OpenControlChannel, in this order; nothing is recorded before all have passed:

| check | error if it fails |
|---|---|
| this broker is registered, with this broker epoch | STALE_BROKER_EPOCH |
| the channel key is the one that the registration returned | CLUSTER_AUTHORIZATION_FAILED |
| controller epoch and store revision are below their limits | INVALID_REQUEST |
| controller epoch and channel number are the newest | STALE_CONTROLLER_EPOCH |

The checks of a control request, in this order (docs/design/control-channel.md):

| check | error if it fails |
|---|---|
| it came on the open channel, with its controller epoch | STALE_CONTROLLER_EPOCH |
| its broker epoch is the current one | STALE_BROKER_EPOCH |
| per partition: topic id, partition epoch, leader epoch | see ``replication.command_rules`` |
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from tidelog.broker.control_plane.commands import UNKNOWN_EPOCH
from tidelog.broker.control_plane.seen_epochs import SeenEpochs, SeenEpochsStore
from tidelog.model.api_keys import ApiKey
from tidelog.model.epochs import leaves_room
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID

if TYPE_CHECKING:
    from tidelog.broker.control_plane.session import ControllerSession
    from tidelog.broker.partitions.log_work import LogWork
    from tidelog.network.router import Peer
    from tidelog.storage.directory.log_directory import LogDirectory

logger = logging.getLogger(__name__)


class ControlRequest(Protocol):
    """A request on the control channel."""

    controller_epoch: int
    broker_epoch: int


@dataclass(slots=True)
class Channel:
    """The open control channel, and which first requests have arrived on it."""

    connection: Peer
    controller_epoch: int
    number: int
    had_configs: bool = False
    had_metadata: bool = False


def why_wrong_key(expected: UUID, key: UUID, connection: Peer) -> str | None:
    """Return why a key does not prove the controller that this broker registered with, if so.

    A controller of a version without keys returned none. Its commands are accepted without a
    key only where no proof of the cluster secret is required (decision 0019).
    """
    if expected == NO_UUID:
        if connection.trusts_all and key == NO_UUID:
            return None
        return "this broker got no channel key at its registration"
    if not hmac.compare_digest(expected.bytes, key.bytes):
        return "its channel key is not the one of this broker's registration"
    return None


class ControlChannel:
    """Accepts the newest channel of the newest controller epoch (promise 23)."""

    def __init__(
        self,
        session: ControllerSession,
        seen_epochs: SeenEpochsStore,
        directories: Sequence[LogDirectory],
        log_work: LogWork,
    ) -> None:
        self._session = session
        self._seen_epochs = seen_epochs
        self._directories = directories
        self._log_work = log_work
        self.present: Channel | None = None

    @property
    def seen_epochs(self) -> SeenEpochs:
        """The highest controller epoch and store revision that a disk of this broker holds."""
        return self._seen_epochs.highest

    async def open(
        self, request: messages.OpenControlChannelRequest, connection: Peer
    ) -> ErrorCode:
        """Open a channel and close every older one; otherwise return the error."""
        error = self._why_not_open(request, connection)
        if error:
            return error
        await self.note(request.controller_epoch, request.store_revision)
        # During the write a newer channel may have come, or this connection may have closed.
        error = self._why_not_open(request, connection)
        if error:
            return error
        present = self.present
        if present is not None and present.connection is not connection:
            present.connection.close("a newer control channel was opened")
        self.present = Channel(connection, request.controller_epoch, request.channel_number)
        return ErrorCode.NONE

    def _why_not_open(
        self, request: messages.OpenControlChannelRequest, connection: Peer
    ) -> ErrorCode:
        if connection.is_closing:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        session = self._session
        if session.broker_epoch < 0 or request.broker_epoch != session.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        why = why_wrong_key(session.channel_key, request.channel_key, connection)
        if why is not None:
            connection.refused(ApiKey.OPEN_CONTROL_CHANNEL, why)
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if not leaves_room(request.controller_epoch, request.store_revision):
            logger.error(
                "OpenControlChannel of controller epoch %d, store revision %d refused: they leave "
                "no room for later ones",
                request.controller_epoch,
                request.store_revision,
            )
            return ErrorCode.INVALID_REQUEST
        present = self.present
        if request.controller_epoch < self.seen_epochs.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if present is not None:
            newest = (present.controller_epoch, present.number)
            if (request.controller_epoch, request.channel_number) <= newest:
                return ErrorCode.STALE_CONTROLLER_EPOCH
        return ErrorCode.NONE

    def check(self, request: ControlRequest, connection: Peer) -> ErrorCode:
        """Return the error of a control request that must not be applied, or NONE."""
        channel = self.present
        if (
            channel is None
            or channel.connection is not connection
            or request.controller_epoch != channel.controller_epoch
        ):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if request.broker_epoch not in (UNKNOWN_EPOCH, self._session.broker_epoch):
            return ErrorCode.STALE_BROKER_EPOCH
        return ErrorCode.NONE

    async def note(self, controller_epoch: int, store_revision: int) -> None:
        """Write the highest epoch and revision durably, before any command of theirs is applied.

        A thread waits for the disk: callers check the request again afterwards. When the first disk
        has failed, a revision alone is not written: commands for the other disks still apply.
        """
        newest = self.seen_epochs.joined(SeenEpochs(controller_epoch, store_revision))
        is_same_epoch = newest.controller_epoch == self.seen_epochs.controller_epoch
        if newest == self.seen_epochs or (is_same_epoch and self._directories[0].failed):
            return
        try:
            await self._log_work.run(None, self._seen_epochs.noting(newest))
        except OSError as error:
            if not is_same_epoch:
                raise
            logger.error("store revision %s cannot be written: %s", newest.store_revision, error)
