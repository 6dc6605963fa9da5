"""What a producer learns of a record that was written: its place, its timestamp and its sizes.

Owns this value and its receiver. Not when it is known: see ``send_queue``.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from tidelog.client.errors import AbortTransaction, ClientError, ProducerEnded
from tidelog.model.topics import TopicPartition

CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""Timestamp types: the producer's own, or the broker's (``message.timestamp.type``)."""


class RecordMetadata(NamedTuple):
    """Where a record is. ``offset`` is -1 when it is unknown (acks=0); sizes are in bytes.

    ``timestamp`` is in ms since 1970. A size is -1 for a key, a value or headers that it lacks.
    """

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int
    timestamp_type: int = CREATE_TIME
    serialized_key_size: int = -1
    serialized_value_size: int = -1
    serialized_header_size: int = -1


class RecordOutcome(Protocol):
    """What receives the outcome of one record; an ``asyncio.Future`` is one."""

    def done(self) -> bool:
        """Whether it has its outcome, or its caller has cancelled it."""

    def set_result(self, result: RecordMetadata, /) -> None:
        """Receive the place of the record, which was written."""

    def set_exception(self, exception: ClientError, /) -> None:
        """Receive why the record was not acknowledged."""


OpenOutcome = tuple[RecordOutcome, int, int, int, int]
"""An outcome that is open: its receiver, the timestamp, the sizes of key, value and headers."""


def fail_outcome(outcome: RecordOutcome, error: ClientError) -> None:
    """Let an outcome fail, unless it is done.

    What fails with its transaction is reported by the call that ends it: the loop need not warn of
    each record whose future no caller awaits.
    """
    if outcome.done():
        return
    outcome.set_exception(error)
    if isinstance(outcome, asyncio.Future) and isinstance(error, AbortTransaction | ProducerEnded):
        outcome.exception()
