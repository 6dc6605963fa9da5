"""The dynamic configurations that the controller handed to this broker, resolved on demand.

Owns what UpdateConfigs brought and the order of precedence's result per topic; the definitions and
the order itself are in ``model``. A change holds for who asks at once; the topics that are hosted
are told in pieces, for there may be thousands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum

from tidelog.model.configs.broker import BROKER
from tidelog.model.configs.resolve import MIN_INSYNC, BrokerLayers, ResolvedTopic, TopicResolver
from tidelog.model.configs.topic_values import TopicConfigs
from tidelog.model.configs.types import parse
from tidelog.runtime.turns import Pieces
from tidelog.storage.checkpoints import KeptConfigs

logger = logging.getLogger(__name__)


class EntityType(IntEnum):
    """What a set of configurations belongs to; the numbers of Kafka's ConfigResource."""

    TOPIC = 2
    BROKER = 4


DEFAULT_BROKER = ""
"""Entity name of the configurations that hold for all brokers."""


class ConfigCache:
    """Configurations of topics and brokers, by entity."""

    def __init__(self, node_id: int, static: Mapping[str, str]) -> None:
        self._node = str(node_id)
        self._file = BrokerLayers(static)
        self._static = static
        self._sets: dict[tuple[int, str], dict[str, str]] = {}
        self._resolver = TopicResolver(self.layers())
        """Of the present layers: what no topic sets itself is resolved once for all."""
        self._resolved: dict[str, TopicConfigs] = {}
        self._at_start: dict[KeptConfigs, TopicConfigs] = {}
        self.when_changed: Callable[[Collection[str] | None], Pieces[None]] = _nobody
        """Does, in pieces, what follows for the topics whose configuration changed (None: all)."""

    def topic(self, name: str) -> TopicConfigs:
        """Return a topic's typed configuration. O(1) after the first time."""
        found = self._resolved.get(name)
        if found is None:
            found = self._resolved[name] = self.describe_topic(name).configs
        return found

    def forget(self, topic: str) -> None:
        """No partition of a topic is hosted any more: what was resolved for it goes."""
        self._resolved.pop(topic, None)

    def own(self, topic: str) -> KeptConfigs:
        """Return what was set for a topic itself, as its replicas keep it on disk."""
        return tuple(sorted(self.of(EntityType.TOPIC, topic).items()))

    def at_start(self, kept: KeptConfigs) -> TopicConfigs:
        """Return the configuration of a topic of which a replica keeps this, before a controller
        has spoken: the broker's file and what was set for the topic. O(1) after the first time."""
        found = self._at_start.get(kept)
        if found is None:
            found = self._resolver.resolve(dict(kept)).configs
            self._at_start[kept] = found
        return found

    def describe_topic(self, name: str) -> ResolvedTopic:
        """Resolve a topic's configuration with the rows of DescribeConfigs."""
        return self._resolver.resolve(self.of(EntityType.TOPIC, name))

    def layers(self) -> BrokerLayers:
        """Return the configurations of this broker: its file, its own, those of all brokers."""
        return BrokerLayers(
            self._static,
            self.of(EntityType.BROKER, self._node),
            self.of(EntityType.BROKER, DEFAULT_BROKER),
        )

    def controller_goes_by(self, min_insync: int) -> Pieces[None]:
        """Of the controller's file and this broker's the higher ``min.insync.replicas`` counts.

        By a lower one a leader would acknowledge without replicas that the controller holds for
        complete (docs/decisions/0034). -1: an older controller, which does not say. In pieces, as
        ``apply``.
        """
        own = self._file.static_min_insync
        higher = max(own, min_insync)
        if higher == self.layers().static_min_insync:
            return
        if higher > own:
            logger.warning(
                "%s is %d in this broker's file and %d in the controller's, which counts: set it "
                "for all brokers (tidelog configs)",
                *(MIN_INSYNC, own, higher),
            )
        self._static = {**self._file.static, MIN_INSYNC: str(higher)}
        self._at_start.clear()
        self._resolver = TopicResolver(self.layers())
        self._resolved.clear()
        yield None
        yield from self.when_changed(None)

    def number(self, name: str, of_file: int) -> int:
        """Return a number of this broker that may be set while it runs, as it holds now.

        What cannot be (an old tool wrote it) is passed over.
        """
        layers = self.layers()
        for texts in (layers.dynamic, layers.dynamic_default):
            value = parse(BROKER[name], texts[name]) if name in texts else None
            if isinstance(value, int):
                return value
        return of_file

    def of(self, entity_type: int, name: str) -> Mapping[str, str]:
        """Return what was set dynamically for one entity."""
        return self._sets.get((entity_type, name), {})

    def names(self, entity_type: int) -> list[str]:
        """Return the sorted names of the entities of a type that have configurations."""
        return sorted(name for kind, name in self._sets if kind == entity_type)

    def apply(
        self, entities: Iterable[tuple[int, str, Mapping[str, str]]], *, complete: bool
    ) -> Pieces[None]:
        """Replace the whole set of each entity; with ``complete`` forget all others too.

        That is the first piece; those that follow tell whom it concerns.
        """
        self._at_start.clear()
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
        yield None
        if touched:
            yield from self.when_changed(topics)


def _nobody(_topics: Collection[str] | None) -> Pieces[None]:
    """Until somebody listens, changes are only cached."""
    yield from ()
