"""A cooperative member takes up what its join gave, though a poll ends in the middle of it, and
loses first what its group took away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import pytest

from tests.support.network_server import until
from tests.support.stories import let_pass
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ClientError, ConnectionLost, Refused, RequestTimedOut
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.groups.consumer_protocol import COOPERATIVE_STICKY
from tidelog.client.groups.group_member import GroupMember, MembershipLost
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.groups.membership import MemberState, MemberStatus
from tidelog.client.groups.reader_hooks import ReaderHooks
from tidelog.client.groups.self_assigned import SelfAssigned
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

    async def commit(self, positions: Mapping[TopicPartition, Position], **_: Any) -> None:
        self.committed.append({where: place.offset for where, place in positions.items()})
        await self.answered.wait()
        if self.removed_by == "commit":
            self._standing = MemberStatus()
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "group 'g'")


def reader_of(member: Member, listener: Listener, auto_commit_ms: int | None = 100) -> GroupReader:
    """Return a reader that has read two partitions."""
    reader = GroupReader(
        cast("Cluster", NoBrokers()), member=member, hooks=listener, auto_commit_ms=auto_commit_ms
    )
    reader.fetcher.add({KEPT: 4, GONE: 5})
    reader.commits.committed = {KEPT: 4, GONE: 5}
    reader.generation.assigned = [KEPT, GONE]
    return reader


def reads(member: Member) -> None:
    member._standing = MemberStatus(MemberState.READING, "m", 1)


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


def test_cancelled_polls_begin_one_commit_of_what_a_member_gives_up() -> None:
    """Each of them began another one, without a limit."""

    async def story() -> None:
        listener, member = Listener(), Member()
        reader = reader_of(member, listener)
        await poll_until(reader, lambda: member.joins > 0)
        member.answered.clear()
        reader.fetcher.seek(GONE, 7)
        member.others.set()
        await turns_of_the_loop()
        for _ in range(20):
            poll = asyncio.create_task(reader.poll(0))
            await turns_of_the_loop()
            assert not poll.done()
            poll.cancel()
            await asyncio.wait([poll])
        assert len(reader.commits.tasks()) == 1
        member.answered.set()
        await poll_until(reader, lambda: len(listener.calls) > 1)
        assert [each for each in member.committed if each.get(GONE) == 7] == [{GONE: 7}]
        await reader.close()

    asyncio.run(story())


def test_what_the_application_has_sought_since_is_committed_after_a_cancelled_poll() -> None:
    async def story() -> None:
        listener, member = Listener(), Member()
        reader = reader_of(member, listener)
        await poll_until(reader, lambda: member.joins > 0)
        member.answered.clear()
        reader.fetcher.seek(GONE, 7)
        member.others.set()
        await turns_of_the_loop()
        poll = asyncio.create_task(reader.poll(0))
        await turns_of_the_loop()
        poll.cancel()
        await asyncio.wait([poll])
        reader.fetcher.seek(GONE, 3)
        member.answered.set()
        await poll_until(reader, lambda: len(listener.calls) > 1)
        assert [each[GONE] for each in member.committed if GONE in each] == [7, 3]
        await reader.close()

    asyncio.run(story())


def test_a_poll_does_not_wait_for_the_commit_of_the_end() -> None:
    """It waited as long as the end did, whatever its own time."""

    async def story() -> None:
        listener, member = Listener(), Member()
        reader = reader_of(member, listener)
        await poll_until(reader, lambda: member.joins > 0)
        member.answered.clear()
        reader.fetcher.seek(KEPT, 9)
        reader.fetcher.seek(GONE, 7)
        member.others.set()
        await turns_of_the_loop()
        poll = asyncio.create_task(reader.poll(0))
        await until(lambda: member.committed and GONE in member.committed[-1])
        end = asyncio.create_task(reader.give_up(soon()))
        await turns_of_the_loop()
        member.answered.set()
        member.answered = asyncio.Event()
        with pytest.raises(ClientError, match="closed"):
            async with asyncio.timeout(30):
                await poll
        assert not end.done() and member.committed[-1] == {KEPT: 9}
        member.answered.set()
        await end
        await reader.close(soon())

    asyncio.run(story())


def test_a_poll_that_waits_for_records_ends_with_its_reader() -> None:
    async def story() -> None:
        listener, member = Listener(), Member()
        reads(member)
        reader = reader_of(member, listener, None)
        reader.generation.has_begun = True
        reader.step_ms = 10**7
        poll = asyncio.create_task(reader.poll(10**8))
        await turns_of_the_loop()
        member.answered.clear()
        asked = asyncio.ensure_future(reader.commits.exactly({KEPT: Position(6)}))
        end = asyncio.create_task(reader.give_up(soon()))
        with pytest.raises(ClientError, match="closed"):
            async with asyncio.timeout(30):
                await poll
        assert not end.done()
        member.answered.set()
        await asyncio.gather(asked, end)
        await reader.close(soon())

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


def soon(seconds: float = 60.0) -> float:
    """Return a time of the loop's clock."""
    return asyncio.get_running_loop().time() + seconds


