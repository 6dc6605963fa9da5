"""DescribeCluster v0-1: the live brokers and the broker that clients see as controller.

- The operations that the client may perform on the cluster, on request (KIP-430).
- v1+: endpoint type 1 (brokers). Controllers (2) are not described: MISMATCHED_ENDPOINT_TYPE;
  UNSUPPORTED_ENDPOINT_TYPE for any other type.
- A broker without metadata delays the response: see ``first_metadata``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.allowed_operations import NOT_ASKED, OF_CLUSTER
from tidelog.broker.metadata.first_metadata import after_first_metadata
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

BROKERS, CONTROLLERS = 1, 2


def handle(
    broker: Broker, request: messages.DescribeClusterRequest, context: RequestContext
) -> Any:
    """Describe the cluster from the metadata cache."""
    response = messages.DescribeClusterResponse
    if request.endpoint_type != BROKERS:
        of_controllers = request.endpoint_type == CONTROLLERS
        return response(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if of_controllers
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="only brokers (endpoint type 1) are described here",
            endpoint_type=request.endpoint_type,
        )
    return response(
        endpoint_type=request.endpoint_type,
        cluster_id=broker.cluster_id,
        controller_id=broker.metadata.visible_controller(broker.node_id),
        brokers=[
            response.DescribeClusterBroker(node_id, host, port, rack)
            for node_id, host, port, rack in broker.metadata.addresses(context.listener_name)
        ],
        cluster_authorized_operations=(
            OF_CLUSTER if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


HANDLER = Handler(ApiKey.DESCRIBE_CLUSTER, Scope.CLIENT, after_first_metadata(handle))
