"""Topics of Metadata responses as bytes, kept until what they show has changed.

Owns when bytes show a topic no longer, and how many are kept. Not how they are made: see
``handlers.metadata``; not the topics, nor how a client sees them: see ``cluster_view``.

| what changes | what is made again when it is asked for next |
|---|---|
| a partition of a topic, its counts or its id | the bytes of this topic |
| whether a leader can be named: it lives, its connection is open | those of the topics it leads |
| whether a topic keeps the order of keys | those of this topic, for clients that read its counts |
| the live brokers without a listener | those of all topics, for clients of this listener |

Memory: a partition of three replicas takes 45 bytes in each version that clients use, and once more
for each set of brokers that their listeners lack: listeners that all brokers have share the bytes.
``MOST_BYTES`` bounds all of it; beyond it the topics that were made first are made again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

MOST_BYTES = 33_554_432
"""700,000 partitions of three replicas."""

OVERHEAD_BYTES = 400
"""What a topic takes in one appearance, beside its bytes."""


class Form(NamedTuple):
    """What a request decides of the bytes of a topic."""

    version: int
    tagged: bool
    with_operations: bool


class Appearance(NamedTuple):
    """All that the bytes of a topic depend on, beside the topic itself."""

    form: Form
    counted: bool
    """Whether its counts are shown."""
    unnamed: frozenset[int]
    """Leaders of it that cannot be named."""
    unreachable: frozenset[int]
    """Live brokers without the client's listener."""


class _Kept:
    """The bytes of one topic by appearance, all of them after the same change of it."""

    __slots__ = ("by_appearance", "change", "size")

    def __init__(self, change: int) -> None:
        self.change = change
        self.by_appearance: dict[Appearance, bytes] = {}
        self.size = 0


class EncodedTopics:
    """The bytes of topics, by name."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self.size = 0
        """Bytes of memory, roughly."""

    def get(self, name: str, change: int, appearance: Appearance) -> bytes | None:
        """Return the bytes of a topic as it is after ``change``, if they are kept."""
        kept = self._kept.get(name)
        if kept is None or kept.change != change:
            return None
        return kept.by_appearance.get(appearance)

    def keep(self, name: str, change: int, appearance: Appearance, encoded: bytes) -> None:
        """Keep the bytes of a topic as it was after ``change``, unless newer ones are kept."""
        size = len(encoded) + OVERHEAD_BYTES
        kept = self._kept.get(name)
        if size > self._most_bytes or (kept is not None and kept.change > change):
            return
        if kept is None or kept.change < change:
            self.forget(name)
            kept = self._kept[name] = _Kept(change)
        if appearance in kept.by_appearance:
            return
        kept.by_appearance[appearance] = encoded
        kept.size += size
        self.size += size
        while self.size > self._most_bytes:
            self.forget(next(iter(self._kept)))

    def forget(self, name: str) -> None:
        """Drop the bytes of a topic."""
        kept = self._kept.pop(name, None)
        if kept is not None:
            self.size -= kept.size

    def clear(self) -> None:
        """Drop all bytes."""
        self._kept.clear()
        self.size = 0
