"""Requests that name topics by their ids (KIP-516), and refusals that name leaders (KIP-951)."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.support.lone_broker import LoneBroker, Peer, ThreadedBroker, until
from tests.support.processes import DEADLINE_S
from tests.support.produce_fetch import batch, fetch, offsets, produce, run, running, send
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import messages

UNKNOWN = uuid.UUID(int=99)
LONG_MS = 60_000


def id_of(topic: str) -> uuid.UUID:
    """The id that a lone broker gives to a topic."""
    return uuid.uuid5(uuid.NAMESPACE_OID, topic)


def by_id(topic_id: uuid.UUID, **more: Any) -> Any:
    """A Fetch of partition 0."""
    request = fetch(**more)
    for topic in request.topics:
        topic.topic_id = topic_id
    return request


def parts(answer: Any) -> list[tuple[uuid.UUID, int, list[int]]]:
    """The topic id, the error and the offsets of each partition."""
    return [
        (topic.topic_id, part.error_code, offsets(part.records))
        for topic in answer.responses
        for part in topic.partitions
    ]


@pytest.mark.parametrize("version", range(13, 18))
def test_a_fetch_by_topic_ids(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t")
            await send(peer, batch("a", "b"))
            answer = await peer.ask(by_id(id_of("t")), version)
            assert parts(answer) == [(id_of("t"), E.NONE, [0])]
            # One that is not known, beside another one and in a session.
            both = by_id(id_of("t"), session=(0, 0))
            both.topics += by_id(UNKNOWN).topics
            answer = await peer.ask(both, version)
            assert sorted(parts(answer)) == sorted(
                [(id_of("t"), E.NONE, [0]), (UNKNOWN, E.UNKNOWN_TOPIC_ID, [])]
            )
            assert answer.session_id
            # Its topic is created: the session finds it, although no request names it again.
            lone.lead("later")
            lone.broker.metadata.names.put("later", UNKNOWN)
            hosted = lone.broker.partitions.get("later", 0)
            assert hosted is not None and hosted.log.metadata is not None
            hosted.log.metadata = replace(hosted.log.metadata, topic_id=UNKNOWN)
            await send(peer, batch("c"), topic="later")
            answer = await peer.ask(fetch(partitions=(), session=(answer.session_id, 1)), version)
            assert (UNKNOWN, E.NONE, [0]) in parts(answer)

    run(main())


def test_a_session_names_topics_in_one_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t")
            await send(peer, batch("a"))
            for first, second in ((12, 13), (17, 12)):
                begun = await peer.ask(by_id(id_of("t"), session=(0, 0)), first)
                following = fetch(partitions=(), session=(begun.session_id, 1))
                refused = await peer.ask(following, second)
                assert refused.error_code == E.FETCH_SESSION_TOPIC_ID_ERROR
                answer = await peer.ask(following, first)
                assert answer.error_code == E.NONE

    run(main())


def test_a_topic_that_is_created_again_during_a_wait_is_not_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            other = await Peer.connect(lone.port)
            other.send(by_id(id_of("t"), max_wait_ms=LONG_MS), 17)
            await until(lambda: len(hosted.waiting.readers) == 1)
            assert hosted.log.metadata is not None
            hosted.log.metadata = replace(hosted.log.metadata, topic_id=UNKNOWN)
            await send(peer, batch("of the next incarnation"))
            assert parts(await other.receive()) == [(id_of("t"), E.UNKNOWN_TOPIC_ID, [])]
            other.writer.close()

    run(main())


def produced(answer: Any) -> list[tuple[uuid.UUID, int, int]]:
    """The topic id, the error and the offset of each partition."""
    return [
        (topic.topic_id, part.error_code, part.base_offset)
        for topic in answer.responses
        for part in topic.partition_responses
    ]


def put(*topic_ids: uuid.UUID, partition: int = 0) -> Any:
    """A Produce of one batch to each of these topics."""
    request = produce(batch("a"), partition=partition)
    (data,) = request.topic_data
    kind, parts = messages.ProduceRequest.TopicProduceData, data.partition_data
    request.topic_data = [kind(topic_id=each, partition_data=parts) for each in topic_ids]
    return request


def test_a_produce_by_topic_ids(tmp_path: Path) -> None:
    """On the fast path (one topic that is known) and in the handler."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted, known = lone.lead("t"), id_of("t")
            assert produced(await peer.ask(put(known), 13)) == [(known, E.NONE, 0)]
            answer = await peer.ask(put(known, UNKNOWN), 13)
            assert produced(answer) == [(known, E.NONE, 1), (UNKNOWN, E.UNKNOWN_TOPIC_ID, -1)]
            assert str(UNKNOWN) in answer.responses[1].partition_responses[0].error_message
            answer = await peer.ask(put(known, partition=9), 13)
            assert produced(answer) == [(known, E.UNKNOWN_TOPIC_OR_PARTITION, -1)]
            # Deleted and created again: this broker's metadata may show that before or after.
            assert hosted.log.metadata is not None
            hosted.log.metadata = replace(hosted.log.metadata, topic_id=UNKNOWN)
            for asked in (put(known), put(known, known)):
                answer = await peer.ask(asked, 13)
                assert {code for _, code, _ in produced(answer)} == {E.UNKNOWN_TOPIC_ID}
            lone.broker.metadata.names.drop(known)
            lone.broker.metadata.names.put("t", UNKNOWN)
            assert produced(await peer.ask(put(known), 13)) == [(known, E.UNKNOWN_TOPIC_ID, -1)]
            assert produced(await peer.ask(put(UNKNOWN), 13)) == [(UNKNOWN, E.NONE, 2)]
            assert hosted.end_offset == 3

    run(main())


