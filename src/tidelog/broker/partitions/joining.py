"""A batch of a transaction that waits for its append: its question, and what must hold after it.

Owns what is asked for one batch, and its refusals. Not what is known of the transaction: see
`confirmation`. Not the rules: see `verification`. Not the queue: see `inspected_appends`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.partitions.confirmation import Confirmation
from tidelog.broker.partitions.resize_checks import is_known
from tidelog.broker.partitions.verification import Claim, refusal_of
from tidelog.records.batch import Buffer, Rejected

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.verifier import Verifier


class Joining:
    """One batch that waits for its turn, and perhaps for its coordinator."""

    __slots__ = ("_confirmation", "_partition", "_version", "claim")

    def __init__(
        self, verifier: Verifier, partition: HostedPartition, claim: Claim, version: int
    ) -> None:
        """``version``: of the Produce request."""
        self.claim = claim
        self._partition = partition
        self._version = version
        self._confirmation = Confirmation(verifier, partition, claim)

    async def confirmed(self, records: Buffer, deadline: float) -> Rejected | None:
        """Ask the coordinator, if the rules say so; return why the batch is refused, or None."""
        partition = self._partition
        if not self._confirmation.is_needed or is_known(partition.log, records):
            return None
        verification = await self._confirmation.ask(deadline)
        return refusal_of(verification, self.claim, partition.key, self._version)

    def why_not(self, records: Buffer) -> Rejected | None:
        """Return why the batch must not be appended now, or None: the append decides the rest."""
        partition = self._partition
        if not partition.is_leader or is_known(partition.log, records):
            return None
        verification = self._confirmation.why_not()
        if verification is None:
            return None
        return refusal_of(verification, self.claim, partition.key, self._version)
