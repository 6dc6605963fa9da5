"""Offsets that librdkafka's clients ask the leaders for, though one may just be elected.

Owns the retries. An election is no failure of the product where a broker was killed, or had no
processor for so long that it was suspected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.support.processes import DEADLINE_S, wait_until

LEADER_MOVED = frozenset(
    (
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    )
)
T = TypeVar("T")


def asked_of_leaders(ask: Callable[[], T], what: str) -> T:
    """What `ask` returns, once no election comes between: librdkafka finds the leaders, asks them
    for offsets with the epochs that it has found, and hands out the refusal of a later one."""
    answers: list[T] = []

    def answered() -> bool:
        try:
            answers.append(ask())
        except KafkaException as refused:
            if refused.args[0].code() not in LEADER_MOVED:
                raise
        return bool(answers)

    wait_until(answered, DEADLINE_S, what)
    return answers[0]


def watermarks(consumer: Consumer, part: TopicPartition) -> tuple[int, int]:
    """Where a partition starts and ends, as its leader says."""
    found: tuple[int, int] = asked_of_leaders(
        lambda: consumer.get_watermark_offsets(part, DEADLINE_S), f"the offsets of {part}"
    )
    return found
