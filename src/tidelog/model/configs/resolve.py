"""Resolution of configurations: which value is in effect, and its source (DescribeConfigs).

Order of precedence for a topic, as in Kafka: the topic's own, then for each synonym the broker's
dynamic one, the dynamic default of all brokers, the static file, and last the default. Owns the
order. Not the tables: see `topic` and `broker`; values are stored elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from tidelog.model.configs.broker import BROKER
from tidelog.model.configs.topic import TOPIC, TopicConfigs
from tidelog.model.configs.types import (
    ConfigDefinition,
    ConfigSource,
    ConfigType,
    InvalidConfig,
    Update,
    Value,
    parse,
    unknown,
)

MIN_INSYNC = "min.insync.replicas"
RETIRED_PURGE = "retired.purge"


@dataclass(frozen=True, slots=True)
class BrokerLayers:
    """The configurations that one broker gives, as text: its file, its own dynamic ones, and the
    dynamic ones of all brokers."""

    static: Mapping[str, str] = field(default_factory=dict)
    dynamic: Mapping[str, str] = field(default_factory=dict)
    dynamic_default: Mapping[str, str] = field(default_factory=dict)

    @property
    def static_min_insync(self) -> int:
        """The file's ``min.insync.replicas``, or its default."""
        definition = BROKER[MIN_INSYNC]
        value = parse(definition, self.static.get(MIN_INSYNC, definition.default or ""))
        return value if isinstance(value, int) else 1


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One place that could give a value, with the name and the text that it has there."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One row of DescribeConfigs. ``value`` is None when unset or when it is a secret, whose
    synonyms have none either."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    read_only: bool
    sensitive: bool
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]


@dataclass(frozen=True, slots=True)
class ResolvedTopic:
    """A topic's typed configuration, its rows, and the stored values that were ignored."""

    configs: TopicConfigs
    entries: tuple[ConfigEntry, ...]
    problems: tuple[InvalidConfig, ...]


def resolve_topic(configs: Mapping[str, str], layers: BrokerLayers) -> ResolvedTopic:
    """Resolve one topic's configuration from its own values and the broker's.

    A stored value that cannot be read (the store was edited by hand) is ignored and named in
    ``problems``; the next one in the order of precedence is used. A caller that resolves many
    topics over the same layers keeps a ``TopicResolver``.
    """
    return TopicResolver(layers).resolve(configs)


class TopicResolver:
    """Resolves topics over one set of layers. Values that a topic does not set are resolved once:
    400 us for all of them, and then some 10 us for each topic and each value that it sets."""

    def __init__(self, layers: BrokerLayers) -> None:
        self._layers = layers
        self._rows = [_row(definition, {}, layers) for definition in TOPIC.values()]
        typed = {
            of.field: of.typed(row.value)
            for of, row in zip(TOPIC.values(), self._rows, strict=True)
        }
        entries = tuple(row.entry for row in self._rows)
        problems = tuple(problem for row in self._rows for problem in row.problems)
        self._plain = ResolvedTopic(TopicConfigs(**typed), entries, problems)

    def resolve(self, configs: Mapping[str, str]) -> ResolvedTopic:
        """Do as ``resolve_topic``."""
        if not configs:
            return self._plain
        rows = self._rows.copy()
        typed: dict[str, Any] = {}
        for name in configs:
            position = _POSITIONS.get(name)
            if position is not None:
                definition = TOPIC[name]
                rows[position] = row = _row(definition, configs, self._layers)
                typed[definition.field] = definition.typed(row.value)
        problems = [problem for row in rows for problem in row.problems]
        problems.extend(unknown(name, TOPIC, "topic") for name in configs if name not in TOPIC)
        found = replace(self._plain.configs, **typed)
        return ResolvedTopic(found, tuple([row.entry for row in rows]), tuple(problems))


class _Row(NamedTuple):
    # The result for one definition: the typed value, its row, and the values that were ignored.
    value: Value
    entry: ConfigEntry
    problems: tuple[InvalidConfig, ...]


_POSITIONS = {name: position for position, name in enumerate(TOPIC)}


def _row(definition: ConfigDefinition, configs: Mapping[str, str], layers: BrokerLayers) -> _Row:
    problems: list[InvalidConfig] = []
    places: list[ConfigSynonym] = []
    # Kafka shows the default of the first synonym only (not that of log.retention.hours).
    first = definition.synonyms[0].name if definition.synonyms else definition.name
    chosen: tuple[Value, str | None, ConfigSource] | None = None
    for place, factor in _places(definition, configs, layers):
        value = _at(definition, place, factor)
        if isinstance(value, InvalidConfig):
            problems.append(value)
            continue
        if place.source is not ConfigSource.DEFAULT_CONFIG or place.name == first:
            places.append(place)
        if chosen is None:
            text = place.value if factor == 1 else str(value)
            chosen = (value, text, place.source)
    if chosen is None:
        # A topic's row always ends in its default, which parses; this is a bug in the table.
        raise AssertionError(f"no value for {definition.name}")
    entry = _entry(definition, chosen[1], chosen[2], tuple(places), read_only=False)
    return _Row(chosen[0], entry, tuple(problems))


def describe_broker(layers: BrokerLayers) -> tuple[ConfigEntry, ...]:
    """Return the rows of one broker's configuration."""
    rows = []
    for definition in BROKER.values():
        places = tuple(_broker_places(definition, layers))
        value = places[0].value if places else None
        source = places[0].source if places else ConfigSource.DEFAULT_CONFIG
        read_only = definition.update is Update.READ_ONLY
        rows.append(_entry(definition, value, source, places, read_only))
    return tuple(rows)


