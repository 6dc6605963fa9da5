"""The rules of an audit about keys: where a record may lie, and what breaks the order. Pure.

Owns these rules and their words, for the audit of a live topic (``cli.auditing``) and that of a
lake (``pipeline.audit``); a broker counts misplaced records by them. Not how records are read, nor
what else each audit checks. A rule is written with operators alone, so that it takes one value,
or a column of them (numpy's, Spark's).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from tidelog.partitioning.epoch_spans import counts_in_force
from tidelog.partitioning.hashing import partition_of
from tidelog.partitioning.lineage import modulus_of

EXAMPLES = 5
"""The examples that an audit keeps of each kind of finding; of misplaced records, per partition."""

_KEY_BYTES = 60


class AuditVerdict(StrEnum):
    """The verdict in one word. INCOMPLETE: there is no fault, but not all could be judged."""

    RIGHT = "RIGHT"
    INCOMPLETE = "INCOMPLETE"
    FAULTS = "FAULTS"


class Kind(StrEnum):
    """What can be wrong in a log."""

    HOME = "home"
    """A record is in another partition than where the hash puts its key in its resize epoch."""
    SEQUENCE = "sequence"
    """A field of the records of a key runs backwards."""
    TIMESTAMP = "timestamp"
    """Records of one key of one producer are in another order than they were created."""
    PRODUCER = "producer"
    """A producer's sequence numbers, or its epochs, run backwards in a partition."""
    OFFSET = "offset"
    """The offsets of a partition run backwards."""
    FENCE = "fence"
    """A fence or seal in the log is not the one that DescribeFences names."""


def sentence_of(kind: Kind, count: int, field: str | None = None) -> str:
    """Return what a kind of finding says; ``field``: the one that must not decrease."""
    return {
        Kind.HOME: f"{count:,} records are in another partition than where murmur2 puts their key",
        Kind.SEQUENCE: f"{count:,} records run backwards in {field}",
        Kind.TIMESTAMP: f"{count:,} records were created before the one that precedes them, of the "
        "same key and producer",
        Kind.PRODUCER: f"{count:,} batches run backwards in the sequence of their producer",
        Kind.OFFSET: f"{count:,} batches run backwards in their offsets",
        Kind.FENCE: f"{count:,} fences or seals in the log are not those that DescribeFences names",
    }[kind]


class Home(NamedTuple):
    """Where hashes are at home in a partition: where one of the moduli leaves its number."""

    partition: int
    moduli: tuple[int, ...]

    def is_away(self, hashes: Any) -> Any:
        """Whether a hash, or which hashes of a column, have their home elsewhere."""
        away: Any = True
        for modulus in self.moduli:
            away = away & (hashes % modulus != self.partition)
        return away


def home_in(partition: int, counts: Iterable[tuple[int, int]]) -> Home:
    """Return which hashes lie in a partition by an initial count and a count, or by others."""
    moduli = (modulus_of(partition, *each) for each in counts if partition < each[1])
    return Home(partition, tuple(moduli))


@dataclass(frozen=True, slots=True)
class TopicCounts:
    """The initial count of a topic, and those by which a key of each resize epoch may lie: see
    ``counts_in_force``."""

    initial: int
    by_epoch: Mapping[int, tuple[int, ...]]

    @classmethod
    def of(cls, initial: int, by_epoch: Mapping[int, int], births: Collection[int]) -> TopicCounts:
        """Return them from the counts of fences and the epochs in which partitions were born."""
        return cls(initial, counts_in_force(initial, by_epoch, births))

    def home_in(self, partition: int, resize_epoch: int) -> Home | None:
        """Return which hashes may lie in a partition; None where nothing is promised or known."""
        counts = self.by_epoch.get(resize_epoch, ())
        return home_in(partition, ((self.initial, each) for each in counts)) if counts else None

    def homes_of(self, key_hash: int, resize_epoch: int) -> Iterator[int]:
        """Yield where a key may lie: several where a growth may have been undone."""
        counts = self.by_epoch[resize_epoch]
        yield from dict.fromkeys(partition_of(key_hash, self.initial, each) for each in counts)


class Remembered(NamedTuple):
    """A record of a key, or of a key and a producer: its value, and where it is. Or columns."""

    value: Any
    partition: Any
    resize_epoch: Any
    offset: Any

    def is_back_from(self, before: Remembered) -> Any:
        """Whether its value is smaller than that of the record of the key before it.

        The order of a key is that of resize epochs, and of offsets within one. Two partitions in
        one epoch have no order: one of both records is misplaced, or the epoch was undone.
        """
        is_later = (before.partition == self.partition) | (before.resize_epoch < self.resize_epoch)
        return is_later & (self.value < before.value)


def proven(
    *, homes: bool, keys: int, field: str | None, unkeyed: int, timed: int = 0
) -> Iterator[str]:
    """Yield what an audit without findings has proven: of records by their time if ``timed``, of
    ``keys`` in the order of a ``field`` if there is one."""
    if homes:
        yield "keys where murmur2 puts them"
    if timed:
        yield f"{many(timed, 'record')} in the order of their time"
    if field:
        yield f"{many(keys, 'key')} in order of {field}"
    if unkeyed:
        yield f"{many(unkeyed, 'record')} without a key"


def key_text(key: bytes) -> str:
    """Return a key for people: the beginning of it."""
    return bytes(key)[:_KEY_BYTES].decode("utf-8", "backslashreplace")


def many(count: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
