"""Answers that grow with what the broker has, not with what was asked, are made in steps.

One small request of them held the event loop for as long as all groups, replicas or topics took,
and anybody may make very many of these: 100 ms for 10,000 replicas, and as much for 20,000 groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.group_broker import GroupBroker
from tests.support.lone_broker import until
from tidelog.broker.handlers import (
    describe_configs,
    describe_groups,
    describe_log_dirs,
    list_config_resources,
    list_groups,
    offset_commit,
)
from tidelog.model.errors import ErrorCode
from tidelog.protocol import codec, messages

LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
TOPICS = 1100
GROUPS = 1500
MOST_BYTES = 150_000
"""Of the answer that one step may make."""


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[GroupBroker]:
    broker = GroupBroker(folder)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def steps_of(broker: GroupBroker, module: Any, request: Any, version: int) -> tuple[Any, list[int]]:
    """The answer, and by how much it grew with each step."""
    grown: list[int] = []
    context = SimpleNamespace(version=version, client_id="", listener_name="PLAINTEXT")
    steps = module.HANDLER.handle(broker.broker, request, context)
    while True:
        try:
            grown.append(next(steps) or 0)
        except StopIteration as end:
            return end.value, grown


def commit(group: str) -> Any:
    request = messages.OffsetCommitRequest
    part = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = request.OffsetCommitRequestTopic(name="t", partitions=[part])
    return request(group_id=group, generation_id_or_member_epoch=-1, topics=[topic])


@pytest.mark.parametrize("states", [(), ("Empty",), ("Stable",)])
def test_very_many_groups_are_listed_in_steps(tmp_path: Path, states: tuple[str, ...]) -> None:
    async def main() -> None:
        async with started(tmp_path) as broker:
            broker.lead("t")
            broker.lead_offsets()
            names = [f"g{number}" for number in range(GROUPS)]
            await until(lambda: broker.coordinator.table_of(names[0]) is not LOADING)
            for name in names:
                answer = await broker.ask(offset_commit, commit(name), 8)
                assert answer.topics[0].partitions[0].error_code == 0
            request = messages.ListGroupsRequest(states_filter=list(states))
            answer, grown = steps_of(broker, list_groups, request, 4)
            expected = [] if states == ("Stable",) else names
            assert [each.group_id for each in answer.groups] == expected
            # Those that are not wanted take their time, too.
            assert len(grown) >= GROUPS
            assert max(grown) < MOST_BYTES

    asyncio.run(main())


def test_very_many_replicas_and_topics_are_named_in_steps(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as broker:
            names = sorted(f"t{number}" for number in range(TOPICS))
            for name in names:
                broker.lead(name)
            of_all = messages.DescribeLogDirsRequest(topics=None)
            answer, grown = steps_of(broker, describe_log_dirs, of_all, 4)
            (directory,) = answer.results
            assert [topic.name for topic in directory.topics] == names
            assert directory.total_bytes > 0 and directory.error_code == 0
            assert len(grown) >= 2 * TOPICS
            assert max(grown) < MOST_BYTES
            # Replicas that are left out are looked at, too.
            one = messages.DescribeLogDirsRequest.DescribableLogDirTopic(names[5], [0, 1])
            request = messages.DescribeLogDirsRequest(topics=[one])
            answer, grown = steps_of(broker, describe_log_dirs, request, 4)
            assert [topic.name for topic in answer.results[0].topics] == [names[5]]
            assert len(grown) >= TOPICS
            asked = messages.ListConfigResourcesRequest(resource_types=[2])
            answer, grown = steps_of(broker, list_config_resources, asked, 1)
            assert [each.resource_name for each in answer.config_resources] == names
            assert len(grown) >= TOPICS
            assert max(grown) < MOST_BYTES

    asyncio.run(main())


@pytest.mark.parametrize("text", ["\0", "\U000e0001", "a"], ids=ascii)
def test_a_response_about_unknown_names_is_hardly_longer_than_the_request(
    tmp_path: Path, text: str
) -> None:
    """What is said of a name repeats it, and wrote each of its characters as up to ten."""
    name = text * (32_767 // len(text.encode()))
    asked = messages.DescribeConfigsRequest
    topic, node = 2, 4
    resources = [asked.DescribeConfigsResource(kind, name) for kind in (topic, node)]

    async def main() -> None:
        async with started(tmp_path) as broker:
            broker.lead_offsets()
            await until(lambda: broker.coordinator.table_of(name) is not LOADING)
            for module, request in (
                (describe_groups, messages.DescribeGroupsRequest(groups=[name])),
                (describe_configs, asked(resources=resources)),
            ):
                key, version = module.HANDLER.api_key, module.HANDLER.versions.stop - 1
                answer, _ = steps_of(broker, module, request, version)
                written = sum(map(len, codec.encode_response(key, version, 1, answer)))
                read = sum(map(len, codec.encode_request(key, version, 1, "", request)))
                assert written < read + 8_000

    asyncio.run(main())
