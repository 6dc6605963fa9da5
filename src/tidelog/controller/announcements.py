"""Requests that several control channels send for the same change, built once for all brokers.

Owns the reuse. UpdateMetadata as bytes: ten brokers would otherwise need the same ten thousand
partitions encoded ten times; only the broker epoch differs, at a fixed position. For LeaderAndIsr,
where every broker gets its own partitions: the split of partitions by broker in one pass, and the
state of each partition, which all its replicas get. What the requests contain: see ``requests``.

A kept request is valid until the next change (``forget``), and only for the same revision and the
same damaged replicas and topics: it is never older than the change that a channel has to send.
Keeps at most ``KEPT`` of each kind, each as large as what changed, or as the whole metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import TypeVar

from tidelog.controller import requests
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.pending import Changes
from tidelog.model.api_keys import ApiKey
from tidelog.model.topics import TopicPartition
from tidelog.protocol import codec, messages
from tidelog.protocol.primitives import Buffer

KeptRequest = TypeVar("KeptRequest")

KEPT = 4
"""Brokers that lag need other changes than the others: a few kinds at a time."""

_EPOCH_AT = 8
"""Position of the broker epoch: after controller id and epoch, in every version from 5."""

_EPOCH = struct.Struct(">q")


class Announcements:
    """The kept requests of one controller, for all its control channels."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, bytes] = {}
        self._splits: dict[Hashable, requests.Split] = {}
        self._commands: dict[TopicPartition, requests.PartitionCommand] = {}
        self._commands_of = -1
        """The revision of ``_commands``."""
        self.made = 0
        """How many messages were built and encoded: for tests and measurements."""
        self.passes = 0
        """How often changed partitions were split by broker: likewise."""

    def forget(self) -> None:
        """Drop all kept requests: something changed."""
        self._kept.clear()
        self._splits.clear()
        self._commands = {}

    def commands(
        self, cluster: ClusterState, sender: requests.Sender, broker: int, changes: Changes
    ) -> messages.LeaderAndIsrRequest:
        """Return LeaderAndIsr of the changed partitions, for one broker."""
        if self._commands_of != cluster.revision:
            self._commands, self._commands_of = {}, cluster.revision
        key = cluster.revision, frozenset(changes.partitions)
        split = self._splits.get(key)
        if split is None:
            split = requests.by_broker(cluster, changes.partitions)
            self.passes += 1
            _keep(self._splits, key, split)
        own = split.get(broker, {})
        return requests.commands(cluster, sender, broker, own, requests.INCREMENTAL, self._commands)

    def everything(
        self, cluster: ClusterState, sender: requests.Sender, broker: int
    ) -> codec.EncodedRequest:
        """Return UpdateMetadata of all partitions, for the beginning of a channel."""
        return self._encoded(cluster, sender, broker, None, (), cluster.all_partitions)

    def of_changes(
        self, cluster: ClusterState, sender: requests.Sender, broker: int, changes: Changes
    ) -> codec.EncodedRequest:
        """Return UpdateMetadata of the changed partitions and topics.

        Of a topic whose resize was just published it names every partition: the broker shows the
        new resize epoch from this message on, and no partition may lack its birth or retirement.
        """
        named = _with_published(cluster, changes.partitions | changes.shown)
        gone = tuple(changes.gone.values())
        return self._encoded(cluster, sender, broker, frozenset(named), gone, lambda: named)

    def _encoded(
        self,
        cluster: ClusterState,
        sender: requests.Sender,
        broker: int,
        named: frozenset[TopicPartition] | None,
        gone: tuple[requests.Gone, ...],
        places: Callable[[], Iterable[TopicPartition]],
    ) -> codec.EncodedRequest:
        version = cluster.level.update_metadata
        broken = frozenset(cluster.broken)
        key = (cluster.revision, version, named, gone, broken, *cluster.unreadable_topics)
        made = self._kept.get(key)
        if made is None:
            request = requests.update_metadata(cluster, sender, broker, places(), gone)
            made = codec.encode_message(ApiKey.UPDATE_METADATA, version, request)
            self.made += 1
            _keep(self._kept, key, made)
        epoch = _EPOCH.pack(requests.epoch_of(cluster, broker))
        rest = memoryview(made)[_EPOCH_AT + _EPOCH.size :]
        message: list[Buffer] = [made[:_EPOCH_AT], epoch, rest]
        return codec.EncodedRequest(ApiKey.UPDATE_METADATA, version, message)


def _with_published(
    cluster: ClusterState, named: Collection[TopicPartition]
) -> Collection[TopicPartition]:
    # A part whose LeaderAndIsr was answered after the publication is older than what it says.
    if not cluster.resizing:
        return named
    all_places = set(named)
    for name in cluster.resizing.intersection(tp.topic for tp in named):
        history, node = cluster.topic_histories.get(name), cluster.topics.get(name)
        plan = None if history is None else history.resize
        if node is not None and plan is not None and plan.published:
            all_places.update(TopicPartition(name, index) for index in node.partitions)
    return all_places


def _keep(kept: dict[Hashable, KeptRequest], key: Hashable, made: KeptRequest) -> None:
    while len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[key] = made
