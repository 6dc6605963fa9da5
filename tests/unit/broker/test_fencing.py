"""Which fences and seals a leader owes its log (KIP-253)."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.broker.partitions.fencing import owed
from tidelog.broker.partitions.state import LeaderAndIsrState
from tidelog.records.control_records import ChangeKind, FenceRecord
from tidelog.storage.log.fences import FenceEntry, Fences

FENCE, SEAL = ChangeKind.FENCE, ChangeKind.SEAL
PARTITION = 5


def has(*epochs: int) -> Fences:
    return Fences(tuple(FenceEntry(each, 8, FENCE, 10 * each, 10 * each) for each in epochs))


def resized(epoch: int, **more: Any) -> LeaderAndIsrState:
    return LeaderAndIsrState(undeleted_count=8, resize_epoch=epoch, **more)


def test_the_first_record_after_a_resize_is_its_fence() -> None:
    assert owed(resized(1), PARTITION, has()) == [FenceRecord(FENCE, 1, 8)]
    assert owed(resized(3), PARTITION, has(1, 2)) == [FenceRecord(FENCE, 3, 8)]


def test_a_retired_partition_ends_with_its_seal_and_reopens_with_a_fence() -> None:
    assert owed(resized(2, sealed=True), PARTITION, has(1)) == [FenceRecord(SEAL, 2, 8)]
    assert owed(resized(3), PARTITION, has(1, 2)) == [FenceRecord(FENCE, 3, 8)]


@pytest.mark.parametrize("sealed", [False, True])
def test_what_the_log_has_is_not_written_again(sealed: bool) -> None:
    assert owed(resized(2, sealed=sealed), PARTITION, has(2)) == []
    assert owed(resized(2, sealed=sealed, birth_epoch=1), PARTITION, has(2)) == []
    # A restored store may order an older epoch: gates have seen the newer one.
    assert owed(resized(2, sealed=sealed), PARTITION, has(3)) == []


def test_a_partition_that_a_growth_made_begins_with_the_fence_of_its_birth() -> None:
    assert owed(resized(4, birth_epoch=4), PARTITION, has()) == [FenceRecord(FENCE, 4, 8)]
    # A later epoch was ordered in the meantime: the count of the birth is a lowest one.
    born = owed(resized(6, birth_epoch=4), PARTITION, has())
    assert born == [FenceRecord(FENCE, 4, PARTITION + 1), FenceRecord(FENCE, 6, 8)]
    assert owed(resized(6, birth_epoch=4), PARTITION, has(4)) == [FenceRecord(FENCE, 6, 8)]
    retired = owed(resized(6, birth_epoch=4, sealed=True), PARTITION, has(4))
    assert retired == [FenceRecord(SEAL, 6, 8)]


def test_a_topic_that_was_never_resized_has_no_fences() -> None:
    assert owed(resized(0), PARTITION, has()) == []
    # Below level 1.5 no command names a count.
    assert owed(LeaderAndIsrState(resize_epoch=3), PARTITION, has()) == []
