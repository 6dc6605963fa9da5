"""How many batches of transactions may wait on a broker, for one partition and in all.

Owns the counts. Pure. Not the bytes in all, and what one client may have of them: those are counted
with all other batches that wait, in `inspected_appends`.
"""

from __future__ import annotations

from collections.abc import Hashable

MOST_BATCHES = 10_000
"""Most batches in all."""

MOST_OF_PARTITION = 1_000
"""Most batches of one partition."""

MOST_BYTES_OF_PARTITION = 16 * 1024 * 1024
"""Most bytes of one partition; a larger batch waits there alone."""


class JoiningRoom:
    """The batches that wait now. Memory grows with the partitions that have some."""

    __slots__ = ("_of_partitions", "batches")

    def __init__(self) -> None:
        self.batches = 0
        self._of_partitions: dict[Hashable, tuple[int, int]] = {}
        """Batches and bytes."""

    def enter(self, partition: Hashable, size: int) -> bool:
        """Count one more batch of a partition; False, with nothing done, where none may wait."""
        count, held = self._of_partitions.get(partition, (0, 0))
        if self.batches >= MOST_BATCHES or count >= MOST_OF_PARTITION:
            return False
        if count and held + size > MOST_BYTES_OF_PARTITION:
            return False
        self.batches += 1
        self._of_partitions[partition] = count + 1, held + size
        return True

    def leave(self, partition: Hashable, size: int) -> None:
        """Count one batch less."""
        count, held = self._of_partitions[partition]
        self.batches -= 1
        if count > 1:
            self._of_partitions[partition] = count - 1, held - size
        else:
            del self._of_partitions[partition]
