"""What all groups of one coordinator may take: a sum over its tables, looked at before it grows.

Owns the bound and the count of refusals. The rules ask for room when a member joins with more than
it had, a leader assigns more, or a group begins; what is there goes on: a member that comes back
with what it had, a heartbeat and a commit of a known group are never refused for it. Kafka has no
such bound: there the memory of a coordinator is what its clients send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from tidelog.groups import limits


class Counted(Protocol):
    """A table of groups."""

    held: int

    def __len__(self) -> int: ...


class Room:
    """Room for members, in bytes, and for groups, in all ``tables``."""

    __slots__ = ("_tables", "refused")

    def __init__(self, tables: Callable[[], Iterable[Counted]] = tuple) -> None:
        self._tables = tables
        self.refused = 0
        """How often there was none."""

    @property
    def held(self) -> int:
        """Bytes that the members of all groups take."""
        return sum(table.held for table in self._tables())

    def has_bytes(self, count: int) -> bool:
        """Whether members may take ``count`` bytes more. O(tables) if they are any."""
        return count <= 0 or self._judged(self.held + count <= limits.MAX_HELD_BYTES)

    def has_group(self) -> bool:
        """Whether there may be one more group. O(tables)."""
        return self._judged(sum(map(len, self._tables())) < limits.MAX_GROUPS)

    def _judged(self, there_is: bool) -> bool:
        self.refused += not there_is
        return there_is
