"""What a coordinator's answer means for a batch, and what must not change while it waits."""

from __future__ import annotations

import pytest

from tidelog.broker.partitions.verification import (
    Claim,
    Guard,
    Verification,
    refusal_of,
    verification_of,
    why_dropped,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

KEY = TopicPartition("t", 3)
CLAIM = Claim("tx", 7, 4)
BEFORE = Guard(led_since=2, producer_epoch=4, last_marker=10)

OWN = {
    ErrorCode.NONE: Verification.CONFIRMED,
    ErrorCode.TRANSACTION_ABORTABLE: Verification.LATE,
    ErrorCode.INVALID_TXN_STATE: Verification.LATE,
    ErrorCode.PRODUCER_FENCED: Verification.FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH: Verification.FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verification.UNKNOWN_ID,
}


@pytest.mark.parametrize("error", list(ErrorCode))
def test_every_error_of_a_coordinator_has_a_meaning(error: ErrorCode) -> None:
    assert verification_of(error) is OWN.get(error, Verification.UNANSWERED)


def test_an_error_of_a_later_version_is_no_answer() -> None:
    assert verification_of(12_345) is Verification.UNANSWERED


@pytest.mark.parametrize(
    ("verification", "errors"),
    [
        (Verification.CONFIRMED, {range(3, 14): None}),
        (
            Verification.LATE,
            {
                range(3, 11): ErrorCode.INVALID_TXN_STATE,
                range(11, 14): ErrorCode.TRANSACTION_ABORTABLE,
            },
        ),
        (Verification.FENCED, {range(3, 14): ErrorCode.INVALID_PRODUCER_EPOCH}),
        (Verification.UNKNOWN_ID, {range(3, 14): ErrorCode.INVALID_PRODUCER_ID_MAPPING}),
        (Verification.UNANSWERED, {range(3, 14): ErrorCode.NOT_ENOUGH_REPLICAS}),
        (Verification.MOVED, {range(3, 14): ErrorCode.NOT_LEADER_OR_FOLLOWER}),
    ],
)
def test_the_error_of_a_batch_in_each_version(
    verification: Verification, errors: dict[range, ErrorCode | None]
) -> None:
    for versions, error in errors.items():
        for version in versions:
            refusal = refusal_of(verification, CLAIM, KEY, version)
            assert (None if refusal is None else refusal.error) is error
            assert refusal is None or refusal.reason


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (BEFORE, None),
        # A newer leader epoch of the same leader: the log was not cut.
        (BEFORE._replace(led_since=2), None),
        # The leadership ended, and perhaps began again.
        (BEFORE._replace(led_since=-1), Verification.MOVED),
        (BEFORE._replace(led_since=5), Verification.MOVED),
        (BEFORE._replace(led_since=5, last_marker=11), Verification.MOVED),
        # A marker came; with a newer epoch it fences the producer.
        (BEFORE._replace(last_marker=11), Verification.LATE),
        (BEFORE._replace(producer_epoch=5), Verification.FENCED),
        (BEFORE._replace(producer_epoch=5, last_marker=11), Verification.FENCED),
        # The producer was forgotten, and known again by a marker.
        (BEFORE._replace(producer_epoch=-1, last_marker=-1), None),
        (BEFORE._replace(last_marker=12), Verification.LATE),
    ],
)
def test_what_drops_the_answer(now: Guard, expected: Verification | None) -> None:
    assert why_dropped(CLAIM, BEFORE, now) is expected


def test_a_producer_that_was_unknown_is_late_by_its_first_marker() -> None:
    before = Guard(2, -1, -1)
    assert why_dropped(CLAIM, before, before) is None
    assert why_dropped(CLAIM, before, Guard(2, 4, 0)) is Verification.LATE
