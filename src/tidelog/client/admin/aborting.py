"""The abort of one transaction that is open in a partition, as an operator asks for it (KIP-664).

Owns the choice between its coordinator and a marker of the operator's, and the marker. Not what is
open: see ``transactions``. A marker alone would leave a coordinator in the belief that its
transaction goes on, and the other partitions open. And it would abort a part of what is committed.

| what the coordinators say of the producer id | the abort |
|---|---|
| Ongoing, of this epoch, with this partition | its coordinator fences the id, and aborts all |
| PrepareCommit, PrepareAbort, with this partition | is refused: its marker is on its way |
| CompleteCommit, of this epoch | is refused: what is open may be a part of it |
| anything else | the leader of the partition gets a marker |
| nothing, and all coordinators have answered | the leader of the partition gets a marker |
| nothing, and some have not answered | is refused |
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto

from tidelog.client.admin.transactions import ONGOING, ActiveProducer, TransactionDescription
from tidelog.client.cluster import Cluster
from tidelog.client.errors import error_code
from tidelog.client.leaders import ask_leaders
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

COMMITTED = "CompleteCommit"
PREPARED = frozenset({"PrepareCommit", "PrepareAbort"})
"""States of transactions that ``aborted_by`` distinguishes, as coordinators name them."""


class Aborts(Enum):
    """What an abort does, by the table above."""

    FENCES = auto()
    ENDS_SOON = auto()
    MAY_BE_COMMITTED = auto()
    WRITES_A_MARKER = auto()
    IN_DOUBT = auto()


def aborted_by(
    place: TopicPartition,
    producer: ActiveProducer,
    described: Collection[TransactionDescription],
    *,
    all_answered: bool,
) -> tuple[Aborts, TransactionDescription | None]:
    """Return what ends the transaction of a producer, and what its coordinator says of it."""
    of_it = [one for one in described if one.producer_id == producer.producer_id]
    if not of_it:
        return (Aborts.WRITES_A_MARKER if all_answered else Aborts.IN_DOUBT), None
    for one in of_it:
        is_of_epoch = one.producer_epoch == producer.producer_epoch
        if one.state == ONGOING and is_of_epoch and place in one.partitions:
            return Aborts.FENCES, one
        if one.state in PREPARED and place in one.partitions:
            return Aborts.ENDS_SOON, one
        if one.state == COMMITTED and is_of_epoch:
            return Aborts.MAY_BE_COMMITTED, one
    return Aborts.WRITES_A_MARKER, of_it[0]


async def write_abort(
    cluster: Cluster, place: TopicPartition, producer: ActiveProducer, coordinator_epoch: int
) -> None:
    """Let the leader of a partition write the marker that aborts. Raises Refused."""
    request = messages.WriteTxnMarkersRequest
    topic = request.WritableTxnMarkerTopic(place.topic, [place.partition])
    marker = request.WritableTxnMarker(
        producer.producer_id, producer.producer_epoch, False, [topic], coordinator_epoch
    )

    async def ask(
        node_id: int, _group: list[TopicPartition]
    ) -> dict[TopicPartition, bool | ErrorCode]:
        answer: messages.WriteTxnMarkersResponse = await cluster.send(node_id, request([marker]))
        (part,) = answer.markers[0].topics[0].partitions
        return {place: error_code(part.error_code) if part.error_code else True}

    await ask_leaders(cluster, [place], ask)
