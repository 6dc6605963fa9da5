"""Byte rates of the partitions led here, of topics that are resized by their load (KIP-253).

Owns the rates and their part of heartbeats (tag 10001). Not the decision: that is the controller's.
Costs nothing per batch: it reads the counter of bytes that each partition has anyway, every
``EVERY_MS``, of those topics alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.metadata.configurations import EntityType
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.metadata.configurations import ConfigCache
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.broker.partitions.unaware_writers import UnawareWriters
    from tidelog.runtime.clock import Clock

EVERY_MS = 2_000
"""The time between two reports."""

WINDOW_MS = 10_000
"""A rate is the mean of so long: a burst of a second does not double a topic."""

AUTO = "partitions.auto"

_LedTopic = messages.BrokerHeartbeatRequest.LedTopic
_ByteRate = messages.BrokerHeartbeatRequest.ByteRate


class _Sample(NamedTuple):
    at_ms: int
    bytes_in: int


class _Samples:
    """The samples of one partition in one leader epoch, oldest first."""

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self._kept: deque[_Sample] = deque()

    def rate(self, now: _Sample) -> int | None:
        """Return the bytes per second up to now; None until two samples are there."""
        kept = self._kept
        kept.append(now)
        while len(kept) > 2 and now.at_ms - kept[1].at_ms >= WINDOW_MS:
            kept.popleft()
        first = kept[0]
        passed_ms = now.at_ms - first.at_ms
        return (now.bytes_in - first.bytes_in) * 1000 // passed_ms if passed_ms > 0 else None


class ByteRates:
    """The rates of one broker. Used on the event loop only."""

    def __init__(self, partitions: Partitions, topic_configs: ConfigCache, clock: Clock) -> None:
        self._partitions = partitions
        self._topic_configs = topic_configs
        self._clock = clock
        self._samples: dict[HostedPartition, _Samples] = {}
        self._changes = -1
        self._names: list[str] = []
        self._last_ms: int | None = None

    def report(self) -> dict[str, list[Any]]:
        """Return the rates of each topic for a heartbeat; empty between two reports."""
        now_ms = self._clock.monotonic_ms()
        if self._last_ms is not None and now_ms - self._last_ms < EVERY_MS:
            return {}
        self._last_ms = now_ms
        rates: dict[str, list[Any]] = {}
        led: set[HostedPartition] = set()
        for name in self._topics():
            for index, hosted in self._partitions.by_topic.get(name, {}).items():
                if not hosted.is_leader:
                    continue
                led.add(hosted)
                rate = self._sampled(hosted).rate(_Sample(now_ms, hosted.bytes_in))
                if rate is not None:
                    rates.setdefault(name, []).append(_ByteRate(index, rate))
        for gone in self._samples.keys() - led:
            del self._samples[gone]
        return rates

    def _sampled(self, hosted: HostedPartition) -> _Samples:
        samples = self._samples.get(hosted)
        if samples is None or samples.leader_epoch != hosted.leader_epoch:
            # What it took as a follower is no load of the topic.
            samples = self._samples[hosted] = _Samples(hosted.leader_epoch)
        return samples

    def _topics(self) -> Sequence[str]:
        """Return the topics that are resized by their load. O(1) until a configuration changes."""
        configs = self._topic_configs
        if configs.changes != self._changes:
            self._changes = configs.changes
            self._names = [
                name
                for name in configs.names(EntityType.TOPIC)
                if AUTO in configs.of(EntityType.TOPIC, name)
                and configs.topic(name).partitions_auto
            ]
        return self._names


def led_topics(
    registration: int, writers: UnawareWriters, rates: ByteRates, partitions: Partitions
) -> list[Any]:
    """Return the topics of a heartbeat: those whose writers have changed, and those with rates."""
    by_id = {led.topic_id: led for led in writers.report(registration)}
    for name, of_topic in rates.report().items():
        topic_id = next(iter(partitions.by_topic[name].values())).topic_id
        led = by_id.get(topic_id)
        if led is None:
            led = by_id[topic_id] = writers.led(name, topic_id)
        led.byte_rates = of_topic
    return list(by_id.values())
