"""What transactional producers did and what readers saw in a run: the input of their checkers.

Owns the types of events. Does not check (``transaction_checkers.py``) and does not run anything.

``at`` is a count of events as in ``history``: one order for the whole run.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


class Verdict(enum.Enum):
    """How a transaction ended, as its producer knows it."""

    OPEN = "open"
    COMMITTED = "committed"
    """EndTxn with a commit was answered with success."""
    ABORTED = "aborted"
    """No commit was asked for, or the only request for it was refused for good."""
    UNKNOWN = "unknown"
    """A commit was asked for, and no response says what became of it."""


@dataclass
class Sent:
    """A record of a transaction; ``offset`` -1 while it is not acknowledged."""

    partition: str
    value: bytes
    offset: int = -1


@dataclass
class Transaction:
    """A transaction of one producer. ``number``: its place in the order of its id.

    With ``has_offsets`` it commits ``number`` as the position of its id's group.
    """

    transactional_id: str
    number: int
    began_at: int
    sent: list[Sent] = field(default_factory=list)
    has_offsets: bool = False
    commit_sent_at: int = -1
    """When the first request to commit left; -1: none did."""
    verdict: Verdict = Verdict.OPEN

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.transactional_id}"

    @property
    def may_count(self) -> bool:
        """Whether it may have been committed."""
        return self.commit_sent_at >= 0 and self.verdict is not Verdict.ABORTED


@dataclass(frozen=True)
class Seen:
    """A record that a reader of committed records got."""

    partition: str
    offset: int
    value: bytes
    reader: str
    at: int


@dataclass(frozen=True)
class StableOffset:
    """What the leader of an epoch said of a partition; ``asked_at``: when the request left."""

    partition: str
    leader_epoch: int
    offset: int
    asked_at: int
    at: int


@dataclass(frozen=True)
class Position:
    """The committed position of an id's group, as a stable one; -1: none."""

    transactional_id: str
    offset: int
    at: int


@dataclass
class TransactionHistory:
    """Everything that the checkers may ask about one run."""

    transactions: list[Transaction] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    stable: list[StableOffset] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    finals: dict[str, Mapping[int, bytes]] = field(default_factory=dict)
    """Partition -> offset and value of each committed record, when all has come to rest."""
    starts: dict[str, int] = field(default_factory=dict)
    """Partition -> where it starts at the end: what is below was to be deleted."""
    last_positions: dict[str, int] = field(default_factory=dict)
    """Transactional id -> the committed position of its group at the end."""
    now: int = 0
    _numbers: dict[str, int] = field(default_factory=dict)

    def tick(self) -> int:
        """Return the next moment."""
        self.now += 1
        return self.now

    def begin(self, transactional_id: str) -> Transaction:
        """A transaction begins."""
        number = self._numbers[transactional_id] = self._numbers.get(transactional_id, -1) + 1
        made = Transaction(transactional_id, number, self.tick())
        self.transactions.append(made)
        return made

    def sees(self, partition: str, offset: int, value: bytes, reader: str) -> None:
        """A reader of committed records got one."""
        self.seen.append(Seen(partition, offset, value, reader, self.tick()))

    def by_value(self) -> dict[bytes, tuple[Transaction, Sent]]:
        """Return each record that was sent with its transaction."""
        return {sent.value: (each, sent) for each in self.transactions for sent in each.sent}

    def of(self, *verdicts: Verdict) -> Iterator[Transaction]:
        """Yield the transactions with one of these verdicts."""
        return (each for each in self.transactions if each.verdict in verdicts)
