"""DescribeQuorum v0-1 of a controller: whether it is the active one, at which epoch and revision.

- The active controller is the leader and the only voter; its offsets are the store's revision.
- Another one names itself as an observer, with NOT_LEADER_OR_FOLLOWER. Brokers ask all controllers
  and put the responses together: see ``broker.control_plane.quorum``.
- UNKNOWN_TOPIC_OR_PARTITION for anything but partition 0 of ``__cluster_metadata``.
"""

from __future__ import annotations

from typing import Any

from tidelog.controller.controller import Controller
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import METADATA_TOPIC
from tidelog.network.forwarded import MOST_FORWARDED
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

_Response = messages.DescribeQuorumResponse
_Replica = messages.DescribeQuorumResponse.ReplicaState


def handle(
    controller: Controller, request: messages.DescribeQuorumRequest, _context: RequestContext
) -> Any:
    """Describe this controller."""
    topics = []
    for topic in request.topics:
        name = topic.topic_name
        parts = [
            _partition(controller, name, partition.partition_index)
            for partition in topic.partitions
        ]
        topics.append(_Response.TopicData(name, parts))
    return _Response(topics=topics)


def _partition(controller: Controller, topic: str, index: int) -> Any:
    part = _Response.PartitionData(
        partition_index=index, leader_id=-1, leader_epoch=-1, high_watermark=-1
    )
    node_id = controller.configs.node_id
    if topic != METADATA_TOPIC or index != 0:
        part.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif not controller.active:
        part.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        part.observers = [_Replica(node_id, -1)]
    else:
        cluster, now_ms = controller.cluster, controller.seams.clock.wall_ms()
        part.leader_id, part.leader_epoch = node_id, cluster.controller_epoch
        part.high_watermark = cluster.revision
        part.current_voters = [_Replica(node_id, cluster.revision, now_ms, now_ms)]
    return part


HANDLER = Handler(ApiKey.DESCRIBE_QUORUM, Scope.CLIENT, handle, most_elements=MOST_FORWARDED)
