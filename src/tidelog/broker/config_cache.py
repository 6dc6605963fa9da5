"""The dynamic configurations that the controller handed to this broker, resolved on demand.

Owns what UpdateConfigs brought and the order of precedence's result per topic; the definitions and
the order itself are in ``model``. A change takes effect at once: the topics concerned are told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum

from tidelog.model.config_definitions import (
    BROKER,
    BrokerLayers,
    ResolvedTopic,
    parse,
    resolve_topic,
)
from tidelog.model.topic_configs import TopicConfigs


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
        self._static = static
        self._sets: dict[tuple[int, str], dict[str, str]] = {}
        self._resolved: dict[str, TopicConfigs] = {}
        self.when_changed: Callable[[str], None] = _nobody
        """Called with each topic whose configuration changed ("" for all topics)."""

    def topic(self, name: str) -> TopicConfigs:
        """Return a topic's typed configuration. O(1) after the first time."""
        found = self._resolved.get(name)
        if found is None:
            found = self._resolved[name] = self.describe_topic(name).configs
        return found

    def describe_topic(self, name: str) -> ResolvedTopic:
        """Resolve a topic's configuration with the rows of DescribeConfigs."""
        return resolve_topic(self.of(EntityType.TOPIC, name), self.layers())

    def layers(self) -> BrokerLayers:
        """Return the configurations of this broker: its file, its own, those of all brokers."""
        return BrokerLayers(
            self._static,
            self.of(EntityType.BROKER, self._node),
            self.of(EntityType.BROKER, DEFAULT_BROKER),
        )

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
    ) -> None:
        """Replace the whole set of each entity; with ``complete`` forget all others too."""
        changed = {(kind, name): dict(values) for kind, name, values in entities}
        before = self._sets
        kept = {} if complete else dict(before)
        kept.update(changed)
        self._sets = {key: values for key, values in kept.items() if values}
        touched = {
            key for key in {*before, *changed} if before.get(key, {}) != self._sets.get(key, {})
        }
        if any(kind == EntityType.BROKER for kind, _ in touched):
            self._resolved.clear()
            self.when_changed("")
            return
        for _, name in touched:
            self._resolved.pop(name, None)
            self.when_changed(name)


def _nobody(_topic: str) -> None:
    """Until somebody listens, changes are only cached."""
