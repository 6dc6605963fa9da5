"""AlterConfigs and IncrementalAlterConfigs: dynamic configurations of topics and brokers.

Owns which resources exist, the four incremental operations and the nodes that they write. What a
value may be is ``model.config_definitions``; when it takes effect is the brokers'.
Sources: KIP-133 (AlterConfigs replaces the whole set), KIP-339 (incremental).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tidelog.controller.decisions import config_effects
from tidelog.controller.decisions.cluster import Cluster, Decision, Put, Refusal, Remove, Write
from tidelog.metadata import layout
from tidelog.metadata.records import ConfigNode
from tidelog.model.config_definitions import (
    BROKER,
    TOPIC,
    ConfigType,
    check_dynamic_broker_configs,
    check_topic_configs,
)
from tidelog.model.errors import ErrorCode

MINIMUM = "min.insync.replicas"


class ResourceType(IntEnum):
    """The kinds of resources that have configurations here, by their numbers on the wire."""

    TOPIC = 2
    BROKER = 4


class AlterOperation(IntEnum):
    """The operations of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Resource:
    """A topic by name, a broker by its id as text, or all brokers by the empty name."""

    kind: int
    name: str


@dataclass(frozen=True, slots=True)
class Alteration:
    """One configuration of an IncrementalAlterConfigs request."""

    name: str
    operation: int
    value: str | None


Altered = tuple[Resource, Refusal | None]


def replace_configs(
    cluster: Cluster,
    asked: Sequence[tuple[Resource, Sequence[tuple[str, str | None]]]],
    validate_only: bool = False,
) -> Decision[list[Altered]]:
    """Decide AlterConfigs: what is not named falls back to its default."""
    wanted: list[tuple[Resource, Refusal | dict[str, str | None]]] = []
    for resource, configs in asked:
        names = [name for name, _ in configs]
        if len(set(names)) != len(names):
            wanted.append((resource, _invalid("A configuration is given twice.")))
        else:
            wanted.append((resource, dict(configs)))
    return _alter(cluster, wanted, validate_only)


def alter_configs(
    cluster: Cluster,
    asked: Sequence[tuple[Resource, Sequence[Alteration]]],
    validate_only: bool = False,
) -> Decision[list[Altered]]:
    """Decide IncrementalAlterConfigs: what is not named stays."""
    wanted = [
        (resource, _altered(_stored(cluster, resource), resource, alterations))
        for resource, alterations in asked
    ]
    return _alter(cluster, wanted, validate_only)


def _alter(
    cluster: Cluster,
    wanted: Sequence[tuple[Resource, Refusal | Mapping[str, str | None]]],
    validate_only: bool,
) -> Decision[list[Altered]]:
    writes: list[Write] = []
    answers: list[Altered] = []
    resources = [resource for resource, _ in wanted]
    for resource, configs in wanted:
        refusal = _why_not_resource(cluster, resource)
        if refusal is None and resources.count(resource) > 1:
            sentence = f"The resource {resource.name} is named more than once."
            refusal = Refusal(ErrorCode.INVALID_REQUEST, sentence)
        if refusal is None and isinstance(configs, Refusal):
            refusal = configs
        if refusal is None and not isinstance(configs, Refusal):
            refusal = _why_not_configs(resource, configs)
            if refusal is None:
                set_configs = {name: text for name, text in configs.items() if text is not None}
                made = _writes(cluster, resource, set_configs)
                # Of two changes that move one partition in one request the first one does.
                written = {write.path for write in writes}
                writes += [write for write in made if write.path not in written]
        answers.append((resource, refusal))
    return Decision(answers, () if validate_only else tuple(writes), splits=True)


def _stored(cluster: Cluster, resource: Resource) -> dict[str, str]:
    if resource.kind == ResourceType.TOPIC:
        return cluster.topic_configs.get(resource.name, {})
    return cluster.broker_configs.get(resource.name or layout.ALL_BROKERS, {})


def _altered(
    stored: Mapping[str, str], resource: Resource, alterations: Sequence[Alteration]
) -> dict[str, str | None] | Refusal:
    table = TOPIC if resource.kind == ResourceType.TOPIC else BROKER
    names = [alteration.name for alteration in alterations]
    if len(set(names)) != len(names):
        return Refusal(ErrorCode.INVALID_REQUEST, "A configuration is named more than once.")
    configs: dict[str, str | None] = dict(stored)
    for alteration in alterations:
        name, value = alteration.name, alteration.value
        if alteration.operation == AlterOperation.DELETE:
            configs.pop(name, None)
            continue
        if alteration.operation not in tuple(AlterOperation):
            sentence = f"There is no operation {alteration.operation} on configurations."
            return Refusal(ErrorCode.INVALID_REQUEST, sentence)
        if value is None:
            return _invalid(f"Invalid value null for configuration {name}.")
        if alteration.operation == AlterOperation.SET:
            configs[name] = value
            continue
        definition = table.get(name)
        if definition is None or definition.type is not ConfigType.LIST:
            return _invalid(f"{name} is no list: nothing can be appended or subtracted.")
        now = configs.get(name, definition.default) or ""
        entries = [entry.strip() for entry in now.split(",") if entry.strip()]
        given = [entry.strip() for entry in value.split(",") if entry.strip()]
        if alteration.operation == AlterOperation.APPEND:
            entries += [entry for entry in dict.fromkeys(given) if entry not in entries]
        else:
            entries = [entry for entry in entries if entry not in given]
        configs[name] = ",".join(entries)
    return configs


def _why_not_resource(cluster: Cluster, resource: Resource) -> Refusal | None:
    if resource.kind == ResourceType.TOPIC:
        if resource.name not in cluster.topics:
            sentence = f"There is no topic {resource.name}."
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, sentence)
        return None
    if resource.kind == ResourceType.BROKER:
        name = resource.name
        if name and not (name.isascii() and name.isdigit() and len(name) <= 10):
            sentence = f"A broker is named by its number, not {name[:100]!r}."
            return Refusal(ErrorCode.INVALID_REQUEST, sentence)
        return None
    sentence = f"Resources of type {resource.kind} have no configurations here."
    return Refusal(ErrorCode.INVALID_REQUEST, sentence)


def _why_not_configs(resource: Resource, configs: Mapping[str, str | None]) -> Refusal | None:
    check = check_topic_configs
    if resource.kind == ResourceType.BROKER:
        check = check_dynamic_broker_configs
    refused = check(configs)
    if refused is not None:
        return _invalid(refused.sentence)
    if resource.kind == ResourceType.BROKER and resource.name and MINIMUM in configs:
        # KIP-966: leader and controller must go by the same number, whoever leads.
        return _invalid(f"{MINIMUM} is set for a topic or for all brokers, not for one.")
    return None


def _writes(cluster: Cluster, resource: Resource, configs: dict[str, str]) -> list[Write]:
    if configs == _stored(cluster, resource):
        return []
    if resource.kind == ResourceType.TOPIC:
        path = layout.topic_configs(resource.name)
        effects = config_effects.of_topic(cluster, resource.name, configs)
    else:
        path = layout.broker_configs(resource.name or layout.ALL_BROKERS)
        effects = [] if resource.name else config_effects.of_defaults(cluster, configs)
    if configs:
        return [*effects, Put(path, ConfigNode(configs))]
    return [*effects, Remove(path)] if path in cluster.versions else effects


def _invalid(sentence: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_CONFIG, sentence)
