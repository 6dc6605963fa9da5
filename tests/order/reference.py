"""The reference order of each key: where its records belong, in which order.

Owns the homes of a key and its list L. Not the checks: see ``checks``. The resize log gives the
homes, and the cuts of each resize the offsets between which a home takes the key. So no order is
searched: L is computed, and verified. Grows with the records and their logarithm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.order.clean import FOR_EVER, clean_part, in_doubt_since, unclean_since
from tests.order.history import (
    Compaction,
    Delivery,
    History,
    Outcome,
    Resize,
    Send,
    Stored,
    Unaware,
)
from tidelog.partitioning.hashing import hash_of_key, partition_of

NEVER = float("-inf")

NO_END = 1 << 62
"""The end of the home that a key has now."""


@dataclass(frozen=True, slots=True)
class Home:
    """A partition that takes a key, from its offset ``start`` to ``end``."""

    partition: int
    start: int
    end: int
    since: float = 0.0
    """When clients could first see it."""


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
    homes, start, since = [], 0, 0.0
    for resize in sorted(resizes, key=lambda each: each.resize_epoch):
        if resize.is_undone:
            continue
        target = partition_of(key_hash, initial_count, resize.count)
        if target != partition:
            homes.append(Home(partition, start, resize.cuts[partition], since))
            partition, start, since = target, resize.cuts[target], resize.at
    homes.append(Home(partition, start, NO_END, since))
    return homes


class Reference:
    """What the checks share: the sends, the records that are there, and the list of each key."""

    def __init__(self, history: History) -> None:
        self.unclean = unclean_since(history)
        """When each partition that is not clean had its first unclean election."""
        self.history = history = clean_part(history, self.unclean)
        self.sends: dict[int, Send] = {send.uid: send for send in history.of(Send)}
        self.places: dict[tuple[int, int], int] = {}
        """(partition, offset) -> uid, of the first reader that saw it; a delivery is a read."""
        for read in (*history.of(Stored), *history.of(Delivery)):
            self.places.setdefault((read.partition, read.offset), read.uid)
        self.there = set(self.places.values())
        """The records that were read."""
        self.is_compacted = bool(history.of(Compaction))
        self.unseen_deletions: set[str] = set()
        """Keys with a deletion that may have been written, and removed before anybody saw it."""
        if self.is_compacted:
            self._place_acknowledged()
        self.by_key: dict[str, dict[tuple[int, int], Send]] = defaultdict(dict)
        for place, uid in self.places.items():
            if uid in self.sends:
                self.by_key[self.sends[uid].key][place] = self.sends[uid]
        resizes = history.of(Resize)
        self.homes: dict[str, list[Home]] = {
            key: homes_of(key, history.initial_count, resizes)
            for key in {send.key for send in self.sends.values()}
        }
        self.in_doubt: dict[str, float] = {}
        """From when on the order of a key is not promised, of those where it is not."""
        self._leave_out_doubts(resizes)
        self.lists: dict[str, list[Placed]] = {
            key: _in_homes(self.homes[key], self.in_order(key)) for key in self.by_key
        }

    def _place_acknowledged(self) -> None:
        """Place what was acknowledged and may have been removed: a list has it, too."""
        for send in self.sends.values():
            if send.outcome is Outcome.OK and send.offset >= 0:
                self.places.setdefault((send.partition, send.offset), send.uid)
            elif (
                send.is_deletion and send.outcome is not Outcome.FAIL and send.uid not in self.there
            ):
                self.unseen_deletions.add(send.key)

    def is_in_order(self, key: str, at: float) -> bool:
        """Whether the order of a key is promised at a moment."""
        return at < self.in_doubt.get(key, FOR_EVER)

    def in_order(self, key: str) -> dict[tuple[int, int], Send]:
        """Return the records of a key whose order is promised, by their places."""
        found = self.by_key[key]
        if key not in self.in_doubt:
            return found
        return {place: send for place, send in found.items() if send.uid in self._known_in_time}

    def _leave_out_doubts(self, resizes: Sequence[Resize]) -> None:
        unaware = {each.name for each in self.history.of(Unaware)}
        unordered = {send.key for send in self.sends.values() if send.writer in unaware}
        for key, homes in self.homes.items():
            doubt = in_doubt_since([(home.partition, home.since) for home in homes], self.unclean)
            doubt = NEVER if key in unordered else doubt
            if doubt < FOR_EVER:
                self.in_doubt[key] = doubt
                before = [each for each in resizes if each.at < doubt]
                self.homes[key] = homes_of(key, self.history.initial_count, before)
        self._known_in_time = {
            send.uid
            for send in self.sends.values()
            if send.outcome is Outcome.OK and self.is_in_order(send.key, send.done_at)
        }
        self._known_in_time |= {
            read.uid
            for read in self.history.of(Delivery)
            if read.uid in self.sends and self.is_in_order(self.sends[read.uid].key, read.begun_at)
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
