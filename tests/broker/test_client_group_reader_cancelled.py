"""A group's reader of which every await is cancelled: nothing is lost, repeated or left running.

`cut_at` cancels a call at its n-th suspension; each test takes every n until the call ends by
itself. Joins, look-ups and commits run beside the polls: `Stages` says when the n-th of their
requests goes out, so a reader is closed in each stage of its way in.
"""

from __future__ import annotations

import asyncio
import os
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support.group_broker import GroupBroker
from tests.support.lone_broker import until
from tests.support.processes import DEADLINE_S
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ClientError
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.client.groups.committed_offsets import committed_offsets
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.groups.membership import MemberState
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.settings import SendSettings
from tidelog.model.topics import TopicPartition
from tidelog.runtime.backoff import Backoff

CONFIG = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 500}
A = TopicPartition("a", 0)
RECORDS = 40
MOST_SUSPENSIONS = 50
STAGES = 8
"""JoinGroup twice, SyncGroup, OffsetFetch, heartbeats: what goes to the coordinator first."""


class Stages(Cluster):
    """A cluster that says when a reader's ``at``-th request goes to its coordinator."""

    at = 0
    sent = 0

    def __init__(self, bootstrap: str, settings: ClusterSettings) -> None:
        super().__init__(bootstrap, settings)
        self.reached = asyncio.Event()

    async def send_to_coordinator(self, group: str, request: Any, **options: Any) -> Any:
        self.sent += 1
        if self.sent == self.at:
            self.reached.set()
        return await super().send_to_coordinator(group, request, **options)


async def cut_at(number: int, work: Coroutine[Any, Any, Any]) -> tuple[bool, Any]:
    """Run a call and cancel it at its n-th suspension: whether it was cancelled, and its result."""

    @types.coroutine
    def counted() -> Generator[Any, Any, Any]:
        suspensions = 0
        try:
            waits_for = work.send(None)
            while True:
                suspensions += 1
                if suspensions == number:
                    asyncio.get_running_loop().call_soon(task.cancel)
                try:
                    value = yield waits_for
                except BaseException as error:
                    waits_for = work.throw(error)
                else:
                    waits_for = work.send(value)
        except StopIteration as end:
            return end.value

    async def run() -> Any:
        return await counted()

    task = asyncio.get_running_loop().create_task(run())
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(outcome, asyncio.CancelledError):
        return True, None
    if isinstance(outcome, BaseException):
        raise outcome
    return False, outcome


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def with_group(folder: Path, story: Callable[[GroupBroker, Stages], Awaitable[None]]) -> None:
    """Run ``story`` with a topic of 40 batches; no task, and no socket, is left of it."""

    async def main() -> None:
        lone = GroupBroker(folder, CONFIG)
        await lone.start()
        lone.lead("a")
        lone.lead_offsets()
        settings = ClusterSettings(backoff=Backoff(10, 50))
        async with asyncio.timeout(DEADLINE_S):
            async with Stages(lone.bootstrap, settings) as cluster:
                await write(cluster, RECORDS)
            await until(lambda: not client_tasks())
            before = open_files()
            async with Stages(lone.bootstrap, settings) as cluster:
                await story(lone, cluster)
            await until(lambda: not client_tasks())
            await until(lambda: open_files() <= before)
        await lone.stop()

    asyncio.run(main())


def client_tasks() -> list[str]:
    """The tasks that run code of the client."""
    found = [task.get_coro() for task in asyncio.all_tasks()]
    names = [getattr(work, "cr_code", None) for work in found]
    return [code.co_filename for code in names if code and "tidelog/client/" in code.co_filename]


async def write(cluster: Cluster, count: int, first: int = 0) -> None:
    async with RecordSender(cluster, SendSettings(linger_ms=0)) as sender:
        for number in range(first, first + count):
            await (await sender.send("a", b"%d" % number))


def reader_of(cluster: Cluster, **options: Any) -> GroupReader:
    made: dict[str, Any] = {
        "reset": OffsetReset.EARLIEST,
        "heartbeat_interval_ms": 50,
        "auto_commit_ms": 5,
        **options,
    }
    return GroupReader(cluster, "g", ["a"], **made)


def members(lone: GroupBroker) -> int:
    group = lone.coordinator.table_of("g").get("g")
    return 0 if group is None else len(group.members)


def test_polls_and_commits_that_are_cancelled_anywhere_lose_and_repeat_nothing(
    tmp_path: Path,
) -> None:
    async def story(lone: GroupBroker, cluster: Stages) -> None:
        # One batch at a time, so that polls wait.
        reader = reader_of(cluster, options=FetchOptions(partition_bytes=1))
        seen: list[int] = []
        number = cancelled = 0
        while len(seen) < RECORDS:
            number = number % 3 + 1
            was_cut, pieces = await cut_at(number, reader.poll(100, max_bytes=1))
            for piece in pieces or ():
                seen += [row.offset for row in piece.rows()]
            cancelled += was_cut
            was_cut, _ = await cut_at(number, reader.controls.commit())
            cancelled += was_cut
        assert seen == list(range(RECORDS))
        assert cancelled > 10
        await reader.controls.commit()
        assert (await committed_offsets(cluster, "g"))[A].offset == RECORDS
        await reader.close()
        assert members(lone) == 0

    with_group(tmp_path, story)


@pytest.mark.parametrize("stage", range(1, STAGES + 1))
def test_a_close_in_each_stage_that_is_cancelled_anywhere_leaves_nothing(
    tmp_path: Path, stage: int
) -> None:
    async def story(lone: GroupBroker, cluster: Stages) -> None:
        for number in range(1, MOST_SUSPENSIONS):
            cluster.at, cluster.sent = stage, 0
            cluster.reached.clear()
            # A member whose leaving is cancelled is in the group for a session.
            reader = reader_of(cluster, session_timeout_ms=500)
            polling = asyncio.create_task(poll_on(reader))
            await cluster.reached.wait()
            was_cut, _ = await cut_at(number, reader.close())
            # A concurrent poll fails at once, and is not itself cancelled.
            with pytest.raises(ClientError, match="reader of group 'g' is closed"):
                await polling
            assert reader.member.state is MemberState.OUT
            assert not [key for key in cluster._connections if key[1].startswith("member")]
            assert not [task for task in client_tasks() if "fetcher" in task]
            if not was_cut:
                break
        else:
            pytest.fail("close() is suspended without an end")
        await reader.close()

    with_group(tmp_path, story)


async def poll_on(reader: GroupReader) -> None:
    while True:
        await reader.poll(3_600_000)


def test_a_closed_reader_does_not_join_again(tmp_path: Path) -> None:
    async def story(lone: GroupBroker, cluster: Stages) -> None:
        reader = reader_of(cluster)
        while not await reader.poll(100):
            pass
        await reader.close()
        sent = cluster.sent
        for timeout_ms in (0, 3_600_000):
            with pytest.raises(ClientError, match="closed"):
                await reader.poll(timeout_ms)
        assert (members(lone), cluster.sent) == (0, sent)

    with_group(tmp_path, story)


def test_polls_without_waiting_come_to_read(tmp_path: Path) -> None:
    async def story(lone: GroupBroker, cluster: Stages) -> None:
        async with reader_of(cluster) as reader:
            while not await reader.poll(0):
                pass

    with_group(tmp_path, story)
