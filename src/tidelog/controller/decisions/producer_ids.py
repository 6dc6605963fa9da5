"""Blocks of producer ids: the cluster allocates each block once.

Owns the arithmetic; Kafka's ``/latest_producer_id_block`` has the newest block.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision, Put, RequestRefusal
from tidelog.metadata import layout
from tidelog.metadata.records import ProducerIdBlock
from tidelog.model.errors import ErrorCode

BLOCK_SIZE = 1000
"""Ids per block, as Kafka's ``PRODUCER_ID_BLOCK_SIZE``."""

MAX_PRODUCER_ID = 2**63 - 1

IDS_PER_EPOCH = 1_000_000_000
"""More than the controllers of one epoch allocate."""


@dataclass(frozen=True, slots=True)
class Block:
    """``size`` producer ids from ``first`` on."""

    first: int
    size: int


def next_block(cluster: ClusterState, broker: int) -> Decision[Block | RequestRefusal]:
    """Decide AllocateProducerIds for a broker."""
    if layout.PRODUCER_IDS in cluster.damaged:
        return Decision(
            RequestRefusal(
                ErrorCode.UNKNOWN_SERVER_ERROR, str(cluster.damaged[layout.PRODUCER_IDS])
            )
        )
    if cluster.went_back is not None:
        # The next block of an older store may have been allocated already.
        return Decision(RequestRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, cluster.went_back))
    last = cluster.producer_ids
    first = _first(cluster) if last is None else int(last.block_end) + 1
    if first + BLOCK_SIZE - 1 > MAX_PRODUCER_ID:
        sentence = "All producer ids have been handed out."
        return Decision(RequestRefusal(ErrorCode.UNKNOWN_SERVER_ERROR, sentence))
    node = ProducerIdBlock(broker, str(first), str(first + BLOCK_SIZE - 1))
    return Decision(Block(first, BLOCK_SIZE), (Put(layout.PRODUCER_IDS, node),))


def _first(cluster: ClusterState) -> int:
    """Return where the ids begin in a store without a block: at 0 in a new cluster alone.

    A node that is missing does not prove that no id was allocated. A producer that got the id of a
    living one would have its records taken for copies of the other's.
    """
    return 0 if cluster.controller_epoch <= 1 else cluster.controller_epoch * IDS_PER_EPOCH
