"""Kafka's client configurations that have no effect in these commands.

Owns which of them are accepted, so that a properties file of stock clients works as it is, and
which are refused because ignoring them would change the result.
Source: ProducerConfig, ConsumerConfig and AdminClientConfig of Apache Kafka 4.1.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from tidelog.cli.refusal import WrongUsage

_PREFIXES = ("sasl.", "ssl.")
"""Without effect while security.protocol is PLAINTEXT, as in Kafka's clients; with SSL the others
are judged by `client.encrypting`."""

_OF_CLIENTS = """
    auto.include.jmx.reporter client.dns.lookup client.rack config.providers
    connections.max.idle.ms enable.metrics.push metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level
    metrics.sample.window.ms receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms
    retries retry.backoff.max.ms retry.backoff.ms security.providers send.buffer.bytes
    socket.connection.setup.timeout.max.ms
"""
_OF_PRODUCERS = """
    compression.gzip.level compression.lz4.level compression.zstd.level interceptor.classes
    key.serializer metadata.max.idle.ms partitioner.adaptive.partitioning.enable
    partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys
    transaction.timeout.ms value.serializer
"""
_OF_CONSUMERS = """
    allow.auto.create.topics auto.commit.interval.ms check.crcs exclude.internal.topics
    fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.remote.assignor
    heartbeat.interval.ms interceptor.classes key.deserializer max.partition.fetch.bytes
    max.poll.interval.ms max.poll.records partition.assignment.strategy session.timeout.ms
    value.deserializer
"""
_OF_ALL = frozenset(_OF_CLIENTS.split())
_WITHOUT_EFFECT = {
    "client": _OF_ALL,
    "producer": _OF_ALL.union(_OF_PRODUCERS.split()),
    "consumer": _OF_ALL.union(_OF_CONSUMERS.split()),
}
_REFUSED = {
    "transactional.id": "this command writes outside of transactions",
    "group.protocol": "only the classic protocol is supported",
}
"""Names that change what is written or read."""


def check_unused(name: str, value: str, kind: str, honoured: Collection[str]) -> None:
    """Accept a configuration of a ``kind`` (client, producer, consumer) that has no effect here.

    Raises WrongUsage for a name that Kafka does not know, or that must not be ignored.
    ``honoured`` are the names that have an effect.
    """
    if name in _REFUSED and kind != "client":
        if (name, value) == ("group.protocol", "classic"):
            return
        raise WrongUsage(f"the {kind} property {name}={value}: {_REFUSED[name]}")
    unused = _WITHOUT_EFFECT[kind]
    if name in unused or name.startswith(_PREFIXES):
        return
    near = get_close_matches(name, [*honoured, *unused], 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    used = ", ".join(honoured)
    raise WrongUsage(f"the {kind} property {name!r} is unknown; {hint}those with an effect: {used}")
