"""Topics that are deleted and created again under their name, on brokers that miss the change.

KIP-516 and promises 18-20: a former incarnation never serves, never counts as in sync, and no late
command reaches the new one. The processes run with short delays; each test takes topics of its own
and leaves all brokers running. The second half runs below level 1.4, where names wait for
confirmations.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import confluent_kafka
import pytest
from confluent_kafka.admin import NewTopic

from tests.support.acked_stream import Writer, read_all
from tests.support.clients import admin
from tests.support.cluster import TidelogCluster, differing_replicas
from tests.support.lone_broker import Peer
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP, wait_until
from tests.support.proofs import proven, secret_in
from tests.support.server import TidelogNode, run_tidelog
from tests.support.target import TARGET
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.storage.checkpoints import (
    PartitionMetadata,
    decode_partition_metadata,
    decode_uuid,
    encode_uuid,
)

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(80),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

PARTITIONS = 2
LEVEL = "inter.broker.protocol.version"
QUICK = {
    "broker.session.timeout.ms": 3000,
    "stale.partition.delete.delay.ms": 1500,
    "delete.topic.retry.ms": 300,
    "log.segment.delete.delay.ms": 500,
    "log.retention.check.interval.ms": 500,
    # A client that still asks after a deleted topic would create it again, as with Kafka.
    "auto.create.topics.enable": "false",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    with TidelogCluster(tmp_path_factory.mktemp("incarnations"), config=QUICK) as started:
        yield started


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[TidelogCluster]:
    """Two brokers at level 1.3."""
    with TidelogCluster(tmp_path, brokers=2, config={**QUICK, LEVEL: "1.3"}) as started:
        yield started


def delete(cluster: TidelogCluster, topic: str) -> None:
    client = admin(cluster.bootstrap)
    client.delete_topics([topic], operation_timeout=DEADLINE_S)[topic].result(DEADLINE_S)


def create(cluster: TidelogCluster, topic: str, replication: int = 3) -> None:
    client = admin(cluster.bootstrap)
    wanted = NewTopic(topic, PARTITIONS, replication)
    client.create_topics([wanted])[topic].result(DEADLINE_S)


def why_not_created(cluster: TidelogCluster, topic: str, replication: int) -> str:
    try:
        create(cluster, topic, replication)
    except confluent_kafka.KafkaException as refused:
        return str(refused)
    return ""


def write(cluster: TidelogCluster, topic: str, incarnation: str, count: int) -> dict[Any, str]:
    """Acknowledged records of one incarnation of a topic: place to value."""
    writer = Writer(cluster.bootstrap, topic, incarnation, PARTITIONS, idempotent=True)
    writer.start()
    wait_until(lambda: writer.has_acked(count), DEADLINE_S, writer.state, 0.01)
    writer.finish()
    assert not writer.failed, writer.state()
    return {place: f"{incarnation}:{number}" for number, place in writer.acked.items()}


def check_incarnation(
    cluster: TidelogCluster, topic: str, acked: dict[Any, str], incarnation: str
) -> None:
    """All that was acknowledged in this incarnation is there, and nothing of another one."""
    found = read_all(cluster.bootstrap, topic, PARTITIONS)
    strange = [value for value in found.values() if not value.startswith(f"{incarnation}:")]
    assert not strange, f"of a former incarnation: {strange[:5]}"
    lost = {place: value for place, value in acked.items() if found.get(place) != value}
    assert not lost, f"{len(lost)} of {len(acked)} acknowledged records are lost"


def store(cluster: TidelogCluster) -> dict[str, bytes]:
    """Every node of the metadata store, read beside the controller."""
    place = cluster.controller.folder / "metadata.db"
    with sqlite3.connect(f"file:{place}?mode=ro", uri=True, timeout=DEADLINE_S) as database:
        return dict(database.execute("SELECT path, data FROM nodes"))


def topic_id(cluster: TidelogCluster, topic: str) -> str:
    return str(json.loads(store(cluster)[f"/brokers/topics/{topic}"])["topic_id"])


def directories(cluster: TidelogCluster, broker: int, topic: str) -> list[str]:
    """The names of a broker's directories of a topic, quarantined ones included."""
    folder = cluster.brokers[broker].log_folder()
    return sorted(path.name for path in folder.glob(f"{topic}-*") if path.is_dir())


