"""Values of the public admin client: new topics, resources with configurations, offsets to look up.

Owns what callers hand in. Not the results: see ``tidelog.client.admin``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from tidelog.aio import arguments
from tidelog.aio.arguments import offset_number, topic_name
from tidelog.client.admin import topics
from tidelog.client.errors import ConfigurationRefused
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.offsets import EARLIEST as _EARLIEST
from tidelog.client.offsets import LATEST as _LATEST
from tidelog.client.offsets import MAX_TIMESTAMP as _MAX_TIMESTAMP
from tidelog.model.admin_requests import AlterOperation, ResourceType
from tidelog.model.topics import TopicPartition

ConfigResourceType = ResourceType
"""Kafka's name: TOPIC, BROKER, BROKER_LOGGER, GROUP."""


class OffsetSpec(IntEnum):
    """The offset that ``list_offsets`` looks up; a number above is a time in ms since 1970."""

    LATEST = _LATEST
    EARLIEST = _EARLIEST
    MAX_TIMESTAMP = _MAX_TIMESTAMP


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created; -1 takes the broker's default.

    ``replica_assignments`` (partition -> brokers) excludes the two counts.
    """

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    replica_assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    topic_configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The number of partitions that a topic shall have, and the brokers of each new one."""

    total_count: int
    new_assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """What has configurations. ``name`` is a topic, a group, or the id of a broker.

    ``configs`` names those to describe (None: all), or those to alter: a value sets, None deletes,
    and (AlterOperation, value) does as it says. It takes no part in comparisons.
    """

    resource_type: ResourceType
    name: str
    configs: Mapping[str, Any] | Sequence[str] | None = field(default=None, compare=False)


def topics_to_create(
    given: Iterable[NewTopic | str] | Mapping[str, Mapping[str, Any]],
) -> list[NewTopic]:
    """Return topics to be created from their names, from objects, or from a mapping of options."""
    if isinstance(given, Mapping):
        topics = []
        for name, options in given.items():
            named = dict(arguments.mapping(options, f"the options of topic {name!r}", "name"))
            new = NewTopic(
                name,
                named.pop("num_partitions", -1),
                named.pop("replication_factor", -1),
                named.pop("assignments", {}),
                named.pop("configs", {}),
            )
            if named:
                raise ConfigurationRefused(f"topic {name!r} has unknown options: {sorted(named)}")
            topics.append(new)
        return topics
    wanted = arguments.listed(given, "topics", "names or NewTopic")
    return [
        topic if isinstance(topic, NewTopic) else NewTopic(topic_name(topic)) for topic in wanted
    ]


def topic_request(topic: NewTopic) -> topics.TopicSpec:
    """Return a topic as the request for it names it."""
    named = f"topic {topic_name(topic.name)!r}"
    chosen = arguments.mapping(topic.replica_assignments, f"{named}: the assignment", "partition")
    configs = arguments.mapping(topic.topic_configs, f"{named}: the configurations", "name")
    return topics.TopicSpec(
        topic.name,
        arguments.count_or_default(topic.num_partitions, f"{named}: num_partitions"),
        arguments.count_or_default(topic.replication_factor, f"{named}: replication_factor"),
        {name: str(value) for name, value in configs.items()},
        {arguments.partition_number(x): arguments.broker_ids(ids) for x, ids in chosen.items()},
    )


def new_counts(given: Any) -> dict[str, NewPartitions]:
    """Return the new partition counts of topics: numbers, or ``NewPartitions``."""
    counts = {}
    for name, new in arguments.mapping(given, "topic_partitions", "topic").items():
        wanted = new if isinstance(new, NewPartitions) else NewPartitions(new)
        chosen = wanted.new_assignments
        counts[topic_name(name)] = NewPartitions(
            arguments.partition_count(wanted.total_count),
            None
            if chosen is None
            else [
                arguments.broker_ids(brokers)
                for brokers in arguments.listed(chosen, "new_assignments", "lists of brokers")
            ],
        )
    return counts


def resources(given: Any) -> list[ConfigResource]:
    """Return resources with configurations."""
    wanted = arguments.listed(given, "config_resources", "ConfigResource")
    for resource in wanted:
        if not isinstance(resource, ConfigResource) or not isinstance(resource.name, str):
            raise TypeError(f"a resource is a ConfigResource(type, name), not {resource!r}")
    return wanted


def partitions_of(
    given: Mapping[str, Iterable[int]] | Iterable[TopicPartition] | None,
) -> list[TopicPartition] | None:
    """Return partitions from {topic: [partition, …]} or an iterable; None stays None: all."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return [
            arguments.place((topic, index))
            for topic, some in given.items()
            for index in arguments.listed(some, f"the partitions of {topic!r}", "numbers")
        ]
    return arguments.places(given)


def position_of(given: Any) -> Position:
    """Return a position from an offset, or from an object like kafka-python's OffsetAndMetadata.

    Raises TypeError and ConfigurationRefused for what is no offset, such as a negative number.
    """
    if not hasattr(given, "offset"):
        return Position(offset_number(given))
    return Position(
        offset_number(given.offset), getattr(given, "leader_epoch", -1), given.metadata or ""
    )


def config_changes(resource: ConfigResource) -> list[tuple[str, AlterOperation, str | None]]:
    """Return the changes that a resource names. Raises ConfigurationRefused without any."""
    if not isinstance(resource.configs, Mapping) or not resource.configs:
        raise ConfigurationRefused(
            f"{resource.resource_type.name.lower()} {resource.name!r}: "
            "configs must be a mapping of the configurations to alter"
        )
    changes: list[tuple[str, AlterOperation, str | None]] = []
    for name, given in resource.configs.items():
        operation, value = given if isinstance(given, tuple) else (AlterOperation.SET, given)
        if value is None or operation == AlterOperation.DELETE:
            changes.append((name, AlterOperation.DELETE, None))
        else:
            changes.append((name, AlterOperation(operation), _text(value)))
    return changes


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
