"""ElectLeaders v0-2: moves leadership to preferred replicas, or elects an unclean leader.

- Null partitions: all; the response then leaves out partitions that need no election.
- v1+: election type 1 is unclean: this request allows it whatever the configuration says; it is
  flagged and recorded (KIP-704). v0 elects preferred leaders only.
- PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE, ELECTION_NOT_NEEDED per partition.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision, RequestRefusal
from tidelog.controller.decisions.requested_elections import Result, elect_on_request
from tidelog.controller.serving import reached_in_time, served_for_brokers
from tidelog.controller.slices import perform_in_slices
from tidelog.model.admin_requests import ElectionType
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.network.router import RequestContext
from tidelog.protocol import messages
from tidelog.protocol.refusals import refused

Answered = tuple[TopicPartition, RequestRefusal | None]


async def handle(
    controller: Controller, request: messages.ElectLeadersRequest, context: RequestContext
) -> messages.ElectLeadersResponse:
    if request.election_type not in tuple(ElectionType):
        return messages.ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    kind = ElectionType(request.election_type)
    asked = _asked(request)
    everything = asked is None
    places = list(controller.cluster.states) if asked is None else list(dict.fromkeys(asked))

    def decide(cluster: ClusterState, part: Sequence[TopicPartition]) -> Decision[list[Answered]]:
        if everything:
            # A topic may have been deleted between two slices: the request does not name it.
            part = [tp for tp in part if tp in cluster.states]
        made = elect_on_request(cluster, kind, part, everything)
        return Decision(list(made.answer.items()), made.writes, made.splits)

    answers, revision = await perform_in_slices(controller, places, lambda _: 1, decide)
    answer = dict(answers)
    if any(refusal is None for refusal in answer.values()) and not await reached_in_time(
        controller, revision, request.timeout_ms, context
    ):
        why = "Not every broker knows it yet."
        refusal: messages.ElectLeadersResponse = refused(
            ApiKey.ELECT_LEADERS, context.version, request, ErrorCode.REQUEST_TIMED_OUT, why
        )
        return refusal
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
    for tp, refusal in answer.items():
        topic = topics.setdefault(tp.topic, response.ReplicaElectionResult(topic=tp.topic))
        result = response.PartitionResult(partition_id=tp.partition, error_message=None)
        if refusal is not None:
            result.error_code, result.error_message = refusal.error, refusal.sentence
        topic.partition_result.append(result)
    return response(replica_election_results=list(topics.values()))


HANDLER = served_for_brokers(ApiKey.ELECT_LEADERS, handle)
