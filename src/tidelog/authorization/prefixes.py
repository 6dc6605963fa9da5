"""Prefixes -> the mask of all that a name begins with, in time that is logarithmic in their count.

Owns the order of the prefixes and the jumps between those that begin with each other. Not what the
masks mean: see `rules`.

Sorted, the last prefix that is not above a name is the longest one that the name begins with, or
begins with it itself. So a look-up is one bisection, and a walk to shorter prefixes: each entry has
its parent (the longest prefix that it begins with) and a jump to an entry further up (Myers, "An
applicative random-access stack"), so that a chain of n prefixes takes about log2(n) steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping

NONE = -1


class Prefixes:
    """The prefixed rules of one principal, host and type of resource; never changed."""

    __slots__ = ("_jump", "_length", "_masks", "_names", "_parent")

    def __init__(self, masks: Mapping[str, int]) -> None:
        """``masks`` by prefix; those of shorter prefixes are added to longer ones here."""
        self._names = sorted(masks)
        self._length = [len(name) for name in self._names]
        self._parent: list[int] = []
        self._jump: list[int] = []
        self._masks: list[int] = []
        depth: list[int] = []
        chain: list[int] = []
        for index, name in enumerate(self._names):
            while chain and not name.startswith(self._names[chain[-1]]):
                chain.pop()
            parent = chain[-1] if chain else NONE
            self._parent.append(parent)
            self._masks.append(masks[name] | (self._masks[parent] if chain else 0))
            depth.append(depth[parent] + 1 if chain else 0)
            self._jump.append(self._jump_of(parent, depth))
            chain.append(index)

    def _jump_of(self, parent: int, depth: list[int]) -> int:
        if parent == NONE:
            return NONE
        first = self._jump[parent]
        if first == NONE:
            return parent
        second = self._jump[first]
        below = depth[second] if second != NONE else 0
        return second if depth[parent] - depth[first] == depth[first] - below else parent

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def match(self, name: str) -> int:
        """Return the masks of all prefixes that a name begins with, as one."""
        index = bisect_right(self._names, name) - 1
        if index == NONE:
            return 0
        if name.startswith(self._names[index]):
            return self._masks[index]
        common = _common(self._names[index], name)
        while index != NONE and self._length[index] > common:
            jump = self._jump[index]
            is_far = jump != NONE and self._length[jump] > common
            index = jump if is_far else self._parent[index]
        return self._masks[index] if index != NONE else 0


def _common(one: str, other: str) -> int:
    """Return how many characters two texts begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if other.startswith(one[:middle]):
            low = middle
        else:
            high = middle - 1
    return low
