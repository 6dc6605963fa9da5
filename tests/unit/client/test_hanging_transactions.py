"""Which open transactions hang, and what ends one, by what leaders and coordinators say."""

from __future__ import annotations

import pytest

from tidelog.client.admin.aborting import Aborts, aborted_by
from tidelog.client.admin.transactions import (
    ActiveProducer,
    TransactionDescription,
    judge,
    open_since,
)
from tidelog.model.topics import TopicPartition

HERE, ELSEWHERE = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER = ActiveProducer(7, 2, 0, 4, 1_000, 10)


def described(
    *partitions: TopicPartition, producer_id: int = 7, epoch: int = 2, state: str = "Ongoing"
) -> TransactionDescription:
    return TransactionDescription("id", 1, producer_id, epoch, state, 60_000, 900, partitions)


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


@pytest.mark.parametrize(
    ("coordinators", "all_answered", "action"),
    [
        ([described(HERE)], True, Aborts.FENCES),
        # A coordinator that has it is enough, whatever the others say.
        ([described(HERE)], False, Aborts.FENCES),
        ([described(ELSEWHERE)], True, Aborts.WRITES_A_MARKER),
        ([described(HERE, epoch=3)], True, Aborts.WRITES_A_MARKER),
        ([described(HERE, state="PrepareCommit")], True, Aborts.ENDS_SOON),
        ([described(HERE, epoch=3, state="PrepareAbort")], True, Aborts.ENDS_SOON),
        ([described(ELSEWHERE, state="PrepareCommit")], True, Aborts.WRITES_A_MARKER),
        ([described(state="CompleteCommit")], True, Aborts.MAY_BE_COMMITTED),
        ([described(state="CompleteCommit", epoch=3)], True, Aborts.WRITES_A_MARKER),
        ([described(state="CompleteAbort")], True, Aborts.WRITES_A_MARKER),
        ([described(state="Empty")], True, Aborts.WRITES_A_MARKER),
        ([], True, Aborts.WRITES_A_MARKER),
        ([described(HERE, producer_id=8)], True, Aborts.WRITES_A_MARKER),
        ([described(HERE, producer_id=8)], False, Aborts.IN_DOUBT),
        ([], False, Aborts.IN_DOUBT),
    ],
)
def test_what_ends_an_open_transaction(
    coordinators: list[TransactionDescription], all_answered: bool, action: Aborts
) -> None:
    ends, its = aborted_by(HERE, PRODUCER, coordinators, all_answered=all_answered)
    assert ends is action
    of_it = [one for one in coordinators if one.producer_id == PRODUCER.producer_id]
    assert its == (of_it[0] if of_it else None)