def identity(
    cluster: TidelogCluster, broker: int, topic: str, partition: int = 0
) -> PartitionMetadata | None:
    """What a replica's file says of its topic: not which directory and incarnation it is."""
    folder = cluster.brokers[broker].log_folder() / f"{topic}-{partition}"
    file = folder / "partition.metadata"
    if not file.exists():
        return None
    return replace(decode_partition_metadata(file.read_bytes()), created=None, partition_epoch=-1)


def written_identity(topic_id_text: str) -> PartitionMetadata:
    return PartitionMetadata(decode_uuid(topic_id_text))


def only_the_new_life(cluster: TidelogCluster, broker: int, topic: str) -> bool:
    """Whether no quarantined directory is left on a broker's disk."""
    return directories(cluster, broker, topic) == [f"{topic}-{p}" for p in range(PARTITIONS)]


def until_alone(cluster: TidelogCluster, topic: str) -> None:
    for broker in cluster.brokers:
        wait_until(
            lambda b=broker: only_the_new_life(cluster, b, topic),
            DEADLINE_S,
            f"quarantined directories are removed: {directories(cluster, broker, topic)}",
        )


def no_deletion_is_left(cluster: TidelogCluster) -> bool:
    waiting = ("/tidelog/deletions/", "/admin/delete_topics/")
    return not any(path.startswith(waiting) for path in store(cluster))


async def asked(port: int, request: Any, version: int, secret: bytes = b"") -> Any:
    """One request on a connection of its own, that proves the secret if there is one."""
    peer = await (proven(port, secret) if secret else Peer.connect(port))
    try:
        return await peer.ask(request, version)
    finally:
        peer.writer.close()


def deleted_at(node: TidelogNode, topic: str, timeout_ms: int = 300) -> ErrorCode:
    """DeleteTopics sent to this broker: a client would ask the one that it takes for controller."""
    request = messages.DeleteTopicsRequest
    wanted = request(topics=[request.DeleteTopicState(topic)], timeout_ms=timeout_ms)
    answer = asyncio.run(asked(node.port, wanted, 6))
    return ErrorCode(answer.responses[0].error_code)


def created_at(
    node: TidelogNode, topic: str, replication: int = 3, timeout_ms: int = 300
) -> ErrorCode:
    """CreateTopics sent to this broker."""
    request = messages.CreateTopicsRequest
    wanted = request(
        topics=[request.CreatableTopic(topic, PARTITIONS, replication)], timeout_ms=timeout_ms
    )
    answer = asyncio.run(asked(node.port, wanted, 7))
    return ErrorCode(answer.topics[0].error_code)


def fetch_as(
    follower: int, broker_epoch: int, topic: str, former: UUID, leader_epoch: int
) -> messages.FetchRequest:
    """What a follower of a former incarnation asks the leader of the new one."""
    request = messages.FetchRequest
    part = request.FetchPartition(0, leader_epoch, 0, -1, 0, 2**20)
    return request(
        replica_id=follower,
        max_wait_ms=0,
        min_bytes=0,
        topics=[request.FetchTopic(topic, partitions=[part], follower_topic_id=former)],
        replica_broker_epoch=broker_epoch,
    )


def broker_epoch(cluster: TidelogCluster, broker: int) -> int:
    return int(json.loads(store(cluster)[f"/brokers/ids/{broker}"])["broker_epoch"])


