"""A batch of a transaction that waits for its append: its question, and what must hold after it.

Owns what the rules need to know of the partition, at the arrival of the batch and right before its
append. Not the rules: see `verification`. Not the questions: see `verifier`. Not the queue: see
`inspected_appends`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.partitions.resize_checks import is_known
from tidelog.broker.partitions.verification import (
    Claim,
    Guard,
    Verification,
    refusal_of,
    why_dropped,
)
from tidelog.records.batch import NO_PRODUCER_EPOCH, Buffer, Rejected
from tidelog.storage.log.joining import coordinator_epoch, is_open, last_marker

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.verifier import Verifier


class Joining:
    """One batch that waits for its turn, and perhaps for its coordinator."""

    __slots__ = ("_guard", "_is_confirmed", "_partition", "_verifier", "_version", "claim")

    def __init__(
        self, verifier: Verifier, partition: HostedPartition, claim: Claim, version: int
    ) -> None:
        """``version``: of the Produce request."""
        self.claim = claim
        self._verifier = verifier
        self._partition = partition
        self._version = version
        self._guard = self._present_guard()
        self._is_confirmed = False

    async def confirmed(self, records: Buffer, deadline: float) -> Rejected | None:
        """Ask the coordinator, if the rules say so; return why the batch is refused, or None."""
        partition, claim = self._partition, self.claim
        if not self._verifier.is_enabled:
            self._is_confirmed = True
        if self._is_confirmed or self._goes_on() or is_known(partition.log, records):
            return None
        entry = partition.log.producers.entries.get(claim.producer_id)
        verification = await self._verifier.verification(
            claim, partition.key, coordinator_epoch(entry), deadline
        )
        self._is_confirmed = verification is Verification.CONFIRMED
        return refusal_of(verification, claim, partition.key, self._version)

    def why_not(self, records: Buffer) -> Rejected | None:
        """Return why the batch must not be appended now, or None: the append decides the rest."""
        partition, claim = self._partition, self.claim
        if not partition.is_leader or is_known(partition.log, records):
            return None
        verification = why_dropped(claim, self._guard, self._present_guard())
        if verification is None and not (self._is_confirmed or self._goes_on()):
            verification = Verification.UNANSWERED
        if verification is None:
            return None
        return refusal_of(verification, claim, partition.key, self._version)

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
