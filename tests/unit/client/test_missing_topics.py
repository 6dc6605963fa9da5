"""Topics that a reader waits for: each is named once, and again when it was there meanwhile."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidelog.client.groups.position_lookup import MissingTopics
from tidelog.client.metadata import ClusterMetadata, Topic
from tidelog.model.errors import ErrorCode

UNKNOWN, THERE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE


def view(**errors: ErrorCode) -> ClusterMetadata:
    topics = {name: Topic(name, UUID(int=1), False, {}, error) for name, error in errors.items()}
    return ClusterMetadata(topics=topics)


def test_a_missing_topic_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """A consumer of a topic whose name was misspelt waited without a line."""
    missing = MissingTopics()
    for _ in range(3):
        missing.note(["a", "b", "c"], view(a=UNKNOWN, b=THERE, other=UNKNOWN))
    assert [record.getMessage() for record in caplog.records] == [
        "topic 'a' does not exist: its records are read as soon as it is created"
    ]


def test_one_that_was_there_meanwhile_is_named_again(caplog: pytest.LogCaptureFixture) -> None:
    missing = MissingTopics()
    for error in (UNKNOWN, THERE, UNKNOWN):
        missing.note(["a"], view(a=error))
    assert len(caplog.records) == 2
