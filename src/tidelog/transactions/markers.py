"""Markers as a leader gets them: which one its log takes.

Owns this rule for partitions of topics. Pure. Not the batch: see ``records.control_records``; not
offsets of groups, whose table has the same rule: see ``groups.committing_producers``.

| what the log has of the producer, committed or not | the marker |
|---|---|
| any | without a producer id or epoch: INVALID_PRODUCER_EPOCH |
| a higher epoch | INVALID_PRODUCER_EPOCH |
| any | of a negative coordinator epoch: TRANSACTION_COORDINATOR_FENCED |
| a marker of a higher coordinator epoch | TRANSACTION_COORDINATOR_FENCED |
| the same marker, written by this leader and not committed yet | waits for that one |
| anything else | is written, also where nothing is open |

The last row says "written" also for a marker that is in the log and committed (decisions 0122 and
0128): it does not show that this leader is still the leader, nor that the present transaction of
its producer has ended, for one epoch has many transactions. Written again it ends what is open, if
anything is, and fences former epochs; a reader gets the same.
Source: KIP-98, section "Control Messages"; KIP-664 for markers without a coordinator.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.transactions.state import IdAndEpoch

NONE = -1
"""The epoch of a log that has no such producer, or no marker of it."""


class Marker(NamedTuple):
    """The end of one producer's transaction, as a coordinator sends it to partitions."""

    producer: IdAndEpoch
    committed: bool
    coordinator_epoch: int


def why_refused(marker: Marker, producer_epoch: int, coordinator_epoch: int) -> ErrorCode:
    """Return NONE if a log takes this marker, otherwise the error.

    ``producer_epoch``: the highest of its producer in the log. ``coordinator_epoch``: that of the
    producer's last marker there.
    """
    producer_id, epoch = marker.producer
    if producer_id < 0 or epoch < 0 or epoch < producer_epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    # A snapshot of producers has -1 for "no marker": a negative epoch would be lost in it.
    if marker.coordinator_epoch < max(coordinator_epoch, 0):
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED
    return ErrorCode.NONE
