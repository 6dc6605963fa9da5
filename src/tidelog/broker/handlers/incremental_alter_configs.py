"""IncrementalAlterConfigs v0-1: forwarded to the controller.

- Operations SET, DELETE, APPEND, SUBTRACT on single configurations (KIP-339).
- Topics and brokers (the name "" is all brokers); a change takes effect at once.
"""

from __future__ import annotations

from tidelog.broker.control_plane.forwarding import MOST_SETTINGS, forwarded, refuse_resources
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Scope
from tidelog.protocol import messages

HANDLER = forwarded(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    range(2),
    Scope.CLIENT,
    refuse_resources(messages.IncrementalAlterConfigsResponse),
    MOST_SETTINGS,
)
