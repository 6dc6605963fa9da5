"""The ends of a consumer's readers: each of them ends, whatever the callbacks of another do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.support.network_server import until
from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tests.support.stories import story
from tidelog.aio.left_readers import LeftReaders
from tidelog.client.errors import WrongState
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.groups.reader_hooks import ReaderHooks
from tidelog.client.groups.self_assigned import SelfAssigned
from tidelog.model.topics import TopicPartition

A = TopicPartition("t", 0)


class Ending(ReaderHooks):
    """Notes the end of a reader, and raises or waits in it."""

    def __init__(self, error: Exception | None = None, *, waits: bool = False) -> None:
        self.ends = 0
        self.error = error
        self.waits = waits

    async def revoked(self, _: Sequence[TopicPartition]) -> None:
        self.ends += 1
        if self.waits:
            await asyncio.get_running_loop().create_future()
        if self.error is not None:
            raise self.error


async def reader_of(hooks: Ending) -> GroupReader:
    cluster = ScriptedCluster(view_of(topic("t", [1], ordered=False)))
    member = SelfAssigned(cluster, None)
    member.assign([A])
    reader = GroupReader(cluster, member=member, hooks=hooks, auto_commit_ms=None)
    await reader.settle()
    return reader


async def is_closed(reader: GroupReader) -> bool:
    with pytest.raises(WrongState, match="closed"):
        await reader.poll(0)
    return True


def test_an_error_of_one_reader_does_not_keep_the_others_from_their_end() -> None:
    async def of() -> None:
        errors = [ValueError("the first"), None, ValueError("the last")]
        hooks = [Ending(error) for error in errors]
        present, *former = [await reader_of(each) for each in hooks]
        left = LeftReaders()
        for reader in former:
            left.add(reader)
        with pytest.raises(ValueError, match="the last"):
            await left.leave(True, 1000, present)
        assert [each.ends for each in hooks] == [1, 1, 1]
        for reader in (present, *former):
            assert await is_closed(reader)
        await left.leave(True, 1000)
        assert not left and [each.ends for each in hooks] == [1, 1, 1]

    story(of)


def test_a_cancelled_end_closes_every_reader_at_once() -> None:
    async def of() -> None:
        hooks = [Ending(), Ending(waits=True)]
        present, former = [await reader_of(each) for each in hooks]
        left = LeftReaders()
        left.add(former)
        end = asyncio.ensure_future(left.leave(True, 10**7, present))
        await until(lambda: hooks[1].ends)
        assert left.leaving is former
        end.cancel()
        with pytest.raises(asyncio.CancelledError):
            await end
        assert left.leaving is None and not left
        assert [each.ends for each in hooks] == [0, 1]
        for reader in (present, former):
            assert await is_closed(reader)

    story(of)