@pytest.mark.parametrize("auto_commit_ms", [None, 10**8])
def test_the_end_of_a_reader_waits_for_commits_that_were_asked_for(
    auto_commit_ms: int | None,
) -> None:
    """The second was never sent, and its caller got a CancelledError."""

    async def story() -> None:
        listener, member = Listener(), Member()
        reads(member)
        reader = reader_of(member, listener, auto_commit_ms)
        member.answered.clear()
        asked = [
            asyncio.ensure_future(reader.commits.exactly({KEPT: Position(number)}))
            for number in (6, 7)
        ]
        end = asyncio.ensure_future(reader.give_up(soon()))
        await turns_of_the_loop()
        assert not end.done() and not listener.calls
        member.answered.set()
        await end
        assert listener.calls == [("revoked", [KEPT, GONE])]
        await reader.close(soon())
        await asyncio.gather(*asked)
        assert [each[KEPT] for each in member.committed][:2] == [6, 7]

    asyncio.run(story())


def test_a_commit_that_has_no_response_by_the_deadline_of_the_end_fails() -> None:
    async def story() -> None:
        listener, member = Listener(), Member()
        member._standing = MemberStatus(MemberState.READING, "m", 1)
        reader = reader_of(member, listener)
        reader.fetcher.seek(KEPT, 6)
        member.answered.clear()
        asked = [
            asyncio.ensure_future(reader.commits.exactly({KEPT: Position(number)}))
            for number in (6, 7)
        ]
        await turns_of_the_loop()
        await reader.give_up(soon(0.01))
        assert listener.calls == [("revoked", [KEPT, GONE])]
        await reader.close(soon(0.01))
        for each in asked:
            with pytest.raises(ClientError, match="closed before a response"):
                await each
        assert len(member.committed) == 1

    asyncio.run(story())


def test_an_automatic_commit_that_the_end_calls_off_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        listener, member = Listener(), Member()
        reader = reader_of(member, listener)
        reader.fetcher.seek(KEPT, 6)
        member.answered.clear()
        with contextlib.suppress(ClientError):
            await reader.poll(0)
        assert reader.is_joining
        await turns_of_the_loop()
        await reader.close()
        assert "closed before a response" in caplog.text

    asyncio.run(story())


def test_a_commit_in_the_last_callback_is_waited_for() -> None:
    async def story() -> None:
        listener, member = Listener(), Member()
        member._standing = MemberStatus(MemberState.READING, "m", 1)
        reader = reader_of(member, listener, None)
        asked: list[asyncio.Future[None]] = []

        async def revoked(_: Sequence[TopicPartition]) -> None:
            member.answered.clear()
            asked.append(asyncio.ensure_future(reader.commits.exactly({KEPT: Position(9)})))

        listener.revoked = revoked  # type: ignore[method-assign]
        await reader.give_up(soon())
        end = asyncio.ensure_future(reader.close(soon()))
        await turns_of_the_loop()
        assert not end.done()
        member.answered.set()
        await asyncio.gather(end, *asked)
        assert member.committed == [{KEPT: 9}]

    asyncio.run(story())


