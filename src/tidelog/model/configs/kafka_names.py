"""Kafka's server configurations that this version does not have: what a file with them gets.

Owns their names, of Kafka 4.3, of 3.9 with ZooKeeper and some older ones, in three classes, and
the prefixes of plug-ins. Not the configurations that work: see ``broker``; not what depends on the
other names of a file: see ``file_names``.

| class | a start |
|---|---|
| ``IGNORED``: without effect here, and the user gets the same | goes on, with one warning |
| ``UNUSED``: of a feature whose switch is refused, so that nothing uses them | goes on, likewise |
| ``REFUSED``: the user would get less, for example no encryption | ends, unless harmless |
| ``PLUG_INS``: prefixes of names that a plug-in of Kafka reads, never Kafka | goes on, likewise |

A name with the prefix ``listener.name.NAME.`` counts as the one that follows the prefix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from tidelog.model.configs import tls

OF_LISTENER = re.compile(r"listener\.name\.[^.]+\.(?:[^.]+\.(?=sasl\.))?(.+)")


class NotServed(NamedTuple):
    """Why a configuration is refused or unused, and the values that ask for nothing."""

    reason: str
    harmless: tuple[str, ...]


NO_QUORUM = "there is no Raft quorum: the metadata are in metadata.store"

IGNORED: Mapping[str, str] = {
    name: reason
    for reason, names in (
        (
            NO_QUORUM,
            """
            controller.quorum.append.linger.ms controller.quorum.auto.join.enable
            controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms
            controller.quorum.fetch.max.bytes controller.quorum.fetch.snapshot.max.bytes
            controller.quorum.fetch.timeout.ms controller.quorum.request.timeout.ms
            controller.quorum.retry.backoff.ms early.start.listeners
            initial.broker.registration.timeout.ms metadata.log.dir
            metadata.log.max.record.bytes.between.snapshots
            metadata.log.max.snapshot.interval.ms metadata.log.segment.bytes
            metadata.log.segment.ms metadata.max.idle.interval.ms metadata.max.retention.bytes
            metadata.max.retention.ms
            """,
        ),
        (
            "metadata.store=zookeeper://... has its own time-outs",
            """
            zookeeper.clientCnxnSocket zookeeper.connection.timeout.ms zookeeper.sync.time.ms
            zookeeper.max.in.flight.requests zookeeper.metadata.migration.enable
            zookeeper.session.timeout.ms
            """,
        ),
        (
            "a process has one event loop and a fixed number of threads",
            """
            group.coordinator.append.linger.ms group.coordinator.background.threads
            group.coordinator.cached.buffer.max.bytes group.coordinator.threads
            num.replica.alter.log.dirs.threads remote.log.manager.copier.thread.pool.size
            remote.log.manager.expiration.thread.pool.size
            remote.log.manager.follower.thread.pool.size remote.log.manager.thread.pool.size
            remote.log.reader.threads share.coordinator.threads
            """,
        ),
        (
            "requests wait without a purgatory",
            """
            delete.records.purgatory.purge.interval.requests
            fetch.purgatory.purge.interval.requests producer.purgatory.purge.interval.requests
            share.fetch.purgatory.purge.interval.requests
            """,
        ),
        (
            "this version has the classic group protocol alone",
            """
            group.consumer.assignment.interval.ms group.consumer.assignors
            group.consumer.heartbeat.interval.ms group.consumer.max.assignment.interval.ms
            group.consumer.max.heartbeat.interval.ms group.consumer.max.session.timeout.ms
            group.consumer.max.size group.consumer.migration.policy
            group.consumer.min.assignment.interval.ms group.consumer.min.heartbeat.interval.ms
            group.consumer.min.session.timeout.ms group.consumer.session.timeout.ms
            group.coordinator.rebalance.protocols group.share.assignment.interval.ms
            group.share.assignors group.share.delivery.count.limit
            group.share.heartbeat.interval.ms group.share.max.assignment.interval.ms
            group.share.max.delivery.count.limit group.share.max.groups
            group.share.max.heartbeat.interval.ms group.share.max.partition.max.record.locks
            group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms
            group.share.max.share.sessions group.share.max.size
            group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
            group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
            group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
            group.share.partition.max.record.locks group.share.record.lock.duration.ms
            group.share.session.timeout.ms group.streams.assignment.interval.ms
            group.streams.heartbeat.interval.ms group.streams.initial.rebalance.delay.ms
            group.streams.max.assignment.interval.ms group.streams.max.heartbeat.interval.ms
            group.streams.max.session.timeout.ms group.streams.max.size
            group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
            group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
            group.streams.num.standby.replicas group.streams.session.timeout.ms
            share.coordinator.append.linger.ms share.coordinator.cached.buffer.max.bytes
            share.coordinator.load.buffer.size
            share.coordinator.snapshot.update.records.per.snapshot
            share.coordinator.state.topic.compression.codec
            share.coordinator.state.topic.num.partitions
            share.coordinator.state.topic.segment.bytes share.coordinator.write.timeout.ms
            """,
        ),
        (
            "nothing is tiered",
            """
            follower.fetch.last.tiered.offset.enable log.local.retention.bytes
            log.local.retention.ms remote.fetch.max.wait.ms
            remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
            remote.log.manager.copy.max.bytes.per.second
            remote.log.manager.copy.quota.window.num
            remote.log.manager.copy.quota.window.size.seconds
            remote.log.manager.fetch.max.bytes.per.second
            remote.log.manager.fetch.quota.window.num
            remote.log.manager.fetch.quota.window.size.seconds
            remote.log.manager.task.interval.ms remote.log.metadata.custom.metadata.max.bytes
            remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
            remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
            remote.log.reader.max.pending.tasks remote.log.storage.manager.class.name
            remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix
            """,
        ),
        (
            "coordinators of transactions do these by themselves",
            """
            add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
            transaction.abort.timed.out.transaction.cleanup.interval.ms
            transaction.remove.expired.transaction.cleanup.interval.ms
            transaction.state.log.load.buffer.size
            """,
        ),
        (
            "metrics are served on metrics_port, as Prometheus's text",
            """
            auto.include.jmx.reporter kafka.metrics.polling.interval.secs
            kafka.metrics.reporters metric.reporters metrics.num.samples metrics.recording.level
            metrics.sample.window.ms telemetry.max.bytes
            """,
        ),
        (
            "this version has no quotas of clients; throttles of moves need no windows",
            """
            alter.log.dirs.replication.quota.window.num
            alter.log.dirs.replication.quota.window.size.seconds controller.quota.window.num
            controller.quota.window.size.seconds quota.window.num quota.window.size.seconds
            replication.quota.window.num replication.quota.window.size.seconds
            """,
        ),
        (
            "no password is stored by a process",
            """
            password.encoder.cipher.algorithm password.encoder.iterations
            password.encoder.key.length password.encoder.keyfactory.algorithm
            password.encoder.old.secret password.encoder.secret
            """,
        ),
        (
            "connections between processes have fixed limits",
            """
            connection.failed.authentication.delay.ms control.plane.listener.name
            replica.socket.receive.buffer.bytes socket.connection.setup.timeout.max.ms
            socket.connection.setup.timeout.ms
            """,
        ),
        (
            "TLS is OpenSSL's, not Java's",
            """
            security.providers ssl.keymanager.algorithm ssl.protocol ssl.provider
            ssl.secure.random.implementation ssl.trustmanager.algorithm
            """,
        ),
        (
            "certificates may change their names",
            """
            ssl.allow.dn.changes ssl.allow.san.changes
            """,
        ),
        (
            "Kafka itself does not read them",
            """
            ssl.key.credentials ssl.keystore.credentials ssl.keystore.filename
            ssl.truststore.credentials ssl.truststore.filename
            """,
        ),
        (
            "node.id is always the file's",
            """
            broker.id.generation.enable reserved.broker.max.id
            """,
        ),
        (
            "eligible replicas are always kept",
            """
            eligible.leader.replicas.enable
            """,
        ),
        (
            "Kafka itself has removed them",
            """
            controller.message.queue.size log.cleanup.interval.mins replica.lag.max.messages
            """,
        ),
        (
            "a client has them: Kafka's server ignores them, too",
            """
            max.partition.fetch.bytes max.request.size
            """,
        ),
        (
            "there is one format of batches",
            """
            log.message.downconversion.enable log.message.format.version
            """,
        ),
        (
            "a commit always waits for all replicas in sync",
            """
            offsets.commit.required.acks
            """,
        ),
        (
            "a failed log directory is reported with the next heartbeat",
            """
            log.dir.failure.timeout.ms
            """,
        ),
        (
            "a request is bounded as a whole: fetch.max.bytes",
            """
            max.request.partition.size.limit
            """,
        ),
    )
    for name in names.split()
}
"""Names that Kafka knows and that have no effect here, each with the reason."""

_UNUSED = (
    (
        "no listener uses SSL",
        """
        ssl.engine.factory.class
        """,
    ),
    (
        "no listener uses SASL",
        """
        connections.max.reauth.ms=0 delegation.token.expiry.check.interval.ms=3600000
        delegation.token.expiry.time.ms=86400000 delegation.token.master.key
        delegation.token.max.lifetime.ms=604800000 delegation.token.secret.key
        sasl.client.callback.handler.class sasl.enabled.mechanisms=GSSAPI sasl.jaas.config
        sasl.kerberos.kinit.cmd=/usr/bin/kinit sasl.kerberos.min.time.before.relogin=60000
        sasl.kerberos.principal.to.local.rules=DEFAULT sasl.kerberos.service.name
        sasl.kerberos.ticket.renew.jitter=0.05 sasl.kerberos.ticket.renew.window.factor=0.8
        sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
        sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds=300
        sasl.login.refresh.min.period.seconds=60 sasl.login.refresh.window.factor=0.8
        sasl.login.refresh.window.jitter=0.05 sasl.login.retry.backoff.max.ms=10000
        sasl.login.retry.backoff.ms=100 sasl.mechanism.controller.protocol=GSSAPI
        sasl.mechanism.inter.broker.protocol=GSSAPI
        sasl.oauthbearer.assertion.algorithm=RS256 sasl.oauthbearer.assertion.claim.aud
        sasl.oauthbearer.assertion.claim.exp.seconds=300
        sasl.oauthbearer.assertion.claim.iss
        sasl.oauthbearer.assertion.claim.jti.include=false
        sasl.oauthbearer.assertion.claim.nbf.seconds=60 sasl.oauthbearer.assertion.claim.sub
        sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
        sasl.oauthbearer.assertion.private.key.passphrase
        sasl.oauthbearer.assertion.template.file
        sasl.oauthbearer.client.credentials.client.id
        sasl.oauthbearer.client.credentials.client.secret
        sasl.oauthbearer.clock.skew.seconds=30 sasl.oauthbearer.expected.audience
        sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.refresh.ms=3600000
        sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms=10000
        sasl.oauthbearer.jwks.endpoint.retry.backoff.ms=100
        sasl.oauthbearer.jwks.endpoint.url
        sasl.oauthbearer.jwt.retriever.class=org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
        sasl.oauthbearer.jwt.validator.class=org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
        sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name=scope
        sasl.oauthbearer.sub.claim.name=sub sasl.oauthbearer.token.endpoint.url
        sasl.server.callback.handler.class sasl.server.max.receive.size=524288
        """,
    ),
    (
        "no authorizer.class.name is set",
        """
        allow.everyone.if.no.acl.found=false super.users
        """,
    ),
    (
        "zookeeper.ssl.client.enable is not true",
        """
        zookeeper.ssl.cipher.suites
        zookeeper.ssl.crl.enable=false
        zookeeper.ssl.enabled.protocols
        zookeeper.ssl.endpoint.identification.algorithm=HTTPS
        zookeeper.ssl.keystore.location zookeeper.ssl.keystore.password
        zookeeper.ssl.keystore.type zookeeper.ssl.ocsp.enable=false
        zookeeper.ssl.protocol=TLSv1.2 zookeeper.ssl.truststore.location
        zookeeper.ssl.truststore.password zookeeper.ssl.truststore.type
        """,
    ),
)

_REFUSED = (
    (
        "say advertised.listeners=PLAINTEXT://HOST:PORT and listeners=PLAINTEXT://HOST:PORT, with "
        ",CONTROLLER://HOST:PORT where the process is a controller",
        """
        advertised.host.name advertised.port host.name port
        """,
    ),
    (
        "this version has no authorizer, and would allow everything",
        """
        authorizer.class.name
        """,
    ),
    (
        "this version runs no Java, and would not ask this class",
        """
        alter.config.policy.class.name client.quota.callback.class
        create.topic.policy.class.name
        principal.builder.class=org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
        """,
    ),
    (
        "this version resolves no ${...}, and would take it for the value",
        """
        config.providers
        """,
    ),
    (
        "this version moves no segment to remote storage, and would fill the disk",
        """
        remote.log.storage.system.enable=false
        """,
    ),
    (
        "this version has no such limit: max.connections.per.ip and max.connections hold for all",
        """
        max.connection.creation.rate=2147483647 max.connections.per.ip.overrides
        """,
    ),
    (
        "this version has no quotas of clients, and would let them through unlimited",
        """
        quota.consumer.default=9223372036854775807 quota.producer.default=9223372036854775807
        """,
    ),
    (
        "this version has no two-phase commit of other systems",
        """
        transaction.two.phase.commit.enable=false
        """,
    ),
    (
        "use log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms",
        """
        log.message.timestamp.difference.max.ms=9223372036854775807
        """,
    ),
    (
        "the connection to ZooKeeper has neither TLS nor access control in this version",
        """
        zookeeper.set.acl=false zookeeper.ssl.client.enable=false
        """,
    ),
    (
        "there is no quorum of voters: say controller.quorum.bootstrap.servers=HOST:PORT, "
        "without ids",
        """
        controller.quorum.voters
        """,
    ),
    (
        "leave it out, and one controller keeps the metadata in a file, or say "
        "metadata.store=zookeeper://HOST:PORT,.../CHROOT with a chroot that Kafka does not use",
        """
        zookeeper.connect
        """,
    ),
)

PLUG_INS: Mapping[str, str] = {
    prefix: reason
    for reason, prefixes in (
        (
            "metrics are served on metrics_port, as Prometheus's text",
            """
            confluent.metrics. confluent.reporters.telemetry. confluent.support.
            confluent.telemetry. cruise.control.metrics. jmx. prometheus.metrics.reporter.
            """,
        ),
        (
            "Confluent's server has them, Kafka and this version have not",
            """
            confluent.balancer. confluent.cluster.link. confluent.http.server. confluent.license
            confluent.metadata.server. confluent.metadata.topic. confluent.schema.registry.
            confluent.security.event.logger.exporter.kafka.topic.
            """,
        ),
        (
            "no authorizer.class.name is set",
            """
            confluent.authorizer. opa.authorizer. strimzi.authorization.
            """,
        ),
        (
            "no config.providers are set",
            """
            config.providers.
            """,
        ),
        (
            "no client.quota.callback.class is set",
            """
            client.quota.callback.static.
            """,
        ),
        (
            "logs have no configuration but logging.format",
            """
            log4j.
            """,
        ),
    )
    for prefix in prefixes.split()
}
"""Prefixes of names that plug-ins read. None of them protects anything or moves data away by
itself: the name of the plug-in that does is refused."""


def _classed(groups: tuple[tuple[str, str], ...]) -> Mapping[str, NotServed]:
    return {
        name: NotServed(reason, tuple(harmless.split("|")))
        for reason, names in groups
        for name, _, harmless in (each.partition("=") for each in names.split())
    }


REFUSED: Mapping[str, NotServed] = _classed(_REFUSED)
"""Names whose value could give the user less than the file says."""

UNUSED: Mapping[str, NotServed] = _classed(_UNUSED)
"""Names of a feature that nothing uses: what switches it on is refused wherever it stands."""


def name_of(name: str) -> str:
    """Return a name without the prefix of a listener and of a SASL mechanism."""
    found = OF_LISTENER.fullmatch(name)
    return name if found is None else found[1]


def is_known(name: str) -> bool:
    """Return whether a name is in one of the classes."""
    bare = name_of(name)
    is_in_class = bare in IGNORED or bare in UNUSED or bare in REFUSED
    return is_in_class or tls.override_of(name) is not None or plug_in(name) is not None


def refusal(name: str, text: str) -> str | None:
    """Return why a value that this version cannot serve is refused; None where it is harmless."""
    found = REFUSED.get(name_of(name))
    return None if found is None or _is_harmless(found, text) else found.reason


def idle(name: str, text: str) -> str | None:
    """Return why a value has no effect here; None where it could have one or asks for nothing."""
    bare = name_of(name)
    if (found := UNUSED.get(bare)) is not None:
        return None if _is_harmless(found, text) else found.reason
    prefix = plug_in(name)
    return IGNORED.get(bare) if prefix is None else PLUG_INS[prefix]


def plug_in(name: str) -> str | None:
    """Return the prefix of a plug-in's names that this one has; None if it has none."""
    return next((prefix for prefix in PLUG_INS if name.startswith(prefix)), None)


def _is_harmless(found: NotServed, text: str) -> bool:
    return text.strip() in ("", *found.harmless)
