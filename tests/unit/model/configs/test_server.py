"""server.properties: its syntax, and a process's configuration as typed values or refusals."""

from __future__ import annotations

import pytest

from tidelog.model.configs.addresses import Listener, split_address
from tidelog.model.configs.resolve import BrokerLayers, resolve_topic
from tidelog.model.configs.server import ServerConfigs, from_mapping, load


def loaded(text: str) -> ServerConfigs:
    found = load(text)
    assert isinstance(found, ServerConfigs), found
    return found


def test_one_line_makes_a_whole_node() -> None:
    configs = loaded("node.id=3")
    assert (configs.is_broker, configs.is_controller) == (True, True)
    assert configs.broker_listeners == (Listener("PLAINTEXT", "", 9092),)
    assert configs.controller_listeners == (Listener("CONTROLLER", "", 9093),)
    # The process takes this machine's name for it.
    assert configs.advertised_listeners == (Listener("PLAINTEXT", "", 9092),)
    assert configs.inter_broker_listener_name == "PLAINTEXT"
    assert configs.controller_quorum_bootstrap_servers == ()
    assert configs.metadata_store == f"sqlite:{configs.log_dirs[0]}/metadata.sqlite"
    assert configs.metrics_address is None
    assert configs.texts == {"node.id": "3"}


def test_a_full_file() -> None:
    configs = loaded(
        """
        # a broker
        broker.id = 7
        process.roles = broker
        listeners = INSIDE://127.0.0.1:1,OUTSIDE://[::1]:0
        advertised.listeners = INSIDE://a:1,OUTSIDE://b:2
        listener.security.protocol.map = INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT
        inter.broker.listener.name = INSIDE
        controller.quorum.bootstrap.servers = c1:9093, c2:9093
        log.dirs = /data/a, /data/b
        broker.rack = r1
        metrics_port = 0.0.0.0:9100
        log.retention.hours = 1
        """
    )
    assert configs.node_id == 7
    assert configs.listeners == (
        Listener("INSIDE", "127.0.0.1", 1),
        Listener("OUTSIDE", "::1", 0),
    )
    assert str(configs.listeners[1]) == "OUTSIDE://[::1]:0"
    assert configs.advertised_listeners[1] == Listener("OUTSIDE", "b", 2)
    assert configs.inter_broker_listener_name == "INSIDE"
    assert configs.controller_quorum_bootstrap_servers == (("c1", 9093), ("c2", 9093))
    assert configs.log_dirs == ("/data/a", "/data/b")
    assert configs.metrics_address == ("0.0.0.0", 9100)
    topic = resolve_topic({}, BrokerLayers(static=configs.texts)).configs
    assert topic.retention_ms == 3_600_000


def test_the_file_that_comes_with_kafka_4_is_taken_as_it_is() -> None:
    configs = loaded(
        """
        process.roles=broker,controller
        node.id=1
        controller.quorum.bootstrap.servers=localhost:9093
        listeners=PLAINTEXT://:9092,CONTROLLER://:9093
        inter.broker.listener.name=PLAINTEXT
        advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
        controller.listener.names=CONTROLLER
        listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
        num.network.threads=3
        num.io.threads=8
        socket.send.buffer.bytes=102400
        socket.receive.buffer.bytes=102400
        socket.request.max.bytes=104857600
        log.dirs=/tmp/kraft-combined-logs
        num.partitions=1
        num.recovery.threads.per.data.dir=2
        offsets.topic.replication.factor=1
        transaction.state.log.replication.factor=1
        transaction.state.log.min.isr=1
        share.coordinator.state.topic.replication.factor=1
        share.coordinator.state.topic.min.isr=1
        log.retention.hours=168
        log.segment.bytes=1073741824
        log.retention.check.interval.ms=300000
        """
    )
    # The controller's address is none for clients.
    assert configs.advertised_listeners == (Listener("PLAINTEXT", "localhost", 9092),)