def test_deleted_and_created_again_at_once_under_load_while_brokers_stall(
    cluster: TidelogCluster,
) -> None:
    topic, other = "again", "bystander"
    cluster.create_topic(other, PARTITIONS, min_insync_replicas=2)
    bystander = Writer(cluster.bootstrap, other, "by", PARTITIONS, idempotent=True, per_s=60)
    bystander.start()
    ids = set()
    create(cluster, topic)
    for number in range(6):
        incarnation = f"incarnation{number}"
        acked = write(cluster, topic, incarnation, 200)
        ids.add(topic_id(cluster, topic))
        check_incarnation(cluster, topic, acked, incarnation)
        stalled = cluster.brokers[1 + number % 3].program
        stalled.send(SIGSTOP)
        try:
            # A silent broker is waited for as long as was asked for: it may live, and not know.
            awake = cluster.brokers[1 + (number + 1) % 3]
            for error in (deleted_at(awake, topic), created_at(awake, topic)):
                assert error in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT), error
        finally:
            stalled.send(SIGCONT)
        cluster.until_in_sync(topic, 3)
    bystander.finish()
    assert not bystander.failed, bystander.state()
    cluster.until_in_sync(other, 3)
    acked = write(cluster, topic, "last", 200)
    check_incarnation(cluster, topic, acked, "last")
    last = topic_id(cluster, topic)
    assert len(ids | {last}) == 7, "every incarnation has an id of its own"
    for broker in cluster.brokers:
        assert identity(cluster, broker, topic) == written_identity(last)
    until_alone(cluster, topic)
    wait_until(lambda: no_deletion_is_left(cluster), DEADLINE_S, "every deletion was confirmed")


def test_a_broker_that_was_dead_comes_back_with_the_directory_of_a_former_incarnation(
    cluster: TidelogCluster,
) -> None:
    topic = "missed"
    cluster.create_topic(topic, PARTITIONS)
    write(cluster, topic, "former", 500)
    former = decode_uuid(topic_id(cluster, topic))
    away = next(b for b in cluster.brokers if b != cluster.leader(topic, 0))
    its_epoch = broker_epoch(cluster, away)
    cluster.brokers[away].kill()
    delete(cluster, topic)
    create(cluster, topic)
    acked = write(cluster, topic, "new", 100)
    leader = next(p for b, p in cluster.brokers.items() if b == cluster.leader(topic, 0))
    # A follower of the former incarnation fetches by name: refused by id, and not counted.
    for leader_epoch in range(3):
        late = fetch_as(away, its_epoch, topic, former, leader_epoch)
        answer = asyncio.run(asked(leader.port, late, 12, secret_in(cluster.secret)))
        (part,) = answer.responses[0].partitions
        assert part.error_code in (
            ErrorCode.INCONSISTENT_TOPIC_ID,
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
        ), ErrorCode(part.error_code)
        assert not part.records
    ask = next(b for b in cluster.brokers if b != away)
    assert away not in cluster.partitions(topic, ask)[0].isrs
    assert identity(cluster, away, topic) == written_identity(encode_uuid(former)), (
        "nothing touched the directory yet"
    )
    cluster.brokers[away].start()
    cluster.until_in_sync(topic, 3)
    new = topic_id(cluster, topic)
    assert identity(cluster, away, topic) == written_identity(new)
    check_incarnation(cluster, topic, acked, "new")
    until_alone(cluster, topic)
    said = cluster.brokers[away].log.read_text(errors="replace")
    # One command is one line, which names all its partitions.
    assert re.search(rf"{topic}-0(, .*)?: .*, removed in 1500 ms: its topic id is {former}", said)
    wait_until(lambda: no_deletion_is_left(cluster), DEADLINE_S, "every deletion was confirmed")


