"""Every server configuration of Kafka works here, has no effect, or is refused with its reason."""

from __future__ import annotations

import pytest

from tests.support.repository import ROOT
from tidelog.model.configs.broker import BROKER
from tidelog.model.configs.file_names import without_effect
from tidelog.model.configs.kafka_names import IGNORED, PLUG_INS, REFUSED, UNUSED
from tidelog.model.configs.server import ServerConfigs, from_mapping

NAMES = [
    line.split()[1]
    for line in (ROOT / "tests/fixtures/kafka_server_configs.txt").read_text().splitlines()
    if not line.startswith("#")
]


def sentences(**texts: str) -> list[str]:
    """The refusals of a file with these configurations."""
    named = {name.replace("__", "."): text for name, text in texts.items()}
    found = from_mapping({"node.id": "1", **named})
    return [] if isinstance(found, ServerConfigs) else [each.sentence for each in found]


def test_each_name_of_kafka_is_in_one_class() -> None:
    assert len(NAMES) == len(set(NAMES)) == 403
    classes = (set(BROKER), set(IGNORED), set(UNUSED), set(REFUSED))
    assert [name for name in NAMES if sum(name in each for each in classes) != 1] == []
    assert (set(IGNORED) | set(UNUSED) | set(REFUSED)) - set(NAMES) == set()


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_what_has_no_effect_is_accepted_and_named(name: str) -> None:
    assert isinstance(from_mapping({"node.id": "1", name: "7"}), ServerConfigs)
    assert without_effect({"node.id": "1", name: "7"}) == [f"{name} ({IGNORED[name]})"]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_served_is_refused_unless_it_is_off(name: str) -> None:
    for harmless in ("", *REFUSED[name].harmless):
        assert isinstance(from_mapping({"node.id": "1", name: harmless}), ServerConfigs)
    for full in (name, f"listener.name.external.{name}"):
        (refused,) = from_mapping({"node.id": "1", full: "on"})  # type: ignore[misc]
        assert refused.sentence == f"{full} is refused: {REFUSED[name].reason}."


@pytest.mark.parametrize("name", sorted(UNUSED))
def test_what_no_listener_uses_is_accepted_and_named(name: str) -> None:
    for full in (name, f"listener.name.external.{name}"):
        assert isinstance(from_mapping({"node.id": "1", full: "on"}), ServerConfigs)
        assert without_effect({"node.id": "1", full: "on"}) == [f"{full} ({UNUSED[name].reason})"]
        for harmless in ("", *UNUSED[name].harmless):
            assert without_effect({"node.id": "1", full: harmless}) == []


