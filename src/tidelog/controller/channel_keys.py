"""Channel keys: a controller gives each broker one, and repeats it in OpenControlChannel.

Owns the rule that a key belongs to (controller epoch, broker epoch): a repeated registration, on
another connection of the same process, gets the same key. Keys last as long as this process; the
next controller has another epoch.
"""

from __future__ import annotations

import random
from uuid import UUID

KEY_BITS = 128


class ChannelKeys:
    """One key for each broker that registered; the newest epochs only."""

    def __init__(self, entropy: random.Random) -> None:
        self._entropy = entropy
        self._keys: dict[int, tuple[tuple[int, int], UUID]] = {}

    def of(self, broker: int, controller_epoch: int, broker_epoch: int) -> UUID:
        """Return the key of a broker in these epochs; the first call makes it."""
        epochs = (controller_epoch, broker_epoch)
        kept = self._keys.get(broker)
        if kept is not None and kept[0] == epochs:
            return kept[1]
        # Never zero: on the wire zero means no key.
        key = UUID(int=self._entropy.getrandbits(KEY_BITS) or 1)
        self._keys[broker] = (epochs, key)
        return key
