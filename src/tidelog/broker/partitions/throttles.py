"""The throttles of replication on one broker, as leader and as follower.

Owns the buckets, and which of them limit a copy by the configurations as they are now. Not the
rules: see `replication.throttling`. Not the pauses: a leader leaves a limited partition out of its
response (`fetching.partition_reads`), a follower out of its requests (`following`). Other
partitions of the same session are never delayed. The costs are constant while no throttle is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.metadata.configurations import ConfigCache, EntityType
from tidelog.model.configs.topic import TOPIC
from tidelog.model.configs.types import parse
from tidelog.replication.throttling import Bucket, is_listed
from tidelog.runtime.clock import Clock

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition

LEADER, FOLLOWER = "leader", "follower"
REASSIGNMENT_RATE = "reassignment.throttled.rate"
UNLIMITED = 2**63 - 1
"""The default of the rates."""


class _Listed(NamedTuple):
    """The value of a topic's list, and its entries: there may be thousands."""

    text: str
    replicas: frozenset[str]


class Throttles:
    """The throttles of one broker for one direction: what it sends (leader) or fetches."""

    def __init__(self, configs: ConfigCache, clock: Clock, side: str) -> None:
        """``side``: ``LEADER`` or ``FOLLOWER``."""
        self._configs = configs
        self._clock = clock
        self._list = f"{side}.replication.throttled.replicas"
        self._rates = (f"{side}.replication.throttled.rate", REASSIGNMENT_RATE)
        self._buckets: dict[str, Bucket] = {}
        self._listed: dict[str, _Listed] = {}
        """The throttled replicas of each topic that was asked for since the last change."""
        self._listed_before: dict[str, _Listed] = {}
        """The same of before that change: most changes are not about these lists."""
        self._changes = -1

    @property
    def is_set(self) -> bool:
        """Whether any rate is set now."""
        if self._changes != self._configs.changes:
            self._configure()
        return bool(self._buckets)

    def free_in_ms(self, partition: HostedPartition, replica: int) -> float:
        """Return when this replica of a partition may be copied on, in ms from now; 0: now."""
        if not self.is_set or replica in partition.state.isr:
            return 0
        now_ms = self._clock.monotonic_ms()
        return max(
            (bucket.free_in_ms(now_ms) for bucket in self._of(partition, replica)), default=0
        )

    def copied(self, partition: HostedPartition, replica: int, size: int) -> None:
        """Count bytes that were copied to this replica."""
        if not self._buckets or replica in partition.state.isr:
            return
        now_ms = self._clock.monotonic_ms()
        for bucket in self._of(partition, replica):
            bucket.charge(size, now_ms)

    def _of(self, partition: HostedPartition, replica: int) -> list[Bucket]:
        """Return the buckets that limit a copy. A target is limited without a list."""
        listed, moving = (self._buckets.get(name) for name in self._rates)
        buckets = []
        if moving is not None and replica in partition.state.targets:
            buckets.append(moving)
        if listed is not None and is_listed(
            self._listed_of(partition.topic), partition.partition, replica
        ):
            buckets.append(listed)
        return buckets

    def _listed_of(self, topic: str) -> frozenset[str]:
        listed = self._listed.get(topic)
        if listed is None:
            text = self._configs.of(EntityType.TOPIC, topic).get(self._list, "")
            before = self._listed_before.get(topic)
            listed = before if before is not None and before.text == text else self._parsed(text)
            self._listed[topic] = listed
        return listed.replicas

    def _parsed(self, text: str) -> _Listed:
        value = parse(TOPIC[self._list], text) if text else ()
        return _Listed(text, frozenset(value if isinstance(value, tuple) else ()))

    def _configure(self) -> None:
        """Take over the rates of now; a bucket keeps its debt."""
        self._changes = self._configs.changes
        self._listed_before, self._listed = self._listed, {}
        now_ms = self._clock.monotonic_ms()
        former: Mapping[str, Bucket] = self._buckets
        self._buckets = {}
        for name in self._rates:
            rate = self._configs.number(name, UNLIMITED)
            if rate >= UNLIMITED:
                continue
            bucket = former.get(name)
            if bucket is None:
                bucket = Bucket(rate, now_ms)
            else:
                bucket.change_rate(rate, now_ms)
            self._buckets[name] = bucket
