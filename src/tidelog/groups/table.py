"""All groups of one partition of ``__consumer_offsets``: the interface to the rules.

Owns which groups exist: a first join or commit, or the log, creates one; a committed tombstone
removes it, or the end of its last state. Not the rules of one group: see the modules beside it. The
shell serves it as any table (``broker.coordinator.table``); removals in parts and the views are of
groups only.

Calls of the shell::

    decision = table.decide(group_id, event, now_ms)     # any request, Tick, Expire, RemoveTopics
    decision = table.end_transaction(event, now_ms)      # a marker, which is of no group
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

from collections.abc import Callable, Collection, Iterable, Iterator
from uuid import UUID

from tidelog.groups import (
    describing,
    joining,
    limits,
    offsets,
    positions,
    rebalancing,
    removals,
    replay,
    syncing,
    writes_in_flight,
)
from tidelog.groups.committing_producers import CommittingProducers, ProducerEpochs
from tidelog.groups.decision import (
    DecisionBuilder,
    GroupDecision,
    RemoveGroup,
    RemovePart,
    ReplaceStaticMember,
    StoreAssignment,
    TransactionPart,
    Write,
    error_for,
    error_for_members,
    refused,
)
from tidelog.groups.dispatching import dispatch
from tidelog.groups.events import (
    UNKNOWN_MEMBER_ID,
    CommitInTransaction,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    EndTransaction,
    Event,
    Expire,
    Heartbeat,
    Join,
    Leave,
    RemoveFormerTopicIds,
    RemoveMore,
    RemoveTopics,
    ReportPositions,
    Sync,
    Tick,
    refuse,
)
from tidelog.groups.group import Group
from tidelog.groups.offset_columns import one_by_one
from tidelog.groups.records import (
    NO_TOPIC_ID,
    CommittedOffset,
    GroupRecord,
    OffsetRecord,
    Record,
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
)
from tidelog.model.deadlines import Deadlines
from tidelog.model.effects import Effect
from tidelog.model.errors import ErrorCode
from tidelog.records.control_records import EndMarker

NEEDS_GROUP_ID = (Join, Sync, Heartbeat, Leave, CommitInTransaction)
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
        self.transactions = CommittingProducers()
        """The transactions with offsets here; to be read only."""
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
        else:
            self._replay(record, now_ms)

    def replay_in_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        key: bytes | memoryview | None,
        value: bytes | memoryview | None,
        now_ms: int,
    ) -> None:
        """Replay one record of a transactional batch: an offset counts once its transaction
        commits. Anything else has no place there, and is replayed as if it were in another batch.
        """
        record = UnknownRecord("there is no key") if key is None else decode(key, value)
        if not isinstance(record, OffsetRecord) or record.value is None:
            self.replay(key, value, now_ms)
            return
        group = self._groups.get(record.group_id) or self._new(record.group_id, now_ms)
        replay.pend(group, producer_id, record)
        self.transactions.note(producer_id, producer_epoch, record.group_id)

    def replay_marker(
        self, producer_id: int, producer_epoch: int, marker: EndMarker, _now_ms: int
    ) -> None:
        """Replay a marker of the log."""
        for group in self._ended(producer_id, producer_epoch, marker):
            if group.idle:
                self._forget(group)

    def _replay(self, record: Record, now_ms: int) -> None:
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
        if error is ErrorCode.NONE:
            error = self._why_refused(group, event)
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
        dispatch(group, event, now_ms, out)
        return self._settle(group, out)

    def stored(self, write: Write, now_ms: int) -> GroupDecision:
        """A write is committed: apply it, give its answers, and what follows from it."""
        part = write.transaction
        if part is not None and part.marker is not None:
            return self._marker_stored(write, part, part.marker)
        group = self._groups[write.key]
        group.ahead_ms = self.ahead_ms
        out = DecisionBuilder(write.key)
        for record in write.records:
            replay.apply(group, record)
        if part is not None:
            self.transactions.note(part.producer_id, part.producer_epoch, write.key)
            for record in part.records:
                replay.pend(group, part.producer_id, record)
        writes_in_flight.landed(group, write, oldest=True)
        if part is not None:
            self.transactions.landed(part.producer_id, oldest=True)
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
        if write.transaction is not None and write.transaction.marker is not None:
            return refused(write, error)
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
        part = write.transaction
        if part is not None and part.marker is not None:
            self.transactions.landed(part.producer_id, oldest=False)
            return refused(write, error)
        group = self._groups[write.key]
        group.ahead_ms = self.ahead_ms
        writes_in_flight.landed(group, write, oldest=False)
        if part is not None:
            self.transactions.landed(part.producer_id, oldest=False)
        out = DecisionBuilder(write.key)
        if isinstance(write.purpose, RemovePart | RemoveGroup):
            records = tuple(one_by_one(write.records))
            removals.refused(group, records, error, now_ms, out)
        delayed = self.delayed(write, error, now_ms)
        return GroupDecision((*out.decision().effects, *delayed.effects), delayed.writes)

    # Markers -------------------------------------------------------------------------------

    def end_transaction(self, event: EndTransaction, _now_ms: int) -> GroupDecision:
        """Decide a marker for this partition."""
        return self.transactions.end_transaction(event)

    def _marker_stored(
        self, write: Write, part: TransactionPart, marker: EndMarker
    ) -> GroupDecision:
        self.transactions.landed(part.producer_id, oldest=True)
        for group in self._ended(part.producer_id, part.producer_epoch, marker):
            self._settle(group, DecisionBuilder(group.group_id))
        return GroupDecision(write.answers)

    def _ended(self, producer_id: int, producer_epoch: int, marker: EndMarker) -> list[Group]:
        """Apply a committed marker; return the groups that had offsets of it."""
        epochs = ProducerEpochs(producer_epoch, marker.coordinator_epoch)
        named = self.transactions.end(producer_id, epochs)
        groups = [group for name in named if (group := self._groups.get(name)) is not None]
        for group in groups:
            replay.end_transaction(group, producer_id, committed=marker.committed)
        return groups

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
            answers += rebalancing.refuse_waiting(group, ErrorCode.NOT_COORDINATOR)
        self._groups = {}
        self.transactions.clear()
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

    def unstable(
        self,
        group_id: str,
        topic: str,
        topic_id_of: Callable[[str], UUID] = lambda _: NO_TOPIC_ID,
        partitions: Iterable[int] | None = None,
    ) -> Collection[int]:
        """Return those of the partitions, None for all of the topic, that have offsets of open
        transactions."""
        group = self._groups.get(group_id)
        return offsets.unstable_partitions(group, topic, topic_id_of, partitions)

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
            case CommitOffsets() | CommitInTransaction() if event.generation < 0:
                pass
            case CommitInTransaction():
                return ErrorCode.ILLEGAL_GENERATION
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

    def _why_refused(self, group: Group | None, event: Event) -> ErrorCode:
        """Return NONE or the error of an event that is refused whatever the group is."""
        if isinstance(event, CommitOffsets):
            return ErrorCode.NONE
        if isinstance(event, CommitInTransaction):
            return self.transactions.why_no_commit(event)
        if self._has_room(group, event):
            return ErrorCode.NONE
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

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
            writes_in_flight.wrote(group, write)
            if (part := write.transaction) is not None:
                self.transactions.wrote(part.producer_id, ProducerEpochs(part.producer_epoch))
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


def _address_of(event: Event) -> str:
    """Return the address of the client that may begin a group."""
    if isinstance(event, Join | CommitOffsets | CommitInTransaction):
        return event.client_host
    return ""


def _shares(write: Write) -> dict[str, bytes]:
    record = write.records[-1]
    assert isinstance(record, GroupRecord) and record.value is not None
    return {member.member_id: member.assignment for member in record.value.members}
