"""The identity of an idempotent producer: its id and epoch, and the next one.

Owns the step from one identity to the next. Not sequence numbers: see ``send_queue``.
"""

from __future__ import annotations

from tidelog.client.cluster import Cluster
from tidelog.client.errors import Refused
from tidelog.protocol import messages
from tidelog.records.builder import Producer

LAST_EPOCH = 2**15 - 1
"""The highest producer epoch; after it the producer needs a new id."""


async def next_identity(cluster: Cluster, former: Producer | None) -> Producer:
    """Return the identity after ``former``: the next epoch of the same id (KIP-360), or a new id.

    Brokers then refuse delayed requests of the former epoch, so these cannot be appended between
    batches with new sequence numbers. Brokers respond to every InitProducerId with a new id, so it
    is sent only when no further epoch is left. Raises Refused.
    """
    if former is not None and former.epoch < LAST_EPOCH:
        return Producer(former.producer_id, former.epoch + 1)
    asked = messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    timeout_ms = cluster.settings.request_timeout_ms
    # An id that a silent broker has handed out meanwhile is never used.
    answer: messages.InitProducerIdResponse = await cluster.ask_any(
        lambda connection: connection.send(asked, None, timeout_ms)
    )
    if answer.error_code:
        raise Refused(answer.error_code, "a producer id")
    return Producer(answer.producer_id, answer.producer_epoch)
