"""CreatePartitions v0-3: forwarded to the controller.

- Below level 1.5 growth works as in Kafka, and a smaller count is refused. At level 1.5 any other
  count is a resize (KIP-253); tag 10000 forces a shrink.
"""

from __future__ import annotations

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Scope

HANDLER = forwarded(ApiKey.CREATE_PARTITIONS, range(4), Scope.CLIENT)
