"""Which open transactions hang, by what leaders and coordinators say."""

from __future__ import annotations

import pytest

from tidelog.client.admin.transactions import (
    ActiveProducer,
    TransactionDescription,
    judge,
    open_since,
)
from tidelog.model.topics import TopicPartition

HERE, ELSEWHERE = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER = ActiveProducer(7, 2, 0, 4, 1_000, 10)


def described(*partitions: TopicPartition, producer_id: int = 7) -> TransactionDescription:
    return TransactionDescription("id", 1, producer_id, 2, "Ongoing", 60_000, 900, partitions)


@pytest.mark.parametrize(
    ("coordinators", "all_answered", "verdict"),
    [
        ([described(HERE)], True, "open"),
        ([described(HERE)], False, "open"),
        ([described(ELSEWHERE)], True, "hangs"),
        ([described(ELSEWHERE)], False, "hangs"),
        ([described()], True, "hangs"),
        ([], True, "hangs"),
        ([described(HERE, producer_id=8)], True, "hangs"),
        ([], False, "in doubt"),
        ([described(HERE, producer_id=8)], False, "in doubt"),
    ],
)
def test_the_verdict_of_an_open_transaction(
    coordinators: list[TransactionDescription], all_answered: bool, verdict: str
) -> None:
    judged = judge({HERE: [PRODUCER]}, coordinators, all_answered=all_answered)
    assert judged.hanging == ({HERE: [PRODUCER]} if verdict == "hangs" else {})
    assert judged.doubtful == ({HERE: [PRODUCER]} if verdict == "in doubt" else {})


def test_only_what_is_open_and_old_is_a_candidate() -> None:
    ended = ActiveProducer(8, 0, 0, 1, 500, -1)
    states = {HERE: [PRODUCER, ended], ELSEWHERE: [ended]}
    assert open_since(states, 1_001) == {HERE: [PRODUCER]}
    assert open_since(states, 1_000) == {}
