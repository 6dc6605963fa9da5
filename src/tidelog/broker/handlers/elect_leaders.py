"""ElectLeaders v0-2: forwarded to the controller.

- v1+: an error for the whole request and the kind of election (KIP-460).
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Scope
from tidelog.protocol import messages


def refuse(request: messages.ElectLeadersRequest, error: ErrorCode, message: str) -> Any:
    """Return one error for every named partition, and for the whole request (v1+)."""
    response = messages.ElectLeadersResponse
    return response(
        error_code=error,
        replica_election_results=[
            response.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    response.PartitionResult(index, error, message) for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


HANDLER = forwarded(ApiKey.ELECT_LEADERS, range(3), Scope.CLIENT, refuse)
