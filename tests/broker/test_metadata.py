"""What Metadata tells the clients of one listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.lone_broker import LoneBroker, Peer
from tidelog.broker.metadata.configurations import EntityType
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.protocol import messages

TOLD = messages.UpdateMetadataRequest
TOPIC_ID = UUID(int=7)
HERE, INSIDE_ONLY, GONE = 1, 2, 3
"""A broker with the client's listener, one without it, and one that does not live."""


def endpoint(listener: str) -> TOLD.UpdateMetadataEndpoint:
    return TOLD.UpdateMetadataEndpoint(port=9, host="host", listener=listener)


def tell(broker: LoneBroker) -> None:
    """Tell of partitions that are led by each of the three; all three replicate each."""
    listeners = {HERE: ("PLAINTEXT", "INSIDE"), INSIDE_ONLY: ("INSIDE",)}
    states = [
        TOLD.UpdateMetadataPartitionState(
            partition_index=leader,
            leader=leader,
            leader_epoch=5,
            isr=[HERE, INSIDE_ONLY],
            replicas=[GONE, INSIDE_ONLY, HERE],
            offline_replicas=[GONE],
        )
        for leader in (HERE, INSIDE_ONLY, GONE)
    ]
    update = TOLD(
        controller_id=HERE,
        topic_states=[TOLD.UpdateMetadataTopicState(topic_name="t", partition_states=states)],
        live_brokers=[
            TOLD.UpdateMetadataBroker(id=node, endpoints=[endpoint(name) for name in names])
            for node, names in listeners.items()
        ],
    )
    broker.broker.metadata.apply(update, complete=True)


@asynccontextmanager
async def asking(folder: Path, config: dict[str, object] | None = None) -> AsyncIterator[Peer]:
    broker = LoneBroker(folder, config)
    await broker.start()
    try:
        tell(broker)
        peer = await Peer.connect(broker.port)
        yield peer
        peer.writer.close()
    finally:
        await broker.stop()


@pytest.mark.parametrize(
    ("version", "without_listener"),
    [(1, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.LEADER_NOT_AVAILABLE)]
    + [(version, ErrorCode.LISTENER_NOT_FOUND) for version in (6, 12)],
)
@pytest.mark.parametrize("everything", [True, False])
def test_a_leader_without_the_listener_of_the_client(
    tmp_path: Path, version: int, without_listener: ErrorCode, everything: bool
) -> None:
    async def scenario() -> None:
        async with asking(tmp_path) as peer:
            named = [messages.MetadataRequest.MetadataRequestTopic(name="t")]
            request: Any = messages.MetadataRequest(topics=None if everything else named)
            answer = await peer.ask(request, version)
        assert [broker.node_id for broker in answer.brokers] == [HERE]
        found = answer.topics[0].partitions
        assert [(x.partition_index, x.error_code, x.leader_id) for x in found] == [
            (HERE, ErrorCode.NONE, HERE),
            (INSIDE_ONLY, without_listener, -1),
            (GONE, ErrorCode.LEADER_NOT_AVAILABLE, -1),
        ]
        for partition in found:
            assert partition.replica_nodes == [GONE, INSIDE_ONLY, HERE]
            assert partition.isr_nodes == [HERE, INSIDE_ONLY]
            if version >= 5:
                assert partition.offline_replicas == [GONE, INSIDE_ONLY]

    asyncio.run(scenario())


def test_a_metadata_request_does_not_create_the_controllers_topic(tmp_path: Path) -> None:
    """There is no controller: an attempt to create it would not be answered so."""

    async def scenario() -> None:
        async with asking(tmp_path, {"auto.create.topics.enable": "true"}) as peer:
            topic = messages.MetadataRequest.MetadataRequestTopic(name="__cluster_metadata")
            request: Any = messages.MetadataRequest(topics=[topic])
            answer = await peer.ask(request, 8)
        found = [(x.name, x.error_code, x.is_internal) for x in answer.topics]
        assert found == [("__cluster_metadata", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False)]

    asyncio.run(scenario())