def test_a_paused_broker_goes_on_as_a_follower_of_the_former_incarnation_and_is_refused(
    cluster: TidelogCluster,
) -> None:
    topic = "paused"
    cluster.create_topic(topic, PARTITIONS)
    write(cluster, topic, "former", 300)
    paused = next(
        b for b in cluster.brokers if b not in {cluster.leader(topic, p) for p in range(PARTITIONS)}
    )
    others = [node for b, node in cluster.brokers.items() if b != paused]
    cluster.brokers[paused].program.send(SIGSTOP)
    try:
        # Silent for longer than its session: it is dead, and does not know it.
        wait_until(lambda: f"/brokers/ids/{paused}" not in store(cluster), DEADLINE_S, "it is dead")
        patient_ms = int(DEADLINE_S * 1000)
        assert deleted_at(others[0], topic, patient_ms) is ErrorCode.NONE
        assert created_at(others[0], topic, 2, patient_ms) is ErrorCode.NONE
    finally:
        cluster.brokers[paused].program.send(SIGCONT)
    acked = write(cluster, topic, "new", 300)
    # It is no replica of the new incarnation: what it has is of the former one, and goes.
    wait_until(
        lambda: not directories(cluster, paused, topic),
        DEADLINE_S,
        f"the former incarnation is gone from broker {paused}",
    )
    ask = int(others[0].config["node.id"])
    assert all(paused not in p.isrs for p in cluster.partitions(topic, ask).values())
    check_incarnation(cluster, topic, acked, "new")
    wait_until(lambda: f"/brokers/ids/{paused}" in store(cluster), DEADLINE_S, "it is registered")


def test_a_deletion_goes_on_after_the_controller_died(cluster: TidelogCluster) -> None:
    topic = "resumed"
    cluster.create_topic(topic, PARTITIONS)
    write(cluster, topic, "only", 100)
    away = 2
    cluster.brokers[away].kill()
    delete(cluster, topic)
    cluster.controller.kill()
    assert any(path.startswith("/tidelog/deletions/") for path in store(cluster))
    cluster.controller.start()
    for broker in (1, 3):
        wait_until(lambda b=broker: not directories(cluster, b, topic), DEADLINE_S, "it is gone")
    assert len(directories(cluster, away, topic)) == PARTITIONS
    cluster.brokers[away].start()
    wait_until(lambda: not directories(cluster, away, topic), DEADLINE_S, "it is gone there too")
    wait_until(lambda: no_deletion_is_left(cluster), DEADLINE_S, "every deletion was confirmed")
    for each in ("again", "missed"):
        cluster.until_in_sync(each, 3)


def test_requests_for_a_former_life_of_a_broker_and_beside_the_channel_are_refused(
    cluster: TidelogCluster,
) -> None:
    topic = "bounced"
    cluster.create_topic(topic, PARTITIONS)
    acked = write(cluster, topic, "only", 100)
    bounced = next(b for b in cluster.brokers if b != cluster.leader(topic, 0))
    node = cluster.brokers[bounced]
    former_epoch = broker_epoch(cluster, bounced)
    controller_epoch = int(store(cluster)["/controller_epoch"])
    node.kill()
    begun = time.monotonic()
    node.start()
    took_s = time.monotonic() - begun
    print(f"bounced in {took_s:.2f} s; its session times out after 3 s")
    secret = secret_in(cluster.secret)
    opening = messages.OpenControlChannelRequest(100, controller_epoch, former_epoch, 10**9, 1)
    answer = asyncio.run(asked(node.port, opening, 0, secret))
    assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
    stop = messages.StopReplicaRequest
    state = stop.StopReplicaPartitionState(0, -2, True)
    late = stop(
        controller_id=100,
        controller_epoch=controller_epoch,
        broker_epoch=former_epoch,
        topic_states=[
            stop.StopReplicaTopicState(topic, decode_uuid(topic_id(cluster, topic)), [state])
        ],
    )
    answer = asyncio.run(asked(node.port, late, 4, secret))
    assert answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH, "it came on no control channel"
    cluster.until_in_sync(topic, 3)
    assert broker_epoch(cluster, bounced) > former_epoch
    assert only_the_new_life(cluster, bounced, topic)
    check_incarnation(cluster, topic, acked, "only")


