"""The reference order of each key: where its records belong, in which order.

Owns the homes of a key and its list L. Not the checks: see ``checks``. The resize log gives the
homes, and the cuts of each resize the offsets between which a home takes the key. So no order is
searched: L is computed, and verified. Grows with the records and their logarithm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.order.history import Delivery, History, Resize, Send, Stored
from tidelog.partitioning.hashing import hash_of_key, partition_of

NO_END = 1 << 62
"""The end of the home that a key has now."""


@dataclass(frozen=True, slots=True)
class Home:
    """A partition that takes a key, from its offset ``start`` to ``end``."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A record of a key in its list: where it is, and what was sent."""

    partition: int
    offset: int
    send: Send


def homes_of(key: str, initial_count: int, resizes: Iterable[Resize]) -> list[Home]:
    """Return the homes of a key, in their order. A resize that was undone moves no key."""
    key_hash = hash_of_key(key.encode())
    partition = partition_of(key_hash, initial_count, initial_count)
    homes, start = [], 0
    for resize in sorted(resizes, key=lambda each: each.resize_epoch):
        if resize.is_undone:
            continue
        target = partition_of(key_hash, initial_count, resize.count)
        if target != partition:
            homes.append(Home(partition, start, resize.cuts[partition]))
            partition, start = target, resize.cuts[target]
    homes.append(Home(partition, start, NO_END))
    return homes


class Reference:
    """What the checks share: the sends, the records that are there, and the list of each key."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sends: dict[int, Send] = {send.uid: send for send in history.of(Send)}
        self.places: dict[tuple[int, int], int] = {}
        """(partition, offset) -> uid, of the first reader that saw it; a delivery is a read."""
        for read in (*history.of(Stored), *history.of(Delivery)):
            self.places.setdefault((read.partition, read.offset), read.uid)
        self.by_key: dict[str, dict[tuple[int, int], Send]] = defaultdict(dict)
        for place, uid in self.places.items():
            if uid in self.sends:
                self.by_key[self.sends[uid].key][place] = self.sends[uid]
        resizes = history.of(Resize)
        self.homes: dict[str, list[Home]] = {
            key: homes_of(key, history.initial_count, resizes)
            for key in {send.key for send in self.sends.values()}
        }
        self.lists: dict[str, list[Placed]] = {
            key: _in_homes(self.homes[key], found) for key, found in self.by_key.items()
        }


def _in_homes(homes: Sequence[Home], found: Mapping[tuple[int, int], Send]) -> list[Placed]:
    of_partition: dict[int, list[tuple[int, Send]]] = defaultdict(list)
    for (partition, offset), send in found.items():
        of_partition[partition].append((offset, send))
    return [
        Placed(home.partition, offset, send)
        for home in homes
        for offset, send in sorted(of_partition.get(home.partition, ()), key=lambda pair: pair[0])
        if home.start <= offset < home.end
    ]
