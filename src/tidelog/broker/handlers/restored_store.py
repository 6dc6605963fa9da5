"""RestoredStore v0 (ours): forwarded to the controller; any broker accepts it.

- The controller makes the response: see its handler.
"""

from __future__ import annotations

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Scope

HANDLER = forwarded(ApiKey.RESTORED_STORE, range(1), Scope.BROKER)
