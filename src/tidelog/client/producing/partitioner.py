"""The partitioner: by key, or sticky for records without a key (KIP-480, simplified).

Owns the choice for records without an explicit partition.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import cast

from tidelog.client.errors import ClientError
from tidelog.client.metadata import NO_LEADER, Topic
from tidelog.client.producing.settings import Partitioner
from tidelog.partitioning.hashing import hash_of_key, hashes_of_keys, partition_of
from tidelog.partitioning.lineage import level_of
from tidelog.records.builder import Columns

HASHES_KEPT = 65_536
"""The number of cached key hashes; computing one takes some microseconds."""

_hash_of_key = lru_cache(HASHES_KEPT)(hash_of_key)


class PartitionChooser:
    """Chooses partitions for one producer; ``hook`` is the caller's own choice."""

    def __init__(self, randomness: random.Random, hook: Partitioner | None = None) -> None:
        self._random = randomness
        self._hook = hook
        self._sticky: dict[str, int] = {}
        self._shapes: dict[str, _Shape] = {}

    def choose(self, topic: Topic, key: bytes | None) -> int:
        """Return the partition of a record; for one count a key always has the same partition.

        Raises ClientError when the caller's own choice fails.
        """
        shape = self._shapes.get(topic.name)
        if shape is None or shape[0] is not topic:
            shape = self._shapes[topic.name] = _shape_of(topic)
        _, count, level, split = shape
        if self._hook is not None:
            return _chosen_by(self._hook, topic, key)
        if key is not None:
            # What ``partition_of`` says, without a call for each record.
            key_hash = _hash_of_key(key)
            place = key_hash % level
            return place if place >= split else key_hash % (2 * level)
        chosen = self._sticky.get(topic.name)
        if chosen is None or chosen >= count:
            # A partition without a leader accepts no records now: prefer the others.
            live = _led(topic, count)
            chosen = self._random.choice(live) if live else self._random.randrange(count)
            self._sticky[topic.name] = chosen
        return chosen

    def choose_another(self, topic: Topic, is_shut: Callable[[int], bool]) -> int:
        """Return another partition for records without a key than the present one, which is shut.

        Any partition where all are shut.
        """
        free = [place for place in range(topic.count) if not is_shut(place)]
        led = set(_led(topic, topic.count))
        some = [place for place in free if place in led] or free or range(topic.count)
        chosen = self._sticky[topic.name] = self._random.choice(some)
        return chosen

    def choose_all(self, topic: Topic, keys: Sequence[bytes | None]) -> list[int]:
        """Return the partitions of many records: what ``choose`` returns for each."""
        if self._hook is not None:
            return [self.choose(topic, key) for key in keys]
        count = topic.count
        initial = topic.initial_partition_count
        filled = keys if None not in keys else [key for key in keys if key is not None]
        hashes = hashes_of_keys(cast("Sequence[bytes]", filled))
        if initial <= 0 or initial == count:
            # Then linear hashing is a remainder (see ``partition_of``).
            places = [key_hash % count for key_hash in hashes]
        else:
            places = [partition_of(key_hash, initial, count) for key_hash in hashes]
        if filled is keys:
            return places
        with_key = iter(places)
        return [self.choose(topic, None) if key is None else next(with_key) for key in keys]

    def batch_filled(self, topic: str) -> None:
        """A batch is full: choose another partition for the next record without a key."""
        self._sticky.pop(topic, None)


_Shape = tuple[Topic, int, int, int]
"""A topic, its count, the level of that count, and how many partitions of the level are split."""


def _shape_of(topic: Topic) -> _Shape:
    count, initial = topic.count, topic.initial_partition_count
    level = level_of(initial, count) if 0 < initial <= count else count
    return topic, count, level, count - level


def _led(topic: Topic, count: int) -> list[int]:
    return [
        item.index
        for item in topic.partitions.values()
        if item.leader != NO_LEADER and item.index < count
    ]


def _chosen_by(hook: Partitioner, topic: Topic, key: bytes | None) -> int:
    count = topic.count
    try:
        chosen = hook(key, range(count), _led(topic, count))
    except Exception as error:
        sentence = f"the partitioner failed for a record of {topic.name}: {error!r}"
        raise ClientError(sentence) from error
    if not isinstance(chosen, int) or not 0 <= chosen < count:
        raise ClientError(
            f"the partitioner returned {chosen!r} for a record of {topic.name}: "
            f"it must return a partition from 0 to {count - 1}"
        )
    return chosen


def by_partition(records: Columns, places: Sequence[int]) -> dict[int, Columns]:
    """Split records with a column of keys by their partitions, each part in order."""
    values, keys, headers = records
    assert keys is not None
    parts: dict[int, list[int]] = {place: [] for place in set(places)}
    for index, place in enumerate(places):
        parts[place].append(index)
    return {
        partition: Columns(
            [values[index] for index in chosen],
            [keys[index] for index in chosen],
            None if headers is None else [headers[index] for index in chosen],
        )
        for partition, chosen in parts.items()
    }