LISTENERS = "PLAINTEXT://:9092,CONTROLLER://:9093"
PROTECTED = [
    ({"listeners": f"{LISTENERS},{{}}://:9094"}, "listeners: "),
    (
        {
            "listeners": "A://:9092,CONTROLLER://:9093",
            "listener.security.protocol.map": "A:{},CONTROLLER:PLAINTEXT",
        },
        "listeners: ",
    ),
    ({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:{}"}, "listeners: "),
    (
        {
            "process.roles": "broker",
            "controller.quorum.bootstrap.servers": "c:9093",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:{}",
        },
        "controller.listener.names: ",
    ),
    (
        {
            "process.roles": "broker",
            "controller.quorum.bootstrap.servers": "c:9093",
            "controller.listener.names": "{}",
        },
        "controller.listener.names: ",
    ),
    ({"security.inter.broker.protocol": "{}"}, "security.inter.broker.protocol is refused: "),
]


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize(("file", "begin"), PROTECTED)
def test_each_way_to_a_protocol_that_protects_ends_the_start(
    file: dict[str, str], begin: str, protocol: str
) -> None:
    """What is unused beside PLAINTEXT alone never starts where something would use it."""
    unused = {"sasl.enabled.mechanisms": "PLAIN"}
    (said,) = sentences(**{name: text.format(protocol) for name, text in file.items()}, **unused)
    assert said.startswith(begin)
    assert "would serve what the file protects" in said


@pytest.mark.parametrize("name", ["authorizer.class.name", "principal.builder.class"])
def test_what_decides_about_permissions_is_refused(name: str) -> None:
    (said,) = sentences(**{name: "org.example.Own", "super.users": "User:admin"})
    assert said.startswith(f"{name} is refused: ")


def test_zookeepers_keys_wait_for_their_switch() -> None:
    store = {"zookeeper.ssl.keystore.location": "/keys"}
    assert sentences(**store) == []
    assert len(sentences(**store, **{"zookeeper.ssl.client.enable": "true"})) == 1


def test_a_listener_that_is_in_no_map_gets_the_entry_that_it_lacks() -> None:
    (said,) = sentences(listeners="INSIDE://:9092,CONTROLLER://:9093")
    assert said == (
        "listeners: INSIDE has none of Kafka's security protocols: say INSIDE:PLAINTEXT in "
        "listener.security.protocol.map."
    )


def test_the_only_voter_is_this_process() -> None:
    file = {"node.id": "1", "controller.quorum.voters": "1@localhost:9093"}
    assert isinstance(from_mapping(file), ServerConfigs)
    (clause,) = without_effect(file)
    assert clause.startswith("controller.quorum.voters (there is no Raft quorum")


@pytest.mark.parametrize(
    ("voters", "roles", "addresses"),
    [
        ("1@c:9093", "broker", "c:9093"),
        ("2@c:9093", "broker,controller", "c:9093"),
        ("1@c:9093,2@d:9093", "broker,controller", "c:9093,d:9093"),
        ("c:9093", "broker", "HOST:PORT"),
    ],
)
def test_other_voters_lead_to_the_configuration_that_works(
    voters: str, roles: str, addresses: str
) -> None:
    (said,) = sentences(controller__quorum__voters=voters, process__roles=roles)
    assert said == (
        "controller.quorum.voters is refused: there is no quorum of voters: say "
        f"controller.quorum.bootstrap.servers={addresses}, without ids."
    )


def test_a_host_has_no_id_in_front() -> None:
    (said,) = sentences(controller__quorum__bootstrap__servers="1@localhost:9093")
    assert said == (
        "controller.quorum.bootstrap.servers: 1@localhost:9093 is not of the form HOST:PORT: "
        "leave out the id."
    )


def test_one_warning_names_all_with_one_reason() -> None:
    found = without_effect(
        {
            "share.coordinator.threads": "2",
            "group.coordinator.threads": "4",
            "num.network.threads": "9",
            "num.io.threads": BROKER["num.io.threads"].default or "",
            "log.dirs": "/data",
        }
    )
    assert found == [
        "share.coordinator.threads, group.coordinator.threads (a process has one event loop and a "
        "fixed number of threads)",
        "num.network.threads (this version does nothing that they set)",
    ]


@pytest.mark.parametrize("prefix", sorted(PLUG_INS))
def test_names_of_a_plug_in_have_no_effect(prefix: str) -> None:
    one, two = f"{prefix}a", f"{prefix}b"
    assert sentences(**{one: "1", two: "2"}) == []
    assert without_effect({one: "1"}) == [f"{one} ({PLUG_INS[prefix]})"]
    assert without_effect({one: "1", two: "2"}) == [f"{prefix}* ({PLUG_INS[prefix]})"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("port", "listeners"),
        ("host.name", "listeners"),
        ("advertised.port", "advertised.listeners"),
        ("advertised.host.name", "advertised.listeners"),
    ],
)
def test_an_old_address_says_nothing_beside_the_new_one(old: str, new: str) -> None:
    file = {old: "1", new: "PLAINTEXT://h:1,CONTROLLER://h:2"}
    assert not any(said.startswith(old) for said in sentences(**file))
    assert without_effect(file) == [f"{old} ({new} is set)"]
    assert [said for said in sentences(**{old: "1"}) if said.startswith(f"{old} is refused: ")]


def test_one_start_names_all_that_is_wrong_with_a_file_one_line_for_each_reason() -> None:
    assert sentences(
        **{
            "broker.id": "2",
            "port": "9092",
            "host.name": "h",
            "s3.region": "a",
            "s3.bucket": "b",
            "metrics.reporters": "io.confluent.metrics.reporter.ConfluentMetricsReporter",
            "advertised.isteners": "PLAINTEXT://h:9092",
            "confluent.topic.replication.factor": "1",
        }
    ) == [
        "Unknown server configuration metrics.reporters (did you mean metric.reporters?).",
        "Unknown server configuration advertised.isteners (did you mean advertised.listeners?).",
        f"port, host.name are refused: {REFUSED['port'].reason}.",
        "Unknown server configurations s3.region, s3.bucket: neither this version nor Kafka has "
        "these names; leave them out.",
        "Unknown server configuration confluent.topic.replication.factor: neither this version nor "
        "Kafka has this name; leave it out.",
        "node.id is 1, but broker.id is 2.",
    ]


PUBLIC_FILES: dict[str, tuple[str, list[str]]] = {
    "Strimzi's operator, with Keycloak": (
        """
        node.id=0
        process.roles=broker
        controller.listener.names=CONTROLPLANE-9090
        controller.quorum.bootstrap.servers=controllers:9090
        config.providers=strimzienv
        config.providers.strimzienv.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider
        listener.security.protocol.map=CONTROLPLANE-9090:SSL,REPLICATION-9091:SSL,PLAIN-9092:PLAINTEXT
        listeners=REPLICATION-9091://:9091,PLAIN-9092://:9092
        listener.name.replication-9091.ssl.client.auth=required
        authorizer.class.name=io.strimzi.kafka.oauth.server.authorizer.KeycloakAuthorizer
        strimzi.authorization.client.id=kafka
        principal.builder.class=io.strimzi.kafka.oauth.server.OAuthKafkaPrincipalBuilder
        client.quota.callback.class=io.strimzi.kafka.quotas.StaticQuotaCallback
        client.quota.callback.static.produce=1000000
        prometheus.metrics.reporter.listener=http://:9404
        cruise.control.metrics.topic=strimzi.cruisecontrol.metrics
        """,
        [
            "authorizer.class.name is refused: ",
            "config.providers is refused: ",
            "listeners: REPLICATION-9091 (SSL): it has no certificate",
            "principal.builder.class, client.quota.callback.class are refused: ",
        ],
    ),
    "Bitnami's image": (
        """
        node.id=0
        process.roles=controller,broker
        controller.quorum.voters=0@kafka:9093
        listeners=PLAINTEXT://:9092,CONTROLLER://:9093
        max.partition.fetch.bytes=200000000
        max.request.size=200000000
        sasl.mechanism.inter.broker.protocol=
        """,
        [],
    ),
    "Confluent's server in a compose file": (
        """
        broker.id=1
        process.roles=broker,controller
        controller.quorum.voters=1@broker:9093
        listeners=PLAINTEXT://:29092,PLAINTEXT_HOST://:9092,CONTROLLER://:9093
        listener.security.protocol.map=PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT,CONTROLLER:PLAINTEXT
        metric.reporters=io.confluent.metrics.reporter.ConfluentMetricsReporter
        confluent.metrics.enable=true
        confluent.metrics.reporter.bootstrap.servers=broker:29092
        confluent.schema.registry.url=http://schema-registry:8081
        confluent.license.topic.replication.factor=1
        confluent.cluster.link.enable=false
        confluent.reporters.telemetry.auto.enable=false
        jmx.port=9101
        """,
        [],
    ),
    "cp-demo, with TLS, SASL and RBAC": (
        """
        broker.id=1
        zookeeper.connect=zookeeper:2181
        zookeeper.set.acl=true
        listeners=SASL_SSL://kafka1:9091,PLAINTEXT://kafka1:10091,CONTROLLER://kafka1:9093
        inter.broker.listener.name=SASL_SSL
        authorizer.class.name=kafka.security.auth.SimpleAclAuthorizer
        super.users=User:client;User:ANONYMOUS
        confluent.metadata.server.listeners=http://0.0.0.0:8090
        confluent.authorizer.access.rule.providers=ACL,RBAC
        ssl.keystore.filename=kafka.kafka1.keystore.jks
        log4j.loggers=kafka.authorizer.logger=INFO
        """,
        [
            "authorizer.class.name is refused: ",
            "listeners: ",
            "zookeeper.connect is refused: ",
            "zookeeper.set.acl is refused: ",
        ],
    ),
    "Kubernetes' stateful set": (
        """
        broker.id=0
        listeners=PLAINTEXT://:9092,CONTROLLER://:9093
        inter.broker.protocol.version=0.10.2-IV0
        quota.consumer.default=9223372036854775807
        quota.producer.default=1000
        log.message.timestamp.difference.max.ms=9223372036854775807
        offsets.commit.required.acks=-1
        replica.socket.receive.buffer.bytes=65536
        reserved.broker.max.id=1000
        """,
        [
            "Invalid value 0.10.2-IV0 for configuration inter.broker.protocol.version: ",
            "quota.producer.default is refused: ",
        ],
    ),
}
"""Parts of files of public projects, and how the refusals of each begin."""


@pytest.mark.parametrize("project", PUBLIC_FILES)
def test_no_name_of_a_public_project_is_unknown(project: str) -> None:
    """What works, what has no effect and what is refused: each with its reason."""
    text, begins = PUBLIC_FILES[project]
    file = dict(line.strip().split("=", 1) for line in text.strip().splitlines())
    refused = from_mapping(file)
    said = [] if isinstance(refused, ServerConfigs) else sorted(x.sentence for x in refused)
    assert len(said) == len(begins), said
    assert all(x.startswith(begin) for x, begin in zip(said, begins, strict=True)), said


def test_a_file_of_the_time_of_zookeeper_starts_when_each_advice_is_followed() -> None:
    file = {"broker.id": "0", "port": "9092", "zookeeper.connect": "zookeeper:2181"}
    refused = from_mapping(file)
    assert not isinstance(refused, ServerConfigs)
    port, store = (each.sentence for each in refused)
    # The listeners as the sentence has them, and the metadata left out.
    assert "listeners=PLAINTEXT://HOST:PORT, with ,CONTROLLER://HOST:PORT" in port
    assert "leave it out" in store
    followed = {"broker.id": "0", "listeners": "PLAINTEXT://h:9092,CONTROLLER://h:9093"}
    assert isinstance(from_mapping(followed), ServerConfigs)
