"""Being a member of a classic group: join, sync, heartbeat, leave; commits as that member.

Owns membership only; positions and fetching are ``group_reader``. States:

| state | leaves it when |
|---|---|
| out | ``join``: JoinGroup and SyncGroup until there is an assignment -> in |
| in | a heartbeat or commit says REBALANCE_IN_PROGRESS -> must rejoin (same member id) |
| in | UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION -> must rejoin (as nobody, for the first of them) |
| in | FENCED_INSTANCE_ID, authorization … -> failed: ``problem`` |
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Mapping

from tidelog.client.assignors import (
    PROTOCOL_TYPE,
    RANGE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    range_assignment,
)
from tidelog.client.cluster import Cluster
from tidelog.client.coordinators import ask_coordinator
from tidelog.client.errors import ClientError, Refused
from tidelog.client.group_offsets import Membership, Position, commit_offsets
from tidelog.client.retries import is_worth_retrying
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

logger = logging.getLogger(__name__)

SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 300_000
HEARTBEAT_INTERVAL_MS = 3_000
LEAVE_TIMEOUT_MS = 5_000
PARTITION_CHECK_MS = 30_000
"""How often the group's leader looks whether the topics have other partitions."""

MAX_JOIN_ROUNDS = 100
"""Rounds of one ``join``: each is answered by the coordinator, so more means a defect."""

_numbers = itertools.count(1)

_REJOIN = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.MEMBER_ID_REQUIRED,
    }
)


class GroupMember:
    """One member; ``join`` before anything else, ``leave`` at the end."""

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
    ) -> None:
        self.group = group
        self.topics = sorted(set(topics))
        self._cluster = cluster
        self._instance_id = instance_id
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._partition_check_ms = partition_check_ms
        self._counts: dict[str, int] = {}
        self._member_id = ""
        self._generation = -1
        self._heartbeats: asyncio.Task[None] | None = None
        self._rejoin = True
        self._problem: ClientError | None = None
        # A connection of its own: a join waits for all members, this process's others included.
        self._purpose = f"member {next(_numbers)}"

    @property
    def must_join(self) -> bool:
        """Whether the coordinator asks for a (new) ``join``. Raises what ended the membership."""
        if self._problem is not None:
            raise self._problem
        return self._rejoin

    @property
    def membership(self) -> Membership:
        """Member id and generation, as commits carry them."""
        return Membership(self._generation, self._member_id, self._instance_id)

    async def join(self) -> list[TopicPartition]:
        """Join, or join again, and return the partitions of this member. Raises Refused.

        What was read before must be committed before: the partitions may be another's now.
        """
        await self._stop_heartbeats()
        for _ in range(MAX_JOIN_ROUNDS):
            try:
                joined = await self._join_once()
                assignment = await self._sync(joined)
            except Refused as error:
                if not self._goes_on_after(error):
                    raise
                continue
            self._rejoin = False
            self._heartbeats = asyncio.get_running_loop().create_task(self._beat())
            return decode_assignment(assignment)
        raise ClientError(f"group {self.group!r} did not settle in {MAX_JOIN_ROUNDS} rounds")

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Commit as this member. Raises Refused; a generation that is over asks for ``join``.

        Who is no member any more commits nothing: a request that names no generation would be
        taken for one from outside while the group is empty, and could set it back.
        """
        if self._generation < 0:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group!r}")
        try:
            await commit_offsets(
                self._cluster, self.group, positions, self.membership, purpose=self._purpose
            )
        except Refused as error:
            self._goes_on_after(error)
            raise

    async def leave(self) -> None:
        """Leave the group so that others take over at once; a static member just stops."""
        await self._stop_heartbeats()
        self._rejoin = True
        if not self._member_id or self._instance_id is not None:
            return
        request = messages.LeaveGroupRequest(
            group_id=self.group,
            member_id=self._member_id,
            members=[messages.LeaveGroupRequest.MemberIdentity(member_id=self._member_id)],
        )
        self._member_id, self._generation = "", -1
        await self._cluster.send_to_coordinator(
            self.group, request, timeout_ms=LEAVE_TIMEOUT_MS, purpose=self._purpose
        )

    def _goes_on_after(self, error: Refused) -> bool:
        if error.code not in _REJOIN:
            return False
        self._rejoin = True
        if error.code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        if error.code != ErrorCode.REBALANCE_IN_PROGRESS:
            self._generation = -1
        return True

    async def _join_once(self) -> messages.JoinGroupResponse:
        request = messages.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                messages.JoinGroupRequest.JoinGroupRequestProtocol(
                    name=RANGE, metadata=encode_subscription(self.topics)
                )
            ],
        )

        def error_of(answer: messages.JoinGroupResponse) -> int:
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = answer.member_id
            return answer.error_code

        # The coordinator answers when all members have come, or the rebalance timeout is over.
        wait_ms = self._rebalance_timeout_ms + 5_000
        answer: messages.JoinGroupResponse = await ask_coordinator(
            self._cluster,
            self.group,
            request,
            error_of,
            request_timeout_ms=wait_ms,
            purpose=self._purpose,
        )
        self._member_id, self._generation = answer.member_id, answer.generation_id
        return answer

    async def _sync(self, joined: messages.JoinGroupResponse) -> bytes:
        shares: dict[str, list[TopicPartition]] = {}
        self._counts = {}
        if joined.leader == joined.member_id and not joined.skip_assignment:
            subscriptions = {
                member.member_id: decode_subscription(bytes(member.metadata))
                for member in joined.members
            }
            names = {name for topics in subscriptions.values() for name in topics}
            self._counts = await self._count_partitions(names)
            shares = range_assignment(subscriptions, self._counts)
        request = messages.SyncGroupRequest(
            group_id=self.group,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=RANGE,
            assignments=[
                messages.SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member, assignment=encode_assignment(partitions)
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
        )
        return bytes(answer.assignment)

    async def _count_partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the partition counts of these topics; 0 for one that does not exist."""
        names = sorted(topics)
        view = await self._cluster.describe(names)
        found = {name: view.topics.get(name) for name in names}
        return {
            name: 0 if topic is None or topic.error else len(topic.partitions)
            for name, topic in found.items()
        }

    async def _look_for_partitions(self) -> None:
        """As the group's leader: ask for a new assignment when a topic has changed."""
        try:
            if self._counts and await self._count_partitions(self._counts) != self._counts:
                self._rejoin = True
        except ClientError as error:
            logger.debug("partitions of group %s are not looked at: %s", self.group, error)

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        next_look = loop.time() + self._partition_check_ms / 1000
        while not self._rejoin:
            await asyncio.sleep(self._heartbeat_interval_ms / 1000)
            if loop.time() >= next_look:
                await self._look_for_partitions()
                next_look = loop.time() + self._partition_check_ms / 1000
            request = messages.HeartbeatRequest(
                group_id=self.group,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=self._instance_id,
            )
            try:
                await ask_coordinator(
                    self._cluster,
                    self.group,
                    request,
                    lambda answer: int(answer.error_code),
                    timeout_ms=self._session_timeout_ms,
                    purpose=self._purpose,
                )
            except ClientError as error:
                if isinstance(error, Refused) and self._goes_on_after(error):
                    continue
                if not is_worth_retrying(error):
                    self._problem = error
                    return
                # Nobody has answered for a whole session: the coordinator has taken us out.
                self._rejoin = True

    async def _stop_heartbeats(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
            self._heartbeats = None