@pytest.mark.parametrize("when", ["removed", "joining", "joined"])
def test_the_end_says_what_has_become_of_the_partitions(when: str) -> None:
    """Nothing was said where a cooperative member was joining, or had been removed."""

    async def story() -> None:
        listener, member = Listener(), Member()
        reader = reader_of(member, listener)
        if when == "removed":
            member._standing = MemberStatus()
        else:
            await poll_until(reader, lambda: member.joins > 0)
            if when == "joined":
                member.others.set()
                await turns_of_the_loop()
            else:
                # As the coordinator's answer to its request is not there.
                member._standing = MemberStatus()
        poll = asyncio.create_task(reader.poll(10**6)) if when == "joining" else None
        await turns_of_the_loop()
        await reader.give_up(soon())
        await reader.close(soon())
        kind = "revoked" if when == "joined" else "lost"
        assert listener.calls == [(kind, [KEPT, GONE])]
        if poll is not None:
            with pytest.raises(ClientError):
                await poll

    asyncio.run(story())


def test_an_eager_member_is_not_called_back_twice_where_it_ends_while_it_joins() -> None:
    async def story() -> None:
        listener, member = Listener(), Member()
        member.is_cooperative = False
        reader = reader_of(member, listener)
        member.answered.clear()
        reader.fetcher.seek(KEPT, 6)
        assert await reader.poll(0) == []
        assert reader.is_joining and listener.calls == [("revoked", [KEPT, GONE])]
        await reader.give_up(soon(0.01))
        await reader.close(soon(0.01))
        assert listener.calls == [("revoked", [KEPT, GONE])]

    asyncio.run(story())


