"""ElectLeaders v0-2: moves leadership to preferred replicas, or elects where nobody in sync lives.

- Null partitions: all; partitions where no election is needed are then left out of the answer.
- v1+: election type 1 is unclean: allowed by this command whatever the configuration says, flagged
  and recorded (KIP-704). v0 elects preferred leaders only.
- PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE, ELECTION_NOT_NEEDED per partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.controller.decisions.cluster import Refusal
from tidelog.controller.decisions.elections import ElectionType, Result, elect_on_request
from tidelog.controller.serving import served, told_in_time
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.network.router import RequestContext
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.controller.process import Controller


async def serve(
    controller: Controller, request: messages.ElectLeadersRequest, context: RequestContext
) -> messages.ElectLeadersResponse:
    if request.election_type not in tuple(ElectionType):
        return messages.ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    kind = ElectionType(request.election_type)
    asked = _asked(request)
    answer, revision = await controller.perform(
        lambda cluster: elect_on_request(cluster, kind, asked)
    )
    if any(refusal is None for refusal in answer.values()) and not await told_in_time(
        controller, revision, request.timeout_ms, context
    ):
        return refuse_all(request, ErrorCode.REQUEST_TIMED_OUT, "Not every broker knows it yet.")
    return _response(answer)


def _asked(request: messages.ElectLeadersRequest) -> list[TopicPartition] | None:
    if request.topic_partitions is None:
        return None
    return [
        TopicPartition(topic.topic, index)
        for topic in request.topic_partitions
        for index in topic.partitions
    ]


def _response(answer: Result) -> messages.ElectLeadersResponse:
    response = messages.ElectLeadersResponse
    topics: dict[str, messages.ElectLeadersResponse.ReplicaElectionResult] = {}
    for where, refusal in answer.items():
        topic = topics.setdefault(where.topic, response.ReplicaElectionResult(topic=where.topic))
        result = response.PartitionResult(partition_id=where.partition, error_message=None)
        if refusal is not None:
            result.error_code, result.error_message = refusal.error, refusal.sentence
        topic.partition_result.append(result)
    return response(replica_election_results=list(topics.values()))


def refuse_all(
    request: messages.ElectLeadersRequest, error: ErrorCode, sentence: str
) -> messages.ElectLeadersResponse:
    """Answer everything asked with one error, at the top too (v1+)."""
    refusal = Refusal(error, sentence)
    answer: Result = dict.fromkeys(_asked(request) or (), refusal)
    made = _response(answer)
    made.error_code = error
    return made


HANDLER = served(ApiKey.ELECT_LEADERS, range(3), serve, refuse_all)
