"""The state of one group: its members, its generation, its offsets, and their accounting.

Owns the state and the small steps that keep it consistent. Not the rules that take these steps: see
`joining`, `rebalancing`, `syncing`, `leaving`, `offsets` and `retention`.

=====================  ===================================  ====================================
state                  what it means                        goes to
=====================  ===================================  ====================================
Empty                  no members; perhaps offsets          PreparingRebalance (a member joins),
                                                            Dead (removed)
PreparingRebalance     members must join again; joins wait  CompletingRebalance (all joined, or
                                                            the deadline), Empty (all gone)
CompletingRebalance    joined; syncs wait for the leader's  Stable (assignment committed),
                       assignment                           PreparingRebalance
Stable                 every member has its assignment      PreparingRebalance
Dead                   its removal is being committed       Empty (the removal failed), gone
=====================  ===================================  ====================================

Delayed and pending responses and deadlines are in memory only: after a failure of the coordinator
members join again. The records of ``__consumer_offsets`` survive: offsets, and the members of a
Stable generation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from tidelog.groups import limits
from tidelog.groups.consumer_protocol import AWARE_PREFIX, PROTOCOL_TYPE, all_subscribed
from tidelog.groups.events import JoinedMember, PendingResponse
from tidelog.groups.limits import text_bytes
from tidelog.groups.offsets_in_flight import OffsetsInFlight
from tidelog.groups.pending_removal import PendingRemoval
from tidelog.groups.records import (
    CommittedOffset,
    FirstSight,
    GroupRecord,
    StoredGeneration,
    StoredMember,
)
from tidelog.groups.reported_positions import GenerationPositions
from tidelog.groups.settings import GroupRules
from tidelog.model.deadlines import Deadlines
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


class GroupState(StrEnum):
    """The states of a classic group, under the names that clients and tools know."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


REBALANCEABLE = frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE})
"""States from which a rebalance may begin."""

JOIN_DEADLINE = "join"
SYNC_DEADLINE = "sync"
REMOVAL_DEADLINE = "removal"


