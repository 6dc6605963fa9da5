"""A cooperative member takes up what its join gave, though a poll ends in the middle of it, and
loses first what its group took away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import pytest

from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ClientError, ConnectionLost, Refused
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.groups.consumer_protocol import COOPERATIVE_STICKY
from tidelog.client.groups.group_member import GroupMember, MembershipLost
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.groups.membership import MemberState, MemberStatus
from tidelog.client.groups.reader_hooks import ReaderHooks
from tidelog.client.metadata import ClusterMetadata
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

KEPT, GONE, ADDED = (TopicPartition("t", index) for index in range(3))


class NoBrokers:
    """What a reader needs of a cluster of which no broker is reached."""

    settings = ClusterSettings()
    view = ClusterMetadata()

    async def retry(self, attempt: Callable[[], Awaitable[Any]], *_: Any, **__: Any) -> Any:
        return await attempt()

    async def refresh(self, *_: Any, **__: Any) -> None:
        raise ConnectionLost("there is no broker")

    leader = describe = connection = refresh

    async def send_to_coordinator(self, group: str, request: Any, **_: Any) -> Any:
        if not isinstance(request, messages.LeaveGroupRequest):
            raise ConnectionLost(f"there is no coordinator of {group}")
        return messages.LeaveGroupResponse(error_code=0)

    def close_purpose(self, purpose: str, why: str) -> None:
        pass

    def forget(self, *_: Any) -> None:
        pass


class Listener(ReaderHooks):
    """Notes its calls, and fails in its first revocation where it should."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []
        self.fails = False

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("revoked", [*partitions]))
        if self.fails:
            raise ValueError("the application's")

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("lost", [*partitions]))

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("assigned", [*partitions]))


class Member(GroupMember):
    """A member whose next round gives it another partition instead of one that it had."""

    def __init__(self) -> None:
        super().__init__(cast("Cluster", NoBrokers()), "g", ["t"], assignors=(COOPERATIVE_STICKY,))
        self._standing = MemberStatus(MemberState.RECALLED, "m", 1)
        self.joins = 0
        self.others = asyncio.Event()
        self.removed_by: Literal["commit", "join"] | None = None
        self.committed: list[dict[TopicPartition, int]] = []
        self.answered = asyncio.Event()
        """Set: commits are answered at once."""
        self.answered.set()

    async def join(self, owned: Iterable[TopicPartition] = ()) -> list[TopicPartition]:
        self.joins += 1
        await self.others.wait()
        if owned and self.removed_by == "join":
            self._standing = MemberStatus()
            raise MembershipLost("the group has removed this member")
        self._standing = MemberStatus(MemberState.JOINED, "m", self._standing.generation + 1)
        return [KEPT, ADDED]

    async def commit(
        self, positions: Mapping[TopicPartition, Position], *, timeout_ms: int | None = None
    ) -> None:
        self.committed.append({where: place.offset for where, place in positions.items()})
        await self.answered.wait()
        if self.removed_by == "commit":
            self._standing = MemberStatus()
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "group 'g'")


def reader_of(member: Member, listener: Listener) -> GroupReader:
    """Return a reader that has read two partitions."""
    reader = GroupReader(
        cast("Cluster", NoBrokers()), member=member, hooks=listener, auto_commit_ms=100
    )
    reader.fetcher.add({KEPT: 4, GONE: 5})
    reader.commits.committed = {KEPT: 4, GONE: 5}
    reader.generation.assigned = [KEPT, GONE]
    return reader


async def poll_until(reader: GroupReader, condition: Callable[[], bool]) -> None:
    """Poll, whatever the lookup of positions says, until something is so."""
    async with asyncio.timeout(60):
        while not condition():
            with contextlib.suppress(ClientError):
                await reader.poll(0)


async def turns_of_the_loop() -> None:
    """Let all that needs no answer go on."""
    for _ in range(20):
        await asyncio.sleep(0)


