"""What several brokers are told of the same change, made once for all of them.

UpdateMetadata as bytes: to ten brokers the same ten thousand partitions would otherwise be written
ten times; of the message only the broker epoch differs, and it has its place. Of LeaderAndIsr, in
which every broker finds its own partitions: which those are, in one pass for all brokers, and what
the replicas of one partition are all told.

What was made holds until something is to be told (``forget``), and only for the same revision and
the same damaged replicas: it is never older than what the outbox that sends it has noted. Keeps at
most ``KEPT`` of each kind, each as large as what changed, or as everything.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from tidelog.controller import requests
from tidelog.controller.decisions.cluster import Cluster
from tidelog.controller.pending import Changes
from tidelog.model.api_keys import ApiKey
from tidelog.model.topics import TopicPartition
from tidelog.protocol import codec, messages
from tidelog.protocol.primitives import Buffer

Kept = TypeVar("Kept")

KEPT = 4
"""Brokers that are behind need other changes than the rest: a few kinds at a time."""

_EPOCH_AT = 8
"""Where the broker epoch stands: behind controller id and epoch, in every version from 5 on."""

_EPOCH = struct.Struct(">q")


class Announcements:
    """What the brokers of one controller are told; one for all its outboxes."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, bytes] = {}
        self._splits: dict[Hashable, requests.Split] = {}
        self._orders: dict[TopicPartition, requests.PartitionOrder] = {}
        self._orders_of = -1
        """The revision that ``_orders`` are of."""
        self.made = 0
        """How many messages were built and encoded: for tests and measurements."""
        self.passes = 0
        """How often changed partitions were divided among the brokers: likewise."""

    def forget(self) -> None:
        """Something changed: nothing that was made before is sent any more."""
        self._kept.clear()
        self._splits.clear()
        self._orders = {}

    def orders(
        self, cluster: Cluster, sender: requests.Sender, broker: int, changes: Changes
    ) -> messages.LeaderAndIsrRequest:
        """Return LeaderAndIsr of what changed, for one broker."""
        if self._orders_of != cluster.revision:
            self._orders, self._orders_of = {}, cluster.revision
        key = cluster.revision, frozenset(changes.partitions)
        split = self._splits.get(key)
        if split is None:
            split = requests.by_broker(cluster, changes.partitions)
            self.passes += 1
            _keep(self._splits, key, split)
        own = split.get(broker, {})
        return requests.orders(cluster, sender, broker, own, requests.INCREMENTAL, self._orders)

    def everything(
        self, cluster: Cluster, sender: requests.Sender, broker: int
    ) -> codec.EncodedRequest:
        """Return UpdateMetadata of all partitions, to begin a channel with."""
        return self._encoded(cluster, sender, broker, None, (), cluster.all_partitions)

    def of_changes(
        self, cluster: Cluster, sender: requests.Sender, broker: int, changes: Changes
    ) -> codec.EncodedRequest:
        """Return UpdateMetadata of what changed."""
        named = changes.partitions
        gone = tuple(changes.gone.values())
        return self._encoded(cluster, sender, broker, frozenset(named), gone, lambda: named)

    def _encoded(
        self,
        cluster: Cluster,
        sender: requests.Sender,
        broker: int,
        named: frozenset[TopicPartition] | None,
        gone: tuple[requests.Gone, ...],
        places: Callable[[], Iterable[TopicPartition]],
    ) -> codec.EncodedRequest:
        version = cluster.level.update_metadata
        broken = frozenset(cluster.broken)
        key = (cluster.revision, version, named, gone, broken)
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


def _keep(kept: dict[Hashable, Kept], key: Hashable, made: Kept) -> None:
    while len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[key] = made
