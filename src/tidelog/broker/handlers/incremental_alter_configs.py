"""IncrementalAlterConfigs v0-1: forwarded to the controller.

- Operations SET, DELETE, APPEND, SUBTRACT on single configurations (KIP-339).
- Topics and brokers (the name "" is all brokers); a change takes effect at once.
"""

from __future__ import annotations

from tidelog.broker.control_plane.forwarding import MOST_SETTINGS, forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Scope

HANDLER = forwarded(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    range(2),
    Scope.CLIENT,
    MOST_SETTINGS,
)
