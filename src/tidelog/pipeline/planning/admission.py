"""The admission of available offsets to one micro-batch.

Owns maxOffsetsPerTrigger, minOffsetsPerTrigger and maxTriggerDelay. Not which offsets are
available: see `planner`. Spark's own read limits are not used: they cannot be combined
(docs/internals/pipeline.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tidelog.pipeline.planning.positions import Pid


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The three options; delays are in milliseconds."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_ms: int = 0

    def should_wait(self, available: int, waited_ms: int) -> bool:
        """Whether to wait for more offsets before a batch is planned."""
        if self.min_offsets is None or available >= self.min_offsets:
            return False
        return waited_ms < self.max_trigger_delay_ms


def admit(
    ready: Mapping[Pid, int], max_offsets: int | None, first: Collection[Pid] = ()
) -> dict[Pid, int]:
    """How many offsets of each partition are taken, at least one of each that has any.

    `ready` is not above zero where nothing can be read from the position on.

    Half of the budget goes to the partitions in `first`, which hold others back; the rest to all in
    proportion to what is left of them.
    """
    sizes = {pid: size for pid, size in ready.items() if size > 0}
    if max_offsets is None or sum(sizes.values()) <= max_offsets:
        return sizes
    taken = dict.fromkeys(sizes, 0)
    ahead = {pid: size for pid, size in sizes.items() if pid in first}
    if ahead:
        _share(max_offsets // 2, ahead, taken)
    left = {pid: size - taken[pid] for pid, size in sizes.items()}
    _share(max_offsets - sum(taken.values()), left, taken)
    return {pid: max(1, count) for pid, count in taken.items()}


def _share(budget: int, sizes: Mapping[Pid, int], taken: dict[Pid, int]) -> None:
    total = sum(sizes.values())
    for pid, size in sizes.items():
        part = budget * size / total if total else 0.0
        # As the stock source: a share below one is one.
        taken[pid] += min(size, math.ceil(part) if part < 1 else math.floor(part))
