"""Events of a group and the results of its requests.

Owns plain values. A ``pending_response`` is the handle by which the shell finds the waiting request
(it keeps a future); the rules return it with the result and never inspect it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple, Self
from uuid import UUID

from tidelog.groups.offset_columns import OffsetColumns
from tidelog.groups.records import NO_TOPIC_ID
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

PendingResponse = object

NO_GENERATION = -1
UNKNOWN_MEMBER_ID = ""
"""The member id of a client that has none yet."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The result of a request."""

    error: ErrorCode

    def refused(self, error: ErrorCode) -> Self:
        """Return the result for when what it promises could not be stored."""
        return type(self)(error)


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
    """A member in the JoinGroup response to the leader of a generation."""

    member_id: str
    instance_id: str | None
    subscription: bytes


@dataclass(frozen=True, slots=True)
class JoinResult(GroupResult):
    """The result of a Join; ``members`` only for the leader."""

    member_id: str = UNKNOWN_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


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
class SyncResult(GroupResult):
    """The result of a Sync."""

    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


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
class LeaveResult(GroupResult):
    """The result of a Leave: one error for each member, in the order of the request."""

    members: tuple[tuple[Leaver, ErrorCode], ...] = ()


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
    topics: tuple[OffsetColumns, ...]
    retention_ms: int = -1
    names_missing_group: bool = False
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class CommitInTransaction:
    """TxnOffsetCommit, for partitions that the shell knows to exist (KIP-98, KIP-447).

    ``generation`` -1 and no member: a client before v3, or a consumer that assigns itself.
    """

    pending_response: PendingResponse
    producer_id: int
    producer_epoch: int
    member_id: str
    instance_id: str | None
    generation: int
    topics: tuple[OffsetColumns, ...]
    client_host: str = ""
    why_late: Callable[[], ErrorCode] = lambda: ErrorCode.NONE
    """Called by the shell right before this is decided: the error if its transaction has ended
    since it was confirmed, otherwise NONE."""


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """A marker of WriteTxnMarkers for a partition of the log: it concerns all groups there."""

    pending_response: PendingResponse
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class MarkerResult(GroupResult):
    """The result of EndTransaction. Errors are those that a coordinator of transactions knows."""

    def refused(self, error: ErrorCode) -> MarkerResult:
        """Return the result with ``error``; what only clients of groups know is said as for any
        partition."""
        return MarkerResult(_FOR_MARKERS.get(error, error))


