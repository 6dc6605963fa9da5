"""How reassignments are asked for: portions of bounded size, and what a cancellation finds."""

from __future__ import annotations

import pytest

from tidelog.client.admin.reassignments import ELEMENTS, is_over, portions
from tidelog.client.errors import Refused
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


def test_a_large_plan_goes_in_portions_by_topic() -> None:
    targets = {TopicPartition(name, index): (1, 2, 3) for index in range(900) for name in "ba"}
    found = list(portions(targets))
    assert [where for some in found for where in some] == sorted(targets)
    assert all(len(some) * 5 <= ELEMENTS for some in found)
    assert len(found) == 3


def test_a_cancellation_counts_no_replicas_and_a_long_list_goes_alone() -> None:
    cancelled = dict.fromkeys((TopicPartition("t", index) for index in range(2001)), None)
    assert [len(some) for some in portions(cancelled)] == [2000, 1]
    long, short = TopicPartition("a", 0), TopicPartition("b", 0)
    assert list(portions({short: (1,), long: tuple(range(ELEMENTS))})) == [[long], [short]]
    assert list(portions({})) == []


@pytest.mark.parametrize(
    ("outcome", "over"),
    [
        (None, False),
        (Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "t-0"), True),
        (Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t-0"), False),
    ],
)
def test_a_move_that_ended_meanwhile(outcome: Refused | None, over: bool) -> None:
    assert is_over(outcome) is over
