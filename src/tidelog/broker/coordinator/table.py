"""Tables that a coordinator serves from a log: the interface between their rules and the shell.

Owns what the shell of a led partition calls, and what a coordinator gives it beside the table. Not
the shell: see ``led_partition``; not the rules: for groups they are ``groups.table``, and what the
groups' coordinator gives stands in ``group_coordinator``.

A table has keys (for groups: group ids). An event of a key, a write and its records are the
table's own: the shell passes them on. Calls of the shell::

    table.replay(key, value, now)      for each record of the log when leadership begins, or the
                                       newest of each key (``TableKind.newest_only``); what a
                                       transaction wrote goes to ``TableKind.transactions``
    table.loaded(now)                  once the end of the log is committed
    table.decide(key, event, now)      a request, or an event of the coordinator's own
    table.due(now)                     at next_deadline_ms; then decide(key, kind.tick(now), now)
    and for each write of a decision, in the order of the decisions, one of
        table.lost(write, error, now)      the log refused it
        table.stored(write, now)           it is committed; perhaps after
        table.delayed(write, error, now)   it was not committed in time
    table.unload()                     when leadership ends, or after a bug

Each of them except replay and due returns a decision. The shell performs the effects of a decision
at once, appends its writes, and only then performs the next decision. The coordinator's part of the
led partition (``OwnPart``) performs effects that only its table has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tidelog.model.effects import Answer

if TYPE_CHECKING:
    import asyncio

    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.model.errors import ErrorCode
    from tidelog.records.control_records import EndMarker


class TableWrite(Protocol):
    """Records of one key that the log gets together."""

    @property
    def key(self) -> str:
        """The key whose state changes once they are committed."""

    @property
    def records(self) -> Sequence[Any]:
        """At least one; ``TableKind.encode`` returns the bytes of each."""

    @property
    def answers(self) -> Sequence[Answer]:
        """The requests that wait for the commit: refused when leadership ends before it."""


class TableDecision(Protocol):
    """The outcome of one call of a table."""

    @property
    def effects(self) -> Sequence[Any]:
        """What to perform now: results of requests, log lines (``model.effects``), and what
        ``OwnPart.carry_out`` takes."""

    @property
    def writes(self) -> Sequence[TableWrite]:
        """Records to append, in this order."""


class Table(Protocol):
    """The state of all keys of one partition, and its rules: plain calls that never wait."""

    ahead_ms: int
    """The time of day less ``now_ms``. The shell sets it before each call with a ``now_ms``."""

    unknown_records: int
    """Records that ``replay`` skipped because this code does not know their version."""

    def __len__(self) -> int:
        """Return the number of keys, for the log."""

    def replay(
        self, key: bytes | memoryview | None, value: bytes | memoryview | None, now_ms: int, /
    ) -> None:
        """Apply one record of the log; an exception ends the load, and with it the service."""

    def loaded(self, now_ms: int, /) -> TableDecision:
        """All records are replayed and committed: requests come from now on."""

    def decide(self, key: str, event: Any, now_ms: int, /) -> TableDecision:
        """Decide one event. ``now_ms`` is the time of a clock that never steps."""

    def stored(self, write: Any, now_ms: int, /) -> TableDecision:
        """A write is committed: apply its records, and return its answers among the effects."""

    def delayed(self, write: Any, error: ErrorCode, now_ms: int, /) -> TableDecision:
        """A write is not committed in time: its requests get an error. ``stored`` may follow."""

    def lost(self, write: Any, error: ErrorCode, now_ms: int, /) -> TableDecision:
        """The log refused a write: no record was appended, and none will be."""

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call ``due``; perhaps too early, never too late. None: there is no deadline."""

    def due(self, now_ms: int, /) -> Sequence[str]:
        """Return the keys with a deadline up to ``now_ms``: each gets the event of a deadline."""

    def unload(self) -> TableDecision:
        """Drop all state, and refuse the requests that wait in it. It has no writes."""


TableT = TypeVar("TableT", bound=Table)
TableT_co = TypeVar("TableT_co", bound=Table, covariant=True)


class Shell(Protocol[TableT_co]):
    """One led partition as the coordinator's own part of it sees it: ``led_partition``."""

    hosted: HostedPartition
    since: int
    closed: asyncio.Future[None]
    """Done when leadership has ended."""

    @property
    def table(self) -> TableT_co:
        """The table."""

    @property
    def error(self) -> ErrorCode:
        """NONE while requests can be served, otherwise their error."""

    @property
    def state(self) -> ErrorCode:
        """The same, whether or not this broker's leadership was interrupted."""

    def now(self) -> int:
        """Return the time for calls of the table, in ms."""

    def decide(self, key: str, event: Any, /) -> None:
        """Decide an event as one that arrives now, or refuse it."""

    def decide_now(self, key: str, event: Any, /) -> None:
        """Let the table decide an event, and perform that."""

    def perform(self, decision: TableDecision, /) -> None:
        """Perform a decision that the coordinator asked the table for."""

    def arm(self) -> None:
        """Set the timer for the table's next deadline."""


