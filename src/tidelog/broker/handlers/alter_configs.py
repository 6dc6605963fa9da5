"""AlterConfigs v0-2: forwarded to the controller.

- Replaces the whole dynamic set of each resource; incremental changes are safer.
- Topics and brokers (the name "" is all brokers); a change takes effect at once.
"""

from __future__ import annotations

from tidelog.broker.control_plane.forwarding import MOST_SETTINGS, forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Scope

HANDLER = forwarded(
    ApiKey.ALTER_CONFIGS,
    range(3),
    Scope.CLIENT,
    MOST_SETTINGS,
)
