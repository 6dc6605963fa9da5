"""Which batch of an unknown producer may be its first: the table, the notes and their limit."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.standing_clock import StandingClock
from tidelog.broker.partitions import resuming_producers
from tidelog.broker.partitions.resuming_producers import (
    GIVEN_UP_MS,
    Resumed,
    ResumingProducers,
    is_at_or_below,
)
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import MAX_INT32

TOPIC_ID = UUID(int=1)


def resumed(producer_id: int = 7, epoch: int = 0, *, since: int = 3) -> Resumed:
    return TopicPartition("t", 0), TOPIC_ID, since, producer_id, epoch


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()


@pytest.fixture
def notes(clock: StandingClock) -> ResumingProducers:
    return ResumingProducers(clock)


@pytest.mark.parametrize(
    ("sequence", "other", "is_so"),
    [
        (97, 97, True),
        (97, 98, True),
        (98, 97, False),
        (MAX_INT32, 3, True),  # after the greatest sequence comes 0
        (3, MAX_INT32, False),
        (0, MAX_INT32, False),
    ],
)
def test_sequences_have_an_order_across_the_greatest(
    sequence: int, other: int, is_so: bool
) -> None:
    assert is_at_or_below(sequence, other) is is_so


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        # Refused once, then taken: the retry of the same batch.
        ([97, 97], [False, True]),
        # Five were in flight: all are refused, and the lowest comes first.
        ([97, 98, 99, 100, 101, 97], [False] * 5 + [True]),
        # An older one was with another broker, which refused it or never answered.
        ([98, 99, 97], [False, False, True]),
        ([98, 98], [False, True]),
        # No retry of the refused one: what was sent after it waits.
        ([97, 98, 98], [False, False, False]),
    ],
)
def test_only_a_retry_may_be_the_first(
    notes: ResumingProducers, sent: list[int], taken: list[bool]
) -> None:
    assert [notes.may_begin(resumed(), sequence) for sequence in sent] == taken


def test_another_producer_epoch_or_leadership_has_its_own_note(notes: ResumingProducers) -> None:
    assert not notes.may_begin(resumed(), 97)
    assert not notes.may_begin(resumed(8), 97)
    assert not notes.may_begin(resumed(epoch=1), 97)
    assert not notes.may_begin(resumed(since=5), 97), "another broker may have led in between"
    assert notes.may_begin(resumed(), 97)


def test_a_refusal_for_another_reason_lowers_the_note(notes: ResumingProducers) -> None:
    """The retry of 97 met a full disk: 98, sent right after it, must not be the first."""
    assert not notes.may_begin(resumed(), 98)
    notes.refused(resumed(), 97, final=False)
    assert not notes.may_begin(resumed(), 98)
    notes.refused(resumed(), 98, final=False)
    assert not notes.may_begin(resumed(), 98), "it was raised"
    assert notes.may_begin(resumed(), 97)


def test_a_batch_refused_for_good_holds_up_none(notes: ResumingProducers) -> None:
    assert not notes.may_begin(resumed(), 97)
    notes.refused(resumed(), 97, final=True)
    assert not notes.may_begin(resumed(), 98)
    assert notes.may_begin(resumed(), 98)


def test_a_refusal_of_a_producer_without_a_note_leaves_none(notes: ResumingProducers) -> None:
    for final in (False, True):
        notes.refused(resumed(), 97, final=final)
    assert len(notes) == 0


def test_the_lower_batch_is_waited_for_no_longer_than_its_producer_sends_it(
    notes: ResumingProducers, clock: StandingClock
) -> None:
    assert not notes.may_begin(resumed(), 97)
    clock.passed_ms = GIVEN_UP_MS - 1
    assert not notes.may_begin(resumed(), 98)
    assert not notes.may_begin(resumed(), 98)
    clock.passed_ms = GIVEN_UP_MS
    assert not notes.may_begin(resumed(), 98), "it is noted, and refused once"
    assert notes.may_begin(resumed(), 98)


def test_a_late_retry_is_taken(notes: ResumingProducers, clock: StandingClock) -> None:
    assert not notes.may_begin(resumed(), 97)
    clock.passed_ms = 10 * GIVEN_UP_MS
    assert notes.may_begin(resumed(), 97)


def test_the_oldest_note_goes_for_one_beyond_the_limit(
    notes: ResumingProducers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming_producers, "MOST_NOTED", 3)
    for producer_id in range(4):
        assert not notes.may_begin(resumed(producer_id), 97)
    assert len(notes) == 3
    assert notes.may_begin(resumed(1), 97)
    assert not notes.may_begin(resumed(0), 97), "refused once more, never taken unseen"
    assert len(notes) == 3
