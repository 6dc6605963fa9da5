"""The least that each turn of an event loop took in several runs of the same work.

Owns the comparison. Not the measuring: see ``turn_costs``.
"""

from __future__ import annotations

from collections.abc import Sequence


class BestTurns:
    """What each turn of a piece of work took in the run in which it took least.

    A turn that is too long is so in every run; a turn that lost its cache is another one each time.
    Only runs with the same number of turns are compared, turn by turn: they did the same steps.
    """

    def __init__(self) -> None:
        self._least_s: dict[int, list[float]] = {}

    def add(self, costs_s: Sequence[float]) -> None:
        """Take up what each turn of one run took."""
        least_s = self._least_s.get(len(costs_s), costs_s)
        self._least_s[len(costs_s)] = [*map(min, least_s, costs_s)]

    @property
    def longest_s(self) -> float:
        """The turn that takes longest."""
        return min(max(least_s) for least_s in self._least_s.values())
