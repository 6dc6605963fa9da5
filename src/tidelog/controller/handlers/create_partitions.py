"""CreatePartitions v0-3: a topic gets more partitions, as in Kafka.

- A count that is not larger is INVALID_PARTITIONS: shrinking comes with level 1.5 (KIP-253).
- Responds once every live broker has been sent the change, or with REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.growth import (
    Growth,
    cost_of_growth,
    create_partitions,
    repeated_growths,
)
from tidelog.controller.serving import reached_in_time, served
from tidelog.controller.slices import perform_in_slices
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import RequestContext, Scope
from tidelog.protocol import messages


async def serve(
    controller: Controller, request: messages.CreatePartitionsRequest, context: RequestContext
) -> messages.CreatePartitionsResponse:
    asked = [
        Growth(
            topic.name,
            topic.count,
            None
            if topic.assignments is None
            else tuple(tuple(x.broker_ids) for x in topic.assignments),
        )
        for topic in request.topics
    ]
    repeated = repeated_growths(asked)
    answers, revision = await perform_in_slices(
        controller,
        asked,
        lambda growth: cost_of_growth(controller.cluster, growth),
        lambda cluster, part: create_partitions(
            cluster, part, controller.entropy, request.validate_only, repeated
        ),
    )
    is_sent = True
    if not request.validate_only and any(refusal is None for _, refusal in answers):
        is_sent = await reached_in_time(controller, revision, request.timeout_ms, context)
    response = messages.CreatePartitionsResponse
    results = []
    for name, refusal in answers:
        result = response.CreatePartitionsTopicResult(name=name)
        if refusal is not None:
            result.error_code, result.error_message = refusal.error, refusal.sentence
        elif not is_sent:
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.error_message = "The partitions exist, but not every broker knows them yet."
        results.append(result)
    return response(results=results)


def refuse_all(
    request: messages.CreatePartitionsRequest, error: ErrorCode, sentence: str
) -> messages.CreatePartitionsResponse:
    """Respond with one error for every topic."""
    result = messages.CreatePartitionsResponse.CreatePartitionsTopicResult
    results = [result(topic.name, error, sentence) for topic in request.topics]
    return messages.CreatePartitionsResponse(results=results)


HANDLER = served(ApiKey.CREATE_PARTITIONS, range(4), Scope.CLIENT, serve, refuse_all)
