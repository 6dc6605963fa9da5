"""The sequence numbers of idempotent producers in one partition, by the headers of batches. No I/O.

Owns the rule that they never run backwards (KIP-98): not within an epoch of a producer, and the
epoch itself neither. A batch that a partition holds twice would begin again at a number that it
has. A gap says nothing: compaction leaves gaps, and so do batches that went to another partition.
Numbers are per partition, so that they say nothing of a key that moved: see ``key_order``.
"""

from __future__ import annotations

from tidelog.cli.auditing.key_order import TooManyKeys
from tidelog.records.batch import MAX_INT32, BatchHeader

MOST_PRODUCERS = 1_000_000
"""Producers of one partition that are remembered: about 200 bytes each."""

_HALF = 2**30
"""A number that lies further ahead than this lies before: numbers wrap at 2^31."""


class ProducersOfPartition:
    """The last epoch and sequence number of each producer in the log of a partition."""

    def __init__(self, most: int = MOST_PRODUCERS) -> None:
        self._most = most
        self._last: dict[int, tuple[int, int]] = {}

    def step_back(self, header: BatchHeader) -> str | None:
        """Take up the next batch; return what runs backwards in it, or None.

        The marker of a transaction has no sequence number.
        """
        producer, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
        if producer < 0 or first < 0:
            return None
        before = self._last.get(producer)
        if before is None and len(self._last) >= self._most:
            raise TooManyKeys(f"a partition has more than {self._most:,} idempotent producers")
        if before is None or epoch > before[0]:
            self._last[producer] = epoch, header.last_sequence
            return None
        if epoch < before[0]:
            return f"epoch {epoch} of producer {producer} after its epoch {before[0]}"
        if (first - before[1] - 1) & MAX_INT32 >= _HALF:
            return f"sequence {first} of producer {producer} after its {before[1]}"
        self._last[producer] = epoch, header.last_sequence
        return None
