"""Spans of resize epochs in the log of a partition, and the counts by which a key lies there. Pure.

Owns what the fences of a topic say of records that are in its logs (KIP-253). Not the hash: see
``hashing``. Not the order of delivery: see ``gates``. Source: docs/design/elastic.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from tidelog.partitioning.gates import Fence


class EpochSpan(NamedTuple):
    """The offsets [begin, end) of a partition that were written in one resize epoch."""

    resize_epoch: int
    begin: int
    end: int


def spans_of(fences: Iterable[Fence], begin: int, end: int) -> Iterator[EpochSpan]:
    """Yield the spans of [begin, end) in the order of the log; empty ones are left out.

    ``fences`` are those of the partition by ascending resize epoch. A fence is the first offset of
    its epoch; what lies before all of them is of epoch 0.
    """
    epoch = 0
    for fence in fences:
        upto = min(max(fence.offset, begin), end)
        if begin < upto:
            yield EpochSpan(epoch, begin, upto)
        begin, epoch = upto, fence.resize_epoch
    if begin < end:
        yield EpochSpan(epoch, begin, end)


def counts_in_force(
    initial_count: int, by_epoch: Mapping[int, int], births: Collection[int]
) -> dict[int, tuple[int, ...]]:
    """Return the counts by which the key of a record may lie, for each resize epoch from 0 on.

    ``by_epoch``: the count of each fence and seal; ``births``: the epochs in which partitions that
    are listed were born. Mostly it is one count. Two stand where a growth may have been undone (the
    next epoch has the former count again, and no partition was born): no client saw the larger one,
    and fences alone do not say it. None stands where no order was promised: before an epoch that
    only repeats the count, with which ``enable.ordered.delivery`` was switched on again, and where
    the count is below the initial one.
    """
    epochs = [0, *sorted(by_epoch)]
    counts = {**by_epoch, 0: initial_count}
    found: dict[int, tuple[int, ...]] = {}
    for place, epoch in enumerate(epochs):
        before, count, after = (counts.get(each) for each in (epoch - 1, epoch, epoch + 1))
        assert count is not None, "an epoch of the list"
        if count == before:
            found.update(dict.fromkeys(epochs[:place], ()))
        possible = [count]
        if before is not None and before == after and before < count and epoch not in births:
            possible.insert(0, before)
        found[epoch] = tuple(each for each in possible if each >= initial_count)
    return found
