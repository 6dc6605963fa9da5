"""Names of topics and partitions: which topic names are valid, which topics are internal, and which
brokers host a partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

MAX_NAME_LENGTH = 249
"""Longest topic name in characters: with "-" and a partition it must still be a file name."""

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
METADATA_TOPIC = "__cluster_metadata"
"""The name of the controllers' own log in Kafka (KIP-500): no client may create a topic of this
name."""

_Topic = TypeVar("_Topic")
_Part = TypeVar("_Part")

_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class TopicPartition(NamedTuple):
    """One partition of one topic, by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Return partitions grouped by topic, in the order given: the form that requests have."""
    found: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        found.setdefault(partition.topic, []).append(partition)
    return found


def topics_field(
    partitions: Iterable[TopicPartition],
    topic: Callable[[str, list[_Part]], _Topic],
    part: Callable[[TopicPartition], _Part],
) -> list[_Topic]:
    """Return the form in which requests name partitions: one ``topic(name, [part(partition),
    ...])`` for each topic."""
    return [
        topic(name, [part(each) for each in some]) for name, some in by_topic(partitions).items()
    ]


def hosts_of(replicas: Sequence[int], targets: Sequence[int] | None) -> tuple[int, ...]:
    """Return the brokers that host a partition: its replicas, and the targets of its reassignment.

    Commands, stops and inventories go by hosts, clients' metadata by replicas (KIP-455).
    """
    return tuple(dict.fromkeys((*replicas, *(targets or ()))))


def with_joined(
    replicas: Sequence[int], targets: Sequence[int] | None, isr: Iterable[int]
) -> tuple[int, ...]:
    """Return the replicas when the ISR has changed: targets that join it join them, at the end.

    The controller writes both at once (KIP-455); a leader infers it from the response to its
    proposal, for a LeaderAndIsr of the same ISR version brings it no change.
    """
    new = (member for member in isr if targets and member in targets and member not in replicas)
    return (*replicas, *new)


def why_invalid(name: str) -> str | None:
    """Return one clause that says why ``name`` is no topic name, or None for a valid one."""
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return "it is '.' or '..'"
    if len(name) > MAX_NAME_LENGTH:
        return f"it is longer than {MAX_NAME_LENGTH} characters"
    if not _LEGAL.issuperset(name):
        return "it has a character other than ASCII letters, digits, '.', '_' and '-'"
    return None


def metric_name(name: str) -> str:
    """Return the form in which two topics collide in metric names ('.' and '_' are one)."""
    return name.replace(".", "_")
