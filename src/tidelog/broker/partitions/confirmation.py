"""Whether what arrives at a leader joins an open transaction of its producer, and whether it still
does when it has its turn.

Owns what the rules need to know of the partition: at the arrival, and right before the append. Used
for batches of producers, and for the offsets of groups. Not the rules: see `verification`. Not the
questions: see `verifier`. Not what waits: see `joining`, and `handlers.txn_offset_commit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.partitions.verification import Claim, Guard, Verification, why_dropped
from tidelog.records.batch import NO_PRODUCER_EPOCH
from tidelog.storage.log.joining import coordinator_epoch, is_open, last_marker

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.verifier import Verifier


class Confirmation:
    """That of one transaction in one partition, from the arrival of what joins it."""

    __slots__ = ("_guard", "_is_confirmed", "_partition", "_verifier", "claim")

    def __init__(self, verifier: Verifier, partition: HostedPartition, claim: Claim) -> None:
        self.claim = claim
        self._verifier = verifier
        self._partition = partition
        self._guard = self._present_guard()
        self._is_confirmed = False

    @property
    def is_needed(self) -> bool:
        """Whether the coordinator has to be asked: the transaction is not open here, and batches
        are verified."""
        if not self._verifier.is_enabled:
            self._is_confirmed = True
        return not (self._is_confirmed or self._goes_on())

    async def ask(self, deadline: float) -> Verification:
        """Return what the coordinator says before ``deadline`` in the time of the loop."""
        claim, entries = self.claim, self._partition.log.producers.entries
        verification = await self._verifier.verification(
            claim,
            self._partition.key,
            coordinator_epoch(entries.get(claim.producer_id)),
            deadline,
        )
        self._is_confirmed = verification is Verification.CONFIRMED
        return verification

    def why_not(self) -> Verification | None:
        """Return why nothing must be appended for the claim now, or None."""
        dropped = why_dropped(self.claim, self._guard, self._present_guard())
        if dropped is None and not (self._is_confirmed or self._goes_on()):
            return Verification.UNANSWERED
        return dropped

    def _goes_on(self) -> bool:
        entry = self._partition.log.producers.entries.get(self.claim.producer_id)
        return is_open(entry, self.claim.producer_epoch)

    def _present_guard(self) -> Guard:
        leadership = self._partition.leadership
        entry = self._partition.log.producers.entries.get(self.claim.producer_id)
        return Guard(
            -1 if leadership is None else leadership.since,
            NO_PRODUCER_EPOCH if entry is None else entry.epoch,
            last_marker(entry),
        )
