"""The list of all groups where a coordinator is silent or refuses: the others' are given."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

import tidelog.errors
from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tidelog.client.admin import groups
from tidelog.client.admin.groups import list_all_groups
from tidelog.client.connecting.giving_up import unless_taken_over
from tidelog.client.errors import GaveUp, ListingIncomplete
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC
from tidelog.protocol import messages

REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED


class Three(ScriptedCluster):
    """Brokers 0, 1 and 2 have the group of their number; some of them are silent, or refuse."""

    def __init__(self, silent: tuple[int, ...] = (), refusing: tuple[int, ...] = ()) -> None:
        coordinators = topic(OFFSETS_TOPIC, [0, 1, 2, 2])
        super().__init__(view_of(coordinators), {messages.ListGroupsRequest: self._list})
        self.silent, self.refusing = silent, refusing

    async def send(self, node_id: int, request: Any, **_: Any) -> Any:
        return await self.answered(node_id, request)

    def _list(self, node_id: int, _request: Any) -> Any:
        if node_id in self.silent:
            return asyncio.get_running_loop().create_future()
        response = messages.ListGroupsResponse
        if node_id in self.refusing:
            return response(error_code=REFUSED)
        return response(groups=[response.ListedGroup(f"g{node_id}", "consumer", "Stable")])


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "SILENT_COORDINATOR_S", 0.05)
    given_up = partial(unless_taken_over, after_s=0.02, first_pause_s=0.01)
    monkeypatch.setattr(groups, "unless_taken_over", given_up)


def test_all_that_answer_is_the_list() -> None:
    found = asyncio.run(list_all_groups(Three()))
    assert [each.group_id for each in found] == ["g0", "g1", "g2"]
    assert found == found.valid and found.errors == []


@pytest.mark.parametrize(
    ("silent", "refusing", "listed", "said"),
    [
        ((2,), (), ["g0", "g1"], "2 of 4 partitions of __consumer_offsets are led by broker 2"),
        ((), (1,), ["g0", "g2"], "the groups of broker 1: GROUP_AUTHORIZATION_FAILED"),
        ((0, 2), (1,), [], "are led by broker 0"),
    ],
)
def test_one_that_is_silent_or_refuses_is_named_and_hides_no_other(
    silent: tuple[int, ...], refusing: tuple[int, ...], listed: list[str], said: str
) -> None:
    """One silent coordinator held the whole list for 60 s, and then there was none."""

    async def main() -> None:
        async with asyncio.timeout(groups.LONGEST_S):
            found = await list_all_groups(Three(silent, refusing), raise_errors=False)
            with pytest.raises(ListingIncomplete) as raised:
                await list_all_groups(Three(silent, refusing))
        for each in (found, raised.value):
            assert [group.group_id for group in each.valid] == listed
            assert len(each.errors) == len(silent) + len(refusing)
            assert said in " ".join(map(str, each.errors))
        assert said in str(raised.value)
        assert isinstance(raised.value, tidelog.errors.KafkaTimeoutError)

    asyncio.run(main())


def test_where_no_broker_answers_at_all_the_whole_list_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "LONGEST_S", 0.1)
    monkeypatch.setattr(groups, "SILENT_COORDINATOR_S", 60)

    async def main() -> None:
        with pytest.raises(GaveUp, match="no broker listed its groups"):
            await list_all_groups(Three((0, 1, 2)))

    asyncio.run(main())
