"""Membership of a classic group as a state machine. Pure.

Owns the states, the transitions, and the changes of member id and generation. Not requests and
heartbeats: see ``group_member``. Not reading: see ``group_reader``.

| state | meaning | heartbeats | left by |
|---|---|---|---|
| out | in no generation; the next poll joins | no | JOIN |
| joining | JoinGroup and SyncGroup are in flight | no | ASSIGNED, or to out: INTERRUPTED |
| joined | it has partitions, some without a position | yes | POSITIONED |
| reading | it has positions of all its partitions | yes | REBALANCE, or the end of the generation |
| recalled | its generation ends; the next poll joins again | yes | JOIN |
| leaving | LeaveGroup is in flight | no | LEFT |

The table has every pair of state and event: an event without an effect keeps the state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tidelog.client.errors import ClientError
from tidelog.model.errors import ErrorCode

NO_GENERATION = -1


class MemberState(Enum):
    """The state of a member."""

    OUT = "out"
    JOINING = "joining"
    JOINED = "joined without positions"
    READING = "reading"
    RECALLED = "recalled"
    LEAVING = "leaving"


class Event(Enum):
    """An event of a member."""

    JOIN = "it begins to join"
    ASSIGNED = "the coordinator assigned its partitions"
    POSITIONED = "the positions of all its partitions are known"
    REBALANCE = "the coordinator, or this leader, asks for another round"
    GENERATION_LOST = "its generation is over"
    UNKNOWN = "the coordinator does not know it"
    SILENCE = "the coordinator did not respond for a whole session"
    FAILED = "an error that ends the membership"
    INTERRUPTED = "joining or leaving failed, or was cancelled"
    LEAVE = "it begins to leave"
    LEFT = "it has left"


_AFTER = {
    # Of OUT, JOINING, JOINED, READING, RECALLED, LEAVING.
    Event.JOIN: "JOINING  JOINING  JOINING  JOINING  JOINING  LEAVING",
    Event.ASSIGNED: "OUT      JOINED   JOINED   READING  RECALLED LEAVING",
    # Where partitions are being revoked, positions that arrive now have no effect.
    Event.POSITIONED: "OUT      JOINING  READING  READING  RECALLED LEAVING",
    Event.REBALANCE: "OUT      JOINING  RECALLED RECALLED RECALLED LEAVING",
    Event.GENERATION_LOST: "OUT      JOINING  OUT      OUT      OUT      LEAVING",
    # An error of the coordinator in one round starts the next one.
    Event.UNKNOWN: "OUT      JOINING  OUT      OUT      OUT      LEAVING",
    Event.SILENCE: "OUT      JOINING  OUT      OUT      OUT      LEAVING",
    Event.FAILED: "OUT      OUT      OUT      OUT      OUT      LEAVING",
    Event.INTERRUPTED: "OUT      OUT      JOINED   READING  RECALLED OUT",
    Event.LEAVE: "LEAVING  LEAVING  LEAVING  LEAVING  LEAVING  LEAVING",
    Event.LEFT: "OUT      OUT      OUT      OUT      OUT      OUT",
}
"""The states after an event."""

TABLE = {
    (state, event): MemberState[after]
    for event, row in _AFTER.items()
    for state, after in zip(MemberState, row.split(), strict=True)
}
"""(state, event) -> the state after it."""

HEARTBEATS = frozenset({MemberState.JOINED, MemberState.READING, MemberState.RECALLED})
"""States in which the member must send heartbeats, or its session expires."""

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
    """A member's state, its id and generation, and the error that ended its membership."""

    state: MemberState = MemberState.OUT
    member_id: str = ""
    generation: int = NO_GENERATION
    problem: ClientError | None = None

    @property
    def must_join(self) -> bool:
        """Whether the next step is to join or rejoin."""
        return self.state in (MemberState.OUT, MemberState.RECALLED, MemberState.JOINING)

    @property
    def may_commit(self) -> bool:
        """Whether there is a generation to commit in; there is none while it joins."""
        return self.generation >= 0 and self.state not in (MemberState.JOINING, MemberState.LEAVING)

    @property
    def refusal(self) -> ErrorCode:
        """Why it may not commit, where it may not."""
        is_joining = self.state is MemberState.JOINING
        return ErrorCode.REBALANCE_IN_PROGRESS if is_joining else ErrorCode.UNKNOWN_MEMBER_ID


def step(standing: MemberStatus, event: Event, problem: ClientError | None = None) -> MemberStatus:
    """Return the status after an event; ``problem`` goes with FAILED."""
    state = TABLE[standing.state, event]
    if state is standing.state and event in (Event.INTERRUPTED, Event.FAILED):
        # There was nothing to end; the first problem is kept.
        return standing
    return MemberStatus(
        state,
        "" if event in _FORGETS_ID else standing.member_id,
        NO_GENERATION if event in _FORGETS_GENERATION else standing.generation,
        problem or standing.problem,
    )


def named(standing: MemberStatus, member_id: str, generation: int = NO_GENERATION) -> MemberStatus:
    """Return the status with the member id (and generation) of a JoinGroup response."""
    return replace(standing, member_id=member_id, generation=generation)


def after_error(
    standing: MemberStatus, code: ErrorCode, asked_as: MemberStatus
) -> MemberStatus | None:
    """Return the status after an error response to a request sent with status ``asked_as``.

    None: the code does not concern the membership. A response to a request with another member id
    or generation has no effect.
    """
    event = _EVENT_OF.get(code)
    if event is None:
        return None
    same = (asked_as.member_id, asked_as.generation) == (standing.member_id, standing.generation)
    return step(standing, event) if same else standing