def test_what_the_controller_cannot_read_deletes_nothing(cluster: TidelogCluster) -> None:
    """Promise 20: a topic's node is torn while the controller is away, and a broker is bounced. All
    other topics are served, by that broker too."""
    topic, beside = "unreadable", "readable"
    for name in (topic, beside):
        cluster.create_topic(name, PARTITIONS)
    acked, others = (write(cluster, name, "only", 100) for name in (topic, beside))
    before = {b: directories(cluster, b, topic) for b in cluster.brokers}
    assert cluster.controller.stop() == 0
    whole = store(cluster)[f"/brokers/topics/{topic}"]
    rewrite(cluster, topic, whole[:-4])
    said_before = cluster.controller.log.read_text().count(f"/brokers/topics/{topic} ")
    cluster.controller.start()
    others |= write(cluster, beside, "only", 100)
    # Its leaders have had no other command, and go on.
    check_incarnation(cluster, topic, acked, "only")
    bounced = cluster.brokers[2]
    bounced.kill()
    bounced.start()
    cluster.until_in_sync(beside, 3)
    others |= write(cluster, beside, "only", 100)
    check_incarnation(cluster, beside, others, "only")
    assert {b: directories(cluster, b, topic) for b in cluster.brokers} == before
    doctor = run_tidelog("doctor", "--bootstrap-server", cluster.bootstrap).stdout
    assert f"/brokers/topics/{topic} cannot be read" in doctor, doctor
    named = cluster.controller.log.read_text().count(f"/brokers/topics/{topic} ")
    assert named == said_before + 1, cluster.controller.said("names the node once")
    assert cluster.controller.stop() == 0
    rewrite(cluster, topic, whole)
    cluster.controller.start()
    acked |= write(cluster, topic, "only", 100)
    cluster.until_in_sync(topic, 3)
    check_incarnation(cluster, topic, acked, "only")
    assert {b: directories(cluster, b, topic) for b in cluster.brokers} == before


def test_all_processes_start_beside_a_topic_that_cannot_be_read(cluster: TidelogCluster) -> None:
    topic, beside = "torn", "whole"
    for name in (topic, beside):
        cluster.create_topic(name, PARTITIONS)
    acked, others = (write(cluster, name, "only", 100) for name in (topic, beside))
    before = {b: directories(cluster, b, topic) for b in cluster.brokers}
    for node in (*cluster.brokers.values(), cluster.controller):
        assert node.stop() == 0, node.said("stopped cleanly")
    content = store(cluster)[f"/brokers/topics/{topic}"]
    rewrite(cluster, topic, content[:-4])
    cluster.controller.start()
    for node in cluster.brokers.values():
        node.start()
    cluster.until_in_sync(beside, 3)
    others |= write(cluster, beside, "only", 100)
    check_incarnation(cluster, beside, others, "only")
    error = admin(cluster.bootstrap).list_topics(topic, timeout=DEADLINE_S).topics[topic].error
    assert error is not None
    assert error.code() == confluent_kafka.KafkaError.LEADER_NOT_AVAILABLE
    assert {b: directories(cluster, b, topic) for b in cluster.brokers} == before
    assert cluster.controller.stop() == 0
    rewrite(cluster, topic, content)
    cluster.controller.start()
    acked |= write(cluster, topic, "only", 100)
    cluster.until_in_sync(topic, 3)
    check_incarnation(cluster, topic, acked, "only")
    assert {b: directories(cluster, b, topic) for b in cluster.brokers} == before


def rewrite(cluster: TidelogCluster, topic: str, content: bytes) -> None:
    """Write a topic's node into the store of a controller that is stopped."""
    with sqlite3.connect(cluster.controller.folder / "metadata.db") as database:
        database.execute(
            "UPDATE nodes SET data = ? WHERE path = ?", (content, f"/brokers/topics/{topic}")
        )


def test_all_replicas_are_the_same_in_the_end(cluster: TidelogCluster) -> None:
    topics = ("again", "bystander", "missed", "bounced", "unreadable", "readable", "torn", "whole")
    for topic in topics:
        cluster.until_in_sync(topic, 3)
    for node in cluster.brokers.values():
        assert node.stop() == 0, node.said("stopped cleanly")
    wrong = [line for topic in topics for line in differing_replicas(cluster, topic, PARTITIONS)]
    assert not wrong, "\n".join(wrong)


