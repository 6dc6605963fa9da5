"""Truncation of a follower's log before it continues to fetch: pure rules.

The leader's response names the point where the logs diverge (KIP-320, KIP-595): its largest leader
epoch that is not above the follower's, and where that epoch ends in its log. The follower cuts
to the common part; when it does not know that epoch itself, it cuts to where its own next lower
epoch ends and asks again, with that epoch. Each round lowers the epoch, so it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut to ``offset``; ``below_watermark`` means that committed records are lost: that is data
    loss, noted before the cut (KIP-704)."""

    offset: int
    below_watermark: bool


def where_to_cut(
    diverging_epoch: int,
    leader_end_offset: int,
    own_end_of: Callable[[int], tuple[int, int]],
    own_end: int,
    own_start: int,
    high_watermark: int,
) -> Cut:
    """Return where a follower cuts after a diverging epoch; it may be below its own log start.

    Then its whole log is deleted, and it starts again where the leader's part ends: from its own
    log start it would lack what the leader holds below.

    ``own_end_of(epoch)`` returns (the largest own epoch not above it, where it ends), or (-1, -1).
    """
    if diverging_epoch == NO_EPOCH:
        # The leader has no such epoch: only the part below the high watermark is known to be
        # common.
        target = max(high_watermark, own_start)
    else:
        own_epoch, own_epoch_end = own_end_of(diverging_epoch)
        # Without an epoch so old, no local record is the leader's: its log continues where it ends.
        common_end = own_start if own_epoch == NO_EPOCH else own_epoch_end
        target = min(leader_end_offset, common_end)
    target = min(target, own_end)
    return Cut(target, max(target, own_start) < high_watermark)
