"""AlterConfigs and IncrementalAlterConfigs: dynamic configurations of topics and brokers.

Owns which resources exist, the four incremental operations and the nodes that they write. Valid
values: see ``model.configs``; brokers decide when a value takes effect.
Sources: KIP-133 (AlterConfigs replaces the whole set), KIP-339 (incremental); the error codes are
those of Kafka 4, which checks in this order:

| wrong | refused with |
|---|---|
| a resource or a name given twice, a null value, the name of a broker, the kind | INVALID_REQUEST |
| an operation: there is none, or it is for lists | INVALID_REQUEST, INVALID_CONFIG |
| a topic's name: empty, or impossible | INVALID_REQUEST, INVALID_TOPIC_EXCEPTION |
| a topic's configurations; a broker's (KAFKA-13609) | INVALID_CONFIG; INVALID_REQUEST |
| a topic that is not there | UNKNOWN_TOPIC_OR_PARTITION |
| ``enable.ordered.delivery`` switched on where it cannot be | see ``ordered_delivery`` |
| ``cordoned.log.dirs`` for all brokers; a directory that its broker lacks | the same two |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.controller.decisions import config_effects
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.cordons import why_not_set
from tidelog.controller.decisions.decision import Decision, Put, Remove, RequestRefusal, Write
from tidelog.controller.decisions.ordered_delivery import switched_on
from tidelog.metadata import layout
from tidelog.metadata.records import ConfigNode
from tidelog.model.admin_requests import AlterOperation, ResourceType
from tidelog.model.configs.broker import BROKER
from tidelog.model.configs.cordoned import CORDONED_LOG_DIRS
from tidelog.model.configs.resolve import check_dynamic_broker_configs, check_topic_configs
from tidelog.model.configs.topic import TOPIC
from tidelog.model.configs.types import TOO_LONG, ConfigType, is_too_long
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import why_invalid

MINIMUMS = ("min.insync.replicas", "min.insync.machines")


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


Altered = tuple[Resource, RequestRefusal | None]


def replace_configs(
    cluster: ClusterState,
    asked: Sequence[tuple[Resource, Sequence[tuple[str, str | None]]]],
    validate_only: bool = False,
    repeated: Collection[Resource] | None = None,
) -> Decision[list[Altered]]:
    """Decide AlterConfigs: a configuration that is not named falls back to its default.

    ``asked`` may be a slice of a request; ``repeated`` has the resources that repeat in the whole.
    """
    repeated = repeated_resources(asked) if repeated is None else repeated
    wanted: list[tuple[Resource, RequestRefusal | dict[str, str]]] = []
    for resource, configs in asked:
        refusal = _why_not_form(resource, configs)
        given = {name: text for name, text in configs if text is not None}
        wanted.append((resource, refusal or given))
    return _alter(cluster, wanted, validate_only, repeated)


def alter_configs(
    cluster: ClusterState,
    asked: Sequence[tuple[Resource, Sequence[Alteration]]],
    validate_only: bool = False,
    repeated: Collection[Resource] | None = None,
) -> Decision[list[Altered]]:
    """Decide IncrementalAlterConfigs: others stay. Arguments as for ``replace_configs``."""
    repeated = repeated_resources(asked) if repeated is None else repeated
    wanted = [
        (resource, _altered(_stored(cluster, resource), resource, alterations))
        for resource, alterations in asked
    ]
    return _alter(cluster, wanted, validate_only, repeated)


def repeated_resources(asked: Sequence[tuple[Resource, Any]]) -> frozenset[Resource]:
    """Return the resources that a request names more than once."""
    times = Counter(resource for resource, _ in asked)
    return frozenset(resource for resource, count in times.items() if count > 1)


CHARACTERS_OF_A_WRITE = 300
"""So many characters of a list are checked in the time of one write."""


def cost_of_change(asked: tuple[Resource, Sequence[Any]]) -> int:
    """Return the cost of a resource's change in writes, with that of its check.

    Its settings are alterations, or pairs of a name and a text.
    """
    texts = [x.value if isinstance(x, Alteration) else x[1] for x in asked[1]]
    size = sum(len(text) for text in texts if text is not None)
    return 5 + 2 * len(texts) + size // CHARACTERS_OF_A_WRITE


def _alter(
    cluster: ClusterState,
    wanted: Sequence[tuple[Resource, RequestRefusal | dict[str, str]]],
    validate_only: bool,
    repeated: Collection[Resource],
) -> Decision[list[Altered]]:
    writes: list[Write] = []
    answers: list[Altered] = []
    written: set[str] = set()
    for resource, configs in wanted:
        refusal: RequestRefusal | None = None
        if resource in repeated:
            refusal = _malformed(f"The resource {resource.name} is named more than once.")
        elif isinstance(configs, RequestRefusal):
            refusal = configs
        else:
            refusal = _why_not(cluster, resource, configs)
            made: list[Write] | RequestRefusal = []
            if refusal is None:
                made = _writes(cluster, resource, configs)
            if isinstance(made, RequestRefusal):
                refusal = made
            elif refusal is None:
                # If two changes of one request concern one partition, the first one counts.
                writes += [write for write in made if write.path not in written]
                written.update(write.path for write in made)
        answers.append((resource, refusal))
    return Decision(answers, () if validate_only else tuple(writes), splits=True)


def _stored(cluster: ClusterState, resource: Resource) -> dict[str, str]:
    if resource.kind == ResourceType.TOPIC:
        return cluster.topic_configs.get(resource.name, {})
    return cluster.broker_configs.get(resource.name or layout.ALL_BROKERS, {})


def _altered(
    stored: Mapping[str, str], resource: Resource, alterations: Sequence[Alteration]
) -> dict[str, str] | RequestRefusal:
    table = TOPIC if resource.kind == ResourceType.TOPIC else BROKER
    given = [(x.name, "" if x.operation == AlterOperation.DELETE else x.value) for x in alterations]
    refusal = _why_not_form(resource, given)
    if refusal is not None:
        return refusal
    configs = dict(stored)
    for alteration in alterations:
        name, value = alteration.name, alteration.value or ""
        if alteration.operation == AlterOperation.DELETE:
            configs.pop(name, None)
            continue
        if alteration.operation not in tuple(AlterOperation):
            return _malformed(f"There is no operation {alteration.operation} on configurations.")
        if alteration.operation == AlterOperation.SET:
            configs[name] = value
            continue
        definition = table.get(name)
        if definition is None or definition.type is not ConfigType.LIST:
            return _invalid(f"{name} is no list: nothing can be appended or subtracted.")
        now = configs.get(name, definition.default) or ""
        entries = [entry.strip() for entry in now.split(",") if entry.strip()]
        given_entries = [entry.strip() for entry in value.split(",") if entry.strip()]
        # Sets: a client may send lists of many thousand entries.
        if alteration.operation == AlterOperation.APPEND:
            present = set(entries)
            entries += [entry for entry in dict.fromkeys(given_entries) if entry not in present]
        else:
            subtracted = set(given_entries)
            entries = [entry for entry in entries if entry not in subtracted]
        configs[name] = ",".join(entries)
    return configs


def _why_not_form(
    resource: Resource, given: Sequence[tuple[str, str | None]]
) -> RequestRefusal | None:
    names = [name for name, _ in given]
    if len(set(names)) != len(names):
        return _malformed("A configuration is named more than once.")
    for name, text in given:
        if text is None:
            return _malformed(f"Invalid value null for configuration {name[:200]}.")
        if is_too_long(text):
            return _invalid(f"Invalid value for configuration {name[:200]}: {TOO_LONG}.")
    if resource.kind == ResourceType.BROKER:
        name = resource.name
        if name and not (name.isascii() and name.isdigit() and len(name) <= 10):
            return _malformed(f"A broker is named by its number, not {name[:100]!r}.")
    elif resource.kind != ResourceType.TOPIC:
        return _malformed(f"Resources of type {resource.kind} have no configurations here.")
    return None


def _why_not(
    cluster: ClusterState, resource: Resource, configs: Mapping[str, str]
) -> RequestRefusal | None:
    if resource.kind == ResourceType.TOPIC:
        return _why_not_topic(cluster, resource.name, configs)
    refused = check_dynamic_broker_configs(configs)
    if refused is not None:
        return _malformed(refused.sentence)
    if CORDONED_LOG_DIRS in configs:
        if not resource.name:
            return _malformed(f"{CORDONED_LOG_DIRS} is set for one broker, not for all.")
        cordon = why_not_set(cluster, resource.name, configs)
        if cordon is not None:
            return _invalid(cordon)
    for minimum in MINIMUMS:
        if resource.name and minimum in configs:
            # KIP-966: controller and every leader must use the same number.
            return _invalid(f"{minimum} is set for a topic or for all brokers, not for one.")
    return None


def _why_not_topic(
    cluster: ClusterState, name: str, configs: Mapping[str, str]
) -> RequestRefusal | None:
    if not name:
        return _malformed("The topic whose configurations are meant has no name.")
    clause = why_invalid(name)
    if clause is not None:
        sentence = f"{name[:300]!r} is no name for a topic: {clause}."
        return RequestRefusal(ErrorCode.INVALID_TOPIC_EXCEPTION, sentence)
    refused = check_topic_configs(configs) if configs else None
    if refused is not None:
        return _invalid(refused.sentence)
    if name not in cluster.topics:
        return RequestRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name}.")
    return None


def _writes(
    cluster: ClusterState, resource: Resource, configs: dict[str, str]
) -> list[Write] | RequestRefusal:
    stored = _stored(cluster, resource)
    if configs == stored:
        return []
    if resource.kind == ResourceType.TOPIC:
        path = layout.topic_configs(resource.name)
        begun = switched_on(cluster, resource.name, stored, configs)
        if isinstance(begun, RequestRefusal):
            return begun
        effects = [*begun, *config_effects.of_topic(cluster, resource.name, configs)]
    else:
        path = layout.broker_configs(resource.name or layout.ALL_BROKERS)
        effects = [] if resource.name else config_effects.of_defaults(cluster, configs)
    if configs:
        return [*effects, Put(path, ConfigNode(configs))]
    return [*effects, Remove(path)] if path in cluster.versions else effects


def _invalid(sentence: str) -> RequestRefusal:
    return RequestRefusal(ErrorCode.INVALID_CONFIG, sentence)


def _malformed(sentence: str) -> RequestRefusal:
    return RequestRefusal(ErrorCode.INVALID_REQUEST, sentence)