_FOR_MARKERS = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""The sender asks for the leader again, and sends the marker again."""


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """OffsetDelete (KIP-496)."""

    pending_response: PendingResponse
    partitions: tuple[TopicPartition, ...]


class TopicErrors(NamedTuple):
    """The errors of partitions of one topic: one for all of them, or one for each."""

    name: str
    partitions: Sequence[int]
    errors: ErrorCode | Sequence[ErrorCode] = ErrorCode.NONE

    @property
    def all_errors(self) -> Sequence[ErrorCode]:
        """The error of each partition."""
        errors = self.errors
        return [errors] * len(self.partitions) if isinstance(errors, ErrorCode) else errors

    def refused(self, error: ErrorCode) -> TopicErrors:
        """Return the same with ``error`` in place of every success."""
        errors = self.errors
        if isinstance(errors, ErrorCode):
            return self._replace(errors=errors or error)
        return self._replace(errors=[one or error for one in errors])


def errors_by_topic(
    results: Iterable[tuple[TopicPartition, ErrorCode]],
) -> tuple[TopicErrors, ...]:
    """Return the errors of partitions, in their order: one for each run of a topic."""
    return tuple(
        TopicErrors(name, [tp.partition for tp, _ in run], [error for _, error in run])
        for name, grouped in groupby(results, lambda result: result[0].topic)
        for run in (list(grouped),)
    )


@dataclass(frozen=True, slots=True)
class OffsetsResult(GroupResult):
    """The result of commits and of DeleteOffsets: an error for each partition, and one for
    all."""

    error: ErrorCode = ErrorCode.NONE
    topics: tuple[TopicErrors, ...] = ()

    @property
    def partitions(self) -> tuple[tuple[TopicPartition, ErrorCode], ...]:
        """The error of each partition, in the order of the request."""
        return tuple(
            (TopicPartition(topic.name, partition), error)
            for topic in self.topics
            for partition, error in zip(topic.partitions, topic.all_errors, strict=True)
        )

    def refused(self, error: ErrorCode) -> Self:
        """Return the result with ``error`` in place of every success."""
        return replace(self, topics=tuple(topic.refused(error) for topic in self.topics))


@dataclass(frozen=True, slots=True)
class ReportPositions:
    """ConsumerGroupPosition (KIP-253): a member reports positions and asks for others.

    ``generation`` -1 and no member: as in ``CommitOffsets``. ``topic_id_of`` as in
    ``RemoveTopics``.
    """

    pending_response: PendingResponse
    member_id: str
    generation: int
    reports: tuple[tuple[TopicPartition, int], ...] = ()
    asked: tuple[TopicPartition, ...] = ()
    topic_id_of: Callable[[str], UUID] = lambda _: NO_TOPIC_ID

    @property
    def is_of_no_member(self) -> bool:
        """Whether it may only ask, and only while the group has no members."""
        return self.generation < 0 and not self.member_id


@dataclass(frozen=True, slots=True)
class PositionsResult(GroupResult):
    """The result of ReportPositions: (offset, from commit) of each partition asked for."""

    positions: Mapping[TopicPartition, tuple[int, bool]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """DeleteGroups, for one group."""

    pending_response: PendingResponse


@dataclass(frozen=True, slots=True)
class StatusResult(GroupResult):
    """The result of Heartbeat and DeleteGroup: an error code only."""


@dataclass(frozen=True, slots=True)
class RemoveTopics:
    """Topics were deleted: their offsets are removed too, except those of the present topic of that
    name; ``topic_id_of`` returns its topic id, ``NO_TOPIC_ID`` for none."""

    topics: frozenset[str]
    topic_id_of: Callable[[str], UUID] = lambda _: NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class RemoveFormerTopicIds:
    """The log has been read: offsets of a topic id other than that of ``topic_id_of`` are
    removed."""

    topic_id_of: Callable[[str], UUID]


@dataclass(frozen=True, slots=True)
class RemoveMore:
    """The next part of a removal of very many positions (``removals``)."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline of the group is reached: session, join or sync."""

    come_ms: int | None = None
    """Only deadlines up to this moment count: an event that waits in the same queue may have
    arrived before a later one. None: up to now."""


@dataclass(frozen=True, slots=True)
class Expire:
    """The check of the retention of offsets (``offsets.retention.check.interval.ms``), or the
    result of a check of very many positions: these, and topics with a first sight only."""

    positions: tuple[TopicPartition, ...] | None = None
    """None: check all of them now."""
    topics: tuple[str, ...] = ()


Event = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | CommitOffsets
    | CommitInTransaction
    | DeleteOffsets
    | DeleteGroup
    | ReportPositions
    | RemoveTopics
    | RemoveFormerTopicIds
    | RemoveMore
    | Tick
    | Expire
)
Result = JoinResult | SyncResult | LeaveResult | OffsetsResult | PositionsResult | StatusResult


def refuse(event: Event, error: ErrorCode) -> Result | None:
    """Return the result with ``error`` for a request; None for an event that is no request.

    A LeaveGroup has UNKNOWN_MEMBER_ID for each member, as in Kafka for an unknown group.
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
                refused = tuple((leaver, error) for leaver in event.members)
                return LeaveResult(ErrorCode.NONE, refused)
            return LeaveResult(error)
        case CommitOffsets() | CommitInTransaction():
            errors = (TopicErrors(asked.topic, asked.partitions, error) for asked in event.topics)
            return OffsetsResult(topics=tuple(errors))
        case DeleteOffsets():
            return OffsetsResult(error)
        case ReportPositions():
            return PositionsResult(error)
        case _:
            return None
