"""The attacks of the review on real processes (N1, N3, N4), and the life of a cluster secret.

Each attack is answered with a refusal, and nothing changes: on disk, in the store, in an ISR.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import stat
import time
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.support import clients
from tests.support.cluster import TidelogCluster
from tests.support.lone_broker import Peer
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.proofs import prove, proven, secret_in, write_secret
from tests.support.server import TidelogNode, run_tidelog
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch

pytestmark = pytest.mark.long(80)

REFUSED = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
HUGE = 2**31 - 1
OLD, NEW = "an old secret of the cluster", "a new secret of the cluster"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogNode]:
    """One process with both roles, SQLite, and no cluster.secret.file: it made its own secret."""
    with TidelogNode(tmp_path_factory.mktemp("alone")) as node:
        yield node


def controller_port(node: TidelogNode) -> int:
    return int(str(node.config["controller.quorum.bootstrap.servers"]).rpartition(":")[2])


async def create(peer: Peer, name: str, **fields: Any) -> None:
    request = messages.CreateTopicsRequest
    configs = [
        request.CreatableTopicConfig(key.replace("_", "."), str(value))
        for key, value in fields.items()
        if key != "replicas"
    ]
    topic = request.CreatableTopic(name, 1, fields.get("replicas", 1), [], configs)
    answer = await peer.ask(request(topics=[topic], timeout_ms=20_000), 7)
    assert answer.topics[0].error_code == 0, answer


def producing(topic: str, value: bytes) -> messages.ProduceRequest:
    request = messages.ProduceRequest
    part = request.PartitionProduceData(index=0, records=build_batch([NewRecord(-1, None, value)]))
    data = request.TopicProduceData(name=topic, partition_data=[part])
    return request(acks=-1, timeout_ms=20_000, topic_data=[data])


async def produce(peer: Peer, topic: str, value: bytes) -> int:
    answer = await peer.ask(producing(topic, value), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def store_of(node: TidelogNode) -> Any:
    path = str(node.config["metadata.store"]).removeprefix("sqlite:")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        found = database.execute("select name from sqlite_master where type = 'table'")
        tables = [row[0] for row in found]
        return {
            name: sorted(map(repr, database.execute(f'select * from "{name}"')))
            for name in tables
            if not name.startswith("sqlite_")
        }


def untouched(node: TidelogNode) -> Any:
    """What an attack must not change: the store, the folders, the epochs that were seen."""
    folders = sorted(str(x.relative_to(node.folder)) for x in node.folder.rglob("*") if x.is_dir())
    seen = (node.data / "controller-seen").read_bytes()
    return store_of(node), folders, seen


def test_a_stranger_does_not_command_a_broker(alone: TidelogNode) -> None:
    """N1: a guessed broker epoch and a huge controller epoch quarantined all partitions."""

    async def work() -> None:
        client = await Peer.connect(alone.port)
        await create(client, "precious")
        assert await produce(client, "precious", b"gold") == 0
        before = untouched(alone)
        stranger = await Peer.connect(alone.port)
        for epoch in range(10):
            opening = messages.OpenControlChannelRequest(666, HUGE, epoch, 2**62, 2**62)
            assert (await stranger.ask(opening, 0)).error_code == REFUSED
            full = messages.LeaderAndIsrRequest(
                controller_id=666, controller_epoch=HUGE, broker_epoch=epoch, type=2
            )
            assert (await stranger.ask(full, 5)).error_code == REFUSED
            stop = messages.StopReplicaRequest(controller_id=666, controller_epoch=HUGE)
            assert (await stranger.ask(stop, 4)).error_code == REFUSED
        # Nor does a peer that knows the secret but not the channel's key.
        knower = await proven(alone.port, secret_in(alone.data / "cluster.secret"))
        codes = set()
        for epoch in range(10):
            for key in (uuid.UUID(int=0), uuid.uuid4()):
                opening = messages.OpenControlChannelRequest(666, HUGE, epoch, 2**62, 2**62, key)
                codes.add((await knower.ask(opening, 0)).error_code)
        assert codes == {REFUSED, int(ErrorCode.STALE_BROKER_EPOCH)}
        assert untouched(alone) == before
        assert await produce(client, "precious", b"gold") == 0

    run(work())


def test_a_stranger_does_not_register(alone: TidelogNode) -> None:
    """N3: it was shown to clients, got partitions, and could claim that the store went back."""

    async def work() -> None:
        client = await Peer.connect(alone.port)
        await create(client, "before")
        before = untouched(alone)
        stranger = await Peer.connect(controller_port(alone))
        request = messages.BrokerRegistrationRequest
        for seen in (None, request.HighestSeen(HUGE, 2**62)):
            registration = request(
                broker_id=777,
                incarnation_id=uuid.uuid4(),
                listeners=[request.Listener("PLAINTEXT", "127.0.0.1", 1, 0)],
                last_life_ended=2,
                highest_seen=seen,
                highest_level="1.4",
                directory_id=uuid.uuid4(),
            )
            assert (await stranger.ask(registration, 0)).error_code == REFUSED
        beat = messages.BrokerHeartbeatRequest(broker_id=1, broker_epoch=1, want_shut_down=True)
        assert (await stranger.ask(beat, 0)).error_code == REFUSED
        envelope = messages.EnvelopeRequest(request_data=b"", client_host_address=b"")
        assert (await stranger.ask(envelope, 0)).error_code == REFUSED
        assert untouched(alone) == before
        metadata = await client.ask(messages.MetadataRequest(topics=[]), 9)
        assert [broker.node_id for broker in metadata.brokers] == [1]
        await create(client, "after")
        # With the secret, a claim that leaves no room above it is refused all the same.
        knower = await proven(controller_port(alone), secret_in(alone.data / "cluster.secret"))
        answer = await knower.ask(registration, 0)
        assert answer.error_code == ErrorCode.INVALID_REGISTRATION
        await create(client, "afterwards")

    run(work())


def test_a_client_does_not_fetch_as_a_replica(tmp_path: Path) -> None:
    """N4: a stranger's fetch in a follower's name let acks=all be acknowledged with one copy."""

    async def work(cluster: TidelogCluster) -> None:
        leader, follower = cluster.brokers[1], cluster.brokers[2]
        peers = {
            node_id: await Peer.connect(node.port) for node_id, node in cluster.brokers.items()
        }
        led = None
        for number in range(8):
            topic = f"safe{number}"
            await create(peers[1], topic, replicas=2, min_insync_replicas=2)
            asked = messages.MetadataRequest.MetadataRequestTopic(name=topic)
            found = await peers[1].ask(messages.MetadataRequest(topics=[asked]), 12)
            led = found.topics[0]
            if led.partitions[0].leader_id == 1:
                break
        assert led is not None and led.partitions[0].leader_id == 1
        assert await produce(peers[1], led.name, b"v0") == 0
        os.kill(follower.program.pid, signal.SIGSTOP)
        try:
            peers[1].send(producing(led.name, b"only one copy"), 9)
            stranger = await Peer.connect(leader.port)
            fetch = messages.FetchRequest
            for life in range(1, 6):
                part = fetch.FetchPartition(
                    partition=0,
                    current_leader_epoch=led.partitions[0].leader_epoch,
                    fetch_offset=2,
                    partition_max_bytes=1 << 20,
                )
                request = fetch(
                    replica_id=2,
                    max_bytes=1 << 20,
                    topics=[
                        fetch.FetchTopic(
                            led.name, partitions=[part], follower_topic_id=led.topic_id
                        )
                    ],
                    replica_broker_epoch=life,
                )
                assert (await stranger.ask(request, 12)).error_code == REFUSED
            offsets = messages.ListOffsetsRequest
            where = offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
            ends = offsets(replica_id=-1, topics=[offsets.ListOffsetsTopic(led.name, [where])])
            end = (await stranger.ask(ends, 6)).topics[0].partitions[0]
            assert (end.error_code, end.offset) == (0, 1)
            found = await stranger.ask(messages.MetadataRequest(topics=[asked]), 12)
            assert sorted(found.topics[0].partitions[0].isr_nodes) == [1, 2]
        finally:
            os.kill(follower.program.pid, signal.SIGCONT)
        answer = await peers[1].receive()
        assert answer.responses[0].partition_responses[0].error_code == 0

    # Longer than the test: a stopped follower is to stay in the ISR.
    config = {"broker.session.timeout.ms": 60_000, "replica.lag.time.max.ms": 60_000}
    with TidelogCluster(tmp_path, 2, config) as cluster:
        run(work(cluster))


def test_a_refusal_is_audited_and_counted(alone: TidelogNode) -> None:
    async def work() -> None:
        for port, request in (
            (alone.port, messages.StopReplicaRequest()),
            (controller_port(alone), messages.AllocateProducerIdsRequest()),
        ):
            peer = await Peer.connect(port)
            for _ in range(50):
                assert (await peer.ask(request, 0)).error_code == REFUSED

    def said(key: str) -> list[str]:
        return [x for x in alone.log.read_text().splitlines() if f"refused {key} from" in x]

    keys = ("StopReplica", "AllocateProducerIds")
    before = {key: len(said(key)) for key in keys}
    begun_s = time.monotonic()
    run(work())
    took_s = time.monotonic() - begun_s
    for key in keys:
        lines = said(key)
        # At most one a second, and one with the rest.
        assert 1 <= len(lines) <= before[key] + took_s + 2
        assert all("logger=tidelog.audit" in line for line in lines)
    metrics = scrape(alone.metrics_port)
    assert 'tidelog_requests_unauthorized_total{request="StopReplica"}' in metrics
    assert "# TYPE tidelog_controller_requests_unauthorized_total counter" in metrics


def scrape(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as link:
        link.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: link.recv(65536), b"")).decode()


def test_nothing_is_readable_for_other_users(alone: TidelogNode) -> None:
    """N11: files were 0644 and directories 0755."""
    found = [path for path in alone.data.rglob("*") if not path.is_symlink()]
    store = Path(str(alone.config["metadata.store"]).removeprefix("sqlite:"))
    found += [store, *store.parent.glob(f"{store.name}-*")]
    assert len(found) > 5
    for path in found:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert not mode & 0o027, f"{path} {mode:o}"


def test_no_client_id_may_write_to_internal_topics(alone: TidelogNode) -> None:
    """N11: "__admin_client" could forge offsets."""

    async def work() -> None:
        for client_id in ("__admin_client", "tidelog", "controller", None):
            peer = await Peer.connect(alone.port)
            find = messages.FindCoordinatorRequest(key="g", key_type=0)
            async with asyncio.timeout(DEADLINE_S):
                while (await peer.ask(find, 2)).error_code:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            peer.client_id = client_id
            assert await produce(peer, "__consumer_offsets", b"forged") == 17

    run(work())


def test_no_configuration_shuts_all_clients_out(alone: TidelogNode) -> None:
    """N9: max.connections=0 did, across restarts."""
    asked = ("configs", "--bootstrap-server", alone.bootstrap, "--alter", "--add-config")
    where = ("--entity-type", "brokers", "--entity-default")
    for name in ("max.connections", "max.connections.per.ip"):
        refused = run_tidelog(*asked, f"{name}=0", *where)
        assert refused.returncode == 1
        assert name in refused.stderr
    secret = secret_in(alone.data / "cluster.secret")

    async def work() -> None:
        # All connections that there may be are taken.
        strangers = [await Peer.connect(alone.port) for _ in range(20)]
        peers = [await proven(alone.port, secret) for _ in range(30)]
        for peer in peers:
            answer = await peer.ask(messages.ApiVersionsRequest("test", "1"), 3)
            assert ApiKey.OPEN_CONTROL_CHANNEL in {key.api_key for key in answer.api_keys}
        for each in (*strangers, *peers):
            each.writer.close()

    assert run_tidelog(*asked, "max.connections=1", *where).returncode == 0
    try:
        run(work())
        # Its own session with the controller, over restarts, too.
        alone.program.stop()
        alone.start()
        run(work())
    finally:
        delete = ("configs", "--bootstrap-server", alone.bootstrap, "--alter", "--delete-config")
        wait_until(
            lambda: run_tidelog(*delete, "max.connections", *where).returncode == 0,
            DEADLINE_S,
            "a client gets a place",
        )


def test_doctor_restored_proves_the_secret(alone: TidelogNode) -> None:
    asked = ("doctor", "restored", "--bootstrap-server", alone.bootstrap)
    without = run_tidelog(*asked)
    assert without.returncode == 1
    assert "--cluster-secret-file" in without.stderr
    path = alone.data / "cluster.secret"
    found = run_tidelog(*asked, "--cluster-secret-file", str(path))
    assert found.returncode == 0, found.stderr
    assert "has not gone back" in found.stdout
    other = write_secret(alone.folder / "other", OLD)
    wrong = run_tidelog(*asked, "--cluster-secret-file", str(other))
    assert wrong.returncode == 1
    (line,) = wrong.stderr.splitlines()
    assert line.startswith("error: ") and "another cluster secret" in line
    assert OLD not in wrong.stderr


def test_the_secret_changes_without_a_stop(tmp_path: Path) -> None:
    """Old and new side by side, the first proves; each process reads its file again."""

    async def accepts(port: int, secret: str) -> bool:
        peer = await Peer.connect(port)
        try:
            await prove(peer, secret.encode())
        except (ConnectionError, AssertionError):
            return False
        finally:
            peer.writer.close()
        return True

    async def work(cluster: TidelogCluster) -> None:
        ports = [cluster.controller.controller_port, *(x.port for x in cluster.brokers.values())]
        for step, accepted, refused in (
            ([OLD], OLD, NEW),
            ([OLD, NEW], OLD, "a stranger's secret"),
            ([NEW, OLD], NEW, "a stranger's secret"),
            ([NEW], NEW, OLD),
        ):
            write_secret(tmp_path, *step)
            for port in ports:
                async with asyncio.timeout(DEADLINE_S):
                    while not await accepts(port, accepted):  # noqa: ASYNC110
                        await asyncio.sleep(0)
                    while await accepts(port, refused):  # noqa: ASYNC110
                        await asyncio.sleep(0)
            # New connections between the processes are made in each state.
            follower = cluster.brokers[2]
            follower.kill()
            follower.start()
            makes_another(cluster)

    with TidelogCluster(tmp_path, 2) as cluster:
        write_secret(tmp_path, OLD)
        run(work(cluster))
        log = cluster.brokers[1].log.read_text()
    assert "holds 2 secrets now" in log
    assert OLD not in log and NEW not in log


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"process.roles": "broker", "metadata.store": None}, "set cluster.secret.file"),
        ({"metadata.store": "zookeeper://127.0.0.1:1"}, "set cluster.secret.file"),
        ({"cluster.secret.file": "/nowhere/secret"}, "cannot be read"),
        ({"cluster.secret.file": "SHORT"}, "fewer than 16"),
        ({"cluster.secret.file": "EMPTY"}, "is empty"),
        ({"cluster.secret.file": "THREE"}, "has 3 lines"),
        ({"cluster.secret.file": "OPEN"}, "chmod 600"),
    ],
)
def test_a_start_without_a_fit_secret_is_refused_in_one_line(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    files = {
        "SHORT": write_secret(tmp_path / "short", "abc"),
        "EMPTY": write_secret(tmp_path / "empty", ""),
        "THREE": write_secret(tmp_path / "three", OLD, NEW, OLD + NEW),
        "OPEN": write_secret(tmp_path / "open", OLD),
    }
    files["OPEN"].chmod(0o644)
    node = TidelogNode(tmp_path / "node")
    anywhere = str(node.config["listeners"]).replace("127.0.0.1", "0.0.0.0")
    if config.get("process.roles") == "broker":
        anywhere = anywhere.partition(",")[0]
    named = {name: files.get(str(value), value) for name, value in config.items()}
    node.configure({"listeners": anywhere, **named})
    node.launch()
    # The file lacks something, or a file of this machine is not fit.
    status = 2 if words.startswith("set ") else 1
    assert node.program.wait(DEADLINE_S) == status
    (line,) = [x for x in node.log.read_text().splitlines() if x.startswith("error: ")]
    assert words in line
    assert "abc" not in line


def test_a_cluster_of_one_may_listen_anywhere(tmp_path: Path) -> None:
    node = TidelogNode(tmp_path)
    anywhere = str(node.config["listeners"]).replace("127.0.0.1", "0.0.0.0")
    node.configure({"listeners": anywhere})
    with node:
        first = secret_in(node.data / "cluster.secret")
        node.kill()
        node.start()
        assert secret_in(node.data / "cluster.secret") == first


def test_processes_without_a_secret_say_so_and_go_on_on_loopback(tmp_path: Path) -> None:
    """Also a broker that has no secret, and a controller that asks for one: one line."""
    with TidelogCluster(tmp_path / "none", 1, {"cluster.secret.file": None}) as cluster:
        assert "there is no cluster secret" in cluster.controller.log.read_text()
        keys = asyncio.run(shown_to(cluster.controller.controller_port))
        assert ApiKey.BROKER_REGISTRATION in keys and ApiKey.SASL_HANDSHAKE not in keys
    with TidelogCluster(tmp_path / "some", 1) as cluster:
        broker = cluster.brokers[1]
        broker.kill()
        broker.configure({"cluster.secret.file": None})
        broker.launch()
        assert broker.program.wait(DEADLINE_S) == 1
        # At any place: what a thread logs while the process ends may follow it.
        (line,) = [x for x in broker.log.read_text().splitlines() if x.startswith("error: ")]
        assert "set cluster.secret.file" in line
        keys = asyncio.run(shown_to(cluster.controller.controller_port))
        assert ApiKey.BROKER_REGISTRATION not in keys and ApiKey.SASL_HANDSHAKE in keys


async def shown_to(port: int) -> set[int]:
    peer = await Peer.connect(port)
    answer = await peer.ask(messages.ApiVersionsRequest("test", "1"), 3)
    return {entry.api_key for entry in answer.api_keys}


def test_a_cluster_without_a_secret_gets_one_in_two_rolls(tmp_path: Path) -> None:
    """``cluster.secret.optional`` for the first roll; some have the secret then, some do not."""

    async def work(cluster: TidelogCluster) -> None:
        nodes = [cluster.controller, *cluster.brokers.values()]
        steps = (
            {"cluster.secret.file": cluster.secret, "cluster.secret.optional": "true"},
            {"cluster.secret.optional": None},
        )
        for changes in steps:
            for node in nodes:
                node.program.stop()
                node.configure(changes)
                node.start()
                makes_another(cluster)
        keys = await shown_to(cluster.brokers[1].port)
        assert ApiKey.OPEN_CONTROL_CHANNEL not in keys

    with TidelogCluster(tmp_path, 2, {"cluster.secret.file": None}) as cluster:
        run(work(cluster))


def makes_another(cluster: TidelogCluster) -> None:
    """Make a topic on both brokers and write to both replicas, within the deadline."""
    wait_until(lambda: makes(cluster), DEADLINE_S, "a topic is made")


def makes(cluster: TidelogCluster) -> bool:
    """Whether a topic is made; it is written to then, as a client does that has no secret."""
    name = f"t{uuid.uuid4().hex}"
    try:
        cluster.create_topic(name, 1, 2, min_insync_replicas=2)
    except confluent_kafka.KafkaException:
        return False
    clients.write_confluent(cluster.bootstrap, name, [clients.Record(None, "v")], "none")
    return True
