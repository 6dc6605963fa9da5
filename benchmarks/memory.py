"""Memory that the machine has at hand when a row is measured.

A virtual machine gives free pages back to its host after seconds (free page reporting), and a page
that was given back costs a fault of the host at its next first use: several times what a write to
the page cache costs otherwise. Whichever version finds such pages looks worse: in one profile such
writes were 27 % of a follower's CPU, in another of the same load 4 %. So before each measurement
many pages are used and freed again; the kernel hands out first what was freed last.
"""

from __future__ import annotations

import mmap

AT_HAND = 1 << 30
"""Bytes; the largest rows write a third of it."""

PART_OF_FREE = 4
"""At most such a part of the memory that is free."""


def have_memory_at_hand() -> None:
    """Use and free ``AT_HAND`` bytes, or fewer where memory is short: a second at most."""
    size = min(AT_HAND, _available() // PART_OF_FREE) // mmap.PAGESIZE * mmap.PAGESIZE
    if size:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        mmap.mmap(-1, size, flags=flags).close()


def _available() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
