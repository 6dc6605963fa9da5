"""What can happen to a group, and what its members are told: events in, results out.

Owns plain values only. A ``pending_response`` is whatever the shell needs to find the waiting
request again (it keeps a future); the rules hand it back with the result and never look into it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from tidelog.groups.records import NO_LIFE, CommittedOffset
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

PendingResponse = object

NO_GENERATION = -1
UNKNOWN_MEMBER_ID = ""
"""The member id of a client that has none yet."""


@dataclass(frozen=True, slots=True)
class Join:
    """JoinGroup. ``member_id_required`` from v4 (KIP-394), ``can_skip_assignment`` from v9
    (KIP-814). ``protocols`` are (assignor, subscription), the member's favourite first."""

    pending_response: PendingResponse
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    member_id_required: bool = True
    can_skip_assignment: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """One line of what the leader of a generation is told."""

    member_id: str
    instance_id: str | None
    subscription: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The answer to a Join; ``members`` only for the leader."""

    error: ErrorCode
    member_id: str = UNKNOWN_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False

    def refused(self, error: ErrorCode) -> JoinResult:
        """Return the answer for when what it promises could not be stored."""
        return JoinResult(error)


@dataclass(frozen=True, slots=True)
class Sync:
    """SyncGroup. ``assignments`` is (member id, share) from the leader, empty from the others;
    protocol type and name are None before v5 (KIP-559)."""

    pending_response: PendingResponse
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The answer to a Sync."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None

    def refused(self, error: ErrorCode) -> SyncResult:
        """Return the answer for when what it promises could not be stored."""
        return SyncResult(error)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Heartbeat."""

    pending_response: PendingResponse
    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class Leaver:
    """One member that leaves, or is removed by its instance id alone (KIP-345)."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Leave:
    """LeaveGroup: one member before v3, any number from v3 on."""

    pending_response: PendingResponse
    members: tuple[Leaver, ...]


@dataclass(frozen=True, slots=True)
class LeaveResult:
    """The answer to a Leave: one error per member, in the order of the request."""

    error: ErrorCode
    members: tuple[tuple[Leaver, ErrorCode], ...] = ()

    def refused(self, error: ErrorCode) -> LeaveResult:
        """Return the answer for when the departure could not be stored."""
        return LeaveResult(error)


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """OffsetCommit, for partitions that the shell knows to exist.

    ``generation`` -1 and no member: a consumer that assigns itself, or a tool.
    ``retention_ms`` -1 unless a client of v2-4 named one. ``names_missing_group`` from v9.
    """

    pending_response: PendingResponse
    member_id: str
    instance_id: str | None
    generation: int
    offsets: tuple[tuple[TopicPartition, CommittedOffset], ...]
    retention_ms: int = -1
    names_missing_group: bool = False
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """OffsetDelete (KIP-496)."""

    pending_response: PendingResponse
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetsResult:
    """The answer to CommitOffsets and DeleteOffsets: an error per partition, and one for all."""

    error: ErrorCode = ErrorCode.NONE
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...] = ()

    def refused(self, error: ErrorCode) -> OffsetsResult:
        """Return the answer with ``error`` in place of every success."""
        kept = tuple((at, found or error) for at, found in self.partitions)
        return replace(self, partitions=kept)


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """DeleteGroups, for one group."""

    pending_response: PendingResponse


@dataclass(frozen=True, slots=True)
class StatusResult:
    """The answer to Heartbeat and DeleteGroup: an error code and nothing else."""

    error: ErrorCode

    def refused(self, error: ErrorCode) -> StatusResult:
        """Return the answer for when the change could not be stored."""
        return StatusResult(error)


@dataclass(frozen=True, slots=True)
class RemoveTopics:
    """Topics were deleted: their offsets go too, but for those taken in the life that is known now
    under the name; ``life_of`` gives its topic id, ``NO_LIFE`` for none."""

    topics: frozenset[str]
    life_of: Callable[[str], UUID] = lambda _: NO_LIFE


@dataclass(frozen=True, slots=True)
class RemoveFormerLives:
    """The log has been read: offsets of another life of a topic than ``life_of`` gives go."""

    life_of: Callable[[str], UUID]


@dataclass(frozen=True, slots=True)
class RemoveMore:
    """A removal of very many positions goes on (``removals``)."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline of the group has come: session, join or sync."""

    come_ms: int | None = None
    """Deadlines that had come by then count, and no later one: what waited behind other work may
    have something behind it that came before such a one. None: by now."""


@dataclass(frozen=True, slots=True)
class Expire:
    """Time to look at the retention of offsets (``offsets.retention.check.interval.ms``), or what a
    look at very many positions found: these, and topics with nothing but their first sight."""

    positions: tuple[TopicPartition, ...] | None = None
    """None: look at all of them now."""
    topics: tuple[str, ...] = ()


Event = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | CommitOffsets
    | DeleteOffsets
    | DeleteGroup
    | RemoveTopics
    | RemoveFormerLives
    | RemoveMore
    | Tick
    | Expire
)
Result = JoinResult | SyncResult | LeaveResult | OffsetsResult | StatusResult


def refuse(event: Event, error: ErrorCode) -> Result | None:
    """Return the answer that gives ``error`` to a request; None for an event that is none.

    A LeaveGroup says UNKNOWN_MEMBER_ID member by member, as Kafka does for a group it lacks.
    """
    match event:
        case Join():
            return JoinResult(error, event.member_id)
        case Sync():
            return SyncResult(error)
        case Heartbeat() | DeleteGroup():
            return StatusResult(error)
        case Leave():
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                each = tuple((leaver, error) for leaver in event.members)
                return LeaveResult(ErrorCode.NONE, each)
            return LeaveResult(error)
        case CommitOffsets():
            return OffsetsResult(partitions=tuple((at, error) for at, _ in event.offsets))
        case DeleteOffsets():
            return OffsetsResult(error)
        case _:
            return None
