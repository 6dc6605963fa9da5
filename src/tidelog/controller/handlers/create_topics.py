"""CreateTopics v2-7: each topic is created or refused by itself.

- Many topics are created in slices; each topic is created as a whole or not at all.
- Responds once every live broker has been sent the topics, or with REQUEST_TIMED_OUT; the topics
  are created in either case.
- Below level 1.4 the name of a deleted topic is TOPIC_ALREADY_EXISTS until every broker with a
  replica has confirmed the deletion: requests without ids could reach the new topic.
- ``__transaction_state`` is created for brokers only, and from level 1.6 on: INVALID_REQUEST.
- The name of a deleted topic waits until every live broker has been sent the deletion: an offset
  that a group commits in the new topic could otherwise be removed with those of the former one. The
  topic is created anyway when the time of the request is over.
- v4+: -1 takes ``num.partitions`` and ``default.replication.factor``. Brokers fill in those of
  their own files; this controller's count for brokers of older code. The v5+ response has the
  configurations, v7+ the topic id (KIP-516).
"""

from __future__ import annotations

from typing import Any

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.creation import (
    Created,
    Defaults,
    Earlier,
    TopicToCreate,
    cost_of_topic,
    create_topics,
)
from tidelog.controller.serving import patience_ms, served_for_brokers
from tidelog.controller.slices import perform_in_slices
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.forwarded_client import ForwardedClient
from tidelog.network.router import RequestContext
from tidelog.protocol import messages
from tidelog.runtime import pace


async def handle(
    controller: Controller, request: messages.CreateTopicsRequest, context: RequestContext
) -> messages.CreateTopicsResponse:
    configs, asker = controller.configs, context.connection
    for_process = isinstance(asker, ForwardedClient) and asker.is_broker
    defaults = Defaults(configs.num_partitions, configs.default_replication_factor)
    asked = [
        TopicToCreate(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            tuple((x.partition_index, tuple(x.broker_ids)) for x in topic.assignments),
            tuple((x.name, x.value) for x in topic.configs),
        )
        for topic in request.topics
    ]
    clock = controller.seams.clock
    ends_ms = clock.monotonic_ms() + patience_ms(controller, request.timeout_ms, context)
    if not request.validate_only:
        names = [topic.name for topic in asked]
        await controller.until_free(names, ends_ms - clock.monotonic_ms())
    earlier = Earlier.of(asked)
    answers, revision = await perform_in_slices(
        controller,
        asked,
        lambda topic: cost_of_topic(topic, defaults),
        lambda cluster, part: create_topics(
            cluster,
            part,
            defaults,
            controller.entropy,
            request.validate_only,
            earlier,
            for_process=for_process,
        ),
        earlier.take,
    )
    is_sent = True
    if not request.validate_only and any(answer.refusal is None for answer in answers):
        is_sent = await controller.reached(revision, ends_ms - clock.monotonic_ms())
    rows: dict[int, list[Any]] = {}
    results = []
    turn = pace.Turn(clock)
    for answer in answers:
        results.append(_result(answer, is_sent, rows))
        await turn.pause()
    return messages.CreateTopicsResponse(topics=results)


def _result(
    answer: Created, is_sent: bool, rows: dict[int, list[Any]]
) -> messages.CreateTopicsResponse.CreatableTopicResult:
    """``rows`` has the rows built already, by identity of the entries: most topics share them."""
    response = messages.CreateTopicsResponse
    if answer.refusal is not None:
        return _refused(answer.name, answer.refusal.error, answer.refusal.sentence)
    if not is_sent:
        sentence = f"The topic {answer.name} is created, but not every broker knows it yet."
        return _refused(answer.name, ErrorCode.REQUEST_TIMED_OUT, sentence)
    made = rows.get(id(answer.configs))
    if made is None:
        made = rows[id(answer.configs)] = [
            response.CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in answer.configs
        ]
    return response.CreatableTopicResult(
        name=answer.name,
        error_message=None,
        topic_id=answer.topic_id,
        num_partitions=answer.partitions,
        replication_factor=answer.replication_factor,
        configs=made,
    )


def _refused(
    name: str, error: ErrorCode, sentence: str
) -> messages.CreateTopicsResponse.CreatableTopicResult:
    return messages.CreateTopicsResponse.CreatableTopicResult(
        name=name, error_code=error, error_message=sentence, configs=[]
    )


HANDLER = served_for_brokers(ApiKey.CREATE_TOPICS, handle)
