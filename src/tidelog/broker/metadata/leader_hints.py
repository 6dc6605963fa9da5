"""Current leaders in Produce responses with an error: a producer needs no Metadata (KIP-951).

Owns the tags ``current_leader`` and ``node_endpoints`` of Produce v10+. (Fetch has the latter from
v16 on, which is not served.) Only a hint: left out if this broker knows no newer leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

FIRST_PRODUCE_VERSION = 10

_Response = messages.ProduceResponse
_Leader = messages.ProduceResponse.LeaderIdAndEpoch


def name_leaders(broker: Broker, response: Any, listener_name: str) -> Any:
    """Add the current leaders of partitions with NOT_LEADER_OR_FOLLOWER to a Produce response.

    No lookup for a response without that error. O(partitions of the response).
    """
    leaders: set[int] = set()
    for topic in response.responses:
        for part in topic.partition_responses:
            if part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                leader, epoch = _leader(broker, topic.name, part.index)
                if leader >= 0 and leader != broker.node_id:
                    part.current_leader = _Leader(leader, epoch)
                    leaders.add(leader)
    if leaders:
        response.node_endpoints = [
            _Response.NodeEndpoint(node_id, host, port, rack)
            for node_id, host, port, rack in broker.metadata.addresses(listener_name)
            if node_id in leaders
        ]
    return response


def _leader(broker: Broker, topic: str, index: int) -> tuple[int, int]:
    """Return (leader, leader epoch) of the newer of LeaderAndIsr and UpdateMetadata; -1: none."""
    cached = broker.metadata.partition(topic, index)
    known = (-1, -1) if cached is None else (cached.leader, cached.leader_epoch)
    hosted = broker.partitions.get(topic, index)
    if hosted is not None and hosted.state.leader_epoch > known[1]:
        known = (hosted.state.leader, hosted.state.leader_epoch)
    return known
