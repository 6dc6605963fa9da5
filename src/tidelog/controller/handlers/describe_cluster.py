"""DescribeCluster v0-1 of a controller: the cluster's id, and the live brokers.

- A broker that starts on an empty disk learns the id of its cluster here.
- A broker on a disk that is in use says to which cluster that belongs (ours): an empty store is not
  the store of a new cluster then. ``founded_as`` (ours, only for a broker that
  names itself) is the id that brokers on empty disks got before that was known.
- The brokers' addresses are those of the inter-broker listener.
"""

from __future__ import annotations

from tidelog.controller.controller import Controller
from tidelog.controller.performing import NotActive
from tidelog.controller.requests import inter_broker_address
from tidelog.controller.serving import served
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import RequestContext, Scope
from tidelog.protocol import messages


async def handle(
    controller: Controller, request: messages.DescribeClusterRequest, context: RequestContext
) -> messages.DescribeClusterResponse:
    if request.own_cluster_id and context.connection.is_trusted and not context.forwarded:
        witness = controller.founding.witness
        if await witness(request.broker_id, request.own_cluster_id):
            raise NotActive
    response = messages.DescribeClusterResponse
    cluster = controller.cluster
    listener = controller.channels.sender.inter_broker_listener
    brokers = []
    for broker, node in sorted(cluster.brokers.items()):
        address = inter_broker_address(cluster, broker, listener)
        if address is not None:
            brokers.append(
                response.DescribeClusterBroker(broker, address.host, address.port, node.rack)
            )
    return response(
        endpoint_type=request.endpoint_type,
        cluster_id=cluster.cluster_id or "",
        controller_id=controller.configs.node_id,
        brokers=brokers,
        founded_as=cluster.past.founded_as if request.broker_id >= 0 else "",
    )


HANDLER = served(ApiKey.DESCRIBE_CLUSTER, Scope.CLIENT, handle)
