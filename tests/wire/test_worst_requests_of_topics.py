"""The worst requests that change topics, beside a server of their own: see the first file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes import DEADLINE_S
from tests.support.served_worst_requests import (
    LONGEST_STALL_S,
    OF_TOPICS,
    TRIES,
    all_hold,
    ask,
    filled_node,
    longest_stall_s,
    served,
)
from tests.support.server import TidelogNode
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Handler
from tidelog.protocol import messages


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogNode]:
    """A server with topics, a group and a precise watchdog."""
    with filled_node(tmp_path_factory.mktemp("node")) as filled:
        yield filled


@pytest.mark.parametrize("handler", served(OF_TOPICS), ids=lambda each: each.api_key.name)
@pytest.mark.long(45)
def test_the_worst_requests_neither_block_the_loop_nor_take_much_memory(
    node: TidelogNode, handler: Handler
) -> None:
    all_hold(node, handler)


MANY = 600
"""Topics that one request changes. In one decision they took 0.2 to 0.5 s."""


@pytest.mark.long
def test_what_is_decided_of_many_topics_is_decided_in_slices(node: TidelogNode) -> None:
    found: dict[str, list[float]] = {}
    for attempt in range(TRIES):
        for name, stall_s in stalls_of_many(node, f"v{attempt}-").items():
            found.setdefault(name, []).append(round(stall_s, 3))
        if all(min(each) < LONGEST_STALL_S for each in found.values()):
            return
    raise AssertionError(node.said(f"decides in slices, without stalls of {found} (s)"))


def stalls_of_many(node: TidelogNode, prefix: str) -> dict[str, float]:
    """Create, configure, grow and delete many topics; the longest stall of each, in seconds."""
    names = [f"{prefix}{number}" for number in range(MANY)]
    create = messages.CreateTopicsRequest
    asked = [
        create.CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            configs=[create.CreatableTopicConfig("retention.ms", str(10**8 + number))],
        )
        for number, name in enumerate(names)
    ]
    alter = messages.IncrementalAlterConfigsRequest
    one = alter.AlterableConfig
    changes = [
        alter.AlterConfigsResource(2, name, [one("segment.ms", 0, str(10**8 + number))])
        for number, name in enumerate(names)
    ]
    default = alter.AlterConfigsResource(4, "", [one("log.roll.jitter.ms", 0, str(len(names)))])
    grow = messages.CreatePartitionsRequest
    grown = [grow.CreatePartitionsTopic(name, 2, None) for name in names]
    delete = messages.DeleteTopicsRequest
    doomed = [delete.DeleteTopicState(name) for name in names]
    patience_ms = int(DEADLINE_S * 1000)
    stalls = {}
    for what, request, api_key, version, answers in (
        ("create", create(asked, patience_ms), ApiKey.CREATE_TOPICS, 7, "topics"),
        ("configure", alter(changes), ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, "responses"),
        ("default", alter([default]), ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, "responses"),
        ("grow", grow(grown, patience_ms), ApiKey.CREATE_PARTITIONS, 3, "results"),
        ("delete", delete(doomed, [], patience_ms), ApiKey.DELETE_TOPICS, 6, "responses"),
    ):
        longest_stall_s(node)
        answer = ask(node, request, api_key, version)
        stalls[what] = longest_stall_s(node)
        assert {each.error_code for each in getattr(answer, answers)} == {0}
    return stalls


@pytest.mark.long
def test_two_settings_of_two_thousand_topics_are_answered(node: TidelogNode) -> None:
    """Its connection was closed, and Kafka's AdminClient sent it again until its time was over."""
    request = messages.IncrementalAlterConfigsRequest
    settings = [
        request.AlterableConfig(name=name, config_operation=0, value="100000000")
        for name in ("retention.ms", "segment.bytes")
    ]
    topics = [
        request.AlterConfigsResource(resource_type=2, resource_name=f"none{at}", configs=settings)
        for at in range(2000)
    ]
    asked = request(resources=topics, validate_only=True)
    answer = ask(node, asked, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)
    assert len(answer.responses) == 2000
