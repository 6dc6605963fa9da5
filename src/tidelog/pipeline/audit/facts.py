"""The counts of an audit, as plain values.

Owns the shapes; `gather` fills them, `rules` judges them. All ranges of offsets are [from, to).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

UNKNOWN = -1


class Keys(StrEnum):
    """What is known of where the producers of a topic put keys."""

    ANY = "any"
    """Nothing: where a key lies is not judged."""
    MURMUR2 = "murmur2"
    """By Kafka's partitioner (Java's, tidelog's, librdkafka's `murmur2` and `murmur2_random`)."""


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """What is asked of a lake. `full`: compare again what earlier audits have compared."""

    keys: Keys = Keys.ANY
    sequence: str | None = None
    full: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets of one partition that one batch archived, and the file that holds their records.

    The pieces of a partition cover all that the lake says it holds, without a gap; `path` is empty
    where a batch has no file for them: they were control records, or compaction had removed them.
    `lost` are offsets of the range that the manifest records as lost before they were read; UNKNOWN
    for a manifest of version 1, which has neither losses nor isolation ("") nor policy nor digest
    ("").
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    path: str = ""
    first: int = -1
    last: int = -1
    rows: int = 0
    size_bytes: int = 0
    digest: str = ""
    lost: int = UNKNOWN
    isolation: str = ""
    compacted: bool = False
    partitions: int = 1
    """How many partitions the topic had in this batch."""
    bad_files: str = ""
    """The files of bad records that have offsets of the range: see `bad_side`."""

    @property
    def home(self) -> tuple[str, str, int]:
        return self.topic, self.topic_id, self.partition

    @property
    def name(self) -> str:
        """What a finding is about: the file, or the range of offsets."""
        return self.path or f"{self.topic}-{self.partition} {self.start}..{self.end}"


@dataclass(frozen=True, slots=True)
class PieceFacts:
    """What comparing a piece brought: numbers of rows, but for offsets.

    From offset `log_from` on the log could be compared: the end of the piece when nothing could.
    Above it `extra` rows are in the lake alone, below it `below` rows. `problem` is empty when the
    file could be read. `header_rows` is the log's count by the headers of its batches, `read_twice`
    how many records were decoded a second time and `read_otherwise` how many of those differed.
    """

    log_from: int
    problem: str = ""
    found_rows: int = 0
    distinct: int = 0
    found_first: int = -1
    found_last: int = -1
    disorder: int = 0
    outside: int = 0
    wrong_bytes: bool = False
    unkeyed: int = 0
    away: int = 0
    away_example: bytes = b""
    log_rows: int = 0
    header_rows: int = 0
    read_twice: int = 0
    read_otherwise: int = 0
    differing: int = 0
    missing: int = 0
    missing_first: int = -1
    missing_last: int = -1
    extra: int = 0
    compacted_away: int = 0
    below: int = 0
    quarantined: int = 0
    """Offsets of bad records that the log has and the lake has kept."""

    def is_clean(self, piece: Piece) -> bool:
        """Whether the file is what its manifest says and holds what the log held.

        Where its keys lie is another question.
        """
        listed = (piece.rows, piece.first, piece.last, piece.rows)
        seen = (self.found_rows, self.found_first, self.found_last, self.distinct)
        wrong = (
            *(self.problem, self.disorder, self.outside, self.wrong_bytes),
            *(self.differing, self.missing, self.extra, self.read_otherwise),
        )
        return seen == listed and self.log_rows == self.header_rows and not any(wrong)


@dataclass(frozen=True, slots=True)
class RecordedLoss:
    """Offsets that the manifests record as lost before they were archived: `offsets` from `start`
    on, 0 when their number is unknown. `cause` is the source's word."""

    topic: str
    topic_id: str
    partition: int
    start: int
    offsets: int
    cause: str

    @property
    def home(self) -> tuple[str, str, int]:
        return self.topic, self.topic_id, self.partition


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition of one topic id, in the lake and in the log.

    `log_start` and `log_end` are -1 when it is no longer there. Offsets: `compared` with the log,
    now or by an earlier audit (`compared_now`); `unexplained` where neither has a record, the log
    no longer reaches back and no manifest says why. Rows: `below` were below the log's start when
    they were to be compared, `compacted_away` are in the lake alone because the topic is, or was,
    compacted.
    """

    topic: str
    partition: str
    archived_from: int
    archived_to: int
    log_start: int = -1
    log_end: int = -1
    lake_rows: int = 0
    lake_distinct: int = 0
    outside: int = 0
    log_rows: int = 0
    missing: int = 0
    extra: int = 0
    differing: int = 0
    missing_first: int = -1
    missing_last: int = -1
    topic_id: str = ""
    header_rows: int = 0
    read_twice: int = 0
    read_otherwise: int = 0
    compared: int = 0
    compared_now: int = 0
    below: int = 0
    unexplained: int = 0
    compacted_away: int = 0
    quarantined: int = 0

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def archived(self) -> int:
        """Offsets that the lake says it holds."""
        return self.archived_to - self.archived_from

    @property
    def duplicates(self) -> int:
        return self.lake_rows - self.lake_distinct

    @property
    def behind(self) -> int:
        """Offsets that the log has and the lake does not have yet."""
        return max(0, self.log_end - self.archived_to)

    @property
    def ahead(self) -> int:
        """Offsets that the lake has reached and the log has not."""
        return max(0, self.archived_to - self.log_end) if self.log_start >= 0 else 0


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """Where keys lie, and whether a field of their records ever runs backwards.

    `keys` is how many have a number in the field, `keys_without` how many have none; both are
    counted with the sequence only.
    """

    unkeyed: int = 0
    homes: Keys = Keys.ANY
    away: int = 0
    away_examples: tuple[str, ...] = ()
    sequence: str = ""
    keys: int = 0
    keys_without: int = 0
    out_of_sequence: int = 0
    out_of_sequence_examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GoneTopic:
    """A topic of the lake, or one partition of it, that is not there any more, and why.

    `lacking`: of a partition that a shrink removed, the offsets up to the end of its data that the
    lake does not hold; UNKNOWN of others.
    """

    topic: str
    topic_id: str
    what: str
    partition: str = ""
    lacking: int = UNKNOWN

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}" if self.partition else self.topic

    def has(self, part: PartitionFacts) -> bool:
        """Whether a partition of the lake is meant."""
        same = (part.topic, part.topic_id) == (self.topic, self.topic_id)
        return same and self.partition in ("", part.partition)


@dataclass(frozen=True, slots=True)
class AuditFacts:
    """All that an audit saw.

    `bad` are the pieces that are not as they should be, `overlaps` files that hold offsets of
    another, `remarks` what a reader should know of the audit itself.
    """

    lake: str
    batches: int
    partitions: tuple[PartitionFacts, ...]
    keys: KeyFacts = KeyFacts()
    files: int = 0
    files_now: int = 0
    bad: tuple[tuple[Piece, PieceFacts], ...] = ()
    overlaps: tuple[tuple[str, str], ...] = ()
    losses: tuple[RecordedLoss, ...] = ()
    gone: tuple[GoneTopic, ...] = ()
    orphans: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(part.lake_rows for part in self.partitions)

    @property
    def archived(self) -> int:
        return sum(part.archived for part in self.partitions)

    @property
    def compared(self) -> int:
        return sum(part.compared for part in self.partitions)

    @property
    def compared_now(self) -> int:
        return sum(part.compared_now for part in self.partitions)
