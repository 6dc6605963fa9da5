"""The tables of Produce and Fetch with a count: each row, and combinations of small numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest

from tidelog.replication.resize_rules import (
    NOT_NAMED,
    Named,
    ToFetch,
    ToProduce,
    answer_to_fetch,
    answer_to_produce,
)

HOSTILE = (-(2**31), -2, 0, 2**31 - 1)


@dataclass(frozen=True)
class Here:
    """A partition born in epoch 1, at 8 partitions in epoch 3, in its incarnation 20."""

    undeleted_count: int = 8
    resize_epoch: int = 3
    partition_epoch: int = 20
    birth_epoch: int = 1
    sealed: bool = False


OPEN, SEALED = Here(), Here(sealed=True)
UNNAMED = Here(undeleted_count=-1, resize_epoch=0, partition_epoch=-1, birth_epoch=0)
OWN, OLDER = Named(8, 3, 20), Named(4, 2, 20)


def to_produce(named: Named, here: Here = OPEN, **changed: bool) -> ToProduce:
    facts = {
        "known": False,
        "fence_unwritten": False,
        "fence_committed": True,
        "refuses_unaware": False,
    }
    return answer_to_produce(named, here, **{**facts, **changed})


@pytest.mark.parametrize(
    ("named", "here", "changed", "expected"),
    [
        (OWN, OPEN, {}, ToProduce.APPENDED),
        (OWN, OPEN, {"known": True}, ToProduce.KNOWN),
        (OWN, OPEN, {"fence_unwritten": True}, ToProduce.FENCE_UNWRITTEN),
        (OWN, SEALED, {}, ToProduce.SEALED),
        (OWN, SEALED, {"known": True}, ToProduce.KNOWN),
        (OWN, OPEN, {"refuses_unaware": True}, ToProduce.APPENDED),
        (Named(7, 3, 20), OPEN, {}, ToProduce.OTHER_COUNT),
        (Named(7, 3, 20), SEALED, {}, ToProduce.SEALED),
        (OLDER, OPEN, {}, ToProduce.OLDER),
        (OLDER, SEALED, {}, ToProduce.OLDER),
        (OLDER, OPEN, {"fence_committed": False}, ToProduce.UNDETERMINED),
        (OLDER, OPEN, {"known": True}, ToProduce.KNOWN),
        (OLDER, OPEN, {"fence_unwritten": True}, ToProduce.FENCE_UNWRITTEN),
        (Named(8, 2, 20), OPEN, {}, ToProduce.OLDER),  # a count that came back: 8, 4, 8
        (Named(4, 1, 20), OPEN, {}, ToProduce.OLDER),
        (Named(4, 0, 20), OPEN, {}, ToProduce.ELSEWHERE),  # older than its birth
        (Named(16, 4, 20), OPEN, {}, ToProduce.ELSEWHERE),
        (Named(16, 4, 20), SEALED, {}, ToProduce.ELSEWHERE),
        (Named(8, 3, 19), OPEN, {}, ToProduce.ELSEWHERE),
        (Named(8, 3, 21), OPEN, {"known": True}, ToProduce.ELSEWHERE),  # not before the duplicates
        (Named(16, 4, 20), OPEN, {"known": True}, ToProduce.ELSEWHERE),
        (Named(8, 3, -1), OPEN, {"known": True}, ToProduce.INCOMPLETE),
        (Named(-1, 3, 20), OPEN, {}, ToProduce.INCOMPLETE),
        (Named(8, -1, 20), SEALED, {}, ToProduce.INCOMPLETE),
        (Named(-1, -1, 20), OPEN, {}, ToProduce.INCOMPLETE),
        (NOT_NAMED, OPEN, {}, ToProduce.APPENDED),
        (NOT_NAMED, OPEN, {"known": True, "refuses_unaware": True}, ToProduce.KNOWN),
        (NOT_NAMED, OPEN, {"fence_unwritten": True}, ToProduce.FENCE_UNWRITTEN),
        (NOT_NAMED, OPEN, {"refuses_unaware": True}, ToProduce.UNAWARE),
        (NOT_NAMED, SEALED, {}, ToProduce.SEALED),
        (NOT_NAMED, SEALED, {"known": True}, ToProduce.KNOWN),
        (NOT_NAMED, SEALED, {"refuses_unaware": True}, ToProduce.SEALED),
    ],
)
def test_each_row_of_produce(
    named: Named, here: Here, changed: dict[str, bool], expected: ToProduce
) -> None:
    assert to_produce(named, here, **changed) is expected


@pytest.mark.parametrize(
    ("named", "here", "shown", "expected"),
    [
        (OWN, OPEN, 3, ToFetch.TO_WATERMARK),
        (OWN, OPEN, 2, ToFetch.TO_WATERMARK),
        (OWN, OPEN, 5, ToFetch.TO_WATERMARK),
        (Named(7, 3, 20), OPEN, 3, ToFetch.TO_WATERMARK),  # the count decides nothing here
        (OWN, SEALED, 3, ToFetch.TO_WATERMARK),
        (Named(4, 9, 20), SEALED, 9, ToFetch.TO_WATERMARK),  # 8, 6, 4: the first retirees
        (Named(16, 4, 20), OPEN, 4, ToFetch.ELSEWHERE),
        (OLDER, OPEN, 2, ToFetch.TO_FENCE),
        (OLDER, OPEN, -1, ToFetch.TO_FENCE),  # no metadata of the topic yet
        (OLDER, OPEN, 3, ToFetch.OLDER),
        (OLDER, SEALED, 2, ToFetch.TO_FENCE),
        (OLDER, SEALED, 3, ToFetch.OLDER),
        (Named(4, 1, 20), OPEN, 2, ToFetch.OLDER),  # newer than the request is enough
        (Named(4, 0, 20), OPEN, 0, ToFetch.TO_FENCE),
        (Named(8, 3, 19), OPEN, 3, ToFetch.ELSEWHERE),
        (Named(8, 3, 21), SEALED, 3, ToFetch.ELSEWHERE),
        (Named(4, 2, 19), OPEN, 3, ToFetch.ELSEWHERE),
        (Named(8, 3, -1), OPEN, 3, ToFetch.INCOMPLETE),
        (Named(-1, 3, 20), OPEN, 3, ToFetch.INCOMPLETE),
        (Named(8, -1, 20), SEALED, 3, ToFetch.INCOMPLETE),
        (NOT_NAMED, OPEN, 3, ToFetch.TO_WATERMARK),
        (NOT_NAMED, SEALED, 3, ToFetch.TO_WATERMARK),
    ],
)
def test_each_row_of_fetch(named: Named, here: Here, shown: int, expected: ToFetch) -> None:
    assert answer_to_fetch(named, here, shown) is expected


@pytest.mark.parametrize("named", [NOT_NAMED, OWN, Named(1, -1, 2), Named(*HOSTILE[:3])])
def test_a_partition_that_no_command_of_level_1_5_has_named_checks_nothing(named: Named) -> None:
    everything = {"fence_unwritten": True, "refuses_unaware": True, "fence_committed": False}
    assert to_produce(named, UNNAMED, **everything) is ToProduce.APPENDED
    assert answer_to_fetch(named, UNNAMED, 7) is ToFetch.TO_WATERMARK


def test_only_a_batch_of_the_own_count_and_epoch_is_ever_appended_with_a_count() -> None:
    """Every combination of numbers around the partition's own, and hostile ones."""
    counts, epochs, lives = (-1, 0, 7, 8, *HOSTILE), (-1, 0, 1, 2, 3, 4, *HOSTILE), (-1, 19, 20)
    booleans = (False, True)
    for here, count, epoch, life in product((OPEN, SEALED), counts, epochs, (*lives, *HOSTILE)):
        named = Named(count, epoch, life)
        if named == NOT_NAMED:
            continue
        for known, unwritten, committed, refuses in product(booleans, repeat=4):
            answer = answer_to_produce(
                named,
                here,
                known=known,
                fence_unwritten=unwritten,
                fence_committed=committed,
                refuses_unaware=refuses,
            )
            fits = named == OWN and not (here.sealed or unwritten or known)
            assert (answer is ToProduce.APPENDED) == fits
            assert answer is not ToProduce.UNAWARE
            if answer is ToProduce.KNOWN:
                assert known and life == 20 and 1 <= epoch <= 3
            if answer is ToProduce.OLDER:
                assert committed and life == 20 and 1 <= epoch < 3
        read = answer_to_fetch(named, here, 3)
        if read is ToFetch.TO_WATERMARK:
            assert life == 20 and count != -1 and (epoch >= 3 if here.sealed else epoch == 3)
        if read is ToFetch.OLDER:
            assert life == 20 and epoch < 3
