"""ListPartitionReassignments v0: forwarded to the controller (KIP-455).

- Lists the running moves of some partitions, of topics, or (null) all.
"""

from __future__ import annotations

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import MOST_MOVED, NUMBERS_OF_MOVES, Scope

HANDLER = forwarded(
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    range(1),
    Scope.CLIENT,
    MOST_MOVED,
    NUMBERS_OF_MOVES,
)
