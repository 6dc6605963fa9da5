"""Membership of a classic group as rules: which event leads from which state to which. Pure.

Owns the states, the table, and what becomes of member id and generation. Asking, waiting and
heartbeats are ``group_member``; what is read is ``group_reader``.

| state | means | heartbeats | leaves it |
|---|---|---|---|
| out | in no generation; the next poll joins | no | JOIN |
| joining | JoinGroup and SyncGroup are under way | no | ASSIGNED, or back out: INTERRUPTED |
| joined | it has partitions, and of some no positions yet | yes | POSITIONED |
| reading | it has positions of all its partitions | yes | REBALANCE, or what ended the generation |
| recalled | its generation ends; the next poll joins again | yes | JOIN |
| leaving | LeaveGroup is under way | no | LEFT |

Each cell of the table is written out: an event that says nothing new leaves the state as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tidelog.client.errors import ClientError
from tidelog.model.errors import ErrorCode

NO_GENERATION = -1


class State(Enum):
    """Where a member stands."""

    OUT = "out"
    JOINING = "joining"
    JOINED = "joined without positions"
    READING = "reading"
    RECALLED = "recalled"
    LEAVING = "leaving"


class Event(Enum):
    """What happens to a member."""

    JOIN = "it begins to join"
    ASSIGNED = "the coordinator gave it its partitions"
    POSITIONED = "the positions of all its partitions are known"
    REBALANCE = "the coordinator, or this leader, asks for another round"
    GENERATION_LOST = "its generation is over"
    UNKNOWN = "the coordinator does not know it"
    SILENCE = "nobody answered for a whole session"
    FAILED = "an error that ends the membership"
    INTERRUPTED = "joining or leaving failed, or was cancelled"
    LEAVE = "it begins to leave"
    LEFT = "it has left"


_S = State
_EVENTS = (
    Event.JOIN, Event.ASSIGNED, Event.POSITIONED, Event.REBALANCE, Event.GENERATION_LOST,
    Event.UNKNOWN, Event.SILENCE, Event.FAILED, Event.INTERRUPTED, Event.LEAVE, Event.LEFT,
)  # fmt: skip
_ROWS = {
    _S.OUT: (
        _S.JOINING, _S.OUT, _S.OUT, _S.OUT, _S.OUT,
        _S.OUT, _S.OUT, _S.OUT, _S.OUT, _S.LEAVING, _S.OUT,
    ),
    # What the coordinator says against a round begins the next one.
    _S.JOINING: (
        _S.JOINING, _S.JOINED, _S.JOINING, _S.JOINING, _S.JOINING,
        _S.JOINING, _S.JOINING, _S.OUT, _S.OUT, _S.LEAVING, _S.OUT,
    ),
    _S.JOINED: (
        _S.JOINING, _S.JOINED, _S.READING, _S.RECALLED, _S.OUT,
        _S.OUT, _S.OUT, _S.OUT, _S.JOINED, _S.LEAVING, _S.OUT,
    ),
    _S.READING: (
        _S.JOINING, _S.READING, _S.READING, _S.RECALLED, _S.OUT,
        _S.OUT, _S.OUT, _S.OUT, _S.READING, _S.LEAVING, _S.OUT,
    ),
    # Positions that come now change nothing: their partitions are given back.
    _S.RECALLED: (
        _S.JOINING, _S.RECALLED, _S.RECALLED, _S.RECALLED, _S.OUT,
        _S.OUT, _S.OUT, _S.OUT, _S.RECALLED, _S.LEAVING, _S.OUT,
    ),
    _S.LEAVING: (
        _S.LEAVING, _S.LEAVING, _S.LEAVING, _S.LEAVING, _S.LEAVING,
        _S.LEAVING, _S.LEAVING, _S.LEAVING, _S.OUT, _S.LEAVING, _S.OUT,
    ),
}  # fmt: skip

TABLE = {
    (state, event): behind
    for state, row in _ROWS.items()
    for event, behind in zip(_EVENTS, row, strict=True)
}
"""(state, event) -> the state behind it."""

HEARTBEATS = frozenset({State.JOINED, State.READING, State.RECALLED})
"""States in which the coordinator must hear of the member, or its session ends."""

_FORGETS_ID = frozenset({Event.UNKNOWN, Event.LEFT})
_FORGETS_GENERATION = _FORGETS_ID | {
    Event.JOIN,
    Event.GENERATION_LOST,
    Event.FAILED,
    Event.INTERRUPTED,
}

_EVENT_OF = {
    ErrorCode.REBALANCE_IN_PROGRESS: Event.REBALANCE,
    ErrorCode.ILLEGAL_GENERATION: Event.GENERATION_LOST,
    ErrorCode.UNKNOWN_MEMBER_ID: Event.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member's state, how the coordinator knows it, and what ended its membership for good."""

    state: State = State.OUT
    member_id: str = ""
    generation: int = NO_GENERATION
    problem: ClientError | None = None

    @property
    def must_join(self) -> bool:
        """Whether the next thing to do is to join (again)."""
        return self.state in (State.OUT, State.RECALLED, State.JOINING)

    @property
    def may_commit(self) -> bool:
        """Whether there is a generation to commit in; while it joins there is none."""
        return self.generation >= 0 and self.state not in (State.JOINING, State.LEAVING)


def step(standing: MemberStatus, event: Event, problem: ClientError | None = None) -> MemberStatus:
    """Return where a member stands behind an event; ``problem`` goes with FAILED."""
    state = TABLE[standing.state, event]
    if state is standing.state and event in (Event.INTERRUPTED, Event.FAILED):
        # Nothing was under way that this could end; a first problem is kept.
        return standing
    return MemberStatus(
        state,
        "" if event in _FORGETS_ID else standing.member_id,
        NO_GENERATION if event in _FORGETS_GENERATION else standing.generation,
        problem or standing.problem,
    )


def named(standing: MemberStatus, member_id: str, generation: int = NO_GENERATION) -> MemberStatus:
    """Take the id (and the generation) that JoinGroup was answered with."""
    return replace(standing, member_id=member_id, generation=generation)


def told(standing: MemberStatus, code: ErrorCode, asked_as: MemberStatus) -> MemberStatus | None:
    """Return where a member stands when what it ``asked_as`` was answered with an error.

    None: the code says nothing about membership. An answer to what it asked as another, or in
    another generation, changes nothing.
    """
    event = _EVENT_OF.get(code)
    if event is None:
        return None
    same = (asked_as.member_id, asked_as.generation) == (standing.member_id, standing.generation)
    return step(standing, event) if same else standing
