"""What a step costs beside very many open transactions: lines of the groups' code, not seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.group_driver import GROUP
from tests.support.transaction_driver import TransactionDriver
from tidelog import groups
from tidelog.groups.events import DeleteGroup, DeleteOffsets
from tidelog.groups.pending_removal import PART
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

FEW, MANY = 5, 200
OWN = 1
"""The producer whose offsets are in the partitions that a step names; of the others it names
none."""
NAMED = {("t", index): 7 for index in range(PART)}
HERE = str(Path(groups.__file__).parent)


def beside(others: int) -> TransactionDriver:
    """A group with offsets of one transaction, and of so many others in the same topic."""
    d = TransactionDriver(hold=True)
    d.commit_offsets({**NAMED, ("u", 0): 5})
    d.commit_in_transaction(NAMED, (OWN, 0))
    for number in range(others):
        d.commit_in_transaction({("t", PART + number): 1, ("u", number): 1}, (OWN + 1 + number, 0))
    d.commit()
    return d


def lines_of(step: Callable[[TransactionDriver], object], d: TransactionDriver) -> int:
    """Return how many lines of the groups' code a step takes until it is committed."""
    count = 0

    def note(frame: Any, event: str, _argument: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(HERE):
            return None
        count += event == "line"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        step(d)
        d.commit()
    finally:
        sys.settrace(before)
    return count


def plain(d: TransactionDriver) -> None:
    d.commit_offsets(NAMED)


def in_its_transaction(d: TransactionDriver) -> None:
    d.commit_in_transaction(NAMED, (OWN, 0))


def tombstones(d: TransactionDriver) -> None:
    d.send(DeleteOffsets(d.pending_response(), tuple(TopicPartition(*at) for at in NAMED)))


def commit(d: TransactionDriver) -> None:
    d.end((OWN, 0), committed=True)


def abort(d: TransactionDriver) -> None:
    d.end((OWN, 0), committed=False)


def refused(d: TransactionDriver) -> None:
    d.commit_in_transaction(NAMED, (OWN, 0))
    d.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)


def fetch(d: TransactionDriver) -> None:
    assert set(d.table.unstable(GROUP, "t", partitions=range(PART))) == set(range(PART))


@pytest.mark.parametrize(
    "step", [plain, in_its_transaction, tombstones, commit, abort, refused, fetch]
)
def test_a_step_takes_no_longer_beside_many_open_transactions(
    step: Callable[[TransactionDriver], object],
) -> None:
    few, many = lines_of(step, beside(FEW)), lines_of(step, beside(MANY))
    assert PART < few == many


def test_the_first_part_of_a_removal_does_not_grow_with_all_that_is_pending() -> None:
    lines = {}
    for topics in (3, 12):
        d = TransactionDriver(hold=True, in_parts=True)
        for number in range(topics):
            d.commit_in_transaction({(f"t{number}", at): 1 for at in range(PART)}, (number, 0))
        d.commit()
        lines[topics] = lines_of(lambda d: d.send(DeleteGroup(d.pending_response())), d)
        parts = 1
        while d.table.removes(GROUP):
            d.go_on()
            parts += 1
        d.commit()
        assert parts == topics + 1 and d.pending() == {} and len(d.table) == 0
    assert PART < lines[3] == lines[12]


def test_an_offset_is_dropped_once() -> None:
    """What many transactions have pending of a partition goes with the first record after them."""
    once = {}
    for count in (FEW, 10 * FEW):
        d = TransactionDriver()
        for number in range(count):
            d.commit_in_transaction(NAMED, (number, 0))
        first = lines_of(plain, d)
        assert d.pending() == {}
        once[count] = first - lines_of(plain, d)
    assert once[10 * FEW] <= 11 * once[FEW]
