"""Ancestor tombstones: a note to former homes of a key that its older values are void (KIP-253).

Owns which records need one, and their delivery. Not what they do: the leader appends them, and the
cleaner applies them. Source: docs/design/elastic.md, "Compacted topics".

A record with a key of a compacted topic, written to a partition that was born by a growth, needs
one in each ancestor of the partition: an older value may be there. Each producer sends them once
for a key and a home, after the record is acknowledged, with acks=0 and on connections of their own,
because a leader closes the connection of one that it refuses. A lost one costs disk space only:
readers take the newest value either way.

A tombstone is of the resize epoch in which its record was written, and never sent in a newer one:
there an ancestor may be the home of the key again, and a newer value stand before the tombstone.

Bounds: ``KEYS_KEPT`` keys are remembered, the oldest are forgotten; ``MOST_BATCHES`` acknowledged
batches wait to be checked, and the oldest above are dropped. A broker that reads nothing gets
``MOST_UNSENT_BYTES``, and one that cannot be reached in ``CONNECT_S`` nothing; then it is left
alone for ``PAUSE_MS``. The keys of what it did not get are forgotten: their next records send the
tombstones again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidelog.client.admin.configs import describe_topics_configs
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.client.metadata import ClusterMetadata, Topic
from tidelog.client.producing.produce_requests import produce_request
from tidelog.client.stamps import Stamp, partition_stamp, stamp_of
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.older_homes import ancestors_with_older_values
from tidelog.records.control_records import AncestorTombstone, change_batch
from tidelog.records.reader import read_batch
from tidelog.replication.resize_rules import Named
from tidelog.runtime.clock import Clock

PURPOSE = "ancestor tombstones"

KEYS_KEPT = 65_536
"""Keys that are remembered; some 10 MB of short ones."""

MOST_BATCHES = 1_000
"""Acknowledged batches whose keys were not checked yet; 16 MB by default."""

MOST_UNSENT_BYTES = 1 << 20
"""What may wait for a broker that reads nothing, beside what the operating system takes."""

CONNECT_S = 1.0
"""How long a connection to one broker may keep the tombstones for the others waiting."""

PAUSE_MS = 5_000
"""How long a broker that took nothing is left alone."""

CLEANUP_POLICY = "cleanup.policy"


_Piece = tuple[TopicPartition, Named, bytes]


class Voided(NamedTuple):
    """A key whose older values in a partition are void, as of a resize epoch."""

    ancestor: TopicPartition
    key: bytes
    stamp: Stamp
    home: tuple[int, int] = (-1, -1)
    """The partition of the record, and its partition epoch."""


class RecentKeys:
    """The keys and homes that have their tombstones; bounded, the oldest are forgotten."""

    def __init__(self, most: int = KEYS_KEPT) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str, int, int, bytes], None] = OrderedDict()

    def add(self, topic: str, partition: int, partition_epoch: int, key: bytes) -> bool:
        """Remember a key in its home; False when it is remembered already."""
        entry = (topic, partition, partition_epoch, key)
        if entry in self._kept:
            return False
        self._kept[entry] = None
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return True

    def forget(self, voided: Voided) -> None:
        """Forget a key whose tombstone was not sent, so that its next record sends it again."""
        self._kept.pop((voided.ancestor.topic, *voided.home, voided.key), None)


def voided_by(topic: Topic, partition: int, key: bytes, stamp: Stamp) -> list[Voided]:
    """Return the older homes of a key that was written to a partition of an ordered topic.

    ``stamp``: under which it was written. None in another resize epoch of the topic.
    """
    home = topic.partitions.get(partition)
    if home is None or stamp_of(topic) != stamp:
        return []
    ancestors = ancestors_with_older_values(
        partition, topic.initial_partition_count, home.birth_epoch
    )
    return [
        Voided(TopicPartition(topic.name, index), key, stamp)
        for index in ancestors
        if index in topic.partitions
    ]


def rounds_of(waiting: Iterable[Voided]) -> list[dict[TopicPartition, Voided]]:
    """Return tombstones as requests: at most one key of each partition in each, in order."""
    rounds: list[dict[TopicPartition, Voided]] = []
    places: dict[TopicPartition, int] = {}
    for voided in waiting:
        place = places.get(voided.ancestor, 0)
        places[voided.ancestor] = place + 1
        if place == len(rounds):
            rounds.append({})
        rounds[place][voided.ancestor] = voided
    return rounds


def sent_now(view: ClusterMetadata, some: Iterable[Voided], now_ms: int) -> list[_Piece]:
    """Return what a request contains of tombstones: those of the topics' present resize epochs."""
    pieces: list[_Piece] = []
    for ancestor, key, stamp, _ in some:
        topic = view.topics.get(ancestor.topic)
        listed = None if topic is None else topic.partitions.get(ancestor.partition)
        if topic is not None and listed is not None and stamp_of(topic) == stamp:
            batch = change_batch(AncestorTombstone(key), leader_epoch=-1, timestamp_ms=now_ms)
            pieces.append((ancestor, partition_stamp(stamp, listed.partition_epoch), batch))
    return pieces


