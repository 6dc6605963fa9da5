"""Arguments of the public clients' methods: topics, partitions, offsets, times.

Owns their checks: a wrong type is a TypeError and a wrong value a ValueError, at once and in one
line. Not the settings of clients: see ``cluster_configs`` and ``consumer_settings``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isnan
from typing import Any

from tidelog.client.errors import ConfigurationRefused, Refused
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, why_invalid

MOST_S = 1e9
"""Thirty years: clocks and threads refuse to wait for longer times."""

MOST_OFFSET = 2**63 - 1
MOST_PARTITION = 2**31 - 1


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
    if names is None:
        return []
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        what = "a string" if isinstance(names, str) else type(names).__name__
        raise TypeError(f"topics must be a list of names, not {what}")
    return [topic_name(name) for name in names]


def group_names(groups: Any) -> list[str]:
    """Return the ids of groups."""
    if isinstance(groups, str | bytes) or not isinstance(groups, Iterable):
        raise TypeError(f"groups must be a list of ids, not {type(groups).__name__}")
    found = list(groups)
    for group in found:
        if not isinstance(group, str):
            raise TypeError(f"a group is named by a str, not {type(group).__name__}")
        is_text(group, "the id of a group")
    return found


def place(where: Any) -> TopicPartition:
    """Return a partition: a TopicPartition, or a tuple of a topic and a number."""
    if not isinstance(where, tuple) or len(where) != 2:
        raise TypeError(f"a partition is a TopicPartition(topic, partition), not {where!r}")
    name, index = where
    return TopicPartition(topic_name(name), partition_number(index))


def places(partitions: Any) -> list[TopicPartition]:
    """Return partitions."""
    if isinstance(partitions, str | bytes) or not isinstance(partitions, Iterable):
        what = type(partitions).__name__
        raise TypeError(f"partitions must be a list of TopicPartition, not {what}")
    return [place(each) for each in partitions]


def by_place(values: Any, what: str) -> dict[TopicPartition, Any]:
    """Return a mapping whose keys are partitions."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{what} must be a dict by TopicPartition, not {type(values).__name__}")
    return {place(where): value for where, value in values.items()}


def partition_number(index: Any) -> int:
    """Return the number of a partition."""
    return _number(index, "a partition", MOST_PARTITION)


def partition_count(count: Any) -> int:
    """Return a number of partitions."""
    return _number(count, "a partition count", MOST_PARTITION)


def offset_number(offset: Any) -> int:
    """Return an offset."""
    return _number(offset, "an offset", MOST_OFFSET)


def timestamp_ms(at: Any) -> int:
    """Return a time in milliseconds since 1970."""
    return _number(at, "a time in ms", MOST_OFFSET)


def _number(value: Any, what: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int, not {value!r}")
    if not 0 <= value <= most:
        raise ConfigurationRefused(f"{what} must be from 0 to {most}, not {value}")
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


def compiled(pattern: str) -> re.Pattern[str]:
    """Return a regular expression of topic names."""
    try:
        return re.compile(pattern)
    except re.error as error:
        said = f"the pattern {pattern!r} is not a regular expression: {error}"
        raise ConfigurationRefused(said) from None


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
