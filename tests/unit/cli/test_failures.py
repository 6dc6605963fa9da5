"""The line that a refusal becomes."""

from __future__ import annotations

from tidelog.cli.failures import explain
from tidelog.client.errors import Refused
from tidelog.model.errors import ErrorCode


def test_a_reason_that_names_its_topic_is_said_without_it_again() -> None:
    reason = "The topic t has 4 partitions already."
    refused = Refused(ErrorCode.INVALID_PARTITIONS, "topic 't'", reason)
    assert explain(refused) == "The topic t has 4 partitions already (INVALID_PARTITIONS)"
    other = Refused(ErrorCode.INVALID_PARTITIONS, "topic 't2'", reason)
    assert explain(other).startswith("topic 't2': The topic t has")
