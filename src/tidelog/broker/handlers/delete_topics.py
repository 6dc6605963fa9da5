"""DeleteTopics v1-6: forwarded to the controller.

- v6+ names topics or their ids (KIP-516).
- The response is sent when the deletion is durable; replicas are removed after that.
"""

from __future__ import annotations

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Scope

HANDLER = forwarded(ApiKey.DELETE_TOPICS, range(1, 7), Scope.CLIENT)
