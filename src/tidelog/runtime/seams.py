"""The four seams to the outside, handed through the product as one value.

Clock and disk are interfaces, randomness is a ``random.Random``, and the transport is the running
event loop itself (``create_server``, ``create_connection``, ``call_later``, ``run_in_executor``):
the simulation replaces the loop by one with virtual time, simulated connections and executors
that run inline.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from tidelog.runtime.clock import Clock, RealClock
from tidelog.runtime.disk import Disk, RealDisk


@dataclass(frozen=True)
class Seams:
    """Clock, randomness and disk of one process, and the executors of its long work.

    ``threads`` is for calls that release the GIL (fsync, large CRCs), ``processes`` for
    CPU-bound work (compaction). Both go to ``loop.run_in_executor``; None means the loop's default.
    """

    clock: Clock = field(default_factory=RealClock)
    random: random.Random = field(default_factory=random.SystemRandom)
    disk: Disk = field(default_factory=RealDisk)
    threads: Executor | None = None
    processes: Executor | None = None
    recovery_helpers: Callable[[int], Executor] | None = None
    """Makes an executor of so many processes for the checks of a start; None: no helpers."""

    def new_uuid(self) -> uuid.UUID:
        """Return a random UUID (version 4) from this process's randomness."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def below(self, bound: int) -> int:
        """Return a random number from 0 on, below ``bound``."""
        return self.random.randrange(bound)
