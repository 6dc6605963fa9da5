"""Responses of OffsetCommit and OffsetDelete, built in steps: they may have 50,000 partitions.

Owns how these responses are built. Not how the group decides the requests: see ``parts``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.parts import Answers
from tidelog.network.router import Steps

if TYPE_CHECKING:
    from tidelog.broker.coordinator.pending_response import PendingResponse

AT_ONCE = 500
"""Partitions of a response that are built in one step."""

TOPIC_BYTES, PARTITION_BYTES = 150, 60
"""Memory of a topic and of a partition in a response under construction."""


def is_long(request: Any) -> bool:
    """Whether a request is so large that it is handled in steps."""
    topics = request.topics
    return len(topics) + sum(len(topic.partitions) for topic in topics) > AT_ONCE


def answered(
    request: Any, topic_of: Callable[[Any, list[Any]], Any], answer: Callable[[Any, Any], Any]
) -> Generator[int, None, list[Any]]:
    """Return a result for each topic and partition of a request, in steps.

    Both functions get the topic of the request, and a list of results or a partition of it.
    """
    topics = []
    for topic in request.topics:
        answers: list[Any] = []
        topics.append(topic_of(topic, answers))
        yield TOPIC_BYTES
        for first in range(0, len(topic.partitions), AT_ONCE):
            part = topic.partitions[first : first + AT_ONCE]
            answers += [answer(topic, each) for each in part]
            yield PARTITION_BYTES * len(part)
    return topics


def respond_in_steps(
    pending_response: PendingResponse, respond: Callable[[Answers], Steps]
) -> Steps:
    """Return the response, in steps, or a future of these steps while there is no result."""
    answer = pending_response.answer(respond)
    return (yield from answer) if isinstance(answer, GeneratorType) else answer


def respond_at_once(pending_response: PendingResponse, respond: Callable[[Answers], Steps]) -> Any:
    """Return the response to a short request, or a future of it."""
    return pending_response.answer(
        lambda result: at_once(respond(Answers(result.error, dict(result.partitions))))
    )


def at_once(steps: Steps) -> Any:
    """Run all steps of a short request now; return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
