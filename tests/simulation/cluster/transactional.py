"""What the transactional clients of a run share: places, history, ways into the cluster.

Owns the settings and the connections to coordinators. Not the producers: see
``transactional_writer``; not the readers: see ``transactional_readers``.
"""

from __future__ import annotations

import asyncio
import random

from tests.simulation.cluster.clients import CONNECT_MS, ClusterTarget, Outside, target
from tests.simulation.kernel import World
from tests.simulation.transaction_history import TransactionHistory
from tidelog.client.connecting.connection import ClientConnection, connect
from tidelog.client.errors import ConnectionLost
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tidelog.protocol import messages

TOPIC = "ledger"
PARTITIONS = 3
IDS = ("alice", "bob", "carol")

OF_GROUP, OF_ID = 0, 1
"""Key types of FindCoordinator."""

LONGEST_TIMEOUT_MS = 8_000
TIMEOUTS_MS = (2_000, 4_000, LONGEST_TIMEOUT_MS)
"""Time-outs of transactions; the longest is ``transaction.max.timeout.ms``."""


def group_of(transactional_id: str) -> str:
    """Return the group whose position a producer commits in its transactions."""
    return f"of-{transactional_id}"


class Transactional:
    """The clients' common ground."""

    def __init__(self, world: World, outside: Outside) -> None:
        self.world = world
        self.outside = outside
        self.history = TransactionHistory()
        self.places = [target(outside, TOPIC, index) for index in range(PARTITIONS)]
        self.counts: dict[str, int] = {}
        """What happened how often."""

    @property
    def now(self) -> float:
        return self.world.loop.time()

    @property
    def watched(self) -> list[ClusterTarget]:
        """All partitions whose last stable offset transactions move, as the store has them."""
        states = self.outside.states
        return [
            target(self.outside, name, index)
            for name in (TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
            if name in states.topics
            for index in sorted(states.topics[name].partitions)
        ]

    def random(self, name: str) -> random.Random:
        """Return a source of randomness of its own."""
        return self.world.random(f"transactional/{name}")

    def count(self, what: str) -> None:
        """Note that something happened."""
        self.counts[what] = self.counts.get(what, 0) + 1

    async def coordinator(self, key_type: int, key: str) -> ClientConnection:
        """Connect to the coordinator of a group or a transactional id. Raises ClientError."""
        request = messages.FindCoordinatorRequest(
            key=key, key_type=key_type, coordinator_keys=[key]
        )
        answer = await self.outside.ask_anyone(request)
        found = answer.coordinators[0]
        if found.error_code:
            self.count(f"FindCoordinator {ErrorCode(found.error_code).name}")
            raise ConnectionLost(ErrorCode(found.error_code).name)
        return await connect(found.host, found.port, connect_timeout_ms=CONNECT_MS)

    async def pause(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)
