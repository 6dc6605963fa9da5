"""Dynamic configurations from UpdateConfigs, resolved on demand.

Owns the configurations of topics and brokers, and the resolved values of each topic. Not the
definitions and their order of precedence: see ``model.configs``. A change is visible to lookups at
once; the hosted partitions apply it in pieces, because there may be thousands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum

from tidelog.model.configs.broker import BROKER
from tidelog.model.configs.cordoned import CORDONED_LOG_DIRS, cordoned_among
from tidelog.model.configs.resolve import MIN_INSYNC, BrokerLayers, ResolvedTopic, TopicResolver
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.configs.types import parse
from tidelog.model.work import Work
from tidelog.storage.checkpoints import KeptConfigs

logger = logging.getLogger(__name__)


class EntityType(IntEnum):
    """The kind of entity of a set of configurations; the numbers of Kafka's ConfigResource."""

    TOPIC = 2
    BROKER = 4


DEFAULT_BROKER = ""
"""Entity name of the defaults for all brokers."""


class ConfigCache:
    """Configurations of topics and brokers, by entity."""

    def __init__(self, node_id: int, static: Mapping[str, str]) -> None:
        self._node = str(node_id)
        self._file = BrokerLayers(static)
        self._static = static
        self._sets: dict[tuple[int, str], dict[str, str]] = {}
        self._resolver = TopicResolver(self.layers())
        """For the current layers: values that no topic overrides are resolved once."""
        self._resolved: dict[str, TopicConfigs] = {}
        self._at_start: dict[KeptConfigs, TopicConfigs] = {}
        self.changes = 0
        """+1 with each change: a part that keeps values compares it."""
        self.when_changed: Callable[[Collection[str] | None], Work[None]] = _ignore
        """Applies a change to the topics (None: all), in pieces."""

    def topic(self, name: str) -> TopicConfigs:
        """Return a topic's typed configuration. O(1) after the first time."""
        configs = self._resolved.get(name)
        if configs is None:
            configs = self._resolved[name] = self.describe_topic(name).configs
        return configs

    def forget(self, topic: str) -> None:
        """Drop the resolved values of a topic without hosted partitions."""
        self._resolved.pop(topic, None)

    def own(self, topic: str) -> KeptConfigs:
        """Return the topic's own configurations, as its replicas store them."""
        return tuple(sorted(self.of(EntityType.TOPIC, topic).items()))

    def at_start(self, kept: KeptConfigs) -> TopicConfigs:
        """Return a topic's configuration before the first UpdateConfigs: from the broker's file and
        the values that a replica has stored. O(1) after the first time."""
        configs = self._at_start.get(kept)
        if configs is None:
            configs = self._resolver.resolve(dict(kept)).configs
            self._at_start[kept] = configs
        return configs

    def describe_topic(self, name: str) -> ResolvedTopic:
        """Resolve a topic's configuration, with the entries of DescribeConfigs."""
        return self._resolver.resolve(self.of(EntityType.TOPIC, name))

    def layers(self) -> BrokerLayers:
        """Return this broker's configurations: its file, its own dynamic ones, and the defaults."""
        return BrokerLayers(
            self._static,
            self.of(EntityType.BROKER, self._node),
            self.of(EntityType.BROKER, DEFAULT_BROKER),
        )

    def controller_goes_by(self, min_insync: int) -> Work[None]:
        """Use the higher ``min.insync.replicas`` of the controller's file and this broker's.

        With a lower one a leader would acknowledge records that replicas lack which the controller
        takes as complete (docs/decisions/0034). -1: an older controller does not send it. Returns
        work, as ``apply``.
        """
        own = self._file.static_min_insync
        higher = max(own, min_insync)
        if higher == self.layers().static_min_insync:
            return _ignore(None)
        if higher > own:
            logger.warning(
                "%s is %d in this broker's file and %d in the controller's, which is used: set it "
                "for all brokers (tidelog configs)",
                *(MIN_INSYNC, own, higher),
            )
        self._static = {**self._file.static, MIN_INSYNC: str(higher)}
        self._at_start.clear()
        self._resolver = TopicResolver(self.layers())
        self._resolved.clear()
        return self.when_changed(None)

    def number(self, name: str, otherwise: int) -> int:
        """Return the current value of a number of this broker that can be set dynamically.

        An invalid value, written by an old tool, is skipped.
        """
        return int(self.decimal(name, otherwise))

    def decimal(self, name: str, otherwise: float) -> float:
        """Return the current value of a number that may have a fraction, as ``number`` does."""
        layers = self.layers()
        for texts in (layers.dynamic, layers.dynamic_default, layers.static):
            value = parse(BROKER[name], texts[name]) if name in texts else None
            if isinstance(value, int | float):
                return value
        return otherwise

    def is_cordoned(self, log_dir: str) -> bool:
        """Return whether a log directory of this broker gets no new replicas (KIP-1066)."""
        layers = self.layers()
        for texts in (layers.dynamic, layers.static):
            name = CORDONED_LOG_DIRS
            entries = parse(BROKER[name], texts[name]) if name in texts else None
            if isinstance(entries, tuple):
                return bool(cordoned_among(entries, [log_dir]))
        return False

    def of(self, entity_type: int, name: str) -> Mapping[str, str]:
        """Return the dynamic configurations of one entity."""
        return self._sets.get((entity_type, name), {})

    def names(self, entity_type: int) -> list[str]:
        """Return the sorted names of the entities of a type that have configurations."""
        return sorted(name for kind, name in self._sets if kind == entity_type)

    def apply(
        self, entities: Iterable[tuple[int, str, Mapping[str, str]]], *, complete: bool
    ) -> Work[None]:
        """Replace the whole set of each entity; with ``complete`` remove all others.

        That is done at once; the work returned is what follows (``when_changed``).
        """
        self._at_start.clear()
        self.changes += 1
        changed = {(kind, name): dict(values) for kind, name, values in entities}
        before = self._sets
        kept = {} if complete else dict(before)
        kept.update(changed)
        self._sets = {key: values for key, values in kept.items() if values}
        named = {*before, *changed} if complete else changed
        touched = {key for key in named if before.get(key, {}) != self._sets.get(key, {})}
        topics: list[str] | None = [name for _, name in touched]
        if any(kind == EntityType.BROKER for kind, _ in touched):
            topics = None
            self._resolver = TopicResolver(self.layers())
            self._resolved.clear()
        for _, name in touched:
            self._resolved.pop(name, None)
        return self.when_changed(topics) if touched else _ignore(topics)


def _ignore(_topics: Collection[str] | None) -> Work[None]:
    """Do nothing: without a listener changes are only cached."""
    yield from ()
