"""The randomness that decisions draw: new ids, and where a placement starts.

Owns the interface only: a test gives fixed values, the process its seams.
"""

from __future__ import annotations

from typing import Protocol
from uuid import UUID


class Entropy(Protocol):
    """A source of random ids and numbers."""

    def new_uuid(self) -> UUID:
        """Return a random id."""

    def below(self, bound: int) -> int:
        """Return a random number from 0 on, below ``bound``."""
