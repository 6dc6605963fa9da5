"""Counts of a topic in a restored store: one row for each state in which a backup can meet logs."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tidelog.controller.decisions.cluster import InventoryFence, LogEnd
from tidelog.controller.decisions.restored_counts import (
    ReportedPartition,
    RestoredCounts,
    Stored,
    newest_incarnation,
    reported,
    restored_counts,
)
from tidelog.records.control_records import ChangeKind

FENCE, SEAL = ChangeKind.FENCE, ChangeKind.SEAL
Log = ReportedPartition


def log(
    *fences: tuple[int, int] | tuple[int, int, ChangeKind], birth: int = 0, records: int = 0
) -> Log:
    """What a replica reports: (resize epoch, count) of fences, (…, SEAL) of seals."""
    found = {each[0]: (each[1], each[2] if len(each) > 2 else FENCE) for each in fences}
    return ReportedPartition(1, birth, 0, len(fences) + records, found)


def alike(one: Log, indexes: Iterable[int]) -> dict[int, Log]:
    return dict.fromkeys(indexes, one)


OLD = Stored(4, 4, 0, 0, 4)
"""The backup is from before any resize: four partitions."""

GREW = {**alike(log((1, 8)), range(4)), **alike(log((1, 8), birth=1), range(4, 8))}
"""Every log of a growth from 4 to 8 in resize epoch 1."""

SHRANK = {
    **alike(log((1, 8), (2, 4)), range(4)),
    **alike(log((1, 8), (2, 4, SEAL), birth=1, records=9), range(4, 8)),
}


def without(logs: dict[int, Log], *indexes: int) -> dict[int, Log]:
    return {index: one for index, one in logs.items() if index not in indexes}


def counts(
    logs: dict[int, Log], stored: Stored | None = OLD, *, gives_up: bool = False
) -> RestoredCounts:
    found = restored_counts(logs, stored, gives_up_brokers=gives_up)
    assert found is not None
    return found


def test_a_late_birth_fence_does_not_lower_the_count_of_its_epoch() -> None:
    """A leader that learns of a later resize first knows only that its partition was born."""
    late = {**GREW, 5: log((1, 6), birth=1)}
    assert counts(late).by_epoch == {0: 4, 1: 8}
    assert counts(late).count == 8


def test_the_birth_offset_is_that_of_a_replica_with_the_birth_fence() -> None:
    fence = InventoryFence(3, 8, FENCE)
    has = LogEnd(2, 71, 5, birth_epoch=3, birth_offset=70, fences=(fence,))
    lacks = LogEnd(2, 0, 5, birth_epoch=3, birth_offset=0)
    for ends in ([has, lacks], [lacks, has]):
        found = reported(ends)
        assert found is not None and found.birth_offset == 70


def test_a_topic_that_was_never_resized_has_nothing_to_decide() -> None:
    assert restored_counts(alike(log(), range(4)), OLD, gives_up_brokers=False) is None
    assert restored_counts({}, None, gives_up_brokers=True) is None
    # Partitions that were added below level 1.5 have no births.
    assert restored_counts(alike(log(), range(6)), OLD, gives_up_brokers=False) is None


@pytest.mark.parametrize(
    ("logs", "gives_up", "expected"),
    [
        # Everything is there: published.
        (GREW, False, (8, 1, 8)),
        # The fences only: the growth was interrupted before its births, or undone before them.
        (alike(log((1, 8)), range(4)), False, (4, 0, 4)),
        # One child was not born yet: no client saw the others.
        (without(GREW, 6), False, (4, 0, 8)),
        # A child whose birth fence is not there yet.
        ({**GREW, 6: log(birth=1)}, False, (4, 0, 8)),
        # A broker is given up: nothing shows that the growth was published.
        (without(GREW, 6), True, (4, 0, 8)),
        # A record of another child shows it.
        ({**without(GREW, 6), 7: log((1, 8), birth=1, records=3)}, True, (8, 1, 8)),
        # Not while brokers that may have it can still come.
        ({**without(GREW, 6), 7: log((1, 8), birth=1, records=3)}, False, (4, 0, 8)),
        # An undo is an epoch of its own.
        (alike(log((1, 8), (2, 4)), range(4)), False, (4, 2, 4)),
        # An undo that has not reached all parents yet.
        (
            {**alike(log((1, 8)), (0, 1, 3)), 2: log((1, 8), (2, 4))},
            False,
            (4, 2, 4),
        ),
        # One of the first partitions is lost: it existed.
        (without(GREW, 2), False, (8, 1, 8)),
    ],
)
def test_a_growth_after_the_backup(
    logs: dict[int, Log], gives_up: bool, expected: tuple[int, int, int]
) -> None:
    found = counts(logs, gives_up=gives_up)
    assert (found.count, found.published_epoch, found.listed) == expected
    assert found.initial_count == 4
    assert found.newest_epoch == max(epoch for one in logs.values() for epoch in one.fences)


def test_children_of_a_growth_that_is_not_published_are_kept_as_retired() -> None:
    found = counts(without(GREW, 6))
    assert found.sealed_by == {4: None, 5: None, 6: None, 7: None}
    assert found.lost == (6,)
    assert found.most == 8


@pytest.mark.parametrize(
    ("logs", "expected", "sealed_by"),
    [
        (SHRANK, (4, 2, 8), dict.fromkeys(range(4, 8), 2)),
        # Retired ones that were removed from the top.
        (without(SHRANK, 6, 7), (4, 2, 6), {4: 2, 5: 2}),
        (without(SHRANK, 4, 5, 6, 7), (4, 2, 4), {}),
        # Not all are sealed: no client saw the shrink, and all are opened again.
        ({**SHRANK, 6: log((1, 8), birth=1, records=9)}, (8, 1, 8), {}),
        # All are sealed, and not all survivors fenced: the shrink goes forward.
        ({**SHRANK, 3: log((1, 8))}, (4, 2, 8), dict.fromkeys(range(4, 8), 2)),
        # The shrink was undone: its seals stand before the fences of the undo.
        (
            {
                **alike(log((1, 8), (2, 4), (3, 8)), range(4)),
                **alike(log((1, 8), (2, 4, SEAL), (3, 8), birth=1), range(4, 8)),
            },
            (8, 3, 8),
            {},
        ),
        # Two shrinks in a row: the first retired ones keep their epoch.
        (
            {
                **alike(log((1, 8), (2, 6), (3, 4)), range(4)),
                **alike(log((1, 8), (2, 6), (3, 4, SEAL), birth=1), range(4, 6)),
                **alike(log((1, 8), (2, 6, SEAL), birth=1), range(6, 8)),
            },
            (4, 3, 8),
            {4: 3, 5: 3, 6: 2, 7: 2},
        ),
    ],
)
def test_a_shrink_after_the_backup(
    logs: dict[int, Log], expected: tuple[int, int, int], sealed_by: dict[int, int]
) -> None:
    found = counts(logs)
    assert (found.count, found.published_epoch, found.listed) == expected
    assert found.sealed_by == sealed_by


def test_what_was_removed_since_is_known_by_its_fences() -> None:
    logs = alike(log((1, 8), (2, 4)), range(4))
    found = counts(logs)
    assert (found.count, found.listed, found.most) == (4, 4, 8)


@pytest.mark.parametrize("gives_up", [False, True])
def test_regrown_partitions_are_of_their_own_growth(gives_up: bool) -> None:
    # 4 to 8 to 4 to 8: the last growth has only two of four births.
    logs = {
        **alike(log((1, 8), (2, 4), (3, 8)), range(4)),
        **alike(log((3, 8), birth=3), (4, 5)),
    }
    found = counts(logs, gives_up=gives_up)
    assert (found.count, found.published_epoch, found.listed) == (4, 2, 6)
    assert found.sealed_by == {4: None, 5: None}
    # A later resize shows that it was published; the others were on brokers that are given up.
    later = {
        **alike(log((1, 8), (2, 4), (3, 8), (4, 16)), range(4)),
        **alike(log((3, 8), (4, 16), birth=3), (4, 5)),
        **alike(log((4, 16), birth=4), range(8, 16)),
    }
    found = counts(later, gives_up=gives_up)
    assert found.count == (16 if gives_up else 4)
    assert found.lost == (6, 7)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        # The backup is from after the growth: it knows that it was published.
        (Stored(4, 8, 1, 1, 8), (8, 1)),
        # From the midst of it: clients saw four partitions.
        (Stored(4, 4, 0, 1, 8), (4, 0)),
    ],
)
def test_what_the_store_knows_as_published_was(stored: Stored, expected: tuple[int, int]) -> None:
    for logs in (without(GREW, 6), {**GREW, 6: log(birth=1)}):
        found = counts(logs, stored)
        assert (found.count, found.published_epoch) == expected
    # Nothing but the first partitions was reported, by old brokers without fences.
    found = counts(alike(log(), range(4)), stored)
    assert (found.count, found.published_epoch) == expected


def test_a_topic_that_the_store_does_not_know_begins_with_its_first_partitions() -> None:
    found = counts(GREW, None)
    assert (found.initial_count, found.count, found.published_epoch) == (4, 8, 1)
    # Also where it grew as in Kafka before level 1.5, after the backup.
    logs = {**alike(log((1, 12)), range(6)), **alike(log((1, 12), birth=1), range(6, 12))}
    assert counts(logs).initial_count == 6


def end(epoch: int, birth: int = 0, *fences: InventoryFence, at: int = 5) -> LogEnd:
    return LogEnd(epoch, 3, at, birth, 0, fences)


@pytest.mark.parametrize(
    ("ends", "least", "brokers"),
    [
        ({1: end(-1), 2: end(-1)}, -1, {1, 2}),
        ({1: end(7), 2: end(7), 3: end(4)}, -1, {1, 2}),
        # One that has not adopted the epoch of the first incarnation yet.
        ({1: end(7), 2: end(-1)}, -1, {1, 2}),
        # A growth made the newest one: the other is of a former.
        ({1: end(7, 3), 2: end(-1)}, -1, {1}),
        # All are of incarnations that the store knows as removed.
        ({1: end(7, 3), 2: end(4)}, 8, set()),
        ({}, -1, set()),
    ],
)
def test_the_newest_incarnation_counts(
    ends: dict[int, LogEnd], least: int, brokers: set[int]
) -> None:
    assert set(newest_incarnation(ends, least)) == brokers


def test_replicas_are_joined() -> None:
    first, second = InventoryFence(1, 8, FENCE), InventoryFence(2, 4, SEAL)
    found = reported([end(7, 1, first, at=3), end(7, 1, first, second, at=9)])
    assert found == ReportedPartition(7, 1, 0, 9, {1: (8, FENCE), 2: (4, SEAL)})
    assert found.sealed_by == 2 and found.has_birth and found.has_records
    assert reported([]) is None
