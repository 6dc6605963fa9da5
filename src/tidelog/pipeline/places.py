"""The options that select topics, starting offsets and ending offsets.

Owns the forms of these options (words, JSON, timestamps) and their precedence, which is the stock
source's: timestamp for all, timestamps by partition, offsets. Not the lookup of offsets: see
`planning.resolve`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidelog.pipeline.errors import OptionRefused

EARLIEST = -2  # the special offsets of Kafka's ListOffsets and of the stock source's JSON
LATEST = -1
LARGEST = 2**63 - 1  # of an offset or a timestamp

ByPartition = dict[str, dict[int, int]]


class PlaceKind(Enum):
    """The forms of an option for starting or ending offsets."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"
    TIMESTAMPS = "timestamps"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a read begins or ends. Timestamps are in milliseconds since 1970."""

    kind: PlaceKind
    timestamp_ms: int = 0
    by_partition: ByPartition = field(default_factory=dict)


class SubscriptionKind(Enum):
    """The three options that name topics."""

    TOPICS = "subscribe"
    PATTERN = "subscribePattern"
    ASSIGN = "assign"


@dataclass(frozen=True, slots=True)
class QuerySubscription:
    """Which topics, or which of their partitions, a query reads."""

    kind: SubscriptionKind
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def chooses(self, topic: str, partition: int) -> bool:
        """Whether a partition that exists is read."""
        if self.kind is SubscriptionKind.ASSIGN:
            return partition in self.assigned.get(topic, ())
        if self.kind is SubscriptionKind.PATTERN:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics

    def named_topics(self) -> tuple[str, ...] | None:
        """The topics by name; None when they have to be found by pattern."""
        if self.kind is SubscriptionKind.PATTERN:
            return None
        return self.topics or tuple(sorted(self.assigned))


def parse_subscription(options: Mapping[str, str]) -> QuerySubscription:
    """Exactly one of subscribe, subscribePattern and assign. Raises OptionRefused."""
    given = [kind for kind in SubscriptionKind if kind.value.lower() in options]
    if len(given) != 1:
        raise OptionRefused("exactly one of subscribe, subscribePattern and assign must be given")
    kind = given[0]
    text = options[kind.value.lower()]
    if kind is SubscriptionKind.TOPICS:
        topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not topics:
            raise OptionRefused("option subscribe names no topic")
        return QuerySubscription(kind, topics=topics)
    if kind is SubscriptionKind.PATTERN:
        try:
            re.compile(text)
        except re.error as error:
            raise OptionRefused(
                f"option subscribePattern is not a regular expression: {error}"
            ) from None
        return QuerySubscription(kind, pattern=text)
    return QuerySubscription(kind, assigned=_parse_assign(text))


def _parse_assign(text: str) -> dict[str, tuple[int, ...]]:
    form = 'option assign must be JSON such as {"topic":[0,1]}'
    try:
        parsed = json.loads(text)
    except ValueError:
        raise OptionRefused(form) from None
    if not isinstance(parsed, dict) or not parsed:
        raise OptionRefused(form)
    assigned = {}
    for topic, numbers in parsed.items():
        if not isinstance(numbers, list) or not numbers or not all(map(_is_partition, numbers)):
            raise OptionRefused(form)
        assigned[topic] = tuple(sorted(set(numbers)))
    return assigned


def parse_starting(options: Mapping[str, str], *, is_stream: bool) -> Place:
    """Where the read begins. Raises OptionRefused."""
    if "startingtimestamp" in options:
        return _one_timestamp("startingTimestamp", options)
    if "startingoffsetsbytimestamp" in options:
        return _timestamps("startingOffsetsByTimestamp", options)
    text = options.get("startingoffsets", "latest" if is_stream else "earliest").strip()
    word = text.lower()
    if word == "latest" and not is_stream:
        raise OptionRefused("option startingOffsets cannot be latest in a batch query")
    if word in ("earliest", "latest", "group"):
        if word == "group" and "kafka.group.id" not in options:
            raise OptionRefused("option startingOffsets=group needs kafka.group.id")
        return Place(PlaceKind(word))
    offsets = _by_partition("startingOffsets", text, lowest=EARLIEST)
    if not is_stream and any(LATEST in parts.values() for parts in offsets.values()):
        raise OptionRefused("option startingOffsets cannot hold -1 (latest) in a batch query")
    return Place(PlaceKind.OFFSETS, by_partition=offsets)


def parse_ending(options: Mapping[str, str], *, is_stream: bool) -> Place:
    """Where a batch read ends. Raises OptionRefused: a stream has no end."""
    names = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    given = [name for name in names if name.lower() in options]
    if is_stream and given:
        raise OptionRefused(f"option {given[0]} cannot be set in a streaming query")
    if "endingtimestamp" in options:
        return _one_timestamp("endingTimestamp", options)
    if "endingoffsetsbytimestamp" in options:
        return _timestamps("endingOffsetsByTimestamp", options)
    text = options.get("endingoffsets", "latest").strip()
    if text.lower() == "latest":
        return Place(PlaceKind.LATEST)
    if text.lower() == "earliest":
        raise OptionRefused("option endingOffsets cannot be earliest")
    return Place(
        PlaceKind.OFFSETS, by_partition=_by_partition("endingOffsets", text, lowest=LATEST)
    )


def _one_timestamp(name: str, options: Mapping[str, str]) -> Place:
    text = options[name.lower()].strip()
    if not re.fullmatch(r"\d{1,18}", text):
        raise OptionRefused(f"option {name} is {text!r}; it must be milliseconds since 1970")
    return Place(PlaceKind.TIMESTAMP, timestamp_ms=int(text))


def _timestamps(name: str, options: Mapping[str, str]) -> Place:
    return Place(
        PlaceKind.TIMESTAMPS, by_partition=_by_partition(name, options[name.lower()], lowest=0)
    )


def _by_partition(name: str, text: str, *, lowest: int) -> ByPartition:
    form = f'option {name} must be JSON such as {{"topic":{{"0":23,"1":45}}}}'
    try:
        parsed = json.loads(text)
    except ValueError:
        raise OptionRefused(f"{form}, not {text[:60]!r}") from None
    if not isinstance(parsed, dict) or not parsed:
        raise OptionRefused(form)
    result: ByPartition = {}
    for topic, parts in parsed.items():
        if not isinstance(parts, dict):
            raise OptionRefused(form)
        result[topic] = {}
        for number, value in parts.items():
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not re.fullmatch(r"\d{1,9}", number) or not whole:
                raise OptionRefused(form)
            if not lowest <= value <= LARGEST:
                raise OptionRefused(f"option {name} holds {value} for {topic}-{number}")
            result[topic][int(number)] = value
    return result


def _is_partition(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0
