"""The history of one topic that grows and shrinks: what its checker is given.

Owns the events and their JSON lines. Not the checks: see ``checks``. All times are
of one clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import TypeVar


class Outcome(StrEnum):
    """How a send ended, as its producer knows it."""

    OK = "ok"
    FAIL = "fail"
    """Definitely refused."""
    INFO = "info"
    """Undetermined: it may be in the log, now or later."""


@dataclass(frozen=True, slots=True)
class Send:
    """One record that a producer sent. ``uid`` is unique in the history."""

    uid: int
    key: str
    writer: str
    number: int
    """Its place in what this writer sends with this key."""
    resize_epoch: int
    """The resize epoch that the writer believed."""
    sent_at: float
    outcome: Outcome
    done_at: float = -1.0
    partition: int = -1
    offset: int = -1
    """Where it is, by the response; -1 where that does not say it."""
    is_deletion: bool = False
    """Whether it has no value: it deletes its key from a compacted topic."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One data record that a reader found in a partition: of any replica, at any time."""

    partition: int
    offset: int
    uid: int
    reader: str = ""


@dataclass(frozen=True, slots=True)
class Resize:
    """A resize that was published, or one that was undone.

    ``cuts``: of each partition that was there before or after it, the offset of its fence, seal or
    birth fence. An undone resize has no cuts: it moves no key.
    """

    resize_epoch: int
    count: int
    at: float
    cuts: dict[int, int] = field(default_factory=dict)
    is_undone: bool = False


@dataclass(frozen=True, slots=True)
class LogStart:
    """Retention or DeleteRecords removed the records of a partition below an offset, provenly."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """The topic is compacted: of each key only the newest record has to stay."""


@dataclass(frozen=True, slots=True)
class FreshRead:
    """A reader that read everything when all was over; ``uids``: the last record of each key."""

    reader: str
    uids: dict[str, int]


@dataclass(frozen=True, slots=True)
class Unaware:
    """A writer or a group that sends no counts: the keys that it writes, and what it reads, keep no
    order."""

    name: str


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """A partition is not clean from now on, in all its incarnations."""

    partition: int
    at: float


@dataclass(frozen=True, slots=True)
class CommitsLost:
    """The offsets partition had an unclean election: what was committed before may be gone."""

    at: float


@dataclass(frozen=True, slots=True)
class Registration:
    """A group's first position in each partition; other partitions begin at their first offset."""

    group: str
    at: float
    positions: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One record in the hands of the application, from ``begun_at`` to ``ended_at``.

    ``ended_at`` None: the member never came back from it.
    """

    group: str
    member: str
    partition: int
    offset: int
    uid: int
    begun_at: float
    ended_at: float | None
    state: int | None = None
    """With state per key: the number of the state that the application has after it."""


@dataclass(frozen=True, slots=True)
class KeyState:
    """The state of a key after a record: what the application had, ``after``, and this record."""

    group: str
    number: int
    """Later ones have higher numbers."""
    after: int
    """The number of the former state; -1 where the application had none."""
    uid: int


@dataclass(frozen=True, slots=True)
class Rewind:
    """A partition is delivered again from an offset on: after a crash, a rebalance or a seek."""

    group: str
    partition: int
    offset: int
    at: float
    is_seek: bool = False


@dataclass(frozen=True, slots=True)
class Removal:
    """A member left its group or was removed from it: what it had in hand counts as ended."""

    group: str
    member: str
    at: float


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed offset that was answered."""

    group: str
    partition: int
    offset: int
    at: float


@dataclass(frozen=True, slots=True)
class MetadataSeen:
    """What one broker said of the topic."""

    broker: int
    resize_epoch: int
    count: int
    at: float


@dataclass(frozen=True, slots=True)
class LeaderSeen:
    """A leader of one leader epoch, from metadata, a batch or a log."""

    partition: int
    leader_epoch: int
    leader: int


Event = (
    Send
    | Stored
    | Resize
    | LogStart
    | Compaction
    | FreshRead
    | Unaware
    | UncleanElection
    | CommitsLost
    | Registration
    | Delivery
    | KeyState
    | Rewind
    | Removal
    | Commit
    | MetadataSeen
    | LeaderSeen
)

Kind = TypeVar("Kind", bound=Event)

_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        Send,
        Stored,
        Resize,
        LogStart,
        Compaction,
        FreshRead,
        Unaware,
        UncleanElection,
        CommitsLost,
        Registration,
        Delivery,
        KeyState,
        Rewind,
        Removal,
        Commit,
        MetadataSeen,
        LeaderSeen,
    )
}
_BY_PARTITION = ("cuts", "positions")


@dataclass(slots=True)
class History:
    """Everything that happened to one topic, in any order."""

    initial_count: int
    events: list[Event] = field(default_factory=list)

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


def to_lines(history: History) -> Iterator[str]:
    """Yield the history as JSON, one line per event."""
    yield json.dumps({"initial_count": history.initial_count})
    for event in history.events:
        yield json.dumps({"event": type(event).__name__, **asdict(event)})


def from_lines(lines: Iterable[str]) -> History:
    """Read what ``to_lines`` wrote. ValueError names the line that is no event."""
    numbered = enumerate(lines, 1)
    _, first = next(numbered)
    history = History(json.loads(first)["initial_count"])
    for number, line in numbered:
        values = json.loads(line)
        kind = _KINDS.get(values.pop("event", ""))
        if kind is None or values.keys() - {each.name for each in fields(kind)}:
            raise ValueError(f"line {number} is no event of a history: {line[:100]}")
        for name in _BY_PARTITION:
            if name in values:
                values[name] = {int(key): value for key, value in values[name].items()}
        if kind is Send:
            values["outcome"] = Outcome(values["outcome"])
        history.events.append(kind(**values))
    return history
