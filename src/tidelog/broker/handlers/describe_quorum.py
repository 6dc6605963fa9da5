"""DescribeQuorum v0-1: the controllers, as Kafka's tools show those of KRaft (KIP-595, KIP-836).

- The active controller is the leader and the one voter: which one is active is decided in the
  metadata store, not by votes. The others are observers, without offsets: they read the store when
  they become active.
- The broker asks all controllers: see ``control_plane.quorum``. One that does not respond is left
  out, and without an active one the partition has LEADER_NOT_AVAILABLE.
- UNKNOWN_TOPIC_OR_PARTITION for anything but partition 0 of ``__cluster_metadata``.
"""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING, Any

from tidelog.broker.control_plane.quorum import merged, refused
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import METADATA_TOPIC
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

MOST_ASKED = 5_000

_Response = messages.DescribeQuorumResponse


async def handle(
    broker: Broker, request: messages.DescribeQuorumRequest, _context: RequestContext
) -> Any:
    """Ask the controllers, and respond with what they say."""
    asked = ((t.topic_name, p.partition_index) for t in request.topics for p in t.partitions)
    quorum = (
        merged(await broker.session.quorum.answers()) if any(starmap(_is_known, asked)) else None
    )
    topics = []
    for topic in request.topics:
        parts = []
        for partition in topic.partitions:
            index = partition.partition_index
            if quorum is not None and _is_known(topic.topic_name, index):
                parts.append(quorum)
            else:
                parts.append(refused(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        topics.append(_Response.TopicData(topic.topic_name, parts))
    return _Response(topics=topics)


def _is_known(topic: str, index: int) -> bool:
    return topic == METADATA_TOPIC and index == 0


HANDLER = Handler(ApiKey.DESCRIBE_QUORUM, Scope.CLIENT, handle, most_elements=MOST_ASKED)