def test_a_controller_alone_may_advertise_itself() -> None:
    configs = loaded(
        "node.id=1\nprocess.roles=controller\nlisteners=CONTROLLER://:9093\n"
        "advertised.listeners=CONTROLLER://localhost:9093\n"
    )
    assert configs.advertised_listeners == ()


def test_a_file_of_the_time_of_zookeeper_gets_a_hint_where_its_address_goes() -> None:
    found = load("broker.id=0\nzookeeper.connect=localhost:2181\n")
    assert isinstance(found, tuple)
    assert [refused.name for refused in found] == ["zookeeper.connect"]
    assert "metadata.store=zookeeper://" in found[0].sentence


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("node.idd=1", "node.idd"),
        ("num.partitions=0", "num.partitions"),
        ("num.partitions=many", "num.partitions"),
        ("process.roles=brooker", "process.roles"),
        ("process.roles=", "process.roles"),
        ("broker.id=2", "node.id"),
        ("listeners=9092", "listeners"),
        ("listeners=PLAINTEXT://:70000,CONTROLLER://:1", "listeners"),
        ("listeners=SSL://:1,CONTROLLER://:2", "listeners"),
        ("listeners=PLAINTEXT://:1", "listeners"),
        ("listeners=CONTROLLER://:1", "listeners"),
        ("listeners=A://:1,A://:2", "listeners"),
        ("listener.security.protocol.map=PLAINTEXT", "listener.security.protocol.map"),
        ("advertised.listeners=OTHER://:1", "advertised.listeners"),
        ("advertised.listeners=CONTROLLER://h:1", "advertised.listeners"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:9092", "advertised.listeners"),
        ("advertised.listeners=PLAINTEXT://[::]:9092", "advertised.listeners"),
        ("logging.format=xml", "logging.format"),
        ("inter.broker.listener.name=OTHER", "inter.broker.listener.name"),
        ("process.roles=broker", "controller.quorum.bootstrap.servers"),
        ("controller.quorum.bootstrap.servers=:1", "controller.quorum.bootstrap.servers"),
        (
            "controller.quorum.bootstrap.servers=c1:1,c2:1",
            "controller.quorum.bootstrap.servers",
        ),
        ("metadata.store=postgres:x", "metadata.store"),
        ("metadata.store=sqlite:", "metadata.store"),
        ("metadata.store=zookeeper://", "metadata.store"),
        ("inter.broker.protocol.version=2.0", "inter.broker.protocol.version"),
        ("log.durability=maybe", "log.durability"),
        ("metrics_port=http", "metrics_port"),
        ("log.cleanup.policy=shred", "log.cleanup.policy"),
        ("log.dirs=", "log.dirs"),
        # With so little time requests that are on their way would be closed, or never forwarded.
        ("request.timeout.ms=0", "request.timeout.ms"),
        ("request.timeout.ms=999", "request.timeout.ms"),
    ],
)
def test_what_is_refused_at_start_is_named_in_one_line(line: str, named: str) -> None:
    if line == "log.dirs=":
        # Empty is as good as missing: log.dir holds.
        assert loaded(f"node.id=1\n{line}").log_dirs
        return
    found = load(f"node.id=1\n{line}")
    assert isinstance(found, tuple)
    assert named in {refused.name for refused in found}
    for refused in found:
        assert refused.name in refused.sentence
        assert "\n" not in refused.sentence


def test_all_refusals_come_at_once() -> None:
    found = from_mapping({"a.b": "1", "num.partitions": "x"})
    assert isinstance(found, tuple)
    assert [refused.name for refused in found] == ["a.b", "num.partitions"]


