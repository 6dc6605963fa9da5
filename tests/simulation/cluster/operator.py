"""The operator: gives up partitions whose last in-sync replica is damaged.

Owns when that is so, and the unclean election that ``docs/operating/recover.md`` advises then. With
``min.insync.replicas`` of 1 the last copy of what was acknowledged may lie on the one disk that had
bits flipped: the flip may have been long before, and met only now. The partition counts as not
clean after that; no other topic is ever given up.
"""

from __future__ import annotations

from tests.simulation.cluster.audit import Auditor
from tests.simulation.cluster.clients import Administrator
from tests.simulation.cluster.corruption import Corruptions
from tests.simulation.cluster.journal import StateWatch
from tests.simulation.cluster.nodes import Cluster
from tidelog.storage import names

WITH_ONE_COPY = "loose"
"""The topic that acknowledges what one replica has."""


class Operator:
    """Looks after partitions without a leader."""

    def __init__(
        self,
        cluster: Cluster,
        states: StateWatch,
        corruptions: Corruptions,
        audit: Auditor,
        admin: Administrator,
    ) -> None:
        self.given_up = 0
        self._cluster = cluster
        self._states = states
        self._corruptions = corruptions
        self._audit = audit
        self._admin = admin

    async def look(self) -> None:
        """Have another replica lead where the last ones in sync are damaged for good."""
        for place, known in list(self._states.places.items()):
            state = known.state
            if (
                place.topic != WITH_ONE_COPY
                or state.leader >= 0
                or self._states.place(place.topic, place.partition) != place
            ):
                continue
            last = {*state.isr, *state.eligible_replicas}
            if last and all(self._is_out(broker, str(place)) for broker in last):
                self._states.given_up.add(place)
                self.given_up += 1
                await self._admin.elect(place.topic, place.partition, unclean=True)

    def _is_out(self, broker: int, replica: str) -> bool:
        """Whether a broker that runs has named a replica whose log is corrupted still."""
        node = self._cluster.broker(broker)
        is_corrupted = any(
            (flip.host, flip.replica, flip.kind) == (node.host, replica, names.LOG)
            for flip in self._corruptions.standing()
        )
        return node.ready and is_corrupted and self._audit.has_named(node.host, replica)
