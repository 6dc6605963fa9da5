"""Positions of partitions in which a group has committed nothing: what is committed before reading.

Of a topic whose keys keep their order a member commits the position of a reset before it reads
there: otherwise the rebalance of a resize would reset again, and skip records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.network_server import until
from tests.support.scripted_cluster import ScriptedCluster, listed_offsets, topic, view_of
from tidelog.client.errors import ClientError, ConnectionLost, Refused
from tidelog.client.fetching.resets import OffsetReset
from tidelog.client.groups.committed_offsets import CommitRefused, Position
from tidelog.client.groups.first_positions import Resets, no_position, refused
from tidelog.client.groups.group_member import GroupMember
from tidelog.client.groups.reader_commits import Commits
from tidelog.client.groups.self_assigned import SelfAssigned
from tidelog.client.offsets import EARLIEST, LATEST, IsolationLevel
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


class Committing:
    """Commits of a member, with the errors that the test wants."""

    sent: list[dict[TopicPartition, int]]
    error: ClientError | None = None

    async def commit(self, positions: Mapping[TopicPartition, Position], **_: Any) -> None:
        self.sent.append({where: each.offset for where, each in positions.items()})
        if self.error is not None:
            raise self.error


class Member(Committing, GroupMember):
    """A member of a group."""


class Alone(Committing, SelfAssigned):
    """A reader that assigned itself, and commits as no member."""


class Story:
    """A reset of two partitions, each with another leader."""

    def __init__(self, *, ordered: bool = True, is_member: bool = True) -> None:
        self.offsets: dict[TopicPartition, int | ErrorCode] = {ZERO: 50, ONE: 60}
        self.slow: asyncio.Future[Any] | None = None
        """What the leader of the second partition waits for."""
        self.begun: list[dict[TopicPartition, int]] = []
        shown = topic("t", [1, 2], ordered=ordered)
        self.cluster = ScriptedCluster(view_of(shown), {messages.ListOffsetsRequest: self.answer})
        self.member: Any = (
            Member(self.cluster, "g", ["t"]) if is_member else Alone(self.cluster, "g")
        )
        self.member.sent = []
        self.commits = Commits(self.member, lambda *_: -1, tuple, auto_ms=None)
        self.resets = Resets(
            self.cluster,
            OffsetReset.LATEST,
            IsolationLevel.READ_COMMITTED,
            self.member,
            self.commits,
        )
        self.resets.ordered = {"t"} if ordered else ()

    def answer(self, node_id: int, request: Any) -> Any:
        if node_id == 2 and self.slow is not None:
            return self.slow
        return listed_offsets(request, self.offsets)

    async def run(self) -> dict[TopicPartition, Refused]:
        return await self.resets.of_topic([ZERO, ONE], self.begin)

    def begin(self, positions: dict[TopicPartition, int]) -> None:
        assert not self.member.sent or not self.commits.tasks()
        self.begun.append(dict(positions))


def test_a_member_commits_the_positions_of_an_ordered_topic_before_it_begins() -> None:
    async def main() -> None:
        story = Story()
        slow = story.slow = asyncio.get_running_loop().create_future()
        work = asyncio.ensure_future(story.run())
        await until(lambda: len(story.cluster.asked) == 2)
        assert story.begun == [] == story.member.sent, "not before all leaders have answered"
        slow.set_result(listed_offsets(story.cluster.asked[1][1], story.offsets))
        assert await work == {}
        assert story.member.sent == [{ZERO: 50, ONE: 60}]
        assert story.begun == [{ZERO: 50, ONE: 60}]
        for _, asked in story.cluster.asked:
            assert asked.isolation_level == IsolationLevel.READ_COMMITTED
            assert asked.topics[0].partitions[0].timestamp == LATEST

    asyncio.run(main())


@pytest.mark.parametrize(("ordered", "is_member"), [(False, True), (True, False), (False, False)])
def test_others_begin_in_each_partition_as_soon_as_its_leader_has_answered(
    ordered: bool, is_member: bool
) -> None:
    async def main() -> None:
        story = Story(ordered=ordered, is_member=is_member)
        slow = story.slow = asyncio.get_running_loop().create_future()
        work = asyncio.ensure_future(story.run())
        await until(lambda: story.begun)
        assert story.begun == [{ZERO: 50}]
        slow.set_result(listed_offsets(story.cluster.asked[1][1], story.offsets))
        assert await work == {}
        assert story.begun == [{ZERO: 50}, {ONE: 60}]
        assert story.member.sent == []

    asyncio.run(main())


def test_the_commit_of_a_reset_waits_for_those_before_it() -> None:
    """One that was sent again could follow a commit of the application, and take it back."""

    async def main() -> None:
        story = Story()
        before = asyncio.get_running_loop().create_future()
        commit = story.member.commit

        async def slow(positions: Mapping[TopicPartition, Position], **given: Any) -> None:
            await commit(positions, **given)
            if len(story.member.sent) == 1:
                await before

        story.member.commit = slow
        first = asyncio.ensure_future(story.commits.up_to({ZERO: 9}))
        work = asyncio.ensure_future(story.run())
        await until(lambda: len(story.cluster.asked) == 2)
        assert story.member.sent == [{ZERO: 9}]
        before.set_result(None)
        await asyncio.gather(first, work)
        assert story.member.sent == [{ZERO: 9}, {ZERO: 50, ONE: 60}]

    asyncio.run(main())


def test_where_the_commit_is_refused_nothing_is_read() -> None:
    async def main() -> None:
        story = Story()
        why = Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, str(ONE))
        story.commits._note_committed({ZERO: Position(50)}, ())
        story.member.error = CommitRefused("g", {ONE: why})
        assert await story.run() == {ONE: why}
        assert story.begun == [{ZERO: 50}]

    asyncio.run(main())


def test_where_the_coordinator_is_not_reached_nothing_is_read() -> None:
    async def main() -> None:
        story = Story()
        story.member.error = ConnectionLost("gone")
        found = await story.run()
        assert {where: each.code for where, each in found.items()} == dict.fromkeys(
            (ZERO, ONE), ErrorCode.NETWORK_EXCEPTION
        )
        assert story.begun == [{}]

    asyncio.run(main())


def test_a_member_whose_generation_is_over_reads_nothing() -> None:
    """Its commit was dropped: the next owner resets again, and must not find a later position."""

    async def main() -> None:
        story = Story()
        story.member.error = Refused(ErrorCode.ILLEGAL_GENERATION, "group g")
        assert await story.run() == {}
        assert len(story.member.sent) == 1
        assert story.begun == [{}]

    asyncio.run(main())


@pytest.mark.parametrize("ordered", [True, False])
def test_the_error_of_one_partition_does_not_hold_up_the_other(ordered: bool) -> None:
    async def main() -> None:
        story = Story(ordered=ordered)
        story.offsets[ONE] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        found = await story.run()
        assert {where: each.code for where, each in found.items()} == {
            ONE: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        }
        assert [each for each in story.begun if each] == [{ZERO: 50}]
        assert story.member.sent == ([{ZERO: 50}] if ordered else [])

    asyncio.run(main())


def test_where_no_leader_answers_nothing_is_committed_or_read() -> None:
    async def main() -> None:
        story = Story()
        story.offsets = dict.fromkeys((ZERO, ONE), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        assert (await story.run()).keys() == {ZERO, ONE}
        assert story.member.sent == [] and not any(story.begun)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("ordered", "is_member", "sent"),
    [(True, True, [{ONE: 7}]), (False, True, []), (True, False, []), (False, False, [])],
)
def test_a_position_that_was_out_of_range_is_committed_likewise(
    ordered: bool, is_member: bool, sent: list[Any]
) -> None:
    async def main() -> None:
        story = Story(ordered=ordered, is_member=is_member)
        await story.resets.within(ONE, 7)
        assert story.member.sent == sent

    asyncio.run(main())


def test_the_policy_says_which_end_of_the_log_is_looked_up() -> None:
    async def main() -> None:
        story = Story()
        story.resets.policy = OffsetReset.EARLIEST
        await story.run()
        assert story.cluster.asked[0][1].topics[0].partitions[0].timestamp == EARLIEST

    asyncio.run(main())


def test_errors_of_partitions_are_refusals() -> None:
    known = Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, str(ZERO))
    assert refused(ZERO, known) is known
    lost = refused(ZERO, ConnectionLost("gone"))
    assert (lost.code, lost.subject) == (ErrorCode.NETWORK_EXCEPTION, "t-0")
    assert lost.reason == "gone"
    assert no_position("g", ONE).reason == "group 'g' has no committed offset"
    assert no_position("", ONE).reason == "no offset was set"
    assert no_position("", ONE).code == ErrorCode.OFFSET_OUT_OF_RANGE
