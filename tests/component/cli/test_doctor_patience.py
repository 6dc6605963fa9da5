"""`tidelog doctor` where processes are silent: one bound for all of them, by the clock."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import pytest

from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tidelog.cli import doctor
from tidelog.cli.findings import judge
from tidelog.cli.many_requests import SharedPatience, ask_each
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, ClusterUnreachable, RequestTimedOut
from tidelog.protocol import messages

LONGEST_S = 0.4
WHERE = "10.0.0.9:9093"


class Cluster3(ScriptedCluster):
    """Three brokers; some are silent, and so is the controller."""

    def __init__(self, *silent: int) -> None:
        offsets = messages.OffsetFetchResponse
        answers: dict[type[Any], Any] = {
            messages.DescribeConditionRequest: self._condition,
            messages.DescribeClusterRequest: lambda *_: messages.DescribeClusterResponse(
                cluster_id="c",
                controller_id=0,
                brokers=[
                    messages.DescribeClusterResponse.DescribeClusterBroker(each, "h", each)
                    for each in range(3)
                ],
            ),
            messages.DescribeLogDirsRequest: lambda *_: messages.DescribeLogDirsResponse(),
            messages.DescribeConfigsRequest: lambda _, asked: messages.DescribeConfigsResponse(
                results=[
                    messages.DescribeConfigsResponse.DescribeConfigsResult(
                        resource_type=each.resource_type, resource_name=each.resource_name
                    )
                    for each in asked.resources
                ]
            ),
            messages.ListGroupsRequest: lambda *_: messages.ListGroupsResponse(),
            messages.OffsetFetchRequest: lambda *_: offsets(),
            messages.ListTransactionsRequest: lambda *_: messages.ListTransactionsResponse(),
        }
        super().__init__(view_of(topic("t", [0, 1, 2])), answers)
        self.silent = silent

    async def all_topics(self) -> Any:
        return self.described

    async def answered(self, node_id: int, request: Any) -> Any:
        if node_id in self.silent:
            self.asked.append((node_id, request))
            await asyncio.Event().wait()
        return await super().answered(node_id, request)

    async def send(self, node_id: int, request: Any, **_: Any) -> Any:
        return await self.answered(node_id, request)

    def _condition(self, _node: int, request: messages.DescribeConditionRequest) -> Any:
        if request.subjects != ["broker"]:
            return asyncio.get_running_loop().create_future()
        own = {
            "role": "broker", "version": "1", "level": "1.5", "set_aside": [],
            "controllers": [WHERE],
        }  # fmt: skip
        return messages.DescribeConditionResponse(condition=json.dumps(own))


@pytest.mark.parametrize("silent", [(), (2,), (1, 2)], ids=str)
def test_all_silence_together_costs_one_bound_and_the_rest_is_said(silent: tuple[int]) -> None:
    """A silent controller and a silent broker took 20 s: each kind of request waited by itself."""
    cluster = Cluster3(*silent)
    begun = time.monotonic()
    facts = asyncio.run(doctor.check(cluster, LONGEST_S))
    # A step more would be another second: ``LAST_WAIT_S``.
    assert time.monotonic() - begun < LONGEST_S + 0.9
    found = {each.kind: each for each in judge(facts)}
    said = found["controller_silent"]
    assert f"(brokers ask at {WHERE})" in said.what
    assert "there" in said.advice and "log" in said.advice
    for node in range(3):
        assert isinstance(facts.log_dirs[node], ClientError) is (node in silent)


def test_brokers_that_accept_and_say_nothing_are_named_within_the_bound() -> None:
    """It took 13 s: each address had its own time."""

    async def main() -> None:
        cluster = Cluster(where)
        try:
            await doctor.check(cluster, LONGEST_S)
        finally:
            await cluster.close()

    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        where = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other))
        begun = time.monotonic()
        with pytest.raises(ClusterUnreachable, match=where):
            asyncio.run(main())
        assert time.monotonic() - begun < LONGEST_S + 0.9


def test_requests_that_begin_late_are_sent_as_long_as_all_answer() -> None:
    async def main() -> None:
        silent = asyncio.Event()

        async def ask(number: int) -> int:
            if number >= 50:
                await silent.wait()
            return number

        patience = SharedPatience(0.0)
        some = await ask_each(range(40), ask, "group", patience)
        assert some == list(range(40)), "a large cluster is no silent one"
        patience = SharedPatience(0.05)
        many = await ask_each([*range(10), *range(50, 100)], ask, "group", patience)
        assert many[:10] == list(range(10))
        assert all(isinstance(each, RequestTimedOut) for each in many[10:])
        assert "group 99 was not asked" in str(many[-1])
        assert patience.left_s == 0

    asyncio.run(asyncio.wait_for(main(), 20))