# -- below level 1.4


def test_below_1_4_a_name_is_free_when_every_broker_has_confirmed(pair: TidelogCluster) -> None:
    topic = "held"
    pair.create_topic(topic, PARTITIONS, replication=2)
    write(pair, topic, "former", 100)
    pair.brokers[2].kill()
    delete(pair, topic)
    assert topic not in admin(pair.brokers[1].bootstrap).list_topics(timeout=DEADLINE_S).topics
    wait_until(lambda: not directories(pair, 1, topic), DEADLINE_S, "the live broker deleted it")
    assert "marked for deletion" in why_not_created(pair, topic, 1)
    # The queue is Kafka's node: a new controller resumes it, and asks everyone again.
    pair.controller.kill()
    assert f"/admin/delete_topics/{topic}" in store(pair)
    pair.controller.start()
    wait_until(
        lambda: "marked for deletion" in why_not_created(pair, topic, 1),
        DEADLINE_S,
        "the new controller knows it",
    )
    assert len(directories(pair, 2, topic)) == PARTITIONS
    pair.brokers[2].start()
    wait_until(lambda: not why_not_created(pair, topic, 2), DEADLINE_S, "the name is free", 0.2)
    pair.until_in_sync(topic, 2)
    acked = write(pair, topic, "new", 100)
    check_incarnation(pair, topic, acked, "new")
    assert no_deletion_is_left(pair)
    for broker in pair.brokers:
        assert identity(pair, broker, topic) is None, "no ids below 1.4"


def test_a_level_goes_down_only_when_deletions_with_ids_are_done(pair: TidelogCluster) -> None:
    topic = "undone"
    for node in (pair.controller, *pair.brokers.values()):
        node.configure({LEVEL: "1.4"})
        node.restart()
    pair.create_topic(topic, PARTITIONS, replication=2)
    kept = topic_id(pair, topic)
    pair.brokers[2].kill()
    delete(pair, topic)
    create(pair, topic, 2)
    assert topic_id(pair, topic) != kept, "with ids the name is free at once"
    assert pair.controller.stop() == 0
    pair.controller.configure({LEVEL: "1.3"})
    with pytest.raises(AssertionError, match="is refused: deleted topics"):
        pair.controller.start()
    assert pair.controller.program.exit_status() == 1
    pair.controller.configure({LEVEL: "1.4"})
    pair.controller.start()
    pair.brokers[2].start()
    wait_until(lambda: no_deletion_is_left(pair), DEADLINE_S, "the deletion is done")
    pair.until_in_sync(topic, 2)
    assert pair.controller.stop() == 0
    pair.controller.configure({LEVEL: "1.3"})
    pair.controller.start()
    memory = json.loads(store(pair)[f"/tidelog/topics/{topic}"])
    assert memory["migrated"] is True
    acked = write(pair, topic, "kept", 100)
    check_incarnation(pair, topic, acked, "kept")
    # A disk that was emptied below 1.4 holds replicas without ids: they take them, and stay.
    pair.brokers[2].kill()
    pair.empty(2)
    pair.brokers[2].configure({LEVEL: "1.3"})
    pair.brokers[2].start()
    pair.until_in_sync(topic, 2)
    assert identity(pair, 2, topic) is None
    acked |= write(pair, topic, "kept", 100)
    for node in (pair.controller, *pair.brokers.values()):
        node.configure({LEVEL: "1.4"})
        node.restart()
        pair.until_in_sync(topic, 2)
    check_incarnation(pair, topic, acked, "kept")
    for broker in pair.brokers:
        assert identity(pair, broker, topic) == written_identity(topic_id(pair, topic))
        assert only_the_new_life(pair, broker, topic), "no replica was quarantined"