@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("", "10.0.0.1", True),
        ("0.0.0.0", "10.0.0.1", True),
        ("0.0.0.0", "broker-1", True),
        ("Broker-1", "broker-1", True),
        ("localhost", "127.0.0.1", True),
        ("localhost", "[::1]", True),
        ("[::]", "localhost", True),
        ("[::]", "[::1]", True),
        ("[::]", "0.0.0.0", False),
        ("[::]", "10.0.0.1", False),
        ("127.0.0.1", "10.0.0.1", False),
        ("localhost", "10.0.0.1", False),
    ],
)
def test_two_listeners_on_one_port_are_refused_in_a_line_that_names_both(
    one: str, other: str, refused: bool
) -> None:
    """`--check` accepted them, and the start said that another process had the port."""
    for first, second in ((one, other), (other, one)):
        names = f"PLAINTEXT://{first}:9092", f"CONTROLLER://{second}:9092"
        found = load(f"node.id=1\nlisteners={','.join(names)}\n")
        if not refused:
            assert isinstance(found, ServerConfigs), found
            continue
        assert isinstance(found, tuple)
        (line,) = found
        assert line.name == "listeners" and all(name in line.sentence for name in names)
    any_port = load(f"node.id=1\nlisteners=PLAINTEXT://{one}:0,CONTROLLER://{other}:0\n")
    assert isinstance(any_port, ServerConfigs)


def test_the_metrics_of_every_address_leave_a_port_of_ipv6() -> None:
    """Their server listens on all addresses of IPv4."""
    found = load(
        "node.id=1\nlisteners=PLAINTEXT://[::1]:9100,CONTROLLER://:9093\nmetrics_port=9100\n"
    )
    assert isinstance(found, ServerConfigs), found


def test_the_metrics_have_a_port_of_their_own() -> None:
    found = load("node.id=1\nmetrics_port=9093\n")
    assert isinstance(found, tuple)
    (line,) = found
    assert line.name == "metrics_port"
    assert "127.0.0.1:9093" in line.sentence and "CONTROLLER://:9093" in line.sentence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", ("a", 1)),
        (":1", ("", 1)),
        ("[::1]:2", ("::1", 2)),
        ("::1:2", None),
        ("a", None),
        ("a:", None),
        ("a:65536", None),
        ("a:-1", None),
        ("a:١", None),
    ],
)
def test_addresses(text: str, expected: tuple[str, int] | None) -> None:
    assert split_address(text) == expected


@pytest.mark.parametrize(
    ("times", "silence_ms"),
    [
        ("", 2000),
        ("broker.silence.suspect.ms=1500", 1500),
        ("broker.silence.suspect.ms=5999", 5999),
        # A value that is not set follows the session and the heartbeats ...
        ("broker.session.timeout.ms=3000", 1500),
        ("broker.session.timeout.ms=20000", 2000),
        ("broker.heartbeat.interval.ms=1000", 3000),
        ("broker.session.timeout.ms=1500\nbroker.heartbeat.interval.ms=300", 900),
        # ... and where they leave no room, death comes first.
        ("broker.session.timeout.ms=600", 600),
        ("broker.session.timeout.ms=1500", 1500),
    ],
)
def test_the_silence_of_a_suspicion(times: str, silence_ms: int) -> None:
    assert loaded(f"node.id=1\n{times}").broker_silence_suspect_ms == silence_ms


@pytest.mark.parametrize(
    ("times", "sentence"),
    [
        (
            "broker.silence.suspect.ms=1499",
            "broker.silence.suspect.ms is 1499: it must be at least 1500 (three times "
            "broker.heartbeat.interval.ms) and below 6000 (broker.session.timeout.ms).",
        ),
        (
            "broker.silence.suspect.ms=6000",
            "broker.silence.suspect.ms is 6000: it must be at least 1500 (three times "
            "broker.heartbeat.interval.ms) and below 6000 (broker.session.timeout.ms).",
        ),
        (
            "broker.session.timeout.ms=100",
            "broker.session.timeout.ms is 100: it must be above broker.heartbeat.interval.ms "
            "(500), or every broker expires between two heartbeats.",
        ),
        (
            "broker.session.timeout.ms=500",
            "broker.session.timeout.ms is 500: it must be above broker.heartbeat.interval.ms "
            "(500), or every broker expires between two heartbeats.",
        ),
    ],
)
def test_times_that_would_suspect_or_expire_live_brokers_are_refused(
    times: str, sentence: str
) -> None:
    found = load(f"node.id=1\n{times}")
    assert not isinstance(found, ServerConfigs)
    assert [each.sentence for each in found] == [sentence]
