"""The log directories of all brokers where one is silent or refuses: the others' are given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tidelog.client.admin.nodes import describe_all_log_dirs
from tidelog.client.errors import ListingIncomplete, Refused
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

ALL = (0, 1, 2)


class Three(ScriptedCluster):
    """Brokers 0, 1 and 2 have one log directory each; some of them are silent, or refuse."""

    def __init__(self, silent: tuple[int, ...] = (), refusing: tuple[int, ...] = ()) -> None:
        super().__init__(
            view_of(topic("t", [0, 1, 2])), {messages.DescribeLogDirsRequest: self._list}
        )
        self.silent, self.refusing = silent, refusing

    async def send(self, node_id: int, request: Any, **_: Any) -> Any:
        return await self.answered(node_id, request)

    def _list(self, node_id: int, _request: Any) -> Any:
        if node_id in self.silent:
            return asyncio.get_running_loop().create_future()
        response = messages.DescribeLogDirsResponse
        if node_id in self.refusing:
            return response(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return response(results=[response.DescribeLogDirsResult(log_dir=f"/data/{node_id}")])


def test_one_that_is_silent_or_refuses_is_named_and_hides_no_other() -> None:
    async def main() -> None:
        cluster = Three(silent=(0,), refusing=(1,))
        found = await describe_all_log_dirs(cluster, ALL, timeout_ms=20, raise_errors=False)
        assert {broker: dirs[0].path for broker, dirs in found.items()} == {2: "/data/2"}
        assert found.errors.keys() == {0, 1}
        assert str(found.errors[0]) == "broker 0 did not respond within 20 ms"
        with pytest.raises(
            ListingIncomplete, match=r"broker 0 .*; .*broker 1: CLUSTER_AUTH"
        ) as why:
            await describe_all_log_dirs(cluster, ALL, timeout_ms=20)
        assert why.value.valid == found and len(why.value.errors) == 2

    asyncio.run(main())


def test_where_none_answers_the_first_error_is_raised() -> None:
    with pytest.raises(Refused, match="broker 1: CLUSTER_AUTH"):
        asyncio.run(describe_all_log_dirs(Three(refusing=(1, 2)), (1, 2)))


def test_all_that_answer_are_the_result() -> None:
    found = asyncio.run(describe_all_log_dirs(Three(), ALL))
    assert found.keys() == set(ALL) and found.errors == {}
