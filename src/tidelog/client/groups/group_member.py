"""A member of a classic group: join, sync, heartbeat, leave, and commits as that member.

Owns the requests and the heartbeats. Not the states and transitions: see ``membership``. Not
positions and fetching: see ``group_reader``. Each transition is one step without an await, so a
call that is cancelled anywhere leaves a state from which ``join`` continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.coordinators import ask_coordinator, retriable_of
from tidelog.client.errors import ClientError, Refused, RequestTimedOut
from tidelog.client.found_coordinators import LATE_MS
from tidelog.client.groups.assignors import (
    RANGE,
    PartitionCounts,
    assign,
    is_cooperative,
    offered,
)
from tidelog.client.groups.committed_offsets import Membership, Position, commit_offsets
from tidelog.client.groups.consumer_protocol import (
    AWARE_PREFIX,
    COOPERATIVE_STICKY,
    NO_GENERATION,
    PROTOCOL_TYPE,
    STICKY,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    epochs_of_assignment,
)
from tidelog.client.groups.group_positions import exchange_positions
from tidelog.client.groups.membership import (
    HEARTBEATS,
    Event,
    MemberState,
    MemberStatus,
    after_error,
    named,
    step,
)
from tidelog.client.groups.partition_counts import COUNTED_WITHIN_S, count_partitions
from tidelog.client.groups.resized_topics import catch_up, newest_epochs
from tidelog.client.retries import is_worth_retrying
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.gates import GroupPosition
from tidelog.protocol import messages
from tidelog.runtime.tasks import call_off

logger = logging.getLogger(__name__)

SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 300_000
HEARTBEAT_INTERVAL_MS = 3_000
LEAVE_TIMEOUT_MS = 5_000
PARTITION_CHECK_MS = 30_000
"""How often the group's leader checks the partition counts of the topics."""

HEARTBEATS_OF_A_SESSION = 3
"""Heartbeats in a row that may time out before the session is over."""

SEARCHES_OF_A_SESSION = 10
"""How often a member that joins looks for another coordinator in the time of a session: its own may
wait for other members, and send nothing."""

MAX_JOIN_ROUNDS = 100
"""Rounds of one ``join``: each has the coordinator's response, so more of them means a bug."""

_numbers = itertools.count(1)


class MembershipLost(ClientError):
    """The group has removed a member that joins again: its partitions may be others' already."""


