"""Who leads, told with a refusal: a producer need not ask Metadata first (KIP-951).

Owns the tags ``current_leader`` and ``node_endpoints`` of Produce v10+. (Fetch has the latter from
v16 on, which is not served.) A hint only: it is left out where nothing newer is known.
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
    """Add to a Produce answer who leads what it refuses with NOT_LEADER_OR_FOLLOWER.

    Nothing is looked up for an answer without such a refusal. O(partitions of the answer).
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
    """Return (leader, leader epoch) by the newer of LeaderAndIsr and UpdateMetadata; -1: none."""
    told = broker.metadata.partition(topic, index)
    known = (-1, -1) if told is None else (told.leader, told.leader_epoch)
    hosted = broker.partitions.get(topic, index)
    if hosted is not None and hosted.state.leader_epoch > known[1]:
        known = (hosted.state.leader, hosted.state.leader_epoch)
    return known