def test_a_refused_produce_by_id_names_the_leader(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            know_brokers(lone, 1, 2)
            peer.send(put(id_of("t")), 13)
            await until(lambda: len(hosted.waiting.commits.entries) == 1)
            lone.lead("t", isr=(2,), replicas=(1, 2), leader=2, epoch=4)
            know_brokers(lone, 1, 2)
            # The first one has waited on the fast path, and is refused by it.
            for answer in (await peer.receive(), await peer.ask(put(id_of("t")), 13)):
                assert produced(answer) == [(id_of("t"), E.NOT_LEADER_OR_FOLLOWER, -1)]
                leader = answer.responses[0].partition_responses[0].current_leader
                assert (leader.leader_id, leader.leader_epoch) == (2, 4)

    run(main())


def know_brokers(lone: LoneBroker, *alive: int) -> None:
    request = messages.UpdateMetadataRequest
    end = request.UpdateMetadataEndpoint(port=lone.port, host="127.0.0.1", listener="PLAINTEXT")
    brokers = [request.UpdateMetadataBroker(id=node_id, endpoints=[end]) for node_id in alive]
    lone.broker.metadata.apply(request(controller_id=1, live_brokers=brokers), complete=False)


@pytest.mark.parametrize("version", [12, 15, 16, 17])
def test_a_refused_fetch_names_the_leader_where_the_version_has_its_address(
    tmp_path: Path, version: int
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t", epoch=3, isr=(1, 2), replicas=(1, 2))
            know_brokers(lone, 1, 2)
            fenced = await peer.ask(by_id(id_of("t"), epoch=2), version)
            lone.lead("t", epoch=4, isr=(2,), replicas=(1, 2), leader=2)
            know_brokers(lone, 1, 2)
            refused = await peer.ask(by_id(id_of("t")), version)
            unknown = await peer.ask(by_id(UNKNOWN, topic="u"), version)
        found = [
            (part.error_code, part.current_leader, [n.node_id for n in answer.node_endpoints])
            for answer in (fenced, refused, unknown)
            for part in answer.responses[0].partitions
        ]
        codes = [code for code, _, _ in found]
        last = E.UNKNOWN_TOPIC_ID if version >= 13 else E.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [E.FENCED_LEADER_EPOCH, E.NOT_LEADER_OR_FOLLOWER, last]
        leader = messages.FetchResponse.LeaderIdAndEpoch
        if version >= 16:
            assert [each[1:] for each in found] == [
                (leader(1, 3), [1]),
                (leader(2, 4), [2]),
                (None, []),
            ]
        else:
            assert [each[1:] for each in found] == [(None, [])] * 3

    run(main())


def test_librdkafka_fetches_by_topic_ids(tmp_path: Path) -> None:
    """Its newest version is 16: the fast path has to serve it."""
    with (threaded := ThreadedBroker(tmp_path)) as lone:
        threaded.run(lambda broker: broker.lead("t"))
        producer = confluent_kafka.Producer({"bootstrap.servers": lone.bootstrap})
        for number in range(10):
            producer.produce("t", str(number))
        assert producer.flush(DEADLINE_S) == 0
        # This broker has no coordinator, for which the commit of a close would wait 45 s.
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": lone.bootstrap, "group.id": "g", "enable.auto.commit": False}
        )
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        found = []
        while len(found) < 10:
            message = consumer.poll(DEADLINE_S)
            assert message is not None and message.error() is None
            found.append(message.value().decode())
        consumer.close()
        assert found == [str(number) for number in range(10)]
        used = {key & 0xFFFF for key in lone.server.router.routes if key >> 16 == ApiKey.FETCH}
        assert max(used) == 16
