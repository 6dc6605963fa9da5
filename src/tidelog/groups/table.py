"""All groups of one partition of ``__consumer_offsets``: the interface to the rules.

Owns which groups exist: a first join or commit, or the log, creates one; a committed tombstone
removes it, or the end of its last state. Not the rules of one group: see the modules beside it. The
shell serves it as any table (``broker.coordinator.table``); removals in parts and the views are of
groups only.

Calls of the shell::

    decision = table.decide(group_id, event, now_ms)     # any request, Tick, Expire, RemoveTopics
    perform decision.effects; append the records of each of decision.writes, in this order
    then, write by write, in the order of the log:
        table.stored(write, now_ms)                      # committed
        table.delayed(write, error, now_ms)              # not known in time; stored() may follow
        table.lost(write, error, now_ms)                 # refused, nothing was appended
    each of which returns a decision to perform in the same way.
    While table.removes(group_id), before anything else for it: decide(group_id, RemoveMore(), now).
    At table.next_deadline_ms: decide(group_id, Tick(), now) for each of table.due(now).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from uuid import UUID

from tidelog.groups import (
    describing,
    joining,
    limits,
    offsets,
    positions,
    removals,
    replay,
    retention,
    syncing,
)
from tidelog.groups.decision import (
    DecisionBuilder,
    GroupDecision,
    RemoveGroup,
    RemovePart,
    ReplaceStaticMember,
    StoreAssignment,
    Write,
    error_for,
    error_for_members,
)
from tidelog.groups.events import (
    UNKNOWN_MEMBER_ID,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    Event,
    Expire,
    Heartbeat,
    Join,
    JoinResult,
    Leave,
    RemoveFormerTopicIds,
    RemoveMore,
    RemoveTopics,
    ReportPositions,
    Sync,
    SyncResult,
    Tick,
    refuse,
)
from tidelog.groups.group import Group
from tidelog.groups.joining import join
from tidelog.groups.leaving import heartbeat, leave
from tidelog.groups.offset_columns import OffsetRecords, one_by_one
from tidelog.groups.rebalancing import tick
from tidelog.groups.records import (
    NO_TOPIC_ID,
    CommittedOffset,
    FirstSightRecord,
    GroupRecord,
    OffsetRecord,
    StoredGeneration,
    UnknownRecord,
    decode,
)
from tidelog.groups.room import add_to
from tidelog.groups.settings import GroupRules
from tidelog.groups.syncing import (
    assignment_not_stored,
    assignment_stored,
    static_member_not_stored,
    static_member_stored,
    sync,
)
from tidelog.model.deadlines import Deadlines
from tidelog.model.effects import Answer, Effect
from tidelog.model.errors import ErrorCode

NEEDS_GROUP_ID = (Join, Sync, Heartbeat, Leave)
"""Requests that refuse the empty group id; offsets may be kept under it, as in Kafka."""

NO_REQUESTS = (RemoveTopics, RemoveFormerTopicIds, RemoveMore, Tick, Expire)
"""Events without a waiting request."""


class GroupTable:
    """The groups of one partition. Grows as far as ``rules.room`` has room for all tables, or to
    what the log has."""

    def __init__(self, rules: GroupRules) -> None:
        self._rules = rules
        self._groups: dict[str, Group] = {}
        self._generations: dict[str, StoredGeneration] = {}
        self._deadlines: Deadlines[str] = Deadlines()
        self.ahead_ms = 0
        """The time of day less ``now_ms``, set by the shell before it calls: a steady clock counts
        the deadlines, and the records carry the time of day."""
        self.held = 0
        """Bytes that the members of its groups take."""
        self.held_by: dict[str, int] = {}
        """The same by the address of the members."""
        self.groups_by: dict[str, int] = {}
        """How many groups it has, by the address that began them."""
        self.unknown_records = 0
        """Records of the log that were skipped because this code does not know their version."""

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def get(self, group_id: str) -> Group | None:
        """Return a group, to be read only."""
        return self._groups.get(group_id)

    # Reading the log -----------------------------------------------------------------------

    def replay(
        self, key: bytes | memoryview | None, value: bytes | memoryview | None, now_ms: int
    ) -> None:
        """Replay one record of the log; an unknown one is counted and skipped."""
        record = UnknownRecord("there is no key") if key is None else decode(key, value)
        if isinstance(record, UnknownRecord):
            self.unknown_records += 1
            return
        group = self._groups.get(record.group_id)
        if group is None:
            if record.value is None:
                return
            group = self._new(record.group_id, now_ms)
        replay.apply(group, record)
        if isinstance(record, GroupRecord):
            if record.value is None:
                self._generations.pop(record.group_id, None)
            else:
                self._generations[record.group_id] = record.value
        if record.value is None and group.idle:
            self._forget(group)

    def loaded(self, now_ms: int) -> GroupDecision:
        """The log was read to its end: restore members, start sessions."""
        effects: list[Effect] = []
        writes: list[Write] = []
        for group_id, stored in self._generations.items():
            group, out = self._groups[group_id], DecisionBuilder(group_id)
            group.ahead_ms = self.ahead_ms
            replay.restore(group, stored, now_ms, out)
            settled = self._settle(group, out)
            effects.extend(settled.effects)
            writes.extend(settled.writes)
        self._generations = {}
        return GroupDecision(tuple(effects), tuple(writes))

    # Deciding ------------------------------------------------------------------------------

    def decide(self, group_id: str, event: Event, now_ms: int) -> GroupDecision:
        """Decide one event of one group at ``now_ms``, in ms of a clock that never steps."""
        out = DecisionBuilder(group_id)
        group = self._groups.get(group_id)
        error = ErrorCode.NONE if group is not None else self._why_not_new(group_id, event)
        if error is ErrorCode.NONE and not self._has_room(group, event):
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is not ErrorCode.NONE:
            result = refuse(event, error)
            if group is None and isinstance(event, ReportPositions) and event.is_of_no_member:
                result = positions.of_no_group(event)
            if result is not None and not isinstance(event, NO_REQUESTS):
                out.answer(event.pending_response, result)
            return out.decision()
        if group is None:
            group = self._new(group_id, now_ms, _address_of(event))
        elif not group.counted_bytes and isinstance(event, Join):
            self._begun_by(group, event.client_host)
        group.ahead_ms = self.ahead_ms
        _dispatch(group, event, now_ms, out)
        return self._settle(group, out)

    def stored(self, write: Write, now_ms: int) -> GroupDecision:
        """A write is committed: apply it, give its answers, and what follows from it."""
        group = self._groups[write.key]
        group.ahead_ms = self.ahead_ms
        out = DecisionBuilder(write.key)
        for record in write.records:
            replay.apply(group, record)
        self._release(group, write, oldest=True)
        for answer in write.answers:
            out.answer(answer.pending_response, answer.result)
        match write.purpose:
            case StoreAssignment(generation):
                assignment_stored(group, generation, _shares(write), now_ms, out)
            case ReplaceStaticMember() as purpose:
                static_member_stored(group, purpose, now_ms, out)
            case RemoveGroup():
                self._forget(group)
                return out.decision()
        return self._settle(group, out)

    def delayed(self, write: Write, error: ErrorCode, now_ms: int) -> GroupDecision:
        """A write is not committed in time: waiting requests get an error; it may be stored
        later."""
        group = self._groups[write.key]
        group.ahead_ms = self.ahead_ms
        out = DecisionBuilder(write.key)
        for answer in write.answers:
            refusal = error_for(answer.result, error)
            out.answer(answer.pending_response, answer.result.refused(refusal))
        code = error_for_members(error)
        match write.purpose:
            case StoreAssignment(generation):
                assignment_not_stored(group, generation, code, now_ms, out)
            case ReplaceStaticMember() as purpose:
                static_member_not_stored(group, purpose, code, out)
        return self._settle(group, out)

    def lost(self, write: Write, error: ErrorCode, now_ms: int) -> GroupDecision:
        """The log refused a write: no record was appended, and none will be."""
        group = self._groups[write.key]
        group.ahead_ms = self.ahead_ms
        self._release(group, write, oldest=False)
        out = DecisionBuilder(write.key)
        if isinstance(write.purpose, RemovePart | RemoveGroup):
            records = tuple(one_by_one(write.records))
            removals.refused(group, records, error, now_ms, out)
        delayed = self.delayed(write, error, now_ms)
        return GroupDecision((*out.decision().effects, *delayed.effects), delayed.writes)

    def interrupted(self, group_id: str) -> GroupDecision:
        """A part of a removal failed before it was written: a bug."""
        out = DecisionBuilder(group_id)
        group = self._groups.get(group_id)
        if group is None:
            return out.decision()
        removals.give_up(group, ErrorCode.UNKNOWN_SERVER_ERROR, out)
        return self._settle(group, out)

    def removes(self, group_id: str) -> bool:
        """Whether ``RemoveMore`` is to be decided for a group before anything else is."""
        group = self._groups.get(group_id)
        removal = None if group is None else group.removal
        return removal is not None and removal.has_more and not removal.is_refused

    def unload(self) -> GroupDecision:
        """The partition has another leader now: waiting requests get NOT_COORDINATOR."""
        answers: list[Effect] = []
        for group in self._groups.values():
            if group.removal is not None:
                answers += [
                    Answer(
                        answer.pending_response, answer.result.refused(ErrorCode.NOT_COORDINATOR)
                    )
                    for answer in group.removal.answers
                ]
            for member in group.members.values():
                if member.pending_join is not None:
                    result = JoinResult(ErrorCode.NOT_COORDINATOR, member.member_id)
                    answers.append(Answer(member.pending_join, result))
                if member.pending_sync is not None:
                    answers.append(
                        Answer(member.pending_sync, SyncResult(ErrorCode.NOT_COORDINATOR))
                    )
        self._groups = {}
        self.held = 0
        self.held_by, self.groups_by = {}, {}
        self._deadlines.clear()
        return GroupDecision(tuple(answers))

    # Time ----------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call ``due``, in the time of ``now_ms``; perhaps too early, never too late."""
        return self._deadlines.next_ms

    def due(self, now_ms: int) -> list[str]:
        """Return the groups that need a Tick."""
        return self._deadlines.due(now_ms)

    # Checking ------------------------------------------------------------------------------

    def offsets(
        self,
        group_id: str,
        topics: Iterable[tuple[str, Iterable[int]]] | None,
        topic_id_of: Callable[[str], UUID] = lambda _: NO_TOPIC_ID,
    ) -> list[tuple[str, list[tuple[int, CommittedOffset | None]]]]:
        """Return committed offsets, in the order asked; ``topics`` None asks for all.
        ``topic_id_of`` returns the topic id of the present topic of a name, ``NO_TOPIC_ID`` for
        none."""
        return offsets.fetch_offsets(self._groups.get(group_id), topics, topic_id_of)

    def list_groups(
        self, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> Iterator[describing.ListedGroup | None]:
        """Yield what ListGroups shows of each group that exists at the first one, or None for
        another state or type.
        """
        return describing.list_groups(list(self._groups.values()), states, types)

    def describe(self, group_id: str) -> describing.DescribedGroup:
        """Return one group as DescribeGroups shows it."""
        return describing.describe_group(group_id, self._groups.get(group_id))

    def _why_not_new(self, group_id: str, event: Event) -> ErrorCode:
        """Return NONE when ``event`` may begin an unknown group, otherwise the error."""
        if isinstance(event, NEEDS_GROUP_ID) and not group_id:
            return ErrorCode.INVALID_GROUP_ID
        match event:
            case Join() if event.member_id == UNKNOWN_MEMBER_ID:
                pass
            case CommitOffsets() if event.generation < 0:
                pass
            case CommitOffsets():
                if event.names_missing_group:
                    return ErrorCode.GROUP_ID_NOT_FOUND
                return ErrorCode.ILLEGAL_GENERATION
            case DeleteOffsets() | DeleteGroup():
                return ErrorCode.GROUP_ID_NOT_FOUND
            case _:
                return ErrorCode.UNKNOWN_MEMBER_ID
        if len(group_id.encode()) > limits.MAX_ID_BYTES:
            return ErrorCode.INVALID_GROUP_ID
        if not self._rules.room.has_group(_address_of(event)):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def _has_room(self, group: Group | None, event: Event) -> bool:
        """Whether there is room for the bytes of ``event`` in all groups."""
        room = self._rules.room
        if isinstance(event, Join):
            return room.has_bytes(joining.grows_by(group, event), event.client_host)
        if isinstance(event, Sync) and group is not None:
            asks = group.members.get(event.member_id)
            host = "" if asks is None else asks.client_host
            return room.has_bytes(syncing.grows_by(group, event), host)
        if isinstance(event, ReportPositions) and group is not None:
            return room.has_bytes(positions.grows_by(group, event), group.begun_by)
        return True

    def _new(self, group_id: str, now_ms: int, address: str = "") -> Group:
        group = Group(group_id, self._rules, now_ms + self.ahead_ms, self.ahead_ms)
        self._groups[group_id] = group
        group.begun_by = address
        add_to(self.groups_by, address, 1)
        return group

    def _begun_by(self, group: Group, address: str) -> None:
        """A group has no members, and one at this address joins."""
        add_to(self.groups_by, group.begun_by, -1)
        add_to(self.groups_by, address, 1)
        group.begun_by = address

    def _count_bytes(self, group: Group) -> None:
        held, own = group.held_bytes, group.own_bytes
        self.held += held - group.counted_bytes
        add_to(self.held_by, group.begun_by, own - group.counted_own)
        group.counted_bytes, group.counted_own = held, own
        for address, count in group.moved.items():
            add_to(self.held_by, address, count)
        group.moved.clear()

    def _settle(self, group: Group, out: DecisionBuilder) -> GroupDecision:
        """Count the writes in flight, note the group's next deadline, drop the group if it is
        idle."""
        for write in out.written:
            group.open_writes += 1
            for record in write.records:
                if isinstance(record, OffsetRecords):
                    columns = record.columns
                    group.flying.add(columns.topic, columns.partitions, columns.topic_id)
                elif isinstance(record, OffsetRecord):
                    value = record.value
                    topic_id = NO_TOPIC_ID if value is None else value.topic_id
                    group.flying.add(record.topic, (record.partition,), topic_id)
                elif isinstance(record, FirstSightRecord):
                    group.sights_in_flight.setdefault(record.topic, []).append(record.value)
        if group.moved or group.held_bytes != group.counted_bytes:
            self._count_bytes(group)
        if group.idle:
            self._forget(group)
        elif (at_ms := group.deadlines.next_ms) is None:
            self._deadlines.drop(group.group_id)
        else:
            self._deadlines.set(group.group_id, at_ms)
        return out.decision()

    def _forget(self, group: Group) -> None:
        self._deadlines.drop(group.group_id)
        if self._groups.pop(group.group_id, None) is not None:
            # It has neither members nor unused member ids.
            self._count_bytes(group)
            add_to(self.groups_by, group.begun_by, -1)

    def _release(self, group: Group, write: Write, *, oldest: bool) -> None:
        """A write is no longer in flight: the ``oldest``, which was committed, or the newest, which
        was refused."""
        group.open_writes -= 1
        for record in write.records:
            if isinstance(record, OffsetRecords):
                group.flying.end(record.columns.topic, oldest=oldest)
            elif isinstance(record, OffsetRecord):
                group.flying.end(record.topic, oldest=oldest)
            elif isinstance(record, FirstSightRecord):
                flying = group.sights_in_flight[record.topic]
                flying.pop(0 if oldest else -1)
                if not flying:
                    del group.sights_in_flight[record.topic]


def _address_of(event: Event) -> str:
    """Return the address of the client that may begin a group."""
    return event.client_host if isinstance(event, Join | CommitOffsets) else ""


def _dispatch(group: Group, event: Event, now_ms: int, out: DecisionBuilder) -> None:
    match event:
        case Join():
            join(group, event, now_ms, out)
        case Sync():
            sync(group, event, now_ms, out)
        case Heartbeat():
            heartbeat(group, event, now_ms, out)
        case Leave():
            leave(group, event, now_ms, out)
        case CommitOffsets():
            offsets.commit_offsets(group, event, now_ms, out)
        case DeleteOffsets():
            offsets.delete_offsets(group, event, out)
        case ReportPositions():
            positions.report_positions(group, event, now_ms, out)
        case DeleteGroup():
            retention.delete_group(group, event, out)
        case RemoveTopics():
            retention.remove_topics(group, event, out)
        case RemoveFormerTopicIds():
            retention.remove_former_topic_ids(group, event, out)
        case RemoveMore():
            removals.go_on(group, out)
        case Tick(come_ms):
            tick(group, now_ms, out, now_ms if come_ms is None else come_ms)
        case Expire():
            retention.expire(group, event, now_ms, out)


def _shares(write: Write) -> dict[str, bytes]:
    record = write.records[-1]
    assert isinstance(record, GroupRecord) and record.value is not None
    return {member.member_id: member.assignment for member in record.value.members}
