"""Whether a partition takes a client's payload at all, before any byte of it is judged.

Owns these rules, for the fast path of Produce and for its handler. Not the responses: see
`handlers.produce`. Not the batch: see `plain_append`, `storage.log.preparing`.

| rule | refusal |
|---|---|
| this broker leads the partition, and clients may write to its topic | ``NOT_HERE`` |
| with acks=all: the ISR has the minimums of replicas and machines | ``TOO_FEW`` |
| the payload has one batch | ``SEVERAL_BATCHES`` |
"""

from __future__ import annotations

import struct
from enum import Enum, auto
from typing import TYPE_CHECKING

from tidelog.broker.partitions.in_sync import lacks_machines
from tidelog.model.topics import INTERNAL_TOPICS
from tidelog.records.batch import HEADER_SIZE, LENGTH_OVERHEAD, Buffer

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition

ALL_IN_SYNC = -1
"""The value of acks with which the response waits for the ISR."""


class Refusal(Enum):
    """Why a payload is not admitted."""

    NOT_HERE = auto()
    TOO_FEW = auto()
    SEVERAL_BATCHES = auto()


# A member looked up by name is a call in Python 3.11.
NOT_HERE, TOO_FEW, SEVERAL_BATCHES = Refusal

_length_at = struct.Struct(">i").unpack_from


def why_not_admitted(
    partition: HostedPartition | None, topic: str, records: Buffer, acks: int
) -> Refusal | None:
    """Return the first rule that a payload for a partition breaks, or None.

    A damaged payload is admitted: the check of its batch says what is wrong.
    """
    refusal = why_not_open(partition, topic, acks)
    if refusal is not None:
        return refusal
    size = len(records)
    if size > HEADER_SIZE and _length_at(records, 8)[0] < size - LENGTH_OVERHEAD:
        return SEVERAL_BATCHES
    return None


def why_not_open(partition: HostedPartition | None, topic: str, acks: int) -> Refusal | None:
    """Return the first rule that no payload for a partition could keep now, or None."""
    # Also for Kafka's "__admin_client": any client can send that client id.
    if partition is None or not partition.is_leader or topic in INTERNAL_TOPICS:
        return NOT_HERE
    # The rule of ``is_too_small``, without its calls: a request may name many partitions.
    if acks == ALL_IN_SYNC and (
        len(partition.state.isr) < partition.required_in_sync
        or (partition.log.configs.min_insync_machines > 1 and lacks_machines(partition))
    ):
        return TOO_FEW
    return None
