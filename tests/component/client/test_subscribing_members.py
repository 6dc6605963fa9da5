"""A member whose subscription changes while it joins: what its group knows is what it reads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.network_server import until
from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tests.support.stories import story
from tidelog.client.groups.consumer_protocol import decode_subscription
from tidelog.client.groups.group_member import GroupMember
from tidelog.protocol import messages


class Joins:
    """A coordinator that answers JoinGroup when the test says so; another member leads."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[Any]] = []
        self.asked: list[tuple[str, ...]] = []
        self.cluster = ScriptedCluster(
            view_of(*(topic(name, [0], ordered=False) for name in "abc")),
            {
                messages.JoinGroupRequest: self._join,
                messages.SyncGroupRequest: lambda *_: messages.SyncGroupResponse(),
                messages.HeartbeatRequest: lambda *_: messages.HeartbeatResponse(),
                messages.LeaveGroupRequest: lambda *_: messages.LeaveGroupResponse(),
            },
        )
        self.member = GroupMember(self.cluster, "g", ["a"])

    def _join(self, _: int, request: Any) -> asyncio.Future[Any]:
        protocol = request.protocols[0]
        self.asked.append(tuple(decode_subscription(protocol.metadata, protocol.name).topics))
        self.waiting.append(asyncio.get_running_loop().create_future())
        return self.waiting[-1]

    def answer(self) -> None:
        """Let the join that waits end."""
        number = len(self.asked)
        answer = messages.JoinGroupResponse(
            generation_id=number, protocol_name="range", leader="other", member_id="m"
        )
        self.waiting.pop(0).set_result(answer)


@pytest.mark.parametrize("topics", [["a", "b"], ["a"]])
def test_a_member_that_subscribed_during_its_join_joins_once_more(topics: list[str]) -> None:
    """The further topic was not read until another rebalance came."""

    async def of() -> None:
        group = Joins()
        joining = asyncio.ensure_future(group.member.join())
        await until(lambda: group.waiting)
        group.member.subscribe(topics)
        group.answer()
        await joining
        assert group.asked == [("a",)]
        is_other = topics != ["a"]
        assert group.member.must_join is is_other
        if is_other:
            joining = asyncio.ensure_future(group.member.join())
            await until(lambda: group.waiting)
            group.answer()
            await joining
            assert group.asked[1:] == [("a", "b")] and not group.member.must_join
        await group.member.leave()

    story(of)
