"""CreateTopics of a broker: forwarded to the controller, with this broker's defaults filled in.

- -1 takes ``num.partitions`` and ``default.replication.factor`` of this broker's file, which
  DescribeConfigs shows: see ``control_plane.topic_creation``. The rest: see the controller's
  handler.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidelog.broker.control_plane.forwarding import forward, forwarded
from tidelog.broker.control_plane.topic_creation import fill_in
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import RequestContext
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def handle(
    broker: Broker, request: messages.CreateTopicsRequest, context: RequestContext
) -> Awaitable[Any]:
    """Fill in what the request leaves to the cluster, and forward it."""
    fill_in(request, broker.configs)
    return forward(broker, ApiKey.CREATE_TOPICS, request, context)


HANDLER = replace(forwarded(ApiKey.CREATE_TOPICS), handle=handle)
