"""Memory bound of all groups of one coordinator: a sum over its tables, checked before it grows.

Owns the bound and the count of refusals. The rules ask for room when a member joins with more than
it had, a leader assigns more, or a group begins. Existing state is never refused: a member that
joins again with the same bytes, a heartbeat, a commit of a known group. One address may take all of
it, and then the others still have their share, as in the account of memory: the bound divided by
the addresses that hold some. So the use is at most twice the bound. Kafka has no such bound: there
clients decide how much memory a coordinator uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from tidelog.groups import limits


class Counted(Protocol):
    """A table of groups."""

    held: int
    held_by: dict[str, int]
    groups_by: dict[str, int]

    def __len__(self) -> int: ...


class GroupRoom:
    """Room for members, in bytes, and for groups, in all ``tables``."""

    __slots__ = ("_tables", "refused")

    def __init__(self, tables: Callable[[], Iterable[Counted]] = tuple) -> None:
        self._tables = tables
        self.refused = 0
        """Refusals for lack of room."""

    @property
    def held(self) -> int:
        """Bytes that the members of all groups take."""
        return sum(table.held for table in self._tables())

    def has_bytes(self, count: int, address: str) -> bool:
        """Whether members at ``address`` may take ``count`` bytes more. O(tables) if they are any,
        and O(addresses) while there is no room."""
        if count <= 0:
            return True
        limit = limits.MAX_HELD_BYTES
        return self._judged(
            self.held + count <= limit
            or in_share(address, count, limit, [table.held_by for table in self._tables()])
        )

    def has_group(self, address: str) -> bool:
        """Whether ``address`` may begin one more group. As ``has_bytes``."""
        limit = limits.MAX_GROUPS
        return self._judged(
            sum(map(len, self._tables())) < limit
            or in_share(address, 1, limit, [table.groups_by for table in self._tables()])
        )

    def _judged(self, there_is: bool) -> bool:
        self.refused += not there_is
        return there_is


def in_share(address: str, count: int, limit: int, held_by: Iterable[Mapping[str, int]]) -> bool:
    """Whether an address, with ``count`` more, has at most its share of a limit that others have
    used up; False when it was alone with it."""
    held, addresses = 0, {address}
    for table in held_by:
        held += table.get(address, 0)
        addresses.update(table)
    return len(addresses) > 1 and held + count <= limit // len(addresses)


def add_to(held_by: dict[str, int], address: str, count: int) -> None:
    """Count more, or less, for an address; one that holds nothing is not listed."""
    held = held_by.get(address, 0) + count
    if held:
        held_by[address] = held
    else:
        held_by.pop(address, None)
