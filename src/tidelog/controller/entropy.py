"""The randomness of the controller's decisions, drawn from the process's seam."""

from __future__ import annotations

from uuid import UUID

from tidelog.runtime.seams import Seams


class SeamEntropy:
    """``decisions.entropy.Entropy`` from the seams of this process."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams

    def new_uuid(self) -> UUID:
        """Return a random id."""
        return self._seams.new_uuid()

    def below(self, bound: int) -> int:
        """Return a random number from 0 on, below ``bound``."""
        return self._seams.random.randrange(bound)
