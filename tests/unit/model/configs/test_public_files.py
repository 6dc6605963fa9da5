"""Kafka's configuration files of six public projects: each name is taken, named as one without
effect, or refused, and the file starts once the advice of the refusals is followed.

Names and values as the files had them, read in 2026; hosts and passwords are not theirs, and of
many names of one plug-in there is one for each kind.
"""

from __future__ import annotations

import re

import pytest

from tidelog.model.configs import kafka_names
from tidelog.model.configs.broker import BROKER
from tidelog.model.configs.file_names import without_effect
from tidelog.model.configs.server import ServerConfigs, from_mapping

MOST = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}
"""What nearly all of them have."""

PROTOCOLS = "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"

# apache/kafka: config/kraft/server.properties
KRAFT = {
    **MOST,
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://localhost:9092",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{PROTOCOLS}",
    "log.dirs": "/tmp/kraft-combined-logs",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}

# apache/kafka: config/server.properties of the versions with ZooKeeper
WITH_ZOOKEEPER = {
    **MOST,
    "broker.id": "0",
    "delete.topic.enable": "true",
    "auto.create.topics.enable": "false",
    "listeners": "PLAINTEXT://localhost:9092",
    "log.dirs": "/tmp/kafka-logs",
    "zookeeper.connect": "localhost:2182,localhost:2183,localhost:2184",
    "zookeeper.connection.timeout.ms": "6000",
}

# Alliander/docker-kafka: config/server.properties
ALLIANDER = {
    **MOST,
    "broker.id": "0",
    "log.dirs": "/opt/kafka/data/topics",
    "log.retention.hours": "-1",
    "zookeeper.connect": "zookeeper:2181",
    "zookeeper.connection.timeout.ms": "6000",
}

# AutomationD/kafka-docker: config/server.properties
AUTOMATION_D = {
    **MOST,
    "broker.id": "0",
    "port": "9092",
    "advertised.port": "9092",
    "log.dirs": "/mnt/kafka-logs",
    "log.cleaner.enable": "false",
    "zookeeper.connect": "localhost:2181",
    "zookeeper.connection.timeout.ms": "6000",
}

# AutoMQ/automq: config/kraft/server.properties
AUTO_MQ = {
    **KRAFT,
    "create.topic.policy.class.name": "kafka.server.es.ElasticCreateTopicPolicy",
    "elasticstream.enable": "true",
    "elasticstream.endpoint": "s3://",
    "s3.endpoint": "https://s3.amazonaws.com",
    "s3.region": "us-east-1",
    "s3.bucket": "ko3",
    "s3.wal.path": "/tmp/kraft-combined-logs/s3wal",
    "s3.object.compaction.interval.minutes": "10",
    "s3.object.compaction.cache.size": "2147483648",
    "s3.object.compaction.stream.split.size": "16777216",
}

# teddynted/secure-apache-kafka-kraft-mode-using-sasl-scram-sha-256: config/kraft/server.properties
SCRAM = {
    **KRAFT,
    "listeners": "SASL_SSL://localhost:9092,CONTROLLER://localhost:9093",
    "inter.broker.listener.name": "SASL_SSL",
    "advertised.listeners": "SASL_SSL://localhost:9092",
    "listener.security.protocol.map": "CONTROLLER:SASL_SSL,SSL:SSL,SASL_SSL:SASL_SSL",
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "sasl.enabled.mechanisms": "SASL_PLAINTEXT,SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,SASL_SSL",
    "sasl.mechanism.controller.protocol": "SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol": "SASL_SSL",
    "ssl.client.auth": "required",
    "ssl.truststore.location": "truststore.jks",
    "ssl.truststore.type": "PKCS12",
    "ssl.truststore.password": "x",
    "ssl.keystore.location": "keystore.jks",
    "ssl.keystore.type": "PKCS12",
    "ssl.keystore.password": "x",
    "ssl.key.password": "x",
    "ssl.endpoint.identification.algorithm": "",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "false",
    "super.users": "User:admin",
    "delete.topic.enable": "true",
    "default.replication.factor": "2",
    "min.insync.replicas": "2",
    "auto.create.topics.enable": "true",
    "unclean.leader.election.enable": "false",
    "log4j.logger.org.apache.kafka.common.network.SslTransportLayer": "DEBUG",
}

