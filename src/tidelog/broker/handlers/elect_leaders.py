"""ElectLeaders v0-2: forwarded to the controller.

- v1+: an error for the whole request and the kind of election (KIP-460).
"""

from __future__ import annotations

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Scope

HANDLER = forwarded(ApiKey.ELECT_LEADERS, range(3), Scope.CLIENT)