ALL = [("revoked", [GONE]), ("assigned", [ADDED])]


def test_a_callback_that_raises_does_not_end_the_way_into_a_generation() -> None:
    async def story() -> None:
        listener, member = Listener(), Member()
        listener.fails = True
        member.others.set()
        reader = reader_of(member, listener)
        with pytest.raises(ValueError, match="the application's"):
            await poll_until(reader, lambda: False)
        assert member.state is MemberState.RECALLED, "others wait for what it gave up"
        await poll_until(reader, lambda: len(listener.calls) > 1)
        assert listener.calls[:2] == ALL
        assert reader.given == [KEPT, ADDED]
        await reader.close()

    asyncio.run(story())


def test_a_poll_that_is_cancelled_during_the_commit_leaves_the_rest_to_the_next_one() -> None:
    async def story() -> None:
        listener, member = Listener(), Member()
        reader = reader_of(member, listener)
        await poll_until(reader, lambda: member.joins > 0)
        member.answered.clear()
        reader.commits.begin({KEPT: 6})
        member.others.set()
        await turns_of_the_loop()
        assert member.state is MemberState.JOINED
        poll = asyncio.create_task(reader.poll(0))
        await turns_of_the_loop()
        assert not poll.done(), "it waits for the commit in flight"
        poll.cancel()
        await asyncio.wait([poll])
        assert not listener.calls
        member.answered.set()
        await poll_until(reader, lambda: len(listener.calls) > 1)
        assert listener.calls[:2] == ALL
        assert reader.given == [KEPT, ADDED]
        await reader.close()

    asyncio.run(story())


def test_what_is_done_while_a_join_begins_is_committed_after_what_was_done_before() -> None:
    """A member of the resize tests committed 86 after 88: it had read on, and reported that."""

    async def story() -> None:
        listener, member = Listener(), Member()
        reader = reader_of(member, listener)
        reader.fetcher.seek(KEPT, 6)
        is_stopped, stop = asyncio.Event(), reader.lookup.stop

        async def slow_stop() -> None:
            await is_stopped.wait()
            await stop()

        reader.lookup.stop = slow_stop  # type: ignore[method-assign]
        with contextlib.suppress(ClientError):
            await reader.poll(0)
        assert reader.is_joining
        await reader.commits.before_report({KEPT: 8})
        is_stopped.set()
        await poll_until(reader, lambda: member.joins > 0)
        assert [each[KEPT] for each in member.committed] == [6, 8]
        member.others.set()
        await reader.close()

    asyncio.run(story())


@pytest.mark.parametrize("removed_by", ["commit", "join"])
def test_a_member_that_was_removed_before_it_joined_again_loses_its_partitions_first(
    removed_by: Literal["commit", "join"],
) -> None:
    async def story() -> None:
        listener, member = Listener(), Member()
        member.removed_by = removed_by
        member.others.set()
        reader = reader_of(member, listener)
        if removed_by == "commit":
            reader.fetcher.seek(KEPT, 9)
        await poll_until(reader, lambda: len(listener.calls) > 1)
        assert listener.calls[:2] == [("lost", [KEPT, GONE]), ("assigned", [KEPT, ADDED])]
        await reader.close()

    asyncio.run(story())


class Forgetful(NoBrokers):
    """A coordinator that knows no member."""

    async def send_to_coordinator(self, *_: Any, **__: Any) -> messages.JoinGroupResponse:
        return messages.JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)


def test_a_member_that_its_coordinator_does_not_know_may_not_keep_partitions() -> None:
    async def story() -> None:
        member = GroupMember(
            cast("Cluster", Forgetful()), "g", ["t"], assignors=(COOPERATIVE_STICKY,)
        )
        member._standing = MemberStatus(MemberState.RECALLED, "m", 1)
        with pytest.raises(MembershipLost):
            await member.join([KEPT])
        assert member.state is MemberState.OUT

    asyncio.run(story())