@dataclass(slots=True, eq=False)
class Member:
    """One member: its identity, the assignors it offers, and its requests that wait. Times in
    ms."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: dict[str, bytes]
    assignment: bytes = b""
    is_new: bool = False
    restored_ms: int | None = None
    """When the log brought it, with the chosen assignor only; None since it joined."""
    asks_as_aware: bool = False
    pending_join: PendingResponse | None = None
    pending_sync: PendingResponse | None = None

    @property
    def waits(self) -> bool:
        """Whether a request of it is delayed, which counts as a heartbeat."""
        return self.pending_join is not None or self.pending_sync is not None

    @property
    def aware(self) -> bool | None:
        """Whether it is aware of resizes and reports its positions; None: not known."""
        if self.asks_as_aware or any(name.startswith(AWARE_PREFIX) for name in self.protocols):
            return True
        return False if self.restored_ms is None else None

    @property
    def metadata_bytes(self) -> int:
        """The bytes of its subscriptions, to all the assignors that it offers."""
        return sum(map(len, self.protocols.values()))

    @property
    def held_bytes(self) -> int:
        """The memory that it takes, without its assignment."""
        return held_by_member(self.client_id, self.protocols)

    def offers(self, protocols: dict[str, bytes]) -> bool:
        """Whether it offers just these assignors, in this order, with these subscriptions."""
        return list(self.protocols.items()) == list(protocols.items())


@dataclass(slots=True, eq=False)
class Group:
    """The state of one group. No code outside ``tidelog.groups`` changes it."""

    group_id: str
    rules: GroupRules
    since_ms: int
    ahead_ms: int = 0
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    supported: Counter[str] = field(default_factory=Counter)
    metadata_bytes: int = 0
    member_bytes: int = 0
    assignment_bytes: int = 0
    begun_by: str = ""
    """The address of the first request since it was empty; "" if it was read from the log."""
    counted_bytes: int = 0
    counted_own: int = 0
    """What the table has counted of ``held_bytes`` and ``own_bytes``."""
    moved: dict[str, int] = field(default_factory=dict)
    """What each address holds more, or less, since, by its members."""
    awaiting_joins: int = 0
    pending_joins: set[str] = field(default_factory=set)
    pending_syncs: set[str] = field(default_factory=set)
    deadlines: Deadlines[str] = field(default_factory=Deadlines)
    initial_rebalance_left_ms: int | None = None
    """How long the initial rebalance may still be delayed; None in any other."""
    new_member_added: bool = False
    storing_generation: int | None = None
    subscribed: frozenset[str] | None = None
    offsets: dict[str, dict[int, CommittedOffset]] = field(default_factory=dict)
    offset_count: int = 0
    flying: OffsetsInFlight = field(default_factory=OffsetsInFlight)
    open_writes: int = 0
    recorded: bool = False
    removal: PendingRemoval | None = None
    """Of the group, or of many positions: until its last part is decided, of the group until that
    is committed."""
    positions: GenerationPositions | None = None
    """Of the generation in which they were reported; None before the first report."""
    first_sights: dict[str, FirstSight] = field(default_factory=dict)
    first_joins: dict[str, FirstSight] = field(default_factory=dict)
    """Topics that members have joined with, as they were then, until the first sight is stored."""
    sights_in_flight: dict[str, list[FirstSight | None]] = field(default_factory=dict)
    """Of each topic in the order of the log, with None for a removal."""

    @property
    def idle(self) -> bool:
        """Whether the group can be dropped: it has no state in memory and none in the log."""
        return (
            self.state is GroupState.EMPTY
            and not self.recorded
            and not self.pending_joins
            and not self.offset_count
            and not self.open_writes
            and not self.first_sights
            and self.flying.pending is None
        )

    @property
    def in_flight(self) -> Mapping[TopicPartition, Sequence[UUID]]:
        """The topic ids of each partition with offsets in flight, or pending: see
        `offsets_in_flight`."""
        return self.flying.by_partition()

    @property
    def held_bytes(self) -> int:
        """The memory that its members and unused member ids take; 0 when it has none."""
        return self.own_bytes + self.member_bytes + self.assignment_bytes

    @property
    def own_bytes(self) -> int:
        """The part of it that is not its members': of unused member ids, and of itself."""
        pending = len(self.pending_joins)
        if not self.members and not pending:
            return 0
        held = limits.HELD_BY_GROUP + limits.HELD_BY_PENDING_ID * pending
        return held if self.positions is None else held + self.positions.held_bytes

    @property
    def all_joined(self) -> bool:
        """Whether every member has joined and every id that was handed out is used."""
        return self.awaiting_joins == len(self.members) and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of its members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def consumes(self) -> bool:
        """Whether its members speak the consumer protocol, so that subscriptions can be read."""
        return self.protocol_type == PROTOCOL_TYPE

    def enter(self, state: GroupState, now_ms: int) -> None:
        """Change to another state."""
        self.state = state
        self.since_ms = self.wall_ms(now_ms)

    def wall_ms(self, now_ms: int) -> int:
        """Return the time of day at ``now_ms``: for records, never for waiting."""
        return now_ms + self.ahead_ms

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE for a member with this identity, otherwise the error (KIP-345)."""
        if instance_id is not None:
            holder = self.static_members.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these assignors can be added to those there are."""
        if self.state is GroupState.EMPTY or not self.members:
            return bool(protocol_type) and any(True for _ in names)
        if protocol_type != self.protocol_type:
            return False
        return any(self.supported[name] == len(self.members) for name in names)

    def select_protocol(self) -> str:
        """Return the assignor with the most votes among those that all members offer.

        Each member votes for the first it offers; equal votes go to the one voted for first.
        Kafka leaves a tie to the order of a hash map.
        """
        count = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name in member.protocols if self.supported[name] == count)] += 1
        return votes.most_common(1)[0][0]

    def add(self, member: Member) -> None:
        """Add a new member; the first one leads and determines the protocol type."""
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._admit(member)
        self.pending_joins.discard(member.member_id)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Remove a member or a pending id; the oldest of the others leads in its place."""
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        self.deadlines.drop(session_of(member_id))
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._withdraw(member)
        if member.pending_join is not None:
            self.awaiting_joins -= 1
        if member.instance_id is not None:
            self.static_members.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def update(
        self,
        member: Member,
        protocols: dict[str, bytes],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """Replace the assignors and the timeouts (in ms) of a member."""
        self._withdraw(member)
        member.protocols = protocols
        member.restored_ms = None
        self._admit(member)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def delay_join(
        self, member: Member, pending_response: PendingResponse
    ) -> PendingResponse | None:
        """Keep a member's join pending; return its former one, which the caller must answer."""
        former, member.pending_join = member.pending_join, pending_response
        if former is None:
            self.awaiting_joins += 1
        return former

    def take_join(self, member: Member) -> PendingResponse | None:
        """Return a member's waiting join to answer it, or None."""
        pending_response, member.pending_join = member.pending_join, None
        if pending_response is not None:
            self.awaiting_joins -= 1
        return pending_response

    def touch(self, member: Member, now_ms: int) -> None:
        """Restart a member's session."""
        self.deadlines.set(session_of(member.member_id), now_ms + member.session_timeout_ms)

    def assign(self, member: Member, assignment: bytes) -> None:
        """Set a member's assignment."""
        grown = len(assignment) - len(member.assignment)
        self.assignment_bytes += grown
        self._move(member, grown)
        member.assignment = assignment

    def described_members(self) -> tuple[JoinedMember, ...]:
        """Return the members as the leader needs them to assign partitions."""
        name = self.protocol_name or ""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.protocols.get(name, b""))
            for member in self.members.values()
        )

    def find_subscribed(self) -> frozenset[str] | None:
        """Return the topics of all members' subscriptions, or None when they cannot be read."""
        if not self.consumes:
            return None
        name = self.protocol_name or ""
        return all_subscribed(member.protocols.get(name, b"") for member in self.members.values())

    def is_subscribed(self, topic: str) -> bool:
        """Whether members read ``topic``; of unreadable subscriptions the answer is yes."""
        return self.consumes if self.subscribed is None else topic in self.subscribed

    def record(self, assignments: dict[str, bytes] | None = None) -> GroupRecord:
        """Return the record of the present generation; without ``assignments`` the known ones."""
        name = self.protocol_name or ""
        members = tuple(
            StoredMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.protocols.get(name, b""),
                member.assignment
                if assignments is None
                else assignments.get(member.member_id, b""),
            )
            for member in self.members.values()
        )
        stored = StoredGeneration(
            self.protocol_type or "",
            self.generation,
            self.protocol_name,
            self.leader,
            self.since_ms,
            members,
        )
        return GroupRecord(self.group_id, stored)

    def _admit(self, member: Member) -> None:
        self.supported.update(member.protocols.keys())
        self.metadata_bytes += member.metadata_bytes
        self.member_bytes += member.held_bytes
        self.assignment_bytes += len(member.assignment)
        self._move(member, member.held_bytes + len(member.assignment))

    def _move(self, member: Member, count: int) -> None:
        host = member.client_host
        self.moved[host] = self.moved.get(host, 0) + count

    def _withdraw(self, member: Member) -> None:
        self.metadata_bytes -= member.metadata_bytes
        self.member_bytes -= member.held_bytes
        self.assignment_bytes -= len(member.assignment)
        self._move(member, -member.held_bytes - len(member.assignment))
        for name in member.protocols:
            self.supported[name] -= 1
            if not self.supported[name]:
                del self.supported[name]


def held_by_member(client_id: str, protocols: dict[str, bytes]) -> int:
    """Return the memory that a member takes, without its assignment."""
    held = limits.HELD_BY_MEMBER + text_bytes(client_id)
    for name, metadata in protocols.items():
        held += limits.HELD_BY_PROTOCOL + text_bytes(name) + len(metadata)
    return held


def session_of(member_id: str) -> str:
    """Return the name of a member's session among the group's deadlines."""
    return "session:" + member_id
