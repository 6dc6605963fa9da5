"""The commits of a reader: one is in flight at a time, and none is older than the one before it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest

from tidelog.client.errors import ConnectionLost, Refused
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.groups.reader_commits import COMMIT_LOST, Commits
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

WHERE = TopicPartition("t", 0)


class SlowMember:
    """A member whose commits end when the test says so."""

    group = "g"

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.answers: list[asyncio.Future[None]] = []

    async def commit(self, positions: Mapping[TopicPartition, Position], **_: Any) -> None:
        self.sent.append(positions[WHERE].offset)
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
