"""DeleteTopics v1-6: topics leave the cluster at once; their replicas are deleted later.

- By name (v1-5), by name or id (v6+, KIP-516). At level 1.4 the name is free at the response; below
  it once every broker with a replica has confirmed its deletion.
- Responds once every live broker has been sent the deletion, or with REQUEST_TIMED_OUT.
- TOPIC_DELETION_DISABLED with ``delete.topic.enable=false`` (before v3: INVALID_REQUEST).
"""

from __future__ import annotations

from tidelog.controller.controller import Controller
from tidelog.controller.decisions import deletion
from tidelog.controller.decisions.deletion import (
    Deleted,
    PendingDelete,
    cost_of_deletion,
    delete_topics,
    repeated_names,
)
from tidelog.controller.serving import reached_in_time, served_for_brokers
from tidelog.controller.slices import perform_in_slices
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import RequestContext
from tidelog.protocol import messages


async def handle(
    controller: Controller, request: messages.DeleteTopicsRequest, context: RequestContext
) -> messages.DeleteTopicsResponse:
    if context.version >= 6:
        asked = [PendingDelete(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [PendingDelete(name) for name in request.topic_names]
    enabled = controller.configs.delete_topic_enable
    deletion.try_again(controller.cluster, asked)
    repeated = repeated_names(controller.cluster, asked)
    answers, revision = await perform_in_slices(
        controller,
        asked,
        lambda one: cost_of_deletion(controller.cluster, one),
        lambda cluster, part: delete_topics(cluster, part, enabled, repeated),
    )
    is_sent = True
    if any(answer.refusal is None for answer in answers):
        is_sent = await reached_in_time(controller, revision, request.timeout_ms, context)
    results = [_result(answer, is_sent, context.version) for answer in answers]
    return messages.DeleteTopicsResponse(responses=results)


def _result(
    answer: Deleted, is_sent: bool, version: int
) -> messages.DeleteTopicsResponse.DeletableTopicResult:
    made = messages.DeleteTopicsResponse.DeletableTopicResult(
        name=answer.name, topic_id=answer.topic_id
    )
    if answer.refusal is not None:
        made.error_code = answer.refusal.error
        made.error_message = answer.refusal.sentence
        if answer.refusal.error is ErrorCode.TOPIC_DELETION_DISABLED and version < 3:
            made.error_code = ErrorCode.INVALID_REQUEST
    elif not is_sent:
        made.error_code = ErrorCode.REQUEST_TIMED_OUT
        made.error_message = f"The deletion of {answer.name} is under way."
    return made


HANDLER = served_for_brokers(ApiKey.DELETE_TOPICS, handle)
