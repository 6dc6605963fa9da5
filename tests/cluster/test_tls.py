"""A cluster whose clients, brokers and controller speak TLS, with stock clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.helpers import create_ssl_context

import tidelog
import tidelog.errors
import tidelog.testing
from tests.support.certificates import Authority
from tests.support.cluster import TidelogCluster
from tests.support.java import ToolRunner
from tests.support.processes import DEADLINE_S, free_ports, wait_until
from tests.support.server import TidelogNode, run_tidelog
from tests.support.target import TARGET

pytestmark = pytest.mark.skipif(TARGET != "tidelog", reason="a cluster of tidelog's")

RECORDS = 500
VALUE = b"x" * 2_000


class TlsCluster:
    """Two brokers and a controller: all that travels between processes is encrypted. A PLAINTEXT
    listener beside is for the test's own questions."""

    def __init__(self, folder: Path) -> None:
        self.authority = authority = Authority(folder / "keys")
        server = authority.issue("server.pem")
        self.client = authority.issue("client.pem")
        texts = authority.texts(server)
        config = {
            **texts,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:SSL",
            "security.inter.broker.protocol": "SSL",
            "listener.name.ssl.ssl.client.auth": "required",
        }
        self.cluster = TidelogCluster(folder, brokers=2, config=config)
        ports = free_ports(2)
        for node, port in zip(self.cluster.brokers.values(), ports, strict=True):
            listeners = f"PLAINTEXT://127.0.0.1:{node.port},SSL://127.0.0.1:{port}"
            node.configure({"listeners": listeners, "advertised.listeners": None})
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.ports = frozenset(ports)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    made = TlsCluster(tmp_path_factory.mktemp("tls"))
    with made.cluster:
        made.cluster.create_topic("t", partitions=2, replication=2)
        yield made


def librdkafka(tls: TlsCluster, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": tls.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(tls.authority.trusted),
        "ssl.certificate.location": str(tls.client),
        "ssl.key.location": str(tls.client),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def test_librdkafka_writes_and_reads(tls: TlsCluster) -> None:
    """And it is sent to the addresses of the listener on which it asks."""
    producer = confluent_kafka.Producer(librdkafka(tls, enable_idempotence=True))
    for _ in range(RECORDS):
        producer.produce("t", VALUE)
    assert producer.flush(DEADLINE_S) == 0
    brokers = producer.list_topics(timeout=DEADLINE_S).brokers.values()
    assert {broker.port for broker in brokers} == tls.ports
    settings = librdkafka(tls, group_id="librdkafka", auto_offset_reset="earliest")
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(["t"])
    read = 0

    def is_read() -> bool:
        nonlocal read
        read += sum(each.value() == VALUE for each in consumer.consume(RECORDS, 1.0))
        return read >= RECORDS

    wait_until(is_read, DEADLINE_S, "all records are read")
    consumer.close()


def test_kafka_python_writes_and_reads(tls: TlsCluster) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": tls.bootstrap.split(","),
        "security_protocol": "SSL",
        "ssl_cafile": str(tls.authority.trusted),
        "ssl_certfile": str(tls.client),
        "ssl_keyfile": str(tls.client),
    }
    producer = kafka.KafkaProducer(**settings)
    for _ in range(RECORDS):
        producer.send("t", VALUE)
    producer.flush(DEADLINE_S)
    producer.close()
    reset = {"auto_offset_reset": "earliest", "group_id": "kafka-python"}
    consumer = kafka.KafkaConsumer("t", **settings, **reset)
    read = 0

    def is_read() -> bool:
        nonlocal read
        read += sum(len(records) for records in consumer.poll(1_000).values())
        return read >= RECORDS

    wait_until(is_read, DEADLINE_S, "all records are read")
    consumer.close()


def test_aiokafka_writes_and_reads(tls: TlsCluster) -> None:
    context = create_ssl_context(
        cafile=str(tls.authority.trusted), certfile=str(tls.client), keyfile=str(tls.client)
    )
    settings = {
        "bootstrap_servers": tls.bootstrap,
        "security_protocol": "SSL",
        "ssl_context": context,
    }

    async def run() -> int:
        async with asyncio.timeout(DEADLINE_S):
            async with aiokafka.AIOKafkaProducer(**settings) as producer:
                await asyncio.gather(*[await producer.send("t", VALUE) for _ in range(RECORDS)])
            read = 0
            consumer = aiokafka.AIOKafkaConsumer("t", **settings, auto_offset_reset="earliest")
            async with consumer:
                while read < RECORDS:
                    found = await consumer.getmany(timeout_ms=1_000)
                    read += sum(map(len, found.values()))
            return read

    assert asyncio.run(run()) >= RECORDS


@pytest.mark.java
def test_javas_tools_are_served(tls: TlsCluster, tools: ToolRunner, tmp_path: Path) -> None:
    """With a PKCS12 keystore of the client, and the trusted authority as PEM."""
    keys = tls.authority.issue("java.p12", password="password")
    lines = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": tls.authority.trusted,
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": keys,
        "ssl.keystore.password": "password",
    }
    settings = tmp_path / "client.properties"
    settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    with_tls = ("--bootstrap-server", tls.bootstrap, "--command-config", str(settings))
    made = tools.run("kafka-topics", *with_tls, "--create", "--topic", "of-java")
    assert "Created topic of-java." in made.check().out
    assert "of-java" in tools.run("kafka-topics", *with_tls, "--list").check().out.split()


