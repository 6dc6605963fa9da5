"""The commits of a reader: one is in flight at a time, and none is older than the one before it.

Each is made by the member, and by the deadline, of the moment in which it was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest

from tests.support.scripted_cluster import ScriptedCluster, view_of
from tests.support.stories import let_pass
from tidelog.client.errors import ClientError, ConnectionLost, GaveUp, Refused, WrongState
from tidelog.client.groups.committed_offsets import Membership, Position
from tidelog.client.groups.group_member import GroupMember
from tidelog.client.groups.membership import Event, MemberState, MemberStatus, step
from tidelog.client.groups.reader_commits import COMMIT_LOST, MOST_WAITING, Commits
from tidelog.client.retries import is_worth_retrying
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.runtime.tasks import call_off

WHERE = TopicPartition("t", 0)


class SlowMember:
    """A member whose commits end when the test says so."""

    group = "g"
    membership = Membership(1, "m")

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.answers: list[asyncio.Future[None]] = []
        self.times_ms: list[int] = []

    def check_may_commit(self) -> None:
        pass

    async def commit(
        self, positions: Mapping[TopicPartition, Position], *, timeout_ms: int, **_: Any
    ) -> None:
        self.sent.append(positions[WHERE].offset)
        self.times_ms.append(timeout_ms)
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]


def commits_of(member: Any) -> Commits:
    return Commits(member, lambda *_: -1, tuple, auto_ms=100)


async def turns() -> None:
    """Let every task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def begun(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start it, and let it go on up to where it waits for an answer."""
    task = asyncio.get_running_loop().create_task(work)
    await turns()
    return task


@pytest.mark.parametrize("which", ["up_to", "exactly", "attempt"])
def test_a_report_waits_for_the_commit_in_flight_and_does_not_go_back(which: str) -> None:
    """Seed 355 of the simulation: 127 was committed after 128, and a record delivered again."""

    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        wanted: Any = {WHERE: Position(128, -1) if which == "exactly" else 128}
        first = await begun(getattr(commits, which)(wanted))
        report = await begun(commits.before_report({WHERE: 127}))
        assert member.sent == [128]
        member.answers[0].set_result(None)
        await asyncio.gather(first, report)
        assert member.sent == [128]
        assert commits.committed == {WHERE: 128}

    asyncio.run(main())


@pytest.mark.parametrize("which", ["up_to", "attempt", "before_report"])
def test_what_was_flushed_before_a_reset_is_not_committed_after_it(which: str) -> None:
    """Seed 352 of the simulation: 15 was committed after the reset to 16, where the log begins."""

    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        reset = await begun(commits.reset(WHERE, 16))
        flushed = await begun(getattr(commits, which)({WHERE: 15}))
        assert member.sent == [16]
        member.answers[0].set_result(None)
        await asyncio.gather(reset, flushed)
        assert member.sent == [16]
        assert commits.committed == {WHERE: 16}

    asyncio.run(main())


@pytest.mark.parametrize("goes_on", ["further", "elsewhere", "in another generation", "as given"])
def test_a_reset_holds_back_nothing_once_the_application_goes_on(goes_on: str) -> None:
    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        reset = await begun(commits.reset(WHERE, 16))
        member.answers[0].set_result(None)
        await reset
        if goes_on == "further":
            more = await begun(commits.up_to({WHERE: 17}))
            member.answers[1].set_result(None)
            await more
        elif goes_on == "elsewhere":
            commits.sought(WHERE)
        elif goes_on == "in another generation":
            commits.forget_all()
        else:
            commits.forget(WHERE)
        again = await begun(commits.up_to({WHERE: 15}))
        member.answers[-1].set_result(None)
        await again
        assert member.sent[-1] == 15

    asyncio.run(main())


@pytest.mark.parametrize("goes_on", ["elsewhere", "in another generation", "as given", "as before"])
def test_a_reset_that_waited_is_committed_only_where_it_counts_still(goes_on: str) -> None:
    """Another member had the partition by then, and its group went back to an older end."""

    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        before = await begun(commits.up_to({WHERE: 7}))
        reset = await begun(commits.reset(WHERE, 16))
        assert member.sent == [7]
        if goes_on == "elsewhere":
            commits.sought(WHERE)
        elif goes_on == "in another generation":
            commits.forget_all()
        elif goes_on == "as given":
            commits.forget(WHERE)
        member.answers[0].set_result(None)
        await before
        await turns()
        counts = goes_on == "as before"
        assert member.sent == ([7, 16] if counts else [7])
        if counts:
            member.answers[1].set_result(None)
        await reset

    asyncio.run(main())


def test_a_reset_is_committed_after_a_higher_position() -> None:
    """The log was cut: the position that was out of range lay beyond its end."""

    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        before = await begun(commits.up_to({WHERE: 5}))
        higher = await begun(commits.up_to({WHERE: 30}))
        reset = await begun(commits.reset(WHERE, 16))
        for answers in (1, 2, 3):
            assert len(member.answers) == answers
            member.answers[-1].set_result(None)
            await turns()
        await asyncio.gather(before, higher, reset)
        assert member.sent == [5, 30, 16]

    asyncio.run(main())


def test_a_reset_that_is_not_committed_holds_back_nothing() -> None:
    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        reset = await begun(commits.reset(WHERE, 16))
        member.answers[0].set_exception(ConnectionLost("gone"))
        with pytest.raises(ConnectionLost):
            await reset
        again = await begun(commits.up_to({WHERE: 15}))
        member.answers[1].set_result(None)
        await again
        assert member.sent == [16, 15]

    asyncio.run(main())


def test_after_a_failed_commit_the_next_one_is_sent() -> None:
    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        first = await begun(commits.up_to({WHERE: 5}))
        second = await begun(commits.before_report({WHERE: 4}))
        member.answers[0].set_exception(ConnectionLost("gone"))
        with pytest.raises(ConnectionLost):
            await first
        await turns()
        assert member.sent == [5, 4]
        member.answers[1].set_result(None)
        await second
        assert commits.committed == {WHERE: 4}

    asyncio.run(main())


def test_a_cancelled_commit_is_in_flight_still() -> None:
    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        first = await begun(commits.up_to({WHERE: 5}))
        first.cancel()
        second = await begun(commits.up_to({WHERE: 6}))
        assert member.sent == [5]
        member.answers[0].set_result(None)
        await turns()
        assert member.sent == [5, 6]
        member.answers[1].set_result(None)
        await second

    asyncio.run(main())


def test_one_automatic_commit_is_in_flight_at_a_time() -> None:
    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        commits.aside({WHERE: 5})
        await turns()
        commits.aside({WHERE: 6})
        await turns()
        assert member.sent == [5]
        member.answers[0].set_result(None)
        await turns()
        commits.aside({WHERE: 7})
        await turns()
        assert member.sent == [5, 7]
        member.answers[1].set_result(None)
        await commits.settle()
        assert commits.committed == {WHERE: 7}

    asyncio.run(main())


def test_an_automatic_commit_precedes_what_is_asked_for_in_the_same_turn_of_the_loop() -> None:
    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        commits.aside({WHERE: 5})
        more = await begun(commits.exactly({WHERE: Position(6, -1)}))
        assert member.sent == [5]
        member.answers[0].set_result(None)
        await turns()
        member.answers[1].set_result(None)
        await more
        assert member.sent == [5, 6]
        assert commits.committed == {WHERE: 6}

    asyncio.run(main())


def test_commits_that_wait_keep_their_order_and_a_cancelled_one_is_not_begun() -> None:
    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        first = await begun(commits.up_to({WHERE: 5}))
        second = await begun(commits.up_to({WHERE: 6}))
        third = await begun(commits.up_to({WHERE: 7}))
        second.cancel()
        await turns()
        assert member.sent == [5], "the one that waits is cancelled, and the next one waits on"
        settled = await begun(commits.settle())
        commits.begin({WHERE: 8})
        member.answers[0].set_result(None)
        await first
        await turns()
        assert member.sent == [5, 7]
        assert not settled.done()
        member.answers[1].set_result(None)
        await third
        await settled
        await turns()
        assert member.sent == [5, 7, 8]
        member.answers[2].set_result(None)
        await turns()
        assert not commits.tasks()

    asyncio.run(main())


@pytest.mark.parametrize("code", sorted(COMMIT_LOST))
def test_a_commit_of_an_ended_generation_is_dropped_and_not_noted(code: ErrorCode) -> None:
    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        first = asyncio.get_running_loop().create_task(commits.up_to({WHERE: 5}))
        await turns()
        member.answers[0].set_exception(Refused(code, "group g"))
        await first
        assert commits.committed == {}

    asyncio.run(main())


def test_no_position_in_a_former_topic_is_committed() -> None:
    """The topic that has the name now begins without commits."""

    async def main() -> None:
        member = SlowMember()
        former: set[str] = {WHERE.topic}
        commits = Commits(member, lambda *_: -1, lambda: former, auto_ms=None)  # type: ignore[arg-type]
        await commits.up_to({WHERE: 5})
        assert member.sent == [] and commits.committed == {}
        former.clear()
        again = asyncio.get_running_loop().create_task(commits.up_to({WHERE: 5}))
        await turns()
        assert member.sent == [5]
        member.answers[0].set_result(None)
        await again

    asyncio.run(main())


class InGeneration(GroupMember):
    """A member of a generation, whose coordinator answers a commit when the test says so."""

    def __init__(self, generation: int = 1) -> None:
        self.cluster = ScriptedCluster(view_of(), {messages.OffsetCommitRequest: self._commit})
        super().__init__(self.cluster, "g", ["t"])
        self._standing = MemberStatus(MemberState.READING, "m", generation)
        self.requests: list[messages.OffsetCommitRequest] = []
        self.answers: list[asyncio.Future[Any]] = []

    def _commit(self, _: int, request: messages.OffsetCommitRequest) -> asyncio.Future[Any]:
        self.requests.append(request)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def enter(self, generation: int) -> None:
        self._standing = MemberStatus(MemberState.READING, "m", generation)

    def begin_to_join(self) -> None:
        self._standing = step(self._standing, Event.JOIN)


def answer(code: ErrorCode = ErrorCode.NONE) -> messages.OffsetCommitResponse:
    of = messages.OffsetCommitResponse
    part = of.OffsetCommitResponsePartition(partition_index=0, error_code=code)
    return of(topics=[of.OffsetCommitResponseTopic(name="t", partitions=[part])])


@pytest.mark.parametrize("which", ["exactly", "returned", "up_to", "before_report", "begin"])
def test_a_commit_that_waits_is_not_sent_as_a_member_of_the_next_generation(which: str) -> None:
    """Another member may have gone on there meanwhile, and the group would go back."""

    async def main() -> None:
        member = InGeneration()
        commits = commits_of(member)
        first = await begun(commits.exactly({WHERE: Position(100)}))
        is_given = which in ("exactly", "returned")
        waiting = getattr(commits, which)({WHERE: Position(200) if is_given else 200})
        second = None if waiting is None else await begun(waiting)
        member.enter(2)
        member.answers[0].set_result(answer(ErrorCode.ILLEGAL_GENERATION))
        with pytest.raises(Refused):
            await first
        await turns()
        assert len(member.requests) == 1
        if is_given and second is not None:
            with pytest.raises(Refused, match="rebalanced since this commit") as refused:
                await second
            assert refused.value.code == ErrorCode.ILLEGAL_GENERATION
        await commits.settle()
        assert len(member.requests) == 1 and WHERE not in commits.committed
        assert member.state is MemberState.READING

    asyncio.run(main())


def test_a_commit_of_a_member_that_joins_again_is_refused_at_once() -> None:
    async def main() -> None:
        member = InGeneration()
        commits = commits_of(member)
        member.begin_to_join()
        with pytest.raises(Refused) as refused:
            await commits.exactly({WHERE: Position(5)})
        assert refused.value.code == ErrorCode.REBALANCE_IN_PROGRESS
        await commits.up_to({WHERE: 5})
        assert member.requests == [] and not commits.tasks()

    asyncio.run(main())


class Away(SlowMember):
    """A member whose coordinator does not respond: each commit takes all the time that it has."""

    async def commit(
        self, positions: Mapping[TopicPartition, Position], *, timeout_ms: int, **_: Any
    ) -> None:
        self.sent.append(positions[WHERE].offset)
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=timeout_ms / 1000)
        raise ConnectionLost("there is no coordinator")


def test_the_time_of_a_commit_begins_when_it_is_asked_for() -> None:
    """A hundred of them waited for a hundred time-outs."""

    async def main() -> None:
        member = Away()
        commits = Commits(member, lambda *_: -1, tuple, auto_ms=None, timeout_ms=300)  # type: ignore[arg-type]
        asked = [commits.exactly({WHERE: Position(number)}) for number in range(100)]
        loop = asyncio.get_running_loop()
        begin = loop.time()
        ended = await asyncio.gather(*asked, commits.reset(WHERE, 7), return_exceptions=True)
        # A hundred time-outs would be thirty seconds.
        assert loop.time() - begin < 15
        assert all(isinstance(error, ConnectionLost | GaveUp) for error in ended)
        assert sum("not sent in time" in str(error) for error in ended) > 50
        await commits.settle()
        assert len(member.sent) < 50, "what has failed is not sent"

    asyncio.run(main())


def test_more_commits_than_the_bound_are_refused_until_one_has_ended() -> None:
    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        asked = [commits.exactly({WHERE: Position(number)}) for number in range(MOST_WAITING)]
        with pytest.raises(GaveUp, match="wait for a response already"):
            commits.exactly({WHERE: Position(0)})
        with pytest.raises(GaveUp):
            commits.returned({WHERE: Position(0)})
        await turns()
        member.answers[0].set_result(None)
        await asked[0]
        last = commits.exactly({WHERE: Position(1)})
        await call_off(commits.tasks())
        for each in (*asked[1:], last):
            with pytest.raises(WrongState):
                await each

    asyncio.run(main())


@pytest.mark.parametrize("auto_ms", [0, 3_600_000])
def test_the_interval_of_automatic_commits_is_not_the_time_that_one_may_take(auto_ms: int) -> None:
    async def main() -> None:
        member = SlowMember()
        commits = Commits(member, lambda *_: -1, tuple, auto_ms, 20_000, 14_000)  # type: ignore[arg-type]
        commits.begin({WHERE: 1})
        commits.begin_before_join({WHERE: 2})
        for _ in range(2):
            await turns()
            member.answers[-1].set_result(None)
        await commits.settle()
        of_poll, of_join = member.times_ms
        assert 10_000 < of_poll <= 20_000
        assert 1_000 < of_join <= 7_000

    asyncio.run(main())


def test_a_join_waits_for_commits_as_long_as_the_group_waits_for_the_join() -> None:
    async def main() -> None:
        member = SlowMember()
        commits = Commits(member, lambda *_: -1, tuple, auto_ms=100, rebalance_ms=100)  # type: ignore[arg-type]
        commits.begin({WHERE: 1})
        await commits.settle_before_join()
        assert commits.tasks()
        await call_off(commits.tasks())

    asyncio.run(main())


def test_what_is_returned_is_not_committed_in_a_former_topic_nor_short_of_a_reset() -> None:
    async def main() -> None:
        member = SlowMember()
        former: set[str] = set()
        commits = Commits(member, lambda *_: -1, lambda: former, auto_ms=None)  # type: ignore[arg-type]
        reset = await begun(commits.reset(WHERE, 16))
        short = await begun(commits.returned({WHERE: Position(15)}))
        member.answers[0].set_result(None)
        await asyncio.gather(reset, short)
        assert member.sent == [16]
        former.add(WHERE.topic)
        await commits.returned({WHERE: Position(17)})
        assert member.sent == [16]
        given = await begun(commits.exactly({WHERE: Position(15)}))
        member.answers[1].set_result(None)
        await given
        assert member.sent == [16, 15]

    asyncio.run(main())


def test_a_commit_of_some_partitions_does_not_postpone_automatic_ones() -> None:
    async def main() -> None:
        member = SlowMember()
        commits = Commits(member, lambda *_: -1, tuple, auto_ms=10**9)  # type: ignore[arg-type]
        for which, is_due in ((commits.exactly, True), (commits.returned, False)):
            asked = await begun(which({WHERE: Position(5)}))
            member.answers[-1].set_result(None)
            await asked
            assert commits.is_due(asyncio.get_running_loop().time()) == is_due

    asyncio.run(main())


def test_a_commit_that_is_called_off_is_an_error_and_not_a_cancellation() -> None:
    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        asked = [await begun(commits.exactly({WHERE: Position(number)})) for number in range(2)]
        assert member.sent == [0]
        await call_off(commits.tasks())
        for each in asked:
            with pytest.raises(ClientError, match="closed before a response"):
                await each

    asyncio.run(main())


def test_a_commit_has_its_place_when_it_is_asked_for() -> None:
    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        first = commits.exactly({WHERE: Position(5)})
        second = commits.up_to({WHERE: 6})
        both = await begun(second), await begun(first)
        assert member.sent == [5]
        member.answers[0].set_result(None)
        await turns()
        assert member.sent == [5, 6]
        member.answers[1].set_result(None)
        await asyncio.gather(*both)

    asyncio.run(main())


def test_a_commit_of_nothing_waits_for_those_before_and_is_no_error() -> None:
    """As in Kafka: a member that joins again, or has not polled, has nothing to commit."""

    async def main() -> None:
        member = InGeneration()
        commits = commits_of(member)
        first = await begun(commits.exactly({WHERE: Position(5)}))
        member.begin_to_join()
        others = [await begun(which({})) for which in (commits.exactly, commits.returned)]
        assert not any(each.done() for each in others)
        member.answers[0].set_result(answer())
        await asyncio.gather(first, *others)
        assert len(member.requests) == 1

    asyncio.run(main())


@pytest.mark.parametrize("is_behind_another", [True, False])
def test_what_is_given_up_is_committed_in_the_time_before_a_join_or_logged(
    is_behind_another: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A poll waited as long as any commit may take, and raised the error."""

    async def main() -> None:
        member = Away()
        commits = Commits(member, lambda *_: -1, tuple, None, 10**9, 600_000)  # type: ignore[arg-type]
        if is_behind_another:
            before = await begun(commits.exactly({WHERE: Position(5)}))
        attempt = await begun(commits.attempt({WHERE: 6}))
        assert not attempt.done()
        let_pass(301)
        async with asyncio.timeout(30):
            await attempt
            if is_behind_another:
                await call_off(commits.tasks()[:1])
                await asyncio.wait([before])
                assert isinstance(before.exception(), WrongState)
            await commits.settle()
        assert member.sent == [5 if is_behind_another else 6]
        why = "not sent in time" if is_behind_another else "there is no coordinator"
        assert "offsets were not committed" in caplog.text and why in caplog.text

    asyncio.run(main())


def test_automatic_commits_have_their_turn_among_those_of_the_application() -> None:
    """There was none as long as the application had one of its own in flight at any time."""

    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        now = asyncio.get_running_loop().time()
        own = await begun(commits.exactly({WHERE: Position(5)}))
        assert commits.is_due(now)
        commits.aside({WHERE: 6})
        next_own = await begun(commits.exactly({WHERE: Position(7)}))
        assert not commits.is_due(now + 10**6), "what has not ended is not begun again"
        for _ in range(3):
            member.answers[-1].set_result(None)
            await turns()
        await asyncio.gather(own, next_own)
        assert member.sent == [5, 6, 7]
        assert commits.is_due(now + 10**6)

    asyncio.run(main())


def test_a_reset_whose_turn_does_not_come_in_time_may_be_made_later() -> None:
    """It stopped the partition."""

    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        commits.begin({WHERE: 5})
        reset = await begun(commits.reset(WHERE, 16))
        let_pass(61)
        with pytest.raises(ConnectionLost, match="not sent in time") as late:
            async with asyncio.timeout(30):
                await reset
        assert is_worth_retrying(late.value) and member.sent == [5]
        await call_off(commits.tasks())

    asyncio.run(main())


def test_a_commit_whose_time_is_over_is_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        member = SlowMember()
        commits = commits_of(member)
        commits.begin({WHERE: 5})
        commits.begin({WHERE: 6})
        await turns()
        assert member.sent == [5]
        let_pass(61)
        member.answers[0].set_result(None)
        await commits.settle()
        assert member.sent == [5] and "not sent in time" in caplog.text

    asyncio.run(main())
