"""The aborted transactions of a segment: which of them a read meets, and their file's bytes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tidelog.records.crc import crc32c
from tidelog.storage.checkpoints import DamagedFile
from tidelog.storage.log.aborted import (
    BLOCK,
    ENTRY_BYTES,
    AbortedTransaction,
    PackedAborted,
    aborted,
    aborted_in,
    add_first,
    checked_entries,
    decode_aborted,
    encode_aborted,
    encode_check,
    lowest_firsts,
)
from tidelog.storage.log.transactions import EndedTransaction, OpenTransactions

ONE = AbortedTransaction(7, 10, 20, 15)
TWO = AbortedTransaction(8, 15, 30, 31)
BOTH = [ONE, TWO]


def test_the_file_is_kafkas() -> None:
    assert ENTRY_BYTES == 34
    content = encode_aborted(BOTH)
    numbers = [(7, 10, 20, 15), (8, 15, 30, 31)]
    assert content == b"".join(
        b"\0\0" + b"".join(number.to_bytes(8, "big") for number in entry) for entry in numbers
    )
    assert decode_aborted(content, 0, 31) == BOTH
    assert decode_aborted(b"", 0, 31) == []


def test_the_check_hashes_the_entries_first_and_its_head_last() -> None:
    content = encode_aborted(BOTH)
    head = b"\0\0" + (2).to_bytes(4, "big")
    check = encode_check(content)
    assert check == head + crc32c(content + head).to_bytes(4, "big")
    assert checked_entries(content, check, 31) == content


@pytest.mark.parametrize(
    ("claimed", "is_proved"), [(0, True), (29, True), (30, True), (31, False), (1000, False)]
)
def test_entries_after_those_of_the_check_are_not_passed_over_below_what_is_claimed(
    claimed: int, is_proved: bool
) -> None:
    one, check = encode_aborted([ONE]), encode_check(encode_aborted([ONE]))
    assert checked_entries(encode_aborted(BOTH), check, claimed) == (one if is_proved else None)
    assert checked_entries(one, check, claimed) == one
    assert checked_entries(one + b"\0", check, claimed) is None, "whose marker may be any"
    assert checked_entries(encode_aborted([TWO, ONE]), check, 0) is None


@pytest.mark.parametrize(
    ("offset", "limit", "expected", "is_complete"),
    [
        (0, 10, [], True),
        (0, 11, [ONE], True),
        (20, 21, BOTH, True),
        (21, 30, [TWO], True),
        (30, 31, [TWO], True),
        (31, 40, [], False),
        (0, 40, BOTH, False),
        (0, 15, [ONE], True),
        (0, 16, BOTH, True),
    ],
)
def test_a_read_meets_those_with_records_or_a_marker_in_its_range(
    offset: int, limit: int, expected: list[AbortedTransaction], is_complete: bool
) -> None:
    assert aborted_in(entries(BOTH), offset, limit) == (expected, is_complete)


def entries(transactions: list[AbortedTransaction]) -> PackedAborted:
    """As a file has them that was read, and as those have it to which one after the other came."""
    content = encode_aborted(transactions)
    lowest = lowest_firsts(content)
    grown = lowest_firsts(b"")
    for count, one in enumerate(transactions):
        add_first(grown, count, one.first_offset)
    assert grown == lowest
    return PackedAborted(content, lowest)


def test_a_transaction_that_stays_open_does_not_make_a_look_up_read_all_that_end_meanwhile() -> (
    None
):
    """The first of 20,000 stays open until all others have ended, one after the other."""
    count = 20_000
    short = [AbortedTransaction(8, 2 * n, 2 * n + 1, 0) for n in range(1, count)]
    every = entries([*short, AbortedTransaction(7, 0, 2 * count, 2 * count + 1)])
    read: list[tuple[int, int]] = []

    class Counted(PackedAborted):
        def packed(self, begin: int, end: int) -> Any:
            read.append((begin, end))
            return super().packed(begin, end)

    found = aborted_in(Counted(every.packed(0, count), every.lowest), 10, 20)
    assert [one.producer_id for one in found.transactions] == [8] * 5 + [7]
    assert found.transactions[0].first_offset == 10 and found.is_complete
    assert len(read) == 2 and sum(end - begin for begin, end in read) <= 2 * BLOCK


def test_what_was_committed_is_not_aborted() -> None:
    ended = EndedTransaction(7, 10, 20, 15, committed=False)
    assert aborted(ended) == ONE
    assert aborted(ended._replace(committed=True)) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (encode_aborted(BOTH)[:-1], "part of an entry"),
        (encode_aborted(BOTH)[:40], "part of an entry"),
        (b"\0\1" + encode_aborted([ONE])[2:], "version 1"),
        (encode_aborted([TWO, ONE]), "cannot be true"),
        (encode_aborted([ONE, ONE]), "cannot be true"),
        (encode_aborted([ONE._replace(last_offset=4, first_offset=3)]), "cannot be true"),
        (encode_aborted([ONE._replace(last_offset=40)]), "cannot be true"),
        (encode_aborted([ONE._replace(first_offset=20)]), "cannot be true"),
        (encode_aborted([ONE._replace(first_offset=-1)]), "cannot be true"),
        (encode_aborted([ONE._replace(producer_id=-1)]), "cannot be true"),
        (encode_aborted([ONE._replace(last_stable_offset=22)]), "cannot be true"),
    ],
)
def test_a_damaged_file_is_named(content: bytes, reason: str) -> None:
    with pytest.raises(DamagedFile, match=reason):
        decode_aborted(content, 5, 31)


@pytest.mark.parametrize("seed", range(40))
def test_random_transactions_in_random_segments(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Going from segment to segment until it is complete finds what a look at all would find."""
    print(f"seed {seed}")
    source = random.Random(seed)
    monkeypatch.setattr("tidelog.storage.log.aborted.BLOCK", source.choice([1, 2, 3, 7, 512]))
    transactions, since, offset = OpenTransactions(), dict[int, int](), 0
    every: list[AbortedTransaction] = []
    for _ in range(120):
        producer_id = source.randrange(6)
        if producer_id not in since:
            since[producer_id] = offset
            transactions.begin(offset)
        elif source.random() < 0.6:
            first = since.pop(producer_id)
            stable = transactions.end(first, offset, 0)
            committed = source.random() < 0.5
            entry = aborted(EndedTransaction(producer_id, first, offset, stable, committed))
            every += [] if entry is None else [entry]
        offset += source.randrange(1, 4)
    bases = sorted({0, *(source.randrange(offset) for _ in range(4))})
    ends = [*bases[1:], offset]
    parts = [
        [entry for entry in every if base <= entry.last_offset < end]
        for base, end in zip(bases, ends, strict=True)
    ]
    for part, base, end in zip(parts, bases, ends, strict=True):
        assert decode_aborted(encode_aborted(part), base, end) == part
    for _ in range(50):
        begin = source.randrange(offset)
        limit = source.randrange(begin, offset + 1)
        found: list[AbortedTransaction] = []
        for part, end in zip(parts, ends, strict=True):
            if end <= begin:
                continue
            some, is_complete = aborted_in(entries(part), begin, limit)
            found += some
            if is_complete:
                break
        assert found == [
            entry for entry in every if entry.first_offset < limit and entry.last_offset >= begin
        ]