class GroupMember:
    """One member; ``join`` before anything else, ``leave`` at the end.

    ``is_aware=False``: as a stock member, without the names that begin with ``tidelog.``.
    """

    is_alone = False

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Iterable[str],
        *,
        instance_id: str | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
        heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS,
        partition_check_ms: int = PARTITION_CHECK_MS,
        max_poll_interval_ms: int | None = None,
        assignors: Sequence[str] = (RANGE,),
        is_aware: bool = True,
    ) -> None:
        self.group = group
        self.topics = sorted(set(topics))
        self.is_cooperative = is_cooperative(assignors)
        """Whether it keeps its partitions while it joins again (KIP-429)."""
        self._cluster = cluster
        self._instance_id = instance_id
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._partition_check_ms = partition_check_ms
        self._late_ms = max(LATE_MS, session_timeout_ms // SEARCHES_OF_A_SESSION)
        self._max_poll_interval_ms = max_poll_interval_ms
        self._polled_at = 0.0
        self._offered = offered(assignors, is_aware=is_aware)
        self._previous: tuple[TopicPartition, ...] = ()
        self._previous_generation = NO_GENERATION
        self._counts: dict[str, PartitionCounts] = {}
        self.assigned_with: dict[str, int] = {}
        """The resize epochs that this generation was assigned with, by an aware leader."""
        self._standing = MemberStatus()
        self._tasks: set[asyncio.Task[None]] = set()
        """The heartbeats, and the leader's check of partition counts, of one generation."""
        # Its own connection: a join waits for all members, also for others in this process.
        self._purpose = f"member {next(_numbers)}"

    @property
    def state(self) -> MemberState:
        """The state of the member."""
        return self._standing.state

    @property
    def must_join(self) -> bool:
        """Whether to call ``join`` next. Raises the error that ended the membership."""
        if self._standing.problem is not None:
            raise self._standing.problem
        return self._standing.must_join

    @property
    def membership(self) -> Membership:
        """Member id and generation, for commits."""
        return self._as_committed(self._standing)

    async def join(self, owned: Iterable[TopicPartition] = ()) -> list[TopicPartition]:
        """Join or rejoin, and return the partitions of this member. Raises ClientError.

        Commit before: the partitions may go to other members. ``owned``: those that a cooperative
        member keeps meanwhile; MembershipLost when it may not keep them. After a failure or a
        cancellation the member is out of its generation and may join again.
        """
        self._step(Event.JOIN)
        if self.state is not MemberState.JOINING:
            raise ClientError(f"the member of group {self.group!r} is leaving")
        try:
            await self._stop_tasks()
            assigned, topics = await self._rounds(tuple(owned))
        except BaseException:
            self._step(Event.INTERRUPTED)
            raise
        self._previous, self._previous_generation = tuple(assigned), self._standing.generation
        self._step(Event.ASSIGNED)
        if topics != self.topics:
            # ``subscribe`` was called during the join, which asked for the topics before.
            self._step(Event.REBALANCE)
        self.polled()
        if self.state in HEARTBEATS:
            self._run(self._beat())
            if self._counts:
                self._run(self._watch_partitions())
        return assigned

    def rejoin(self) -> None:
        """Record that a topic was resized: the next step is another round."""
        self._step(Event.REBALANCE)

    def gave_up(self) -> None:
        """Record that a cooperative member gave partitions up: others join to get them."""
        self._step(Event.REBALANCE)

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read other topics; the next step is another round if they differ."""
        names = sorted(set(topics))
        if names != self.topics:
            self.topics = names
            self._step(Event.REBALANCE)

    def polled(self) -> None:
        """Record that the application polls: it is alive (max.poll.interval.ms)."""
        self._polled_at = asyncio.get_running_loop().time()

    def positioned(self) -> None:
        """Record that the positions of all partitions are known: the member reads now."""
        self._step(Event.POSITIONED)

    def check_may_commit(self) -> None:
        """Raise Refused where there is no generation: in an empty group a commit without one would
        count as a tool's, and could move the group back."""
        if not self._standing.may_commit:
            raise Refused(self._standing.refusal, f"group {self.group!r}")

    async def commit(
        self,
        positions: Mapping[TopicPartition, Position],
        *,
        asked_as: Membership | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit as this member; when the generation is over, ``join`` is next.

        ``asked_as``: the membership in which these were the positions; one of a former generation
        commits nothing, for others may have gone on from there. Raises CommitRefused with the error
        of each refused partition, or ClientError.
        """
        self.check_may_commit()
        if asked_as not in (None, self.membership):
            why = "the group has rebalanced since this commit was asked for"
            raise Refused(ErrorCode.ILLEGAL_GENERATION, f"group {self.group!r}", why)
        sent_as = self._standing
        try:
            await commit_offsets(
                self._cluster,
                self.group,
                positions,
                self._as_committed(sent_as),
                timeout_ms=timeout_ms,
                purpose=self._purpose,
            )
        except Refused as error:
            self._apply_error(error, sent_as)
            raise

    async def leave(self) -> None:
        """Leave the group so that others take over at once; a static member only stops.

        Its own connection is closed; the cluster's other connections stay.
        """
        leaver = self._standing
        self._step(Event.LEAVE)
        try:
            await self._stop_tasks()
            if not leaver.member_id or self._instance_id is not None:
                return
            await self._ask_to_leave(leaver)
        finally:
            self._cluster.close_purpose(self._purpose, "the member has left its group")
            self._step(Event.LEFT)

    async def _ask_to_leave(self, leaver: MemberStatus) -> None:
        request = messages.LeaveGroupRequest(
            group_id=self.group,
            member_id=leaver.member_id,
            members=[messages.LeaveGroupRequest.MemberIdentity(member_id=leaver.member_id)],
        )
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_MS / 1000):
                # Not on the member's own connection: a cancelled join may be in flight there.
                await ask_coordinator(self._cluster, self.group, request, retriable_of)
        except TimeoutError:
            line = f"group {self.group!r}: no response to LeaveGroup within {LEAVE_TIMEOUT_MS} ms"
            raise RequestTimedOut(line) from None

    def _step(self, event: Event, problem: ClientError | None = None) -> None:
        self._standing = step(self._standing, event, problem)

    def _apply_error(self, error: Refused, asked_as: MemberStatus) -> bool:
        """Apply an error response; False when it does not concern the membership."""
        after = after_error(self._standing, error.code, asked_as)
        if after is None:
            return False
        self._standing = after
        return True

    def _as_committed(self, standing: MemberStatus) -> Membership:
        return Membership(standing.generation, standing.member_id, self._instance_id)

    async def _rounds(
        self, owned: tuple[TopicPartition, ...]
    ) -> tuple[list[TopicPartition], list[str]]:
        """Join and sync until there is an assignment; the coordinator responds in each round.

        Returns it, and the topics that this member asked for.
        """
        for _ in range(MAX_JOIN_ROUNDS):
            try:
                topics = self.topics
                joined = await self._join_once(owned)
                data = await self._sync(joined)
                self.assigned_with = epochs_of_assignment(data)
                return decode_assignment(data), topics
            except Refused as error:
                # That round only gives the id: no join leaves two members (KIP-394).
                if error.code != ErrorCode.MEMBER_ID_REQUIRED and not self._apply_error(
                    error, self._standing
                ):
                    raise
                if owned and not self._standing.member_id:
                    raise MembershipLost(f"group {self.group!r} has removed this member") from error
        raise ClientError(f"group {self.group!r} did not become stable in {MAX_JOIN_ROUNDS} rounds")

    def _subscription(
        self, assignor: str, owned: tuple[TopicPartition, ...], epochs: Mapping[str, int]
    ) -> bytes:
        had = {STICKY: self._previous, COOPERATIVE_STICKY: owned}
        mine = had.get(assignor.removeprefix(AWARE_PREFIX), ())
        topics = tuple(self.topics)
        subscription = Subscription(topics, mine, self._previous_generation, epochs)
        return encode_subscription(subscription, assignor)

    async def _join_once(self, owned: tuple[TopicPartition, ...]) -> messages.JoinGroupResponse:
        epochs = self._epochs()
        request = messages.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            member_id=self._standing.member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                messages.JoinGroupRequest.JoinGroupRequestProtocol(
                    name=name, metadata=self._subscription(name, owned, epochs)
                )
                for name in self._offered
            ],
        )

        def error_of(answer: messages.JoinGroupResponse) -> int:
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._standing = named(self._standing, answer.member_id)
            return int(answer.error_code)

        # The coordinator responds when all members have joined, or at the rebalance timeout.
        wait_ms = self._rebalance_timeout_ms + 5_000
        answer: messages.JoinGroupResponse = await ask_coordinator(
            self._cluster,
            self.group,
            request,
            error_of,
            request_timeout_ms=wait_ms,
            purpose=self._purpose,
            late_ms=self._late_ms,
        )
        self._standing = named(self._standing, answer.member_id, answer.generation_id)
        return answer

    async def _sync(self, joined: messages.JoinGroupResponse) -> bytes:
        shares: dict[str, list[TopicPartition]] = {}
        assignor = joined.protocol_name or RANGE
        self._counts = {}
        if joined.leader == joined.member_id and not joined.skip_assignment:
            members = {
                member.member_id: decode_subscription(bytes(member.metadata), assignor)._replace(
                    instance_id=member.group_instance_id
                )
                for member in joined.members
            }
            # By older counts the newest partitions would have no reader.
            newest = newest_epochs(member.epochs for member in members.values())
            await catch_up(self._cluster, newest)
            names = {name for member in members.values() for name in member.topics}
            self._counts = await count_partitions(self._cluster, names, COUNTED_WITHIN_S)
            shares = assign(assignor, members, self._counts)
        epochs = self._epochs() if assignor.startswith(AWARE_PREFIX) else None
        request = messages.SyncGroupRequest(
            group_id=self.group,
            generation_id=self._standing.generation,
            member_id=self._standing.member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=assignor,
            assignments=[
                messages.SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member, assignment=encode_assignment(partitions, epochs)
                )
                for member, partitions in shares.items()
            ],
        )
        answer: messages.SyncGroupResponse = await ask_coordinator(
            self._cluster,
            self.group,
            request,
            lambda answer: int(answer.error_code),
            request_timeout_ms=self._rebalance_timeout_ms + 5_000,
            purpose=self._purpose,
            late_ms=self._late_ms,
        )
        return bytes(answer.assignment)

    def _epochs(self) -> dict[str, int]:
        """Return the resize epochs of the topics in this member's metadata."""
        topics = self._cluster.view.topics
        subscribed = {name: topics[name] for name in self.topics if name in topics}
        return {name: topic.resize_epoch for name, topic in subscribed.items() if topic.is_ordered}

    async def _watch_partitions(self) -> None:
        """As the group's leader: start a rebalance when a partition count has changed."""
        while self.state is not MemberState.RECALLED:
            await asyncio.sleep(self._partition_check_ms / 1000)
            try:
                if await count_partitions(self._cluster, self._counts) != self._counts:
                    self._step(Event.REBALANCE)
            except ClientError as error:
                logger.debug("group %s: partition counts are not checked: %s", self.group, error)

    async def _beat(self) -> None:
        """Send heartbeats as long as the session of this member must not expire.

        Also in state recalled: a member that still processes records must not lose its session
        before it joins again.
        """
        while self.state in HEARTBEATS:
            wait_s = self._heartbeat_interval_ms / 1000
            await asyncio.sleep(max(0.0, min(wait_s, self._until_due_s())))
            asked_as = self._standing
            if self._until_due_s() <= 0:
                await self._leave_late()
                return
            request = messages.HeartbeatRequest(
                group_id=self.group,
                generation_id=asked_as.generation,
                member_id=asked_as.member_id,
                group_instance_id=self._instance_id,
            )
            try:
                await ask_coordinator(
                    self._cluster,
                    self.group,
                    request,
                    lambda answer: int(answer.error_code),
                    # A coordinator that hangs is detected in time to find the next one.
                    request_timeout_ms=max(1, self._session_timeout_ms // HEARTBEATS_OF_A_SESSION),
                    timeout_ms=self._session_timeout_ms,
                    purpose=self._purpose,
                )
            except ClientError as error:
                if isinstance(error, Refused) and self._apply_error(error, asked_as):
                    continue
                # Without a response the coordinator has removed the member by now.
                retry = is_worth_retrying(error)
                self._step(*((Event.SILENCE,) if retry else (Event.FAILED, error)))

    def _until_due_s(self) -> float:
        """Return the time left until the application must have polled."""
        if self._max_poll_interval_ms is None:
            return inf
        since_s = asyncio.get_running_loop().time() - self._polled_at
        return self._max_poll_interval_ms / 1000 - since_s

    async def _leave_late(self) -> None:
        """Leave: the application does not poll, and another member must have its partitions."""
        logger.warning(
            "group %s: the member leaves, because the application did not poll for"
            " max.poll.interval.ms=%s: process fewer records in one poll, or raise the value",
            self.group,
            self._max_poll_interval_ms,
        )
        leaver = self._standing
        # A static member keeps its place until its session expires (KIP-345).
        self._step(Event.GENERATION_LOST if self._instance_id is not None else Event.UNKNOWN)
        if self._instance_id is None:
            with contextlib.suppress(ClientError):
                await self._ask_to_leave(leaver)

    async def exchange_positions(
        self, report: Mapping[TopicPartition, int], wanted: Iterable[TopicPartition]
    ) -> dict[TopicPartition, GroupPosition]:
        """Report positions of this member, and return those of others; as ``commit``."""
        self.check_may_commit()
        asked_as = self._standing
        try:
            return await exchange_positions(
                self._cluster, self.group, self._as_committed(asked_as), report, wanted
            )
        except Refused as error:
            self._apply_error(error, asked_as)
            raise

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A bug: raise it from the reader, instead of losing the member silently.
            self._step(Event.FAILED, ClientError(f"membership failed: {error!r}"))

    async def _stop_tasks(self) -> None:
        await call_off(self._tasks)
