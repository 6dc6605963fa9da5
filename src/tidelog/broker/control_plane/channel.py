"""The open control channel of a broker, and the key that opens one.

Owns both. Not when a channel opens and what is applied that comes on it: see ``control_channel``.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from tidelog.protocol.primitives import NO_UUID

if TYPE_CHECKING:
    from tidelog.network.router import Peer


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