def test_our_own_clients_and_commands(tls: TlsCluster, tmp_path: Path) -> None:
    texts = {"security.protocol": "SSL", **tls.authority.texts(tls.client)}
    settings: Any = {name.replace(".", "_"): text for name, text in texts.items()}
    with tidelog.Producer(bootstrap_servers=tls.bootstrap, **settings) as producer:
        for _ in range(RECORDS):
            producer.send("t", VALUE)
        producer.flush()
    reset = {"auto_offset_reset": "earliest", "group_id": "ours"}
    with tidelog.Consumer("t", bootstrap_servers=tls.bootstrap, **settings, **reset) as consumer:
        read = 0
        for record in consumer:
            read += record.value == VALUE
            if read >= RECORDS:
                break
    with tidelog.Admin(bootstrap_servers=tls.bootstrap, **settings) as admin:
        assert "t" in admin.list_topics()
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
    with_tls = ("--bootstrap-server", tls.bootstrap, "--command-config", str(file))
    assert "t" in run_tidelog("topics", "--list", *with_tls).stdout.split()
    plain = run_tidelog("topics", "--list", "--bootstrap-server", tls.bootstrap)
    assert plain.returncode == 1 and "TLS" in plain.stderr


def test_a_client_without_a_certificate_is_refused(tls: TlsCluster) -> None:
    settings = librdkafka(tls)
    del settings["ssl.certificate.location"], settings["ssl.key.location"]
    with pytest.raises(confluent_kafka.KafkaException):
        confluent_kafka.Producer(settings).list_topics(timeout=3)
    wait_until(
        lambda: "it showed no certificate" in tls.cluster.said("a refusal"),
        DEADLINE_S,
        "a broker says that a client showed no certificate",
    )


def test_replicas_follow_over_tls(tls: TlsCluster) -> None:
    """A leader is killed: the other one has all that was acknowledged, and leads."""
    tls.cluster.create_topic("kept", replication=2, min_insync_replicas=1)
    producer = confluent_kafka.Producer(librdkafka(tls, acks="all"))
    for _ in range(50):
        producer.produce("kept", VALUE)
    assert producer.flush(DEADLINE_S) == 0
    leader = tls.cluster.brokers[tls.cluster.leader("kept")]
    leader.kill()
    producer.produce("kept", b"after")
    assert producer.flush(DEADLINE_S) == 0
    leader.start()
    tls.cluster.until_in_sync("kept", 2)
    consumer = confluent_kafka.Consumer(librdkafka(tls, group_id="kept"))
    partition = confluent_kafka.TopicPartition("kept", 0)
    assert consumer.get_watermark_offsets(partition, DEADLINE_S) == (0, 51)
    consumer.close()


def test_a_cluster_of_tests_has_tls_by_one_argument() -> None:
    with tidelog.testing.Cluster(brokers=2, tls=True) as cluster:
        cluster.create_topic("t", partitions=2)
        settings: Any = {k.replace(".", "_"): v for k, v in cluster.client_config.items()}
        settings["bootstrap_servers"] = cluster.bootstrap_servers
        with tidelog.Producer(**settings) as producer:
            assert producer.send("t", VALUE).result(DEADLINE_S).offset == 0
        cluster.resize("t", 3)
        cluster.kill(2)
        cluster.restart(2)
        with pytest.raises(tidelog.errors.KafkaError):
            tidelog.Admin(bootstrap_servers=cluster.bootstrap_servers).list_topics()
    assert not cluster.folder.exists()


def test_a_cluster_comes_to_tls_by_rolling_restarts(tmp_path: Path) -> None:
    """As the page on security says: a listener beside the other, then the traffic between
    processes. Each step keeps what was acknowledged, and takes more."""
    authority = Authority(tmp_path / "keys")
    texts = authority.texts(authority.issue("server.pem"))
    cluster = TidelogCluster(tmp_path, brokers=2)
    ports = dict(zip(cluster.brokers, free_ports(2), strict=True))
    with cluster:
        cluster.create_topic("t", replication=2, min_insync_replicas=1)
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
        written = 0

        def write() -> None:
            nonlocal written
            for _ in range(20):
                producer.produce("t", VALUE)
            assert producer.flush(DEADLINE_S) == 0
            written += 20

        def restarted(node: TidelogNode, config: dict[str, object]) -> None:
            node.stop()
            node.configure(config)
            node.start()
            cluster.until_in_sync("t", 2)
            write()

        write()
        for broker, node in cluster.brokers.items():
            listeners = f"PLAINTEXT://127.0.0.1:{node.port},SSL://127.0.0.1:{ports[broker]}"
            beside = {"listeners": listeners, "advertised.listeners": None}
            beside["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,SSL:SSL"
            restarted(node, {**texts, **beside})
        between: dict[str, object] = {"security.inter.broker.protocol": "SSL"}
        restarted(cluster.controller, {**texts, **between})
        for node in cluster.brokers.values():
            restarted(node, between)
        with_tls = {
            "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports.values()),
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority.trusted),
            "group.id": "g",
        }
        consumer = confluent_kafka.Consumer(with_tls)
        partition = confluent_kafka.TopicPartition("t", 0)
        assert consumer.get_watermark_offsets(partition, DEADLINE_S) == (0, written)
        consumer.close()