class Waiting(Listener):
    """One of its callbacks waits, and does what the test says before it ends."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.may_end = asyncio.Event()
        self.last: Callable[[], Awaitable[None]] | None = None

    async def _wait(self, kind: str) -> None:
        if kind == self.kind:
            await self.may_end.wait()
            if self.last is not None:
                await self.last()

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await super().revoked(partitions)
        await self._wait("revoked")

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        await super().lost(partitions)
        await self._wait("lost")

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        await super().assigned(partitions)
        await self._wait("assigned")


async def end_of(reader: GroupReader) -> None:
    await reader.give_up(soon())
    await reader.close(soon())


@pytest.mark.parametrize("is_ended", [True, False])
def test_what_an_eager_member_is_done_with_is_committed_before_what_its_callback_commits(
    is_ended: bool,
) -> None:
    """The end left the group while the callback ran: nothing was committed."""

    async def story() -> None:
        listener, member = Waiting("revoked"), Member()
        member.is_cooperative = False
        reader = reader_of(member, listener)
        reader.fetcher.seek(KEPT, 9)
        listener.last = lambda: reader.commits.exactly({KEPT: Position(7)})
        poll = asyncio.create_task(reader.poll(10**6))
        await turns_of_the_loop()
        assert listener.calls == [("revoked", [KEPT, GONE])]
        end = asyncio.create_task(end_of(reader)) if is_ended else None
        await turns_of_the_loop()
        listener.may_end.set()
        if end is None:
            await turns_of_the_loop()
        else:
            await end
        assert member.committed == [{KEPT: 9}, {KEPT: 7}]
        assert member.joins == (0 if is_ended else 1)
        if end is None:
            await end_of(reader)
        with pytest.raises(ClientError):
            await poll
        assert listener.calls == [("revoked", [KEPT, GONE])]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        ("lost", [("lost", [KEPT, GONE])]),
        ("revoked", [("revoked", [GONE]), ("revoked", [KEPT])]),
        ("assigned", [*ALL, ("revoked", [KEPT, ADDED])]),
    ],
)
def test_the_end_gives_up_what_is_left_when_a_callback_of_a_poll_has_ended(
    kind: str, calls: list[tuple[str, list[TopicPartition]]]
) -> None:
    """What was lost was lost again, and partitions were assigned after the end."""

    async def story() -> None:
        listener, member = Waiting(kind), Member()
        member.others.set()
        reader = reader_of(member, listener)
        if kind == "lost":
            member._standing = MemberStatus()
        poll = asyncio.create_task(poll_until(reader, lambda: False))
        await until(lambda: kind in dict(listener.calls))
        end = asyncio.create_task(end_of(reader))
        await turns_of_the_loop()
        assert not end.done()
        listener.may_end.set()
        await end
        await turns_of_the_loop()
        assert listener.calls == calls
        poll.cancel()

    asyncio.run(story())


@pytest.mark.parametrize("ends", ["cancelled", "waited"])
def test_a_reader_that_ends_calls_off_what_it_began(ends: str) -> None:
    async def story() -> None:
        listener, member = Listener(), Member()
        reader = reader_of(member, listener)
        await poll_until(reader, lambda: member.joins > 0)
        member.answered.clear()
        reader.commits.begin({KEPT: 6})
        end = asyncio.create_task(reader.close(soon(10**6 if ends == "cancelled" else 0.01)))
        await turns_of_the_loop()
        if ends == "cancelled":
            assert not end.done()
            end.cancel()
        await asyncio.wait([end])
        assert end.cancelled() == (ends == "cancelled")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(story())


def test_the_end_does_not_wait_for_what_a_poll_commits_before_it_gives_partitions_up() -> None:
    """It was held back by that as by a callback, for up to a minute."""

    async def story() -> None:
        listener, member = Listener(), Member()
        reader = reader_of(member, listener)
        await poll_until(reader, lambda: member.joins > 0)
        reader.fetcher.seek(GONE, 9)
        member.answered.clear()
        member.others.set()
        await turns_of_the_loop()
        poll = asyncio.create_task(reader.poll(10**6))
        await until(lambda: {GONE: 9} in member.committed)
        async with asyncio.timeout(30):
            await reader.give_up(soon(0.01))
            await reader.close(soon(0.01))
            with pytest.raises(ClientError, match="closed"):
                await poll
        assert listener.calls == [("revoked", [KEPT, GONE])]

    asyncio.run(story())


def test_callbacks_do_not_use_up_the_time_of_the_last_commit() -> None:
    """It was called off where a callback of a poll had lasted longer than that."""

    async def story() -> None:
        listener, member = Waiting("assigned"), Member()
        member.others.set()
        reader = reader_of(member, listener)
        poll = asyncio.create_task(reader.poll(10**8))
        await until(lambda: "assigned" in dict(listener.calls))
        reader.fetcher.seek(KEPT, 9)
        member.answered.clear()
        end = asyncio.create_task(reader.give_up(soon(60)))
        await turns_of_the_loop()
        let_pass(61)
        listener.may_end.set()
        await turns_of_the_loop()
        assert member.committed[-1] == {KEPT: 9} and not end.done()
        member.answered.set()
        assert await end > soon(0)
        assert listener.calls[2:] == [("revoked", [KEPT, ADDED])]
        await reader.close()
        with pytest.raises(ClientError, match="closed"):
            await poll

    asyncio.run(story())


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_group_that_does_not_respond_keeps_no_cancellation_back(is_cancelled: bool) -> None:
    """The error of LeaveGroup replaced it, and was ignored: the task went on."""

    async def story() -> None:
        member = Member()

        async def leave() -> None:
            raise RequestTimedOut("no response to LeaveGroup")

        member.leave = leave  # type: ignore[method-assign]
        reader = reader_of(member, Listener())
        member.answered.clear()
        reader.commits.begin({KEPT: 6})
        end = asyncio.create_task(reader.close(soon(10**6 if is_cancelled else 0.01)))
        await turns_of_the_loop()
        if is_cancelled:
            end.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else RequestTimedOut):
            await end

    asyncio.run(story())


class Joining(SelfAssigned):
    """One that assigns itself, and whose join ends when the test says so."""

    def __init__(self) -> None:
        super().__init__(cast("Cluster", NoBrokers()), "g")
        self.may_end = asyncio.Event()
        self.looks = 0

    @property
    def must_join(self) -> bool:
        self.looks += 1
        return super().must_join

    async def join(self, owned: Iterable[TopicPartition] = ()) -> list[TopicPartition]:
        await self.may_end.wait()
        return await super().join(owned)


def test_an_assignment_is_waited_for_without_looking_at_it_all_the_time() -> None:
    """A processor was busy with that for up to a minute."""

    async def story() -> None:
        member = Joining()
        member.assign([KEPT])
        reader = GroupReader(cast("Cluster", NoBrokers()), member=member, auto_commit_ms=None)
        settled = asyncio.create_task(reader.settle())
        for _ in range(10):
            await turns_of_the_loop()
        assert member.looks < 10 and not settled.done()
        member.may_end.set()
        await settled
        assert reader.given == [KEPT]
        await reader.close()

    asyncio.run(story())