class OwnPart(Protocol):
    """What a coordinator does of its own in one led partition."""

    def decide(self, key: str, event: Any, /) -> None:
        """An event is to be decided: ``Shell.decide_now``, at once or later."""

    def carry_out(self, effect: Any, /) -> None:
        """Perform an effect that only this kind of table has. No event may be decided in it."""

    def close(self) -> None:
        """The table is served no longer: its leadership has ended, or there was a bug."""

    async def before_loaded(self) -> None:
        """The log is read and committed: wait for what ``Table.loaded`` needs beside it."""

    async def after_loaded(self) -> None:
        """Requests are served since this turn: decide what the load leaves to do."""


class NoOwnPart:
    """The own part of a coordinator that has none: each event is decided at once."""

    def __init__(self, shell: Shell[Any]) -> None:
        self.decide = shell.decide_now

    def carry_out(self, effect: Any) -> None:
        """There is no such effect."""
        raise TypeError(f"nothing performs {effect!r}")

    def close(self) -> None:
        """Do nothing."""

    async def before_loaded(self) -> None:
        """Wait for nothing."""

    async def after_loaded(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class KeptTopic:
    """The internal topic whose partitions keep the tables, as it is created."""

    name: str
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str]
    advice: str
    """What an operator does when the controller refuses it."""


class TransactionalTable(Protocol):
    """The part of a table that may be written in transactions."""

    def replay_in_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        key: bytes | memoryview | None,
        value: bytes | memoryview | None,
        now_ms: int,
        /,
    ) -> None:
        """Apply one record of a transactional batch: as ``Table.replay``."""

    def replay_marker(
        self, producer_id: int, producer_epoch: int, marker: EndMarker, now_ms: int, /
    ) -> None:
        """Apply the marker of a transaction."""


class WrittenInTransaction(Protocol):
    """The part of a write that a transaction writes: its records, or its marker."""

    @property
    def producer_id(self) -> int:
        """The id of its producer."""

    @property
    def producer_epoch(self) -> int:
        """The epoch of its producer."""

    @property
    def records(self) -> Sequence[Any]:
        """As ``TableWrite.records``; none with a marker."""

    @property
    def marker(self) -> EndMarker | None:
        """The marker, if it is one."""


@dataclass(frozen=True, slots=True)
class Transactions(Generic[TableT]):
    """What the shell needs of a kind of table that may be written in transactions."""

    table: Callable[[TableT], TransactionalTable]
    """Return the table, to replay what transactions wrote."""
    part: Callable[[Any], WrittenInTransaction | None]
    """Return the part of a write that follows its other records in the log, in batches of a
    transaction; then these may be none."""


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class TableKind(Generic[TableT]):
    """What a coordinator gives to the shell: its topic, its tables, and what they cannot know."""

    topic: KeptTopic
    noun: str
    """What a key names, as a field of the log: "group", "transactional_id"."""
    commit_timeout_ms: int
    """How long a write waits for its commit before it counts as delayed."""
    new_table: Callable[[], TableT]
    place: Callable[[str, int], int]
    """Return the partition that keeps a key, among so many."""
    encode: Callable[[Any], tuple[bytes, bytes | None]]
    """Return the key and value of a record of a write."""
    refuse: Callable[[Any, ErrorCode], None]
    """Respond with an error to an event that cannot be decided here, if it is a request."""
    tick: Callable[[int], Any]
    """Return the event of a deadline that was found due at this time."""
    newest_only: bool = False
    """Whether a load replays only the newest record of each key, in any order, and no tombstone:
    no record has a part of a key's state, and no transaction writes to this log."""
    own_part: Callable[[Shell[TableT]], OwnPart] = field(default=NoOwnPart)
    """Return the coordinator's own part of a led partition."""
    decided: Callable[[], None] = _nothing
    """Called after each request that a table has decided."""
    payload_of: Callable[[Sequence[Any]], tuple[bytes, int]] | None = None
    """Return the records of a write as those of one batch, all with its time, and their number;
    None: ``encode`` makes all of them."""
    transactions: Transactions[TableT] | None = None
    """None: no transaction writes to this log."""
    one_by_one: Callable[[Sequence[Any]], Iterable[Any]] = iter
    """Return the records of a write that ``encode`` takes: one may stand for many in the log."""

    @property
    def spoken(self) -> str:
        """What a key names, in sentences."""
        return self.noun.replace("_", " ")
