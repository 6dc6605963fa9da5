"""Rules of counts in requests (KIP-253): what a leader answers to Produce and to Fetch.

Owns the two tables of docs/design/elastic.md; pure. Not the state of a partition, nor the look-ups
that a row needs: see `broker.partitions.resize_checks`. In each table the first row that fits
decides. The numbers of a request are compared, and never computed with: hostile ones fit some row
like all others.

Produce with a count:

| request | answer |
|---|---|
| count, resize epoch and partition epoch: some, but not all | INCOMPLETE |
| another partition epoch; E newer than the partition's; E older than its birth epoch | ELSEWHERE |
| a batch that is known | KNOWN |
| the partition's own fence or seal is not written | FENCE_UNWRITTEN |
| E older; the fence (seal) of the partition's E below the watermark | OLDER |
| E older; that fence (seal) above the watermark, or not in the log | UNDETERMINED |
| the same E; the partition is sealed | SEALED |
| the same E; another count | OTHER_COUNT |
| any other | APPENDED |

Produce without a count: the rows KNOWN, FENCE_UNWRITTEN and SEALED, then UNAWARE with
``unaware.producers=refuse``, otherwise APPENDED.

Fetch and ListOffsets with a count:

| request | answer |
|---|---|
| count, resize epoch and partition epoch: some, but not all | INCOMPLETE |
| another partition epoch; E newer than the partition's, not sealed | ELSEWHERE |
| the same E; or sealed, and E not older | TO_WATERMARK |
| E older; this broker's metadata does not show a newer one | TO_FENCE |
| E older; this broker's metadata shows a newer one | OLDER |

Without a count: TO_WATERMARK. A partition that no LeaderAndIsr v6 has named checks nothing.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple, Protocol

ABSENT = -1
"""The value of a number that a request does not have, and of a count that no command has named."""


class Named(NamedTuple):
    """The numbers that a request has for a partition: all three, or none (``NOT_NAMED``)."""

    undeleted_count: int = ABSENT
    resize_epoch: int = ABSENT
    partition_epoch: int = ABSENT


NOT_NAMED = Named()
"""Of a client that does not know counts, or knows that the topic needs none."""


class ResizeStanding(Protocol):
    """A partition as the newest LeaderAndIsr states it."""

    @property
    def partition_epoch(self) -> int: ...

    @property
    def undeleted_count(self) -> int: ...

    @property
    def resize_epoch(self) -> int: ...

    @property
    def birth_epoch(self) -> int: ...

    @property
    def sealed(self) -> bool: ...


class ToProduce(Enum):
    """The answer to one batch."""

    INCOMPLETE = auto()
    ELSEWHERE = auto()
    KNOWN = auto()
    FENCE_UNWRITTEN = auto()
    OLDER = auto()
    UNDETERMINED = auto()
    SEALED = auto()
    OTHER_COUNT = auto()
    UNAWARE = auto()
    APPENDED = auto()


class ToFetch(Enum):
    """The answer to one partition of a Fetch or ListOffsets."""

    INCOMPLETE = auto()
    ELSEWHERE = auto()
    TO_WATERMARK = auto()
    TO_FENCE = auto()
    OLDER = auto()


def answer_to_produce(
    named: Named,
    here: ResizeStanding,
    *,
    known: bool,
    fence_unwritten: bool,
    fence_committed: bool,
    refuses_unaware: bool,
) -> ToProduce:
    """Return the answer to a batch. ``known``: it is one of its producer's last batches;
    ``fence_committed``: the fence or seal of the partition's E is below the high watermark."""
    if here.undeleted_count == ABSENT:
        return ToProduce.APPENDED
    aware = named != NOT_NAMED
    if aware:
        if ABSENT in named:
            return ToProduce.INCOMPLETE
        if (
            named.partition_epoch != here.partition_epoch
            or not here.birth_epoch <= named.resize_epoch <= here.resize_epoch
        ):
            return ToProduce.ELSEWHERE
    # After the incarnation, whose leader alone may answer for it; before all that came since the
    # batch was appended: a duplicate is a success (promise 6).
    if known:
        return ToProduce.KNOWN
    # A batch of this epoch comes after the fence that begins it (promise 8).
    if fence_unwritten:
        return ToProduce.FENCE_UNWRITTEN
    if aware and named.resize_epoch < here.resize_epoch:
        # Above the watermark the fence may be cut with the next leader, and a copy of the batch in
        # another log may become committed: only below it the refusal is definite (promise 2).
        return ToProduce.OLDER if fence_committed else ToProduce.UNDETERMINED
    if here.sealed:
        return ToProduce.SEALED
    if aware and named.undeleted_count != here.undeleted_count:
        return ToProduce.OTHER_COUNT
    if refuses_unaware and not aware:
        return ToProduce.UNAWARE
    return ToProduce.APPENDED


def answer_to_fetch(named: Named, here: ResizeStanding, shown_epoch: int) -> ToFetch:
    """Return the answer to a read. ``shown_epoch``: the topic's E in this broker's metadata."""
    if here.undeleted_count == ABSENT or named == NOT_NAMED:
        return ToFetch.TO_WATERMARK
    if ABSENT in named:
        return ToFetch.INCOMPLETE
    if named.partition_epoch != here.partition_epoch:
        return ToFetch.ELSEWHERE
    if named.resize_epoch > here.resize_epoch and not here.sealed:
        return ToFetch.ELSEWHERE
    if named.resize_epoch >= here.resize_epoch:
        return ToFetch.TO_WATERMARK
    return ToFetch.OLDER if shown_epoch > named.resize_epoch else ToFetch.TO_FENCE
