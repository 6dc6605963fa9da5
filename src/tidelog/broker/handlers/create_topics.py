"""CreateTopics v2-7: forwarded to the controller.

- v4+: -1 partitions or replicas mean the defaults; v5+ returns the configurations, v7+ the topic
  id.
- The response is sent when the brokers know the topic, or at the request's timeout.
"""

from __future__ import annotations

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Scope

HANDLER = forwarded(ApiKey.CREATE_TOPICS, range(2, 8), Scope.CLIENT)
