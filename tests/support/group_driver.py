"""Drives a table of groups without a broker: a log that is a list, a clock that is a number.

Owns the shell's duties in small: it appends, commits in order, feeds results back, and keeps the
first answer to each request. ``hold`` leaves writes in flight until ``commit`` is called.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

from tidelog.groups.decision import GroupDecision, Write
from tidelog.groups.events import (
    CommitOffsets,
    Event,
    Heartbeat,
    Join,
    JoinResult,
    Leave,
    Leaver,
    LeaveResult,
    OffsetsResult,
    PositionsResult,
    RemoveMore,
    ReportPositions,
    Result,
    StatusResult,
    Sync,
    SyncResult,
    Tick,
)
from tidelog.groups.group import Group
from tidelog.groups.offset_columns import columns_of, one_by_one
from tidelog.groups.records import NO_TOPIC_ID, CommittedOffset, FirstSight, encode
from tidelog.groups.room import GroupRoom
from tidelog.groups.settings import GroupRules, GroupSettings
from tidelog.groups.table import GroupTable
from tidelog.model.effects import Answer, Note
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

GROUP = "g"
START_MS = 1_700_000_000_000
AHEAD_MS = 86_400_000
"""How far the time of day is ahead of the clock that counts deadlines."""


def subscription(*topics: str) -> bytes:
    """The bytes of a ConsumerProtocolSubscription v1 without owned partitions."""
    parts = [struct.pack(">hi", 1, len(topics))]
    parts += [struct.pack(">h", len(topic)) + topic.encode() for topic in topics]
    return b"".join(parts) + struct.pack(">ii", -1, 0)


def assignment(**partitions: Iterable[int]) -> bytes:
    """The bytes of a ConsumerProtocolAssignment v1 without user data."""
    parts = [struct.pack(">hi", 1, len(partitions))]
    for topic, given in partitions.items():
        indexes = list(given)
        parts.append(struct.pack(">h", len(topic)) + topic.encode())
        parts.append(struct.pack(f">i{len(indexes)}i", len(indexes), *indexes))
    return b"".join(parts) + struct.pack(">i", -1)


def one_protocol(*topics: str) -> tuple[tuple[str, bytes], ...]:
    """The offer of a member with the range assignor and these topics."""
    return (("range", subscription(*(topics or ("t",)))),)


@dataclass
class Driver:
    """See the module."""

    settings: GroupSettings = field(default_factory=GroupSettings)
    seed: int = 0
    hold: bool = False
    in_parts: bool = False
    """Whether ``go_on`` is called by the test."""
    topics: dict[str, FirstSight] = field(default_factory=dict)
    """What is known of topics at level 1.5."""

    def __post_init__(self) -> None:
        self.now = START_MS
        self.random = random.Random(self.seed)
        new_id = lambda: f"{self.random.getrandbits(64):016x}"  # noqa: E731
        room = GroupRoom(lambda: (self.table,))
        self.rules = GroupRules(new_id, self.settings, room, lambda name: self.topics.get(name))
        self.table = GroupTable(self.rules)
        self.table.ahead_ms = AHEAD_MS
        self.log: list[tuple[bytes, bytes | None]] = []
        self.in_flight: deque[Write] = deque()
        self.answers: dict[object, Result] = {}
        self.notes: list[Note] = []
        self.pending_responses = 0

    # Driving ---------------------------------------------------------------------------------

    def pending_response(self) -> int:
        self.pending_responses += 1
        return self.pending_responses

    def send(self, event: Event, group_id: str = GROUP) -> None:
        self.perform(self.table.decide(group_id, event, self.now))
        while self.table.removes(group_id) and not self.in_parts:
            self.go_on(group_id)

    def go_on(self, group_id: str = GROUP) -> None:
        """Decide the next part of a removal."""
        self.perform(self.table.decide(group_id, RemoveMore(), self.now))

    def commit(self, count: int = 1_000_000) -> None:
        """Commit up to ``count`` writes, oldest first, and what follows from them."""
        while self.in_flight and count > 0:
            count -= 1
            write = self.in_flight.popleft()
            self.log.extend(encode(record) for record in one_by_one(write.records))
            self.perform(self.table.stored(write, self.now))

    def refuse(self, error: ErrorCode) -> None:
        """Let the log refuse the newest write."""
        self.perform(self.table.lost(self.in_flight.pop(), error, self.now))

    def advance(self, ms: int) -> None:
        """Let time pass, acting on every deadline at its moment."""
        end = self.now + ms
        while (at := self.table.next_deadline_ms) is not None and at <= end:
            self.now = max(self.now, at)
            for group_id in self.table.due(self.now):
                self.send(Tick(), group_id)
        self.now = end

    def reloaded(self) -> Driver:
        """A second coordinator that reads the committed log."""
        other = Driver(self.settings, self.seed + 1, self.hold, topics=self.topics)
        other.now = self.now
        other.log = list(self.log)
        for key, value in self.log:
            other.table.replay(key, value, other.now)
        other.serve()
        return other

    def serve(self) -> None:
        """The log is read: requests come from now on."""
        self.perform(self.table.loaded(self.now))

    def perform(self, decision: GroupDecision) -> None:
        """Perform a decision of the table."""
        for effect in decision.effects:
            if isinstance(effect, Answer):
                self.answers.setdefault(effect.pending_response, cast(Result, effect.result))
            else:
                self.notes.append(effect)
        self.in_flight.extend(decision.writes)
        if not self.hold:
            self.commit()

    # Requests --------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
        group_id: str = GROUP,
        reason: str = "",
        host: str = "/127.0.0.1",
    ) -> int:
        pending_response = self.pending_response()
        event = Join(
            pending_response,
            member_id,
            instance_id,
            "client",
            host,
            session_ms,
            rebalance_ms,
            protocol_type,
            one_protocol() if protocols is None else protocols,
            member_id_required=version >= 4,
            can_skip_assignment=version >= 9,
            reason=reason,
        )
        self.send(event, group_id)
        return pending_response

    def new_member(self, **options: object) -> tuple[str, int]:
        """Join as a client does: once for the id, once with it. Returns (id, pending response)."""
        first = self.answers[self.join(**options)]  # type: ignore[arg-type]
        assert isinstance(first, JoinResult)
        assert first.error is ErrorCode.MEMBER_ID_REQUIRED, first
        return first.member_id, self.join(first.member_id, **options)  # type: ignore[arg-type]

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> int:
        pending_response = self.pending_response()
        shares = tuple((assignments or {}).items())
        self.send(
            Sync(
                pending_response,
                member_id,
                instance_id,
                generation,
                protocol_type,
                protocol_name,
                shares,
            )
        )
        return pending_response

    def positions(
        self,
        member_id: str,
        generation: int,
        reports: dict[tuple[str, int], int] | None = None,
        *asked: tuple[str, int],
        topic_id: UUID = NO_TOPIC_ID,
    ) -> dict[int, tuple[int, bool]] | ErrorCode:
        """Report and ask; the positions by partition, or the error."""
        pending_response = self.pending_response()
        event = ReportPositions(
            pending_response,
            member_id,
            generation,
            tuple((TopicPartition(*at), offset) for at, offset in (reports or {}).items()),
            tuple(TopicPartition(*at) for at in asked),
            lambda _: topic_id,
        )
        self.send(event)
        result = self.answers[pending_response]
        assert isinstance(result, PositionsResult)
        if result.error is not ErrorCode.NONE:
            assert not result.positions
            return result.error
        return {at.partition: tuple(found) for at, found in result.positions.items()}

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None = None
    ) -> ErrorCode:
        pending_response = self.pending_response()
        self.send(Heartbeat(pending_response, member_id, instance_id, generation))
        result = self.answers[pending_response]
        assert isinstance(result, StatusResult)
        return result.error

    def leave(self, *leavers: Leaver) -> int:
        pending_response = self.pending_response()
        self.send(Leave(pending_response, leavers))
        return pending_response

    def commit_offsets(
        self,
        offsets: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        *,
        instance_id: str | None = None,
        metadata: str = "",
        retention_ms: int = -1,
        version: int = 8,
        group_id: str = GROUP,
        topic_id: UUID = NO_TOPIC_ID,
        host: str = "/127.0.0.1",
    ) -> int:
        pending_response = self.pending_response()
        values = columns_of(
            (TopicPartition(*at), CommittedOffset(offset, 7, metadata, topic_id=topic_id))
            for at, offset in offsets.items()
        )
        event = CommitOffsets(
            pending_response,
            member_id,
            instance_id,
            generation,
            values,
            retention_ms,
            version >= 9,
            host,
        )
        self.send(event, group_id)
        return pending_response

    # Looking ---------------------------------------------------------------------------------

    @property
    def group(self) -> Group:
        found = self.table.get(GROUP)
        assert found is not None, "the group is gone"
        return found

    def joined(self, pending_response: int) -> JoinResult:
        result = self.answers[pending_response]
        assert isinstance(result, JoinResult)
        return result

    def synced(self, pending_response: int) -> SyncResult:
        result = self.answers[pending_response]
        assert isinstance(result, SyncResult)
        return result

    def left(self, pending_response: int) -> LeaveResult:
        result = self.answers[pending_response]
        assert isinstance(result, LeaveResult)
        return result

    def done(self, pending_response: int) -> OffsetsResult:
        result = self.answers[pending_response]
        assert isinstance(result, OffsetsResult)
        return result

    def status(self, pending_response: int) -> ErrorCode:
        result = self.answers[pending_response]
        assert isinstance(result, StatusResult)
        return result.error

    def error_of(self, pending_response: int) -> ErrorCode:
        """The error of any answer; of offsets, that of the first partition."""
        result = self.answers[pending_response]
        if isinstance(result, OffsetsResult) and result.error is ErrorCode.NONE:
            return result.partitions[0][1]
        return result.error

    def stable(self, count: int, **options: object) -> list[str]:
        """Bring ``count`` dynamic members into a stable generation; return their ids."""
        pending_responses = [self.new_member(**options) for _ in range(count)]  # type: ignore[arg-type]
        self.advance(self.settings.group_initial_rebalance_delay_ms * (count + 1))
        results = [self.joined(pending_response) for _, pending_response in pending_responses]
        leader = results[0].leader
        shares = {
            member_id: f"share of {at}".encode()
            for at, (member_id, _) in enumerate(pending_responses)
        }
        for member_id, _ in pending_responses:
            self.sync(member_id, results[0].generation, shares if member_id == leader else None)
        self.commit()
        return [member_id for member_id, _ in pending_responses]

    def offset(self, topic: str, partition: int, group_id: str = GROUP) -> CommittedOffset | None:
        return self.table.offsets(group_id, [(topic, [partition])])[0][1][0][1]
