"""What happened in one consumer group, as its members saw it and as its log has it.

Owns the types of events. Not the checks: see ``group_checkers``. ``at`` is the common count of
events (``history``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.history import Outcome


@dataclass(frozen=True)
class Share:
    """A member's part of one generation, as its SyncGroup was answered."""

    generation: int
    member: str
    partitions: tuple[str, ...]
    broker: str
    at: int


@dataclass
class GroupCommit:
    """One OffsetCommit request. ``mark`` goes with it into the log and tells it from all others."""

    mark: str
    generation: int
    member: str
    positions: dict[str, int]
    sent_at: int
    outcome: Outcome = Outcome.OPEN
    done_at: int = -1


@dataclass(frozen=True)
class Look:
    """The committed positions in the response to a member that has just got its share."""

    generation: int
    member: str
    broker: str
    found: dict[str, tuple[int, str]]
    """Partition -> committed offset and mark; -1 and "" when there is none."""
    at: int


@dataclass(frozen=True)
class Jump:
    """A member went on elsewhere than where it stood: its position was out of range."""

    generation: int
    member: str
    partition: str
    source: int
    target: int
    at: int


@dataclass(frozen=True)
class StoredGeneration:
    """A record of the group's log: this generation began, or (None) the group was removed."""

    generation: int | None


@dataclass(frozen=True)
class StoredOffset:
    """A record of the group's log: a committed position; None removed it."""

    partition: str
    offset: int | None
    mark: str


@dataclass
class GroupHistory:
    """Everything that the checkers may ask about one group."""

    shares: list[Share] = field(default_factory=list)
    commits: list[GroupCommit] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    jumps: list[Jump] = field(default_factory=list)
    log: list[StoredGeneration | StoredOffset] = field(default_factory=list)
    """The group's records in the order of its partition of ``__consumer_offsets``."""
