"""CreatePartitions v0-3: a topic gets another number of partitions.

- Below level 1.5 it grows, as in Kafka: a count that is not larger is INVALID_PARTITIONS. Responds
  once every live broker has been sent the change, or with REQUEST_TIMED_OUT.
- At level 1.5 the count changes by a resize, which keeps the order of each key; a smaller count is
  a shrink (KIP-253). Responds once the resize is published and every live broker has been sent it:
  what a client describes then has the new count. REQUEST_TIMED_OUT: the resize goes on.
- LEADER_NOT_AVAILABLE, NOT_ENOUGH_REPLICAS or KAFKA_STORAGE_ERROR, with the cause and its remedy:
  the resize could not finish, and did not begin or was undone. UNKNOWN_TOPIC_OR_PARTITION: the
  topic was deleted before it was published.
- A request for the count that a resize under way will give waits for that one, and has its result.
- A growth over listed retired partitions begins a check of them, and waits for it up to
  ``MAX_WAIT_FOR_CHECK_MS``: what is empty or drained is removed first.
- Tag 10000 ``force``: shrink although writers that send no partition count may be there, or the
  topic is compacted and cannot grow again. Without it
  a shrink waits up to ``MAX_WAIT_FOR_REPORTS_MS`` for leaders that have not said whether they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import RequestRefusal
from tidelog.controller.decisions.growth import (
    Grown,
    Growth,
    cost_of_growth,
    create_partitions,
    repeated_growths,
)
from tidelog.controller.decisions.resize_requests import (
    grows_over_retired,
    resize_topics,
    silent_leaders,
)
from tidelog.controller.retired_checks import MAX_WAIT_FOR_CHECK_MS
from tidelog.controller.serving import patience_ms, reached_in_time, served_for_brokers
from tidelog.controller.slices import SLICE, perform_in_slices
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import RequestContext
from tidelog.protocol import messages
from tidelog.runtime import pace

MAX_WAIT_FOR_REPORTS_MS = 2_000
"""How long a shrink waits for the heartbeats of its leaders: four of their default interval."""


async def handle(
    controller: Controller, request: messages.CreatePartitionsRequest, context: RequestContext
) -> messages.CreatePartitionsResponse:
    asked = [
        Growth(
            topic.name,
            topic.count,
            None
            if topic.assignments is None
            else tuple(tuple(x.broker_ids) for x in topic.assignments),
            request.force,
        )
        for topic in request.topics
    ]
    if controller.cluster.level.resizes:
        answers = await _resize(controller, asked, request, context)
    else:
        answers = await _grow(controller, asked, request, context)
    response = messages.CreatePartitionsResponse
    results = []
    for name, refusal in answers:
        result = response.CreatePartitionsTopicResult(name=name)
        if refusal is not None:
            result.error_code, result.error_message = refusal.error, refusal.sentence
        results.append(result)
    return response(results=results)


async def _grow(
    controller: Controller,
    asked: Sequence[Growth],
    request: messages.CreatePartitionsRequest,
    context: RequestContext,
) -> list[Grown]:
    repeated = repeated_growths(asked)
    answers, revision = await perform_in_slices(
        controller,
        asked,
        lambda growth: cost_of_growth(controller.cluster, growth),
        lambda cluster, part: create_partitions(
            cluster, part, controller.entropy, request.validate_only, repeated
        ),
    )
    if request.validate_only or all(refusal is not None for _, refusal in answers):
        return answers
    if await reached_in_time(controller, revision, request.timeout_ms, context):
        return answers
    sentence = "The partitions exist, but not every broker knows them yet."
    late = RequestRefusal(ErrorCode.REQUEST_TIMED_OUT, sentence)
    return [(name, refusal or late) for name, refusal in answers]


async def _resize(
    controller: Controller,
    asked: Sequence[Growth],
    request: messages.CreatePartitionsRequest,
    context: RequestContext,
) -> list[Grown]:
    clock = controller.seams.clock
    end_ms = clock.monotonic_ms() + patience_ms(controller, request.timeout_ms, context)
    repeated = repeated_growths(asked)
    await _wait_for_reports(
        controller, [growth for growth in asked if growth.name not in repeated], end_ms
    )
    if any(grows_over_retired(controller.cluster, growth) for growth in asked):
        # What is empty or drained goes now, and the refusal names what is left as it is now.
        left_ms = min(MAX_WAIT_FOR_CHECK_MS, end_ms - clock.monotonic_ms())
        await controller.retired_checks.one(controller.until, left_ms)
    epochs: dict[str, int] = {}

    def applied(answers: list[Grown]) -> None:
        for name, refusal in answers:
            if refusal is None and not request.validate_only:
                epochs[name] = controller.cluster.topic_histories[name].resize_epoch

    answers, _ = await perform_in_slices(
        controller,
        asked,
        # One commit for each topic: its nodes may be as large as the store takes.
        lambda _: SLICE,
        lambda cluster, part: resize_topics(
            cluster,
            part,
            controller.entropy,
            controller.seams.clock.wall_ms(),
            request.validate_only,
            repeated,
        ),
        applied,
    )
    waited: list[Grown] = []
    for name, refusal in answers:
        if refusal is None and name in epochs:
            left_ms = end_ms - clock.monotonic_ms()
            refusal = await _why_not_published(controller, name, epochs[name], left_ms)
        waited.append((name, refusal))
    return waited


async def _wait_for_reports(controller: Controller, asked: Sequence[Growth], end_ms: float) -> None:
    """Wait until all leaders have said whether unaware writers are there, or for a moment."""
    clock, cluster = controller.seams.clock, controller.cluster
    end_ms = min(end_ms, clock.monotonic_ms() + MAX_WAIT_FOR_REPORTS_MS)
    turn = pace.Turn(clock)
    for growth in asked:
        # Each topic may have very many partitions.
        await turn.pause()
        silent = silent_leaders(cluster, growth)
        if silent:
            # Each heartbeat tries it: not at all partitions again.
            reported = partial(_have_reported, cluster, cluster.topic_id(growth.name), silent)
            await controller.until(reported, end_ms - clock.monotonic_ms())


def _have_reported(cluster: ClusterState, topic_id: UUID, leaders: Sequence[int]) -> bool:
    reported = cluster.unaware.get(topic_id, {})
    return all(leader in reported for leader in leaders)


async def _why_not_published(
    controller: Controller, name: str, resize_epoch: int, limit_ms: int
) -> RequestRefusal | None:
    try:
        return await controller.resizes.finished(name, resize_epoch, limit_ms)
    except TimeoutError:
        sentence = (
            f"The resize of the topic {name} has begun and goes on: tidelog topics --describe "
            "shows the new count when it is done. It is undone if a leader cannot commit its fence "
            "within resize.timeout.ms, until the new partitions of a growth are made."
        )
        return RequestRefusal(ErrorCode.REQUEST_TIMED_OUT, sentence)


HANDLER = served_for_brokers(ApiKey.CREATE_PARTITIONS, handle)
