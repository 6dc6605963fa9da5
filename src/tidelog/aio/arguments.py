"""Arguments of the public clients' methods: topics, partitions, offsets, times.

Owns their checks: a wrong type is a TypeError and a wrong value a ValueError, at once and in one
line. Not the settings of clients: see ``cluster_configs`` and ``consumer_settings``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from math import isnan
from typing import Any, TypeVar

from tidelog.client.errors import ConfigurationRefused, Refused
from tidelog.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, why_invalid

MOST_S = 1e9
"""Thirty years: clocks and threads refuse to wait for longer times."""

MOST_OFFSET = 2**63 - 1
MOST_PARTITION = 2**31 - 1

OFFSET_SPECS = (LATEST, EARLIEST, MAX_TIMESTAMP)

Number = TypeVar("Number", bound=IntEnum)


def topic_name(name: Any) -> str:
    """Return the name of a topic. Raises InvalidTopicError for one that no topic can have."""
    if not isinstance(name, str):
        raise TypeError(f"a topic is named by a str, not {type(name).__name__}")
    why = why_invalid(name)
    if why is not None:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name[:300]!r}", why)
    return name


def topic_names(names: Any) -> list[str]:
    """Return the names of topics."""
    return [] if names is None else [topic_name(name) for name in listed(names, "topics", "names")]


def listed(values: Any, what: str, kind: str) -> list[Any]:
    """Return the values of a list or another iterable, which a text is not."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{what} must be a list of {kind}, not {type(values).__name__}")
    return list(values)


def group_name(group: Any) -> str:
    """Return the id of a group."""
    if not isinstance(group, str):
        raise TypeError(f"a group is named by a str, not {type(group).__name__}")
    is_text(group, "the id of a group")
    return group


def group_names(groups: Any) -> list[str]:
    """Return the ids of groups."""
    return [group_name(group) for group in listed(groups, "groups", "ids")]


def group_states(states: Any) -> list[str]:
    """Return the names of states of groups."""
    names = listed(states, "states", "names")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a state is named by a str, not {name!r}")
        is_text(name, "a state")
    return names


def broker_ids(brokers: Any) -> list[int]:
    """Return the ids of brokers."""
    ids = listed(brokers, "brokers", "ids")
    return [_number(broker, "the id of a broker", MOST_PARTITION) for broker in ids]


def place(given: Any) -> TopicPartition:
    """Return a partition: a TopicPartition, or a tuple of a topic and a number."""
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(f"a partition is a TopicPartition(topic, partition), not {given!r}")
    name, index = given
    return TopicPartition(topic_name(name), partition_number(index))


def places(partitions: Any) -> list[TopicPartition]:
    """Return partitions."""
    return [place(partition) for partition in listed(partitions, "partitions", "TopicPartition")]


def mapping(values: Any, what: str, keys: str) -> Mapping[Any, Any]:
    """Return a mapping."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{what} must be a dict by {keys}, not {type(values).__name__}")
    return values


def by_place(values: Any, what: str) -> dict[TopicPartition, Any]:
    """Return a mapping whose keys are partitions."""
    by_partition = mapping(values, what, "TopicPartition")
    return {place(tp): value for tp, value in by_partition.items()}


def partition_number(index: Any) -> int:
    """Return the number of a partition."""
    return _number(index, "a partition", MOST_PARTITION)


def partition_count(count: Any) -> int:
    """Return a number of partitions."""
    return _number(count, "a partition count", MOST_PARTITION)


def count_or_default(count: Any, what: str) -> int:
    """Return a number of partitions or replicas, or -1 for the broker's default."""
    return _number(count, what, MOST_PARTITION, least=-1)


def offset_number(offset: Any) -> int:
    """Return an offset."""
    return _number(offset, "an offset", MOST_OFFSET)


def offset_or_all(offset: Any) -> int:
    """Return an offset, or -1 for all."""
    return _number(offset, "an offset", MOST_OFFSET, least=-1)


def offset_spec(spec: Any) -> int:
    """Return an ``OffsetSpec``, which is negative, or a time in milliseconds since 1970."""
    return _number(spec, "an offset spec or a time in ms", MOST_OFFSET, least=min(OFFSET_SPECS))


def timestamp_ms(given: Any) -> int:
    """Return a time in milliseconds since 1970."""
    return _number(given, "a time in ms", MOST_OFFSET)


def _number(value: Any, what: str, most: int, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int, not {value!r}")
    if not least <= value <= most:
        raise ConfigurationRefused(f"{what} must be from {least} to {most}, not {value}")
    return value


def is_text(value: str, what: str) -> None:
    """Raise ConfigurationRefused for a str with halves of surrogate pairs, which has no bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationRefused(f"{what} is not Unicode text: {value!r}") from None


def seconds(timeout: Any) -> float | None:
    """Return a time-out in seconds, from 0 to ``MOST_S``: None for none."""
    return None if timeout is None else _duration(timeout, "seconds", MOST_S)


def milliseconds(timeout_ms: Any) -> float:
    """Return a time-out in milliseconds, from 0 to ``MOST_S``."""
    return _duration(timeout_ms, "milliseconds", MOST_S * 1000)


def _duration(value: Any, unit: str, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"a time-out must be a number of {unit}, not {value!r}")
    if isnan(value):
        raise ConfigurationRefused(f"a time-out must be a number of {unit}, not nan")
    # What is left of a deadline may be negative.
    return float(min(max(value, 0), most))


def most_records(most: Any) -> int | None:
    """Return the limit of one ``poll``; None: the one of the settings."""
    if most is not None and (not isinstance(most, int) or isinstance(most, bool)):
        raise TypeError(f"max_records must be an int, not {most!r}")
    if most is not None and most < 1:
        raise ConfigurationRefused(f"max_records must be at least 1, not {most}")
    return most


def one_of(value: Any, kind: type[Number], what: str) -> Number:
    """Return a member of an enumeration from itself or its number."""
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(f"{member.name} ({member.value})" for member in kind)
        raise ConfigurationRefused(f"{what} must be one of {names}, not {value!r}") from None


def compiled(pattern: Any) -> re.Pattern[str]:
    """Return a regular expression of topic names."""
    if not isinstance(pattern, str):
        raise TypeError(f"a pattern must be a str, not {pattern!r}")
    try:
        return re.compile(pattern)
    except re.error as error:
        reason = f"the pattern {pattern!r} is not a regular expression: {error}"
        raise ConfigurationRefused(reason) from None


def check_listeners(listener: Any, key_listener: Any) -> None:
    """Raise TypeError for a listener that lacks a method; None has none."""
    of_each = {
        "listener": (listener, "on_partitions_revoked", "on_partitions_assigned"),
        "partition_key_listener": (
            key_listener,
            "on_partition_key_maybe_revoked",
            "on_partition_key_assigned",
        ),
    }
    for what, (given, *names) in of_each.items():
        lacking = [name for name in names if not callable(getattr(given, name, None))]
        if given is not None and lacking:
            raise TypeError(f"a {what} needs {lacking[0]}(), which {given!r} lacks")