# confluentinc/cp-ansible: a rendered server.properties in error_files/
CONFLUENT = {
    **MOST,
    "broker.id": "2",
    "listeners": "INTERNAL://:9092,BROKER://:9091",
    "advertised.listeners": "INTERNAL://localhost:9092,BROKER://localhost:9091",
    "listener.security.protocol.map": "INTERNAL:SASL_SSL,BROKER:SASL_SSL",
    "inter.broker.listener.name": "BROKER",
    "authorizer.class.name": "io.confluent.kafka.security.authorizer.ConfluentServerAuthorizer",
    "confluent.authorizer.access.rule.providers": "CONFLUENT,ZK_ACL",
    "confluent.license.topic.replication.factor": "3",
    "confluent.metadata.server.listeners": "http://0.0.0.0:8090",
    "confluent.metrics.reporter.topic.replicas": "3",
    "confluent.schema.registry.url": "https://localhost:8081",
    "confluent.support.metrics.enable": "true",
    "confluent.telemetry.enabled": "true",
    "confluent.tier.enable": "true",
    "group.initial.rebalance.delay.ms": "3000",
    "kafka.rest.bootstrap.servers": "localhost:9092",
    "ldap.user.name.attribute": "sAMAccountName",
    "listener.name.broker.gssapi.sasl.jaas.config": "com.example.Module required;",
    "listener.name.broker.sasl.enabled.mechanisms": "GSSAPI",
    "listener.name.broker.ssl.client.auth": "required",
    "listener.name.broker.ssl.keystore.location": "broker.jks",
    "listener.name.internal.oauthbearer.sasl.server.callback.handler.class": "com.example.Handler",
    "metric.reporters": "io.confluent.metrics.reporter.ConfluentMetricsReporter",
    "log.dirs": "/var/lib/kafka/data",
    "offsets.topic.replication.factor": "3",
    "sasl.enabled.mechanisms": "OAUTHBEARER,GSSAPI",
    "sasl.kerberos.service.name": "kafka",
    "sasl.mechanism.inter.broker.protocol": "GSSAPI",
    "super.users": "User:kafka",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.replication.factor": "3",
    "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
    "zookeeper.connect": "localhost:2182",
    "zookeeper.connection.timeout.ms": "18000",
    "zookeeper.set.acl": "true",
    "zookeeper.ssl.client.enable": "true",
    "zookeeper.ssl.keystore.location": "broker.jks",
}

CONTROLLER = ",CONTROLLER://localhost:9093"
PLAIN = {"listeners": "PLAINTEXT://localhost:9092" + CONTROLLER}

FILES = {
    "Kafka's with KRaft": (KRAFT, {}),
    "Kafka's with ZooKeeper": (WITH_ZOOKEEPER, PLAIN),
    "Alliander's": (ALLIANDER, {}),
    "AutomationD's": (AUTOMATION_D, PLAIN),
    "AutoMQ's": (AUTO_MQ, {}),
    "teddynted's with SCRAM": (
        SCRAM,
        {"listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SASL_SSL:PLAINTEXT"},
    ),
    "Confluent's": (
        CONFLUENT,
        {
            "listeners": CONFLUENT["listeners"] + CONTROLLER,
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,BROKER:PLAINTEXT",
        },
    ),
}
"""Each file, and what its refusals say to write instead of a line of it. Refused names go."""

AS_IT_IS = {"Kafka's with KRaft"}


def refusals(texts: dict[str, str]) -> list[str]:
    taken = from_mapping(texts)
    return [] if isinstance(taken, ServerConfigs) else [each.sentence for each in taken]


def refused_names(sentences: list[str], texts: dict[str, str]) -> set[str]:
    """The names before the colon or verb of each sentence that are in the file."""
    heads = [re.split(r" (?:is|are) refused:|: neither|: ", each)[0] for each in sentences]
    return {name for head in heads for name in re.split(r"[ ,]+", head) if name in texts}


@pytest.mark.parametrize("whose", FILES)
def test_each_name_is_taken_named_or_refused(whose: str) -> None:
    texts, _ = FILES[whose]
    refused = refused_names(refusals(texts), texts)
    clauses = " ".join(without_effect(texts))
    silent = [
        name
        for name, text in texts.items()
        if name not in BROKER
        and name not in refused
        and name not in clauses
        and f"{kafka_names.plug_in(name)}*" not in clauses
        and kafka_names.idle(name, text) is not None
    ]
    assert silent == [], "names that have no effect, and no line"
    strange = [name for name in texts if name not in BROKER and not kafka_names.is_known(name)]
    assert set(strange) <= refused, "names that neither Kafka nor this version has"


@pytest.mark.parametrize("whose", FILES)
def test_a_file_starts_as_its_refusals_advise(whose: str) -> None:
    texts, instead = FILES[whose]
    sentences = refusals(texts)
    assert bool(sentences) == (whose not in AS_IT_IS)
    gone = refused_names(sentences, texts) - instead.keys() - {"listeners"}
    mended = {**{name: text for name, text in texts.items() if name not in gone}, **instead}
    assert refusals(mended) == []
