"""Responses of OffsetCommit and OffsetDelete, built in steps: they may have 50,000 partitions.

Owns how these responses are built. Not how the group decides the requests: see ``parts``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.broker.coordinator.parts import PART, Answers
from tidelog.groups.events import OffsetsResult
from tidelog.model.work import Work
from tidelog.runtime import pace

TOPIC_BYTES, PARTITION_BYTES = 150, 60
"""Memory of a topic and of a partition in a response under construction."""


def is_long(request: Any) -> bool:
    """Whether a request is so large that it is decided in parts."""
    topics = request.topics
    return len(topics) + sum(len(topic.partitions) for topic in topics) > PART


def answered(
    request: Any, topic_of: Callable[[Any, list[Any]], Any], answer: Callable[[Any, Any], Any]
) -> Work[list[Any]]:
    """Return a result for each topic and partition of a request, in steps.

    Both functions get the topic of the request, and a list of results or a partition of it.
    """
    topics = []
    for topic in request.topics:
        answers: list[Any] = []
        topics.append(topic_of(topic, answers))
        yield TOPIC_BYTES
        for part in pace.parts(topic.partitions):
            answers += [answer(topic, asked) for asked in part]
            yield PARTITION_BYTES * len(part)
    return topics


def as_answers(result: OffsetsResult | Answers) -> Answers:
    """Return the result of a request: one in parts has ``Answers`` already."""
    if isinstance(result, Answers):
        return result
    return Answers(result.error, dict(result.partitions))
