"""Which partitions have keys in common under two counts: what older batches hold up. Pure.

Owns the rule of a producer whose topic is resized: a batch of the newer count for a partition waits
for the older batches whose keys may come there, and for no other. Not the batches: see
``client.producing.topic_epochs``. Source: docs/design/elastic.md, "Producers".

The hashes that are at home in a partition are those with one remainder: ``hash % modulus ==
partition``, where the modulus is the level of the count, or twice the level for a partition that
was split and for its child. So two partitions have a hash in common exactly if they are equal
modulo the greatest common divisor of both moduli. Of one topic, one modulus divides the other. Of a
topic that was created again with another initial count, the least common multiple may be above all
hashes; then a partition may wait for one with which it has none in common.
"""

from __future__ import annotations

from math import gcd

from tidelog.partitioning.lineage import level_of

ALONE = 0
"""The modulus of a batch whose keys go to no other partition, whatever the count is."""

ANY = 1
"""The modulus of a batch that may have any key."""


class OlderKeys:
    """Where keys of older batches may come to at the present count.

    To ``add`` a batch and to ask ``holds`` take a few steps each, however many there are: a modulus
    is the initial count times a power of two, so there are few of them.
    """

    def __init__(self, initial_count: int | None, count: int) -> None:
        """``initial_count`` None: the topic is not ordered; each partition waits for itself."""
        self._level = 0 if initial_count is None else level_of(initial_count, count)
        self._split = count - self._level
        self._same: set[int] = set()
        # By the modulus of a partition: common divisors with those of older batches, and which
        # remainders these have.
        self._taken: dict[int, dict[int, set[int]]] = {self._level: {}, 2 * self._level: {}}

    def add(self, partition: int, modulus: int) -> None:
        """Let an older batch hold up what its keys may come to; see also ``ALONE``, ``ANY``."""
        self._same.add(partition)
        if modulus == ALONE or not self._level:
            return
        for present, taken in self._taken.items():
            divisor = gcd(modulus, present)
            taken.setdefault(divisor, set()).add(partition % divisor)

    def holds(self, partition: int) -> bool:
        """Whether a partition waits for an older batch."""
        if partition in self._same:
            return True
        level = self._level
        if not level:
            return False
        is_split = partition < self._split or partition >= level
        taken = self._taken[2 * level if is_split else level]
        return any(partition % divisor in some for divisor, some in taken.items())
