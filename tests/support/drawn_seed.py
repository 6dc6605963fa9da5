"""The seed of a test that draws another one each time: printed, and given again by TIDELOG_SEED."""

from __future__ import annotations

import os
import random


def drawn_seed() -> int:
    """Return the seed for a test's `random.Random`, and print how to have the same one again."""
    given = os.environ.get("TIDELOG_SEED")
    seed = random.SystemRandom().getrandbits(32) if given is None else int(given)
    print(f"TIDELOG_SEED={seed}")
    return seed
