"""AlterPartitionReassignments v0: forwarded to the controller (KIP-455).

- Starts, changes or cancels moves of partitions; a response for each partition, and one at the top.
- REQUEST_TIMED_OUT for each, if no controller was active, or answered, in the request's time.
"""

from __future__ import annotations

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import MOST_MOVED, NUMBERS_OF_MOVES, Scope

HANDLER = forwarded(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    range(1),
    Scope.CLIENT,
    MOST_MOVED,
    NUMBERS_OF_MOVES,
)