class AncestorTombstones:
    """The tombstones of one producer: ``note`` after each acknowledgement, then ``send``."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._recent = RecentKeys()
        self._written: deque[tuple[TopicPartition, Stamp, bytes]] = deque(maxlen=MOST_BATCHES)
        self._held: deque[tuple[TopicPartition, Stamp, bytes]] | None = None
        """What an open transaction has written; None: no transaction is open."""
        self._compacted: dict[tuple[str, int], bool] = {}
        self._paused_until_ms: dict[int, int] = {}
        """The brokers that took nothing, and when they are tried again."""

    def note(self, partition: TopicPartition, stamp: Stamp, batch: bytes) -> bool:
        """Note an acknowledged batch, written under a stamp; return whether ``send`` has to check
        it."""
        topic = self._cluster.view.topics.get(partition.topic)
        home = None if topic is None else topic.partitions.get(partition.partition)
        if topic is None or home is None or home.birth_epoch <= 0 or not topic.is_ordered:
            return False
        if self._compacted.get((topic.name, topic.resize_epoch)) is False:
            return False
        if self._held is not None:
            self._held.append((partition, stamp, batch))
            return False
        self._written.append((partition, stamp, batch))
        return True

    def hold(self) -> None:
        """Keep what is noted from now on: it is of a transaction, which may be aborted."""
        self._held = deque(maxlen=MOST_BATCHES)

    def release(self, *, committed: bool) -> bool:
        """The transaction has ended; return whether ``send`` has to check what it has written.

        What was aborted voids nothing: a tombstone for it would take away a value that stands.
        """
        held, self._held = self._held, None
        if committed and held:
            self._written.extend(held)
        return committed and bool(held)

    async def send(self) -> None:
        """Send the tombstones of what was noted. What cannot be sent is dropped."""
        while self._written:
            tp, stamp, batch = self._written.popleft()
            topic = self._cluster.view.topics.get(tp.topic)
            try:
                if topic is None or not await self._is_compacted(topic):
                    continue
                for round_ in rounds_of(self._voided(topic, tp.partition, stamp, batch)):
                    await self._send_round(round_)
            except ClientError:
                # A lost one costs disk space only.
                continue

    def _voided(self, topic: Topic, partition: int, stamp: Stamp, batch: bytes) -> list[Voided]:
        home = topic.partitions.get(partition)
        if home is None or stamp_of(topic) != stamp:
            return []
        return [
            voided._replace(home=(partition, home.partition_epoch))
            for record in read_batch(batch)
            if record.key is not None
            and self._recent.add(topic.name, partition, home.partition_epoch, record.key)
            for voided in voided_by(topic, partition, record.key, stamp)
        ]

    async def _is_compacted(self, topic: Topic) -> bool:
        """Return whether a topic is compacted; asked once for each resize epoch."""
        incarnation = (topic.name, topic.resize_epoch)
        if incarnation not in self._compacted:
            configs = (
                await describe_topics_configs(self._cluster, [topic.name], [CLEANUP_POLICY])
            )[topic.name]
            if isinstance(configs, Refused):
                raise configs
            values = [config.value or "" for config in configs if config.name == CLEANUP_POLICY]
            self._compacted[incarnation] = any("compact" in value.split(",") for value in values)
        return self._compacted[incarnation]

    async def _send_round(self, round_: dict[TopicPartition, Voided]) -> None:
        by_leader: dict[int, list[Voided]] = {}
        for tp, voided in round_.items():
            state = self._cluster.view.partition(tp)
            if state is not None and state.leader in self._cluster.view.brokers:
                by_leader.setdefault(state.leader, []).append(voided)
        for node_id, some in by_leader.items():
            if not await self._send_to(node_id, some):
                for voided in some:
                    self._recent.forget(voided)

    async def _send_to(self, node_id: int, some: Sequence[Voided]) -> bool:
        """Send some tombstones to one broker; False when it takes none now."""
        if self._clock.monotonic_ms() < self._paused_until_ms.get(node_id, 0):
            return False
        timeout_ms = self._cluster.settings.request_timeout_ms
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await self._cluster.connection(node_id, PURPOSE)
        except (TimeoutError, ClientError):
            return self._pause(node_id)
        if connection.unsent_bytes > MOST_UNSENT_BYTES:
            return self._pause(node_id)
        self._paused_until_ms.pop(node_id, None)
        # Metadata may be newer after each wait.
        pieces = sent_now(self._cluster.view, some, self._clock.wall_ms())
        if pieces:
            connection.submit(produce_request(pieces, 0, timeout_ms), answered=False)
        return True

    def _pause(self, node_id: int) -> bool:
        self._paused_until_ms[node_id] = self._clock.monotonic_ms() + PAUSE_MS
        return False
