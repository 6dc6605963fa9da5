"""The store in which the members of a group keep the state of keys, as an application would.

Owns the states, and the refusal of a member of an older generation. Not when they are read and
written: see ``consumer_members``. A state is a number here; what it holds is in the history.
"""

from __future__ import annotations

import itertools

from tidelog.client.errors import ClientError

NO_STATE = -1


class KeyStore:
    """The states of one group: the number of the newest one of each key."""

    def __init__(self) -> None:
        self.is_fencing = True
        """Whether generations only rise: a coordinator that lost its log begins them again."""
        self.numbers = itertools.count(1)
        """Of states that members make."""
        self._states: dict[bytes, int] = {}
        self._generation = -1

    def read(self, generation: int) -> dict[bytes, int]:
        """Return all states; writes of older generations are refused from now on."""
        self._generation = max(self._generation, generation)
        return dict(self._states)

    def write(self, generation: int, states: dict[bytes, int]) -> None:
        """Write the states of keys. ClientError: a member of a newer generation has read them."""
        if self.is_fencing and generation < self._generation:
            raise ClientError(f"generation {generation} is over: {self._generation} has begun")
        self._states |= states
