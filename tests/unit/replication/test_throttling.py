"""The throttles of replication keep their rate within a tenth over ten seconds, on virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.replication.throttling import BURST_MS, Bucket, is_listed


def copied(bucket: Bucket, sizes: list[int], begin_ms: float, end_ms: float) -> int:
    """Copy pieces one after the other, each as soon as it may be, until the end."""
    now_ms, total, at = begin_ms, 0, 0
    while now_ms < end_ms:
        wait_ms = bucket.free_in_ms(now_ms)
        if wait_ms:
            now_ms += wait_ms + 0.001
            continue
        size = sizes[at % len(sizes)]
        bucket.charge(size, now_ms)
        total, at = total + size, at + 1
    return total


@given(
    rate=st.integers(10_000, 100_000_000),
    sizes=st.lists(st.integers(1, 100), min_size=1, max_size=5),
    idle_ms=st.integers(0, 100_000),
)
def test_ten_seconds_copy_ten_rates_within_a_tenth(
    rate: int, sizes: list[int], idle_ms: int
) -> None:
    """Pieces are hundredths of a second's bytes and less."""
    pieces = [max(1, size * rate // 10_000) for size in sizes]
    bucket = Bucket(rate, 0)
    total = copied(bucket, pieces, idle_ms, idle_ms + 10_000)
    assert 0.95 * 10 * rate <= total <= 1.07 * 10 * rate


def test_a_piece_larger_than_the_bucket_is_paid_for_afterwards() -> None:
    bucket = Bucket(1000, 0)
    bucket.charge(5000, 0)
    assert bucket.free_in_ms(0) == 5000
    assert bucket.free_in_ms(4999) == pytest.approx(1)
    assert bucket.free_in_ms(5000) == 0


def test_an_idle_bucket_saves_at_most_half_a_second() -> None:
    bucket = Bucket(1000, 0)
    bucket.charge(1000 * BURST_MS // 1000, 1_000_000)
    assert bucket.free_in_ms(1_000_000) == 0
    bucket.charge(1, 1_000_000)
    assert bucket.free_in_ms(1_000_000) == pytest.approx(1)


def test_another_rate_keeps_a_debt_and_cuts_what_was_saved() -> None:
    bucket = Bucket(1000, 0)
    bucket.charge(1000, 0)
    bucket.change_rate(2000, 0)
    assert bucket.free_in_ms(0) == 500
    saved = Bucket(1000, 0)
    saved.change_rate(10, 10_000)
    saved.charge(6, 10_000)
    assert saved.free_in_ms(10_000) == pytest.approx(100)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [((), False), (("*",), True), (("0:1",), False), (("3:2", "0:1"), True), (("2:3",), False)],
)
def test_lists_of_throttled_replicas(listed: tuple[str, ...], expected: bool) -> None:
    assert is_listed(listed, partition=3, replica=2) is expected