async def told_of_counts(lone: LoneBroker, ordered: bool = True) -> None:
    """Start a broker and tell it of a topic that has grown."""
    await lone.start()
    configs = {"enable.ordered.delivery": str(ordered).lower()}
    finish(lone.broker.topic_configs.apply([(EntityType.TOPIC, "t", configs)], complete=False))
    part = TOLD.UpdateMetadataPartitionState(
        partition_index=0,
        leader=1,
        partition_epoch=20,
        birth_epoch=2,
        birth_offset=7,
        retirement_epoch=3,
    )
    topic = TOLD.UpdateMetadataTopicState(
        topic_name="t",
        topic_id=TOPIC_ID,
        partition_states=[part],
        initial_partition_count=4,
        undeleted_partition_count=6,
        resize_epoch=3,
    )
    broker = TOLD.UpdateMetadataBroker(id=1, endpoints=[endpoint("PLAINTEXT")])
    update = TOLD(topic_states=[topic], live_brokers=[broker], max_partition_epoch=25)
    lone.broker.metadata.apply(update, complete=True)


def tags_of(answer: Any) -> tuple[int, ...]:
    """Every value of the answer that travels in a tag of ours."""
    topic = answer.topics[0]
    part = topic.partitions[0]
    return (
        *(topic.initial_partition_count, topic.undeleted_partition_count, topic.resize_epoch),
        *(part.partition_epoch, part.birth_epoch, part.birth_offset, part.retirement_epoch),
        answer.max_partition_epoch,
    )


WITH_TAGS = (4, 6, 3, 20, 2, 7, 3, 25)
WITHOUT_COUNTS = (-1, -1, -1, 20, 2, 7, 3, 25)
NO_TAGS = (-1, -1, -1, -1, 0, 0, -1, -1)


@pytest.mark.parametrize("ordered", [True, False])
def test_counts_are_shown_only_where_the_order_of_keys_is_kept(
    tmp_path: Path, ordered: bool
) -> None:
    """Aware clients take a topic without counts for one that needs none (KIP-253)."""

    async def scenario() -> None:
        lone = LoneBroker(tmp_path)
        await told_of_counts(lone, ordered)
        peer = await Peer.connect(lone.port)
        asked = messages.MetadataRequest(topics=None, include_counts=True)
        assert tags_of(await peer.ask(asked, 12)) == (WITH_TAGS if ordered else WITHOUT_COUNTS)
        peer.writer.close()
        await lone.stop()

    asyncio.run(scenario())


GREETINGS = {
    "a client that says nothing": None,
    "one of another project": ("apache-kafka-java", "4.3.0"),
    "one of ours, of a version before the question": ("tidelog", "0.1.0"),
}


@pytest.mark.parametrize("greeting", GREETINGS)
@pytest.mark.parametrize("by", ["nothing", "name", "id"])
def test_clients_that_do_not_ask_get_metadata_without_tags_of_ours(
    tmp_path: Path, greeting: str, by: str
) -> None:
    """Some clients read no tags that they do not know. Older clients of ours need them, and do not
    ask: without counts they would send records of a key elsewhere in the middle of an upgrade."""

    async def scenario() -> None:
        lone = LoneBroker(tmp_path)
        await told_of_counts(lone)
        peer = await Peer.connect(lone.port)
        said = GREETINGS[greeting]
        if said is not None:
            await peer.ask(messages.ApiVersionsRequest(*said), 3)
        topic = messages.MetadataRequest.MetadataRequestTopic
        named = {"nothing": None, "name": [topic(name="t")], "id": [topic(TOPIC_ID, None)]}[by]
        expected = WITH_TAGS if said is not None and said[0] == "tidelog" else NO_TAGS
        for version in (12,) if by == "id" else (9, 12):
            answer = await peer.ask(messages.MetadataRequest(topics=named), version)
            assert tags_of(answer) == expected
            asked = messages.MetadataRequest(topics=named, include_counts=True)
            assert tags_of(await peer.ask(asked, version)) == WITH_TAGS
        peer.writer.close()
        await lone.stop()

    asyncio.run(scenario())