def describe_brokers_default(dynamic_default: Mapping[str, str]) -> tuple[ConfigEntry, ...]:
    """Return the rows of the dynamic default of all brokers: only what is set there."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return tuple(
        _entry(BROKER[name], value, source, (ConfigSynonym(name, value, source),), False)
        for name, value in sorted(dynamic_default.items())
        if name in BROKER
    )


def check_topic_configs(configs: Mapping[str, str | None]) -> InvalidConfig | None:
    """Refuse the first impossible configuration of a topic, or return None."""
    refused = _check(configs, TOPIC, "topic")
    if refused is not None:
        return refused
    resolved = _without_layers().resolve({k: v for k, v in configs.items() if v is not None})
    if resolved.configs.min_compaction_lag_ms > resolved.configs.max_compaction_lag_ms:
        name = "min.compaction.lag.ms"
        return InvalidConfig(name, f"{name} must not be larger than max.compaction.lag.ms.")
    return _why_not_auto(configs, resolved.configs)


def _why_not_auto(
    configs: Mapping[str, str | None], resolved: TopicConfigs
) -> InvalidConfig | None:
    """Return why a topic cannot be resized by its load, or None."""
    if resolved.partitions_auto_min > resolved.partitions_auto_max:
        name = "partitions.auto.min"
        return InvalidConfig(name, f"{name} must not be larger than partitions.auto.max.")
    if not resolved.partitions_auto:
        return None
    name = "partitions.auto"
    if not resolved.enable_ordered_delivery:
        sentence = f"{name} needs enable.ordered.delivery=true: no other topic shrinks safely."
        return InvalidConfig(name, sentence)
    if RETIRED_PURGE not in configs:
        sentence = (
            f"{name} needs {RETIRED_PURGE} to be set for the topic: autoscaling shrinks it, and "
            f"never changes when the data of retired partitions goes. With {RETIRED_PURGE}=drained "
            "it can grow again when every group has read them, with retention only when retention "
            "has emptied them."
        )
        return InvalidConfig(name, sentence)
    return None


def check_dynamic_broker_configs(configs: Mapping[str, str | None]) -> InvalidConfig | None:
    """Refuse the first configuration that a running broker cannot take, or return None."""
    for name in configs:
        definition = BROKER.get(name)
        if definition is not None and definition.update is Update.READ_ONLY:
            sentence = f"{name} cannot be changed while a broker runs: set it in its file."
            return InvalidConfig(name, sentence)
    return _check(configs, BROKER, "broker")


def _check(
    configs: Mapping[str, str | None], table: Mapping[str, ConfigDefinition], what: str
) -> InvalidConfig | None:
    for name, text in configs.items():
        definition = table.get(name)
        if definition is None:
            return unknown(name, table, what)
        if text is None:
            return InvalidConfig(name, f"Invalid value null for configuration {name}.")
        value = parse(definition, text)
        if isinstance(value, InvalidConfig):
            return value
    return None


def _places(
    definition: ConfigDefinition, configs: Mapping[str, str], layers: BrokerLayers
) -> Iterator[tuple[ConfigSynonym, int]]:
    name = definition.name
    if name in configs:
        yield ConfigSynonym(name, configs[name], ConfigSource.DYNAMIC_TOPIC_CONFIG), 1
    for values, source in _levels(layers):
        for synonym in definition.synonyms:
            if synonym.name in values:
                found = ConfigSynonym(synonym.name, values[synonym.name], source)
                yield found, synonym.factor
    for synonym in definition.synonyms:
        default = BROKER[synonym.name].default
        if default is not None:
            found = ConfigSynonym(synonym.name, default, ConfigSource.DEFAULT_CONFIG)
            yield found, synonym.factor
    if not definition.synonyms:
        yield ConfigSynonym(name, definition.default, ConfigSource.DEFAULT_CONFIG), 1


def _levels(layers: BrokerLayers) -> tuple[tuple[Mapping[str, str], ConfigSource], ...]:
    return (
        (layers.dynamic, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (layers.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (layers.static, ConfigSource.STATIC_BROKER_CONFIG),
    )


def _broker_places(definition: ConfigDefinition, layers: BrokerLayers) -> Iterator[ConfigSynonym]:
    name = definition.name
    for values, source in _levels(layers):
        if name in values:
            yield ConfigSynonym(name, values[name], source)
    if definition.default is not None:
        yield ConfigSynonym(name, definition.default, ConfigSource.DEFAULT_CONFIG)


def _at(definition: ConfigDefinition, place: ConfigSynonym, factor: int) -> Value | InvalidConfig:
    if factor == 1:
        return parse(definition, place.value)
    value = parse(BROKER[place.name], place.value)
    if isinstance(value, int):
        # -1 means "for ever" in every unit.
        return value if value < 0 else value * factor
    return value


def _entry(
    definition: ConfigDefinition,
    value: str | None,
    source: ConfigSource,
    places: tuple[ConfigSynonym, ...],
    read_only: bool,
) -> ConfigEntry:
    sensitive = definition.type is ConfigType.PASSWORD
    if sensitive:
        places = tuple(replace(place, value=None) for place in places)
    return ConfigEntry(
        definition.name,
        None if sensitive else value,
        source,
        definition.type,
        read_only,
        sensitive,
        definition.described,
        places,
    )


@cache
def _without_layers() -> TopicResolver:
    return TopicResolver(BrokerLayers())
