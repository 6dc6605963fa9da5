"""What happened in a run, as seen from outside: the input of the checkers.

Owns the types of events. Does not check (``checkers.py``) and does not run anything.

``at`` is a count of events, one order for the whole run: an event with a smaller ``at`` happened
before one with a larger.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Outcome(enum.Enum):
    """How a write ended, as its producer knows it (docs/promises.md, first paragraph)."""

    OPEN = "open"
    ACKED = "acked"
    REFUSED = "refused"
    """Every attempt was answered with an error that is given before anything is appended."""
    UNDETERMINED = "undetermined"


@dataclass
class Write:
    """One record that a producer sent. ``value`` is unique in the run; None with ``tombstone``."""

    partition: str
    producer: str
    number: int
    """Place in the order in which this producer sent to this partition."""
    value: bytes
    key: bytes | None
    sent_at: int
    idempotent: bool = True
    corrupt: bool = False
    """Sent with a CRC that does not fit."""
    tombstone: bool = False
    """Deletes its key; ``value`` then only names the record."""
    life: str = ""
    """The life of the broker that answered."""
    outcome: Outcome = Outcome.OPEN
    offset: int = -1
    done_at: int = -1


@dataclass(frozen=True)
class Read:
    """One record that a reader got."""

    partition: str
    offset: int
    value: bytes
    reader: str
    at: int


@dataclass(frozen=True)
class Final:
    """What is readable in a partition when everything has come to rest."""

    partition: str
    start: int
    end: int
    records: dict[int, bytes]
    """Offset to value."""
    keys: dict[int, bytes | None] = field(default_factory=dict)
    compacted: bool = False


@dataclass(frozen=True)
class Recovery:
    """One start after a crash: what was in a partition before and what is in it after."""

    partition: str
    kind: str
    """``kill`` or ``power``."""
    before: dict[int, bytes]
    """Offset to value, of everything whose append had returned."""
    after: dict[int, bytes]
    synced_end: int
    """Records below this offset were durable."""
    in_doubt: frozenset[bytes] = frozenset()
    """Values of the append in which the crash happened: present, absent or a prefix of them."""
    start: int = 0
    """Records below this offset were deleted on purpose."""


@dataclass(frozen=True)
class Deletion:
    """Retention or DeleteRecords moved the start of a log."""

    partition: str
    start: int
    high_watermark: int
    at: int


@dataclass(frozen=True)
class EpochAnswer:
    """What a log said of the end of a leader epoch, and where that epoch ended in truth."""

    partition: str
    epoch: int
    said: int
    """An offset, -1 for unknown."""
    ended: int
    """Where the next epoch began, the log's end for the newest one."""
    kept: int
    """After the last record of this epoch, or an older one, that is still in the log."""
    start: int
    """The log's start: what a response says of offsets below it does not count."""


@dataclass(frozen=True)
class DirectoryEvent:
    """Something about one log directory: ``write failed``, ``sync failed``, ``sync``, ``acked``."""

    directory: str
    life: str
    what: str
    at: int


@dataclass(frozen=True)
class SpaceEvent:
    """The disk became ``full`` or got ``room``; a read there ``read`` or ``read failed``.

    Of one of several brokers (``host``) also: ``out of service`` for want of room, and ``appended``
    for the first write to a log since there was room again.
    """

    what: str
    at: int
    host: str = ""


@dataclass(frozen=True)
class CorruptionEvent:
    """What became of bits that were turned over on a broker's disk.

    ``corrupted``; ``served``: a client got other bytes than were written; ``refused``: it got an
    error for them; ``named``: the broker put on record that the replica is damaged; ``repaired``:
    it serves the right bytes again, or is gone with its topic.
    """

    what: str
    host: str
    replica: str
    """"" for the files of all replicas."""
    at: int
    detail: str = ""


@dataclass
class History:
    """Everything that the checkers may ask about one run."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    finals: list[Final] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)
    epochs: list[EpochAnswer] = field(default_factory=list)
    directories: list[DirectoryEvent] = field(default_factory=list)
    space: list[SpaceEvent] = field(default_factory=list)
    corruptions: list[CorruptionEvent] = field(default_factory=list)
    now: int = 0

    def tick(self) -> int:
        """Return the next moment."""
        self.now += 1
        return self.now

    def send(
        self, partition: str, producer: str, number: int, value: bytes, **more: object
    ) -> Write:
        """A record leaves a producer."""
        key = more.pop("key", None)
        write = Write(partition, producer, number, value, key, self.tick(), **more)  # type: ignore[arg-type]
        self.writes.append(write)
        return write

    def end(self, write: Write, outcome: Outcome, offset: int = -1, life: str = "") -> None:
        """The producer knows how a write ended."""
        write.outcome, write.offset, write.life = outcome, offset, life
        write.done_at = self.tick()

    def read(self, partition: str, offset: int, value: bytes, reader: str) -> None:
        """A reader got a record."""
        self.reads.append(Read(partition, offset, value, reader, self.tick()))

    def deleted(self, partition: str, start: int, high_watermark: int) -> None:
        """The start of a log was moved up."""
        self.deletions.append(Deletion(partition, start, high_watermark, self.tick()))

    def directory(self, directory: str, life: str, what: str) -> None:
        """Something happened to a log directory."""
        self.directories.append(DirectoryEvent(directory, life, what, self.tick()))

    def corruption(self, what: str, host: str, replica: str, detail: str = "") -> None:
        """Something became of corrupted bytes."""
        self.corruptions.append(CorruptionEvent(what, host, replica, self.tick(), detail))

    def disk_space(self, what: str, host: str = "") -> None:
        """The disk became full, got room, or was read."""
        self.space.append(SpaceEvent(what, self.tick(), host))
